"""A language model: a Transformer's decoder without a source, which goes on with a text (Radford et al. 2019).

Axes: B texts, R rows (B · width, those of a text side by side), S source length (0), T tokens, D width, L vocabulary.

Its parts by GPT-2's names: `embedding.table` wte, `positions.table` wpe, and of `layers.N` (h.N) `own_norm` ln_1, `own`
attn (query, key, value: c_attn in this order; out: c_proj), `feedforward_norm` ln_2, `feedforward` mlp (up: c_fc; down:
c_proj); `norm` ln_f, `output` lm_head where it is not tied.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from qkv.attention import masks
from qkv.attention.dropout import Dropout
from qkv.attention.heads import AttentionConfig
from qkv.attention.memory import Memory
from qkv.attention.positions import POSITIONS, Position
from qkv.blocks.embed import Embedding
from qkv.blocks.feedforward import FeedForwardConfig
from qkv.blocks.layer import Layer, LayerConfig, Layers
from qkv.blocks.norm import norm
from qkv.config import config
from qkv.errors import QkvError, choose
from qkv.models.interface import Generator, State

Share = Annotated[float, Field(ge=0, lt=1)]


@config
class LanguageModelConfig:
    """The sizes and choices of a decoder-only Transformer."""

    kind: Literal["lm"] = "lm"
    """Which model this configures."""
    vocabulary: NonNegativeInt = 0
    """Tokens that it knows; 0: as many as the data turn out to have."""
    length: PositiveInt = 256
    """Tokens of a window in training and evaluation, and how far back a token looks in a longer text. Learned positions
    know no place beyond."""
    width: PositiveInt = 256
    """Width of a token's vector."""
    hidden: PositiveInt = 1024
    """Width inside the feed-forward blocks."""
    heads: PositiveInt = 4
    """Heads of each attention."""
    groups: PositiveInt | None = None
    """Heads of keys and values (1: multi-query); none: as many as heads."""
    layers: PositiveInt = 6
    """Layers."""
    activation: Literal["relu", "gelu", "gelu_tanh", "swiglu"] = "gelu"
    """The non-linearity of the feed-forward blocks."""
    norm: Literal["layer", "rms"] = "layer"
    """Kind of norm."""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-5
    """Added under the norms' square root."""
    order: Literal["pre", "post"] = "pre"
    """Norm before each branch (steadier to train) or after each sum (the original)."""
    positions: str = "rotary"
    """Where tokens stand: none, sinusoidal, learned, rotary, alibi, relative."""
    qk_norm: bool = False
    """Whether queries and keys are RMS-normalised in each head."""
    bias: bool = True
    """Whether linear maps add a bias; norms have theirs."""
    tied: bool = True
    """Whether embedding and output are one table."""
    scale: bool = True
    """Whether embeddings are multiplied by √width; in GPT-2 they are not."""
    dropout: Share = 0.1
    """Share of embeddings and of branch outputs dropped in training."""
    attention_dropout: Share = 0.0
    """Share of attention weights dropped in training."""
    hidden_dropout: Share = 0.0
    """Share of hidden values in the feed-forward blocks dropped in training."""

    def __post_init__(self) -> None:
        choose("position", self.positions, POSITIONS)
        if self.positions == "grid":
            raise QkvError(
                "positions is 'grid', which is for pictures: choose rotary, learned or sinusoidal for text"
            )

    @property
    def attention(self) -> AttentionConfig:
        """Every attention of the model."""
        return AttentionConfig(
            width=self.width,
            heads=self.heads,
            groups=self.groups,
            bias=self.bias,
            qk_norm=self.qk_norm,
            dropout=self.attention_dropout,
        )

    @property
    def layer(self) -> LayerConfig:
        """Every layer of the model."""
        feedforward = FeedForwardConfig(
            width=self.width,
            hidden=self.hidden,
            activation=self.activation,
            dropout=self.hidden_dropout,
            bias=self.bias,
        )
        return LayerConfig(
            attention=self.attention,
            feedforward=feedforward,
            norm=self.norm,
            epsilon=self.epsilon,
            order=self.order,
            dropout=self.dropout,
        )


PRESETS: dict[str, dict[str, object]] = {
    "tiny": {"length": 64, "width": 128, "hidden": 512, "heads": 4, "layers": 4, "dropout": 0.1},
    "small": {"length": 256, "width": 256, "hidden": 1024, "heads": 4, "layers": 6, "dropout": 0.1},
    "base": {"length": 512, "width": 512, "hidden": 2048, "heads": 8, "layers": 8, "dropout": 0.1},
    # Radford et al. 2019, the smallest of table 2; computes what its published weights do
    "gpt2": {
        "length": 1024,
        "width": 768,
        "hidden": 3072,
        "heads": 12,
        "layers": 12,
        "activation": "gelu_tanh",
        "positions": "learned",
        "scale": False,
        "dropout": 0.1,
        "attention_dropout": 0.1,
    },
}


@dataclass
class LanguageModelState(State):
    """Each layer's keys and values for R rows."""

    tokens_RT: Tensor
    """Those in view, where the view moves."""
    own: list[Memory] | None = None
    first: int = 0
    """Place in the text of the first token in view."""
    length: int = 0
    """Tokens read so far, in view or not."""
    consumed: bool = False

    def pick(self, rows_R: Tensor, width: int = 1) -> "LanguageModelState":
        self.expect_fresh()
        return LanguageModelState(
            tokens_RT=self.tokens_RT[rows_R],
            own=None if self.own is None else [memory.pick(rows_R) for memory in self.own],
            first=self.first,
            length=self.length,
        )

    def expect_fresh(self) -> None:
        """Refuse a state from which a step has gone on: what it would answer is not promised."""
        if self.consumed:
            raise QkvError(
                f"this state of {self.length} tokens was consumed by step: use the state that step returned, "
                "or pick rows from it before stepping to keep a copy"
            )


class LanguageModel(Generator):
    """Layers of masked self-attention between an embedding and an output that may share their table.

    A text may grow beyond `length`, though nothing was learnt of that. Positions that enter attention (rotary, alibi,
    relative, none) know distances alone: a token then looks at the last `length` tokens, itself among them, and so on
    without end. Positions that are added to embeddings (learned, sinusoidal) know places: there the view moves on by half
    of `length`, and what stays in view is read anew from the first place. So what a model says after n tokens is the
    same however they came in, and rests on `length / 2` of them or more.
    """

    reads_source = False
    source_attention = "no source"

    def __init__(self, config: LanguageModelConfig):
        super().__init__()
        self.config = c = config
        self.embedding = Embedding(c.vocabulary, c.width, scale=c.scale)
        self.positions = POSITIONS[c.positions].sized(
            width=c.width,
            heads=c.heads,
            key_width=c.attention.query_head_width,
            length=c.length,
            causal=True,
        )
        self.moves = type(self.positions).embed is not Position.embed
        """Whether the view moves, as positions are places."""
        self.layers = Layers(Layer(c.layer) for _ in range(c.layers))
        # In pre-norm order the stream itself is never normalised: one more norm at its end.
        self.norm = norm(c.norm, c.width, c.epsilon) if c.order == "pre" else nn.Identity()
        self.output = None if c.tied else nn.Linear(c.width, c.vocabulary, bias=False)
        self.dropout = Dropout(c.dropout)

    def encode(self, source_BS: Tensor, keep_BS: Tensor) -> LanguageModelState:
        if source_BS.shape[1]:
            raise QkvError(
                f"the source has shape {tuple(source_BS.shape)}, but a language model reads none: "
                f"give one without tokens, no_source({len(source_BS)}), and the text as first tokens"
            )
        return LanguageModelState(tokens_RT=source_BS)

    def step(self, tokens_RT: Tensor, state: State) -> tuple[Tensor, LanguageModelState]:
        assert isinstance(state, LanguageModelState)
        state.expect_fresh()
        # Before any token there is nothing to overwrite: one encoding starts any number of texts.
        state.consumed = state.length > 0
        length = state.length + tokens_RT.shape[1]
        first, own, held_RT = self.view(length), state.own, state.tokens_RT
        if self.moves:
            held_RT = torch.cat([held_RT, tokens_RT], dim=1)[:, first - state.first :]
            if first > state.first:
                own, tokens_RT = None, held_RT
        x_RTD, own = self._read(tokens_RT, own)
        state = LanguageModelState(held_RT, own, first, length)
        return self.logits(x_RTD[:, -1]), state

    def forward(self, source_BS: Tensor, keep_BS: Tensor, target_BT: Tensor) -> Tensor:
        return self._read(target_BT, self.encode(source_BS, keep_BS).own)[0]

    @property
    def output_table(self) -> Tensor:
        return self.embedding.table if self.output is None else self.output.weight

    def view(self, length: int) -> int:
        """Which of so many tokens is the first in view; the very first where the view does not move."""
        over = length - self.config.length
        if over <= 0 or not self.moves:
            return 0
        hop = max(1, self.config.length // 2)
        return -(-over // hop) * hop

    def _read(self, tokens_RT: Tensor, own: list[Memory] | None) -> tuple[Tensor, list[Memory]]:
        """Read T tokens after those remembered; return their hidden states x_RTD and what is remembered now."""
        before = own[0].length if own else 0
        x_RTD = self.dropout(self.positions.embed(self.embedding(tokens_RT), offset=before))
        allow, memories = masks.causal(), []
        if before + tokens_RT.shape[1] > self.config.length:
            allow = allow & masks.window(self.config.length - 1)
        for number, layer in enumerate(self.layers):
            past = own[number] if own else None
            x_RTD, memory = layer.step(x_RTD, past, None, allow=allow, positions=self.positions)
            memories.append(memory)
        return self.norm(x_RTD), memories
