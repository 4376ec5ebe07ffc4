"""The recurrent encoder-decoder with the attention of Luong et al. 2015, whose equation numbers stand below.

Axes: B sentences, R rows (B · width, those of a sentence side by side), S source length, T target length,
E width of a token's vector, D width of a state, N layers, H heads (always 1), L vocabulary.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.attention import masks
from qkv.attention.attend import Attend
from qkv.attention.call import Call
from qkv.attention.dropout import Dropout
from qkv.attention.masks.values import Block, Mask, cut
from qkv.attention.memory import Memory
from qkv.attention.normalize import softmax
from qkv.attention.scores import SCORES, General
from qkv.blocks.embed import Embedding
from qkv.config import config
from qkv.errors import QkvError, choose
from qkv.models.interface import Generator, State


@config
class LuongConfig:
    """The sizes and choices of a recurrent encoder-decoder."""

    kind: Literal["luong"] = "luong"
    """Which model this configures."""
    source_vocabulary: NonNegativeInt = 0
    """Tokens that the encoder knows; 0: as many as the data turn out to have."""
    target_vocabulary: NonNegativeInt = 0
    """Tokens that the decoder knows; 0: as many as the data turn out to have."""
    width: PositiveInt = 256
    """Width of a state, of the encoder (both directions together) as of the decoder."""
    embedding: PositiveInt | None = None
    """Width of a token's vector; none: the width of a state."""
    encoder_layers: PositiveInt = 2
    """Layers of the encoder."""
    decoder_layers: PositiveInt = 2
    """Layers of the decoder."""
    cell: Literal["lstm", "gru"] = "lstm"
    """The recurrent unit."""
    bidirectional: bool = True
    """Whether half of the encoder reads from the end."""
    attention: Literal["global", "local-m", "local-p", "none"] = "global"
    """Where a word looks: everywhere, around its own position, around a predicted one, or nowhere (plain seq2seq)."""
    score: str = "general"
    """How states are compared with the source: dot, general, concat, location, gaussian, cosine."""
    beta: float = 1.0
    """Scale of the scores: 0 gives each step the plain average of the source, inf the best match alone."""
    window: PositiveInt = 10
    """Source tokens that local attention sees on either side of its centre."""
    input_feeding: bool = False
    """Whether a step reads what the one before it decided; training then runs word by word, and slower."""
    self_attention: bool = False
    """Whether the decoder also looks back at its own earlier states."""
    tied: Literal["all", "target", "none"] = "all"
    """One table for both embeddings and the output (needs a joint vocabulary), for the target's two, or for none."""
    length: PositiveInt = 512
    """Longest source that the location score knows; the other scores know no limit."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of embeddings, of states between layers and of the decoder's output dropped in training."""

    def __post_init__(self) -> None:
        choose("score", self.score, SCORES)
        if self.bidirectional and self.width % 2:
            raise QkvError(
                f"width is {self.width}; each direction of the encoder has half of it: make it even"
            )
        if self.tied != "none" and self.token_width != self.width:
            raise QkvError(
                f"tied is {self.tied!r}, but a token has width {self.token_width} and a state {self.width}: "
                "leave embedding out, or use tied='none'"
            )
        if self.tied == "all" and self.source_vocabulary != self.target_vocabulary:
            raise QkvError(
                f"tied is 'all', but source and target have {self.source_vocabulary} and {self.target_vocabulary} tokens: "
                "use one joint vocabulary, or tied='target'"
            )
        if not self.beta > -math.inf:  # NaN compares as False
            raise QkvError(
                f"beta is {self.beta}; a number is wanted: 0 for the plain average, 1 as in the paper, inf for hard attention"
            )
        if self.beta == math.inf and self.attention == "local-p":
            raise QkvError(
                "beta is inf with attention local-p, which weighs around its centre: choose global or local-m"
            )
        if self.input_feeding and not self.looks:
            raise QkvError(
                "input_feeding is true, but without attention there is nothing to feed that the state does not know: "
                "switch it off, or choose an attention"
            )

    @property
    def token_width(self) -> int:
        """E, the width of a token's vector."""
        return self.embedding or self.width

    @property
    def looks(self) -> int:
        """How many attentions a step has: to the source, to its own past."""
        return (self.attention != "none") + self.self_attention


PRESETS: dict[str, dict[str, object]] = {
    "tiny": {"width": 128, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.3},
    "small": {"width": 256, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.3},
    "base": {"width": 512, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.3},
    # Luong et al. 2015, section 4.1 and the best model of table 1
    "luong": {
        "width": 1000,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "bidirectional": False,
        "attention": "local-p",
        "score": "general",
        "input_feeding": True,
        "tied": "none",
        "dropout": 0.2,
    },
    # Sutskever et al. 2014, section 3.4; they also reversed the source
    "seq2seq": {
        "width": 1000,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "bidirectional": False,
        "attention": "none",
        "tied": "none",
        "dropout": 0.0,
    },
}


@dataclass(frozen=True, kw_only=True)
class PeakedCall(Call):
    """A call whose weights are multiplied after the softmax, and may sum to less than 1."""

    peak_BHTS: Tensor

    @classmethod
    def around(cls, call: Call, peak_BHTS: Tensor) -> "PeakedCall":
        """The call with weights softmax(scores) · peak."""

        def normalize(scores_BHTS: Tensor) -> Tensor:
            return softmax(scores_BHTS) * peak_BHTS.to(scores_BHTS.dtype)

        return cls(**{**vars(call), "normalize": normalize, "peak_BHTS": peak_BHTS})

    def heads(self, batch: slice, heads: slice) -> "PeakedCall":
        return self.around(super().heads(batch, heads), self.peak_BHTS[batch])  # one peak for all heads

    def rows(self, start: int, stop: int) -> tuple["PeakedCall", Block]:
        part, block = super().rows(start, stop)
        return self.around(part, cut(self.peak_BHTS, block.rows, block.keys)), block


class PeakedAttend(Attend):
    """`Attend` that adds its bias to the logarithm of the weights instead of to the scores.

    A softmax would scale the weights up again to a sum of 1; here they stay small far from the centre (eq. 10).
    """

    def call(
        self,
        q_BHTK: Tensor,
        k_BGSK: Tensor,
        v_BGSV: Tensor,
        *,
        allow: Mask | Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Call:
        call = super().call(q_BHTK, k_BGSK, v_BGSV, allow=allow)
        return call if bias is None else PeakedCall.around(call, bias.exp())


class SourceAttention(nn.Module):
    """The context vector of each decoder state: global (section 3.1) or local (section 3.2) attention."""

    def __init__(self, config: LuongConfig):
        super().__init__()
        self.kind, self.window = config.attention, config.window
        score = SCORES[config.score].sized(width=config.width, heads=1, length=config.length)
        # The scores of the paper are not divided by sqrt(D), so that β is 1.
        self.attend = (PeakedAttend if self.kind == "local-p" else Attend)(score=score, beta=config.beta)
        if self.kind == "local-p":
            self.place = nn.Sequential(
                nn.Linear(config.width, config.width, bias=False),
                nn.Tanh(),
                nn.Linear(config.width, 1, bias=False),
            )

    def forward(self, h_RTD: Tensor, source: Memory, keep_BS: Tensor, start: int) -> Tensor:
        """Contexts c_RTD of the states at target positions start ... start + T - 1 (eq. 7, 8 and the mean after)."""
        (B, S), (_, T, D) = keep_BS.shape, h_RTD.shape
        # The rows of a sentence are so many more queries to its one memory, which autocast may leave in fp32.
        h_B1TD = h_RTD.reshape(B, 1, -1, D).to(source.keys.dtype)
        allow, bias = masks.padding(keep_BS), None
        if self.kind != "global":
            own_T = torch.arange(start, start + T, device=h_RTD.device).repeat(h_B1TD.shape[2] // T)
            centre_BT1 = own_T[:, None] if self.kind == "local-m" else self._predict(h_B1TD[:, 0], keep_BS)
            away_BTS = torch.arange(S, device=h_RTD.device) - centre_BT1
            away_B1TS = away_BTS.expand(B, -1, -1)[:, None]
            allow = allow & (away_B1TS.abs() <= self.window)
            if self.kind == "local-p":
                bias = -2 * (away_B1TS / self.window).square()  # -(s - p)² / 2σ² with σ = window / 2
        c_B1TD = self.attend(h_B1TD, source.keys, source.values, allow=allow, bias=bias)
        return c_B1TD.view_as(h_RTD)

    def _predict(self, h_BTD: Tensor, keep_BS: Tensor) -> Tensor:
        """The centre p = S · sigmoid(vᵀ tanh(W h)), with the true length of the source for S (eq. 9); p_BT1."""
        logit_BT1 = self.place(h_BTD)
        # At least fp32: bf16 cannot tell the places of a long sentence apart.
        share_BT1 = torch.sigmoid(logit_BT1.to(torch.promote_types(logit_BT1.dtype, torch.float32)))
        return keep_BS.sum(-1)[:, None, None] * share_BT1


@dataclass
class LuongState(State):
    """The recurrent states of R rows, and the encoder's states for B sentences."""

    source: Memory
    keep_BS: Tensor
    recurrent: tuple[Tensor, ...]
    """h_NRD of each layer, and for an LSTM also its c_NRD."""
    fed_R1D: Tensor | None = None
    """With input feeding, the last attentional vector."""
    own: Memory | None = None
    """With self-attention, the decoder's states so far."""
    length: int = 0
    """Tokens read so far."""
    width: int = 1
    consumed: bool = False

    def pick(self, rows_R: Tensor, width: int = 1) -> "LuongState":
        self.expect_fresh()
        sentences_B = rows_R[::width] // self.width
        everyone = torch.arange(len(self.keep_BS), device=rows_R.device)
        # Beams reorder within sentences: the sources stay where they are.
        same = torch.equal(sentences_B, everyone)
        return LuongState(
            source=self.source if same else self.source.pick(sentences_B),
            keep_BS=self.keep_BS if same else self.keep_BS[sentences_B],
            recurrent=tuple(part_NRD.index_select(1, rows_R) for part_NRD in self.recurrent),
            fed_R1D=None if self.fed_R1D is None else self.fed_R1D[rows_R],
            own=None if self.own is None else self.own.pick(rows_R),
            length=self.length,
            width=width,
        )

    def expect_fresh(self) -> None:
        """Refuse a state from which a step has gone on: what it would answer is not promised."""
        if self.consumed:
            raise QkvError(
                f"this state of {self.length} tokens was consumed by step: use the state that step returned, "
                "or pick rows from it before stepping to keep a copy"
            )


class Luong(Generator):
    """An encoder and a decoder of recurrent layers, and what each word looks at before it is chosen."""

    source_attention = "attention"

    def __init__(self, config: LuongConfig):
        super().__init__()
        self.config = c = config
        self.target_embedding = Embedding(c.target_vocabulary, c.token_width)
        self.source_embedding = (
            self.target_embedding if c.tied == "all" else Embedding(c.source_vocabulary, c.token_width)
        )
        cell = {"lstm": nn.LSTM, "gru": nn.GRU}[c.cell]
        # The directions share the width, so that states, keys and the decoder's first state need no bridge.
        self.encoder = cell(
            c.token_width,
            c.width // (1 + c.bidirectional),
            c.encoder_layers,
            dropout=c.dropout if c.encoder_layers > 1 else 0.0,
            bidirectional=c.bidirectional,
            batch_first=True,
        )
        self.decoder = cell(
            c.token_width + c.width * c.input_feeding,
            c.width,
            c.decoder_layers,
            dropout=c.dropout if c.decoder_layers > 1 else 0.0,
            batch_first=True,
        )
        self.attention = SourceAttention(c) if c.attention != "none" else None
        self.self_attention = Attend(score=General(c.width), beta=1.0) if c.self_attention else None
        self.merge = nn.Linear(c.width * (1 + c.looks), c.width, bias=False) if c.looks else None
        self.output = nn.Linear(c.width, c.target_vocabulary, bias=False) if c.tied == "none" else None
        self.dropout = Dropout(c.dropout)

    def encode(self, source_BS: Tensor, keep_BS: Tensor) -> LuongState:
        # An empty sentence is read as one vector of zeros, which nothing attends to.
        x_BSE = self.dropout(self.source_embedding(source_BS)) * keep_BS[..., None]
        lengths_B = _lengths(keep_BS).clamp(min=1).cpu()
        # Packed, each direction starts and ends at real tokens.
        packed = pack_padded_sequence(x_BSE, lengths_B, batch_first=True, enforce_sorted=False)
        packed, last = _run(self.encoder, packed)
        h_BSD, _ = pad_packed_sequence(packed, batch_first=True, total_length=source_BS.shape[1])
        h_B1SD = h_BSD[:, None]
        return LuongState(Memory(h_B1SD, h_B1SD), keep_BS, tuple(map(self._first, last)))

    def step(self, tokens_RT: Tensor, state: State) -> tuple[Tensor, LuongState]:
        assert isinstance(state, LuongState)
        state.expect_fresh()
        # Before any token there is nothing to overwrite: one encoding starts any number of translations.
        state.consumed = state.length > 0
        x_RTD, state = self._decode(tokens_RT, state)
        return self.logits(x_RTD[:, -1]), state

    def forward(self, source_BS: Tensor, keep_BS: Tensor, target_BT: Tensor) -> Tensor:
        return self._decode(target_BT, self.encode(source_BS, keep_BS))[0]

    @property
    def output_table(self) -> Tensor:
        """W of eq. 6."""
        return self.target_embedding.table if self.output is None else self.output.weight

    def _first(self, last_MBX: Tensor) -> Tensor:
        """The decoder's first state from the encoder's last (M = N or 2 · N of them, both directions side by side).

        The layers are paired from the top; a deeper decoder starts its lower layers like its lowest pair.
        """
        c = self.config
        last_NBD = last_MBX.unflatten(0, (c.encoder_layers, -1)).transpose(1, 2).flatten(2)
        above = c.encoder_layers - c.decoder_layers
        return last_NBD[[max(0, layer + above) for layer in range(c.decoder_layers)]]

    def _decode(self, tokens_RT: Tensor, state: LuongState) -> tuple[Tensor, LuongState]:
        """Read T tokens after those in the state; return their attentional vectors h~_RTD and the new state."""
        x_RTE = self.dropout(self.target_embedding(tokens_RT))
        if not self.config.input_feeding:
            return self._read(x_RTE, state)
        outputs: list[Tensor] = []
        fed_R1D = state.fed_R1D
        if fed_R1D is None:
            fed_R1D = x_RTE.new_zeros(len(x_RTE), 1, self.config.width)
        for x_R1E in x_RTE.split(1, dim=1):
            fed_R1D, state = self._read(torch.cat([x_R1E, fed_R1D], dim=-1), state)  # section 3.3
            outputs.append(fed_R1D)
        return torch.cat(outputs, dim=1), replace(state, fed_R1D=fed_R1D)

    def _read(self, x_RTX: Tensor, state: LuongState) -> tuple[Tensor, LuongState]:
        """Run the recurrent layers over T inputs, then look around from all their states at once."""
        h_RTD, recurrent = _run(self.decoder, x_RTX, state.recurrent)
        own, T = state.own, h_RTD.shape[1]
        parts: list[Tensor] = []
        if self.attention is not None:
            parts.append(self.attention(h_RTD, state.source, state.keep_BS, state.length))
        if self.self_attention is not None:
            h_R1TD = h_RTD[:, None]
            own = own.append(h_R1TD, h_R1TD) if own else Memory(h_R1TD, h_R1TD)
            # Strictly its past: nothing for the first state (Paulus et al. 2018, eq. 6 to 8).
            past = masks.causal(offset=state.length - 1)
            parts.append(self.self_attention(h_R1TD, own.keys, own.values, allow=past)[:, 0])
        if self.merge is not None:
            h_RTD = torch.tanh(self.merge(torch.cat([*parts, h_RTD], dim=-1)))  # eq. 5
        state = replace(state, recurrent=recurrent, own=own, length=state.length + T, consumed=False)
        return self.dropout(h_RTD), state


def _run(
    cells: nn.LSTM | nn.GRU, x: Any, first: tuple[Tensor, ...] | None = None
) -> tuple[Any, tuple[Tensor, ...]]:
    """Run recurrent layers from their first states to their last, a tuple for LSTM and GRU alike."""
    given = first if first is None or len(first) == 2 else first[0]
    outputs, last = cells(x, given)
    return outputs, last if isinstance(last, tuple) else (last,)


def _lengths(keep_BS: Tensor) -> Tensor:
    """How many real tokens each sentence has, if they all come first; lengths_B."""
    if bool((keep_BS[:, 1:] & ~keep_BS[:, :-1]).any()):
        raise QkvError(
            "keep has padding before a real token; a recurrent encoder wants all padding at the end"
        )
    return keep_BS.sum(-1)
