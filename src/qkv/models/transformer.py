"""The Transformer of Vaswani et al. 2017: an encoder reads a sentence, a decoder writes another.

Axes: B sentences, R rows (B · width, those of a sentence side by side), S source length, T target length,
D width, L vocabulary.
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
from qkv.models.packed import PackedState, goes_on, packed

Share = Annotated[float, Field(ge=0, lt=1)]


@config
class TransformerConfig:
    """The sizes and choices of an encoder-decoder Transformer."""

    kind: Literal["transformer"] = "transformer"
    """Which model this configures."""
    source_vocabulary: NonNegativeInt = 0
    """Tokens that the encoder knows; 0: as many as the data turn out to have."""
    target_vocabulary: NonNegativeInt = 0
    """Tokens that the decoder knows; 0: as many as the data turn out to have."""
    width: PositiveInt = 256
    """Width of a token's vector."""
    hidden: PositiveInt = 1024
    """Width inside the feed-forward blocks."""
    heads: PositiveInt = 4
    """Heads of each attention."""
    groups: PositiveInt | None = None
    """Heads of keys and values (1: multi-query); none: as many as heads."""
    encoder_layers: Annotated[int, Field(ge=0)] = 6
    """Layers of the encoder."""
    decoder_layers: PositiveInt = 6
    """Layers of the decoder."""
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    """The non-linearity of the feed-forward blocks."""
    norm: Literal["layer", "rms"] = "layer"
    """Kind of norm."""
    order: Literal["pre", "post"] = "pre"
    """Norm before each branch (steadier to train) or after each sum (the original)."""
    positions: str = "sinusoidal"
    """Where tokens stand: none, sinusoidal, learned, rotary, alibi, relative."""
    length: PositiveInt = 512
    """Longest sentence that learned positions know; the other kinds know no limit."""
    tied: Literal["all", "target", "none"] = "all"
    """One table for both embeddings and the output (needs a joint vocabulary), for the target's two, or for none."""
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
                "positions is 'grid', which is for pictures: choose sinusoidal, learned or rotary for text"
            )
        if self.tied == "all" and self.source_vocabulary != self.target_vocabulary:
            raise QkvError(
                f"tied is 'all', but source and target have {self.source_vocabulary} and {self.target_vocabulary} tokens: "
                "use one joint vocabulary, or tied='target'"
            )

    @property
    def attention(self) -> AttentionConfig:
        """Every attention of the model."""
        return AttentionConfig(
            width=self.width, heads=self.heads, groups=self.groups, dropout=self.attention_dropout
        )


PRESETS: dict[str, dict[str, object]] = {
    # Wu et al. 2021, for data as small as Multi30k
    "tiny": {
        "width": 128,
        "hidden": 256,
        "heads": 4,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "dropout": 0.3,
    },
    "small": {
        "width": 256,
        "hidden": 1024,
        "heads": 4,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "dropout": 0.3,
    },
    # Vaswani et al. 2017, table 3
    "base": {
        "width": 512,
        "hidden": 2048,
        "heads": 8,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "dropout": 0.1,
    },
    "big": {
        "width": 1024,
        "hidden": 4096,
        "heads": 16,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "dropout": 0.3,
    },
}


@dataclass
class TransformerState(State):
    """Each decoder layer's own keys and values for R rows, and those of the source for B sentences."""

    cross: list[Memory]
    keep_BS: Tensor
    own: list[Memory] | None = None
    width: int = 1

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return self.own[0].length if self.own else 0

    def pick(self, rows_R: Tensor, width: int = 1) -> "TransformerState":
        sentences_B = rows_R[::width] // self.width
        everyone = torch.arange(len(self.keep_BS), device=rows_R.device)
        same = torch.equal(
            sentences_B, everyone
        )  # beams reorder within sentences: the sources stay where they are
        return TransformerState(
            cross=self.cross if same else [memory.pick(sentences_B) for memory in self.cross],
            keep_BS=self.keep_BS if same else self.keep_BS[sentences_B],
            own=None if self.own is None else [memory.pick(rows_R) for memory in self.own],
            width=width,
        )


class Transformer(Generator):
    """Encoder and decoder layers between two embeddings and an output that may share their table."""

    source_attention = "decoder.*.cross"

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.target_embedding = Embedding(config.target_vocabulary, config.width)
        self.source_embedding = (
            self.target_embedding
            if config.tied == "all"
            else Embedding(config.source_vocabulary, config.width)
        )
        self.output = (
            nn.Linear(config.width, config.target_vocabulary, bias=False) if config.tied == "none" else None
        )
        self.source_positions, self.target_positions = self._positions(), self._positions(causal=True)
        self.encoder = Layers(Layer(self._layer(cross=False)) for _ in range(config.encoder_layers))
        self.decoder = Layers(Layer(self._layer(cross=True)) for _ in range(config.decoder_layers))
        # In pre-norm order the stream itself is never normalised: one more norm at each end (Xiong et al. 2020).
        ends = [norm(config.norm, config.width) if config.order == "pre" else nn.Identity() for _ in range(2)]
        self.encoder_norm, self.decoder_norm = ends
        self.dropout = Dropout(config.dropout)

    def encode(self, source_BS: Tensor, keep_BS: Tensor) -> State:
        fast = packed(self, source_BS) if type(self) is Transformer else None
        return self._encode(source_BS, keep_BS) if fast is None else fast.encode(source_BS, keep_BS)

    def step(self, tokens_RT: Tensor, state: State) -> tuple[Tensor, State]:
        if isinstance(state, PackedState):
            if goes_on(state):
                return state.packed.step(tokens_RT, state)
            state = self._unpacked(state)
        assert isinstance(state, TransformerState)
        x_RTD, state = self._decode(tokens_RT, state)
        return self.logits(x_RTD[:, -1]), state

    def forward(self, source_BS: Tensor, keep_BS: Tensor, target_BT: Tensor) -> Tensor:
        return self._decode(target_BT, self._encode(source_BS, keep_BS))[0]

    @property
    def output_table(self) -> Tensor:
        return self.target_embedding.table if self.output is None else self.output.weight

    def _encode(self, source_BS: Tensor, keep_BS: Tensor) -> TransformerState:
        x_BSD = self._embed(self.source_embedding, self.source_positions, source_BS)
        for layer in self.encoder:
            x_BSD = layer(x_BSD, allow=masks.padding(keep_BS), positions=self.source_positions)
        x_BSD = self.encoder_norm(x_BSD)
        return TransformerState(cross=[layer.remember(x_BSD) for layer in self.decoder], keep_BS=keep_BS)

    def _unpacked(self, state: PackedState) -> TransformerState:
        """The same state for the readable path."""
        state.expect_unconsumed()
        x_BSD, keep_BS = state.x_BSD[state.here_B], state.keep_BS[state.here_B]
        own = None if state.own is None else [Memory(keys, values) for keys, values in state.own.of_rows()]
        state.consumed = own is not None
        return TransformerState([layer.remember(x_BSD) for layer in self.decoder], keep_BS, own, state.width)

    def _decode(self, tokens_RT: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """Read T tokens after those in the state; return their hidden states x_RTD and the new state."""
        x_RTD = self._embed(self.target_embedding, self.target_positions, tokens_RT, offset=state.length)
        own: list[Memory] = []
        for number, layer in enumerate(self.decoder):
            x_RTD, memory = layer.step(
                x_RTD,
                state.own[number] if state.own else None,
                state.cross[number],
                allow=masks.causal(),
                cross_allow=masks.padding(state.keep_BS),
                positions=self.target_positions,
            )
            own.append(memory)
        return self.decoder_norm(x_RTD), TransformerState(state.cross, state.keep_BS, own, state.width)

    def _embed(self, table: Embedding, positions: Position, tokens_BT: Tensor, offset: int = 0) -> Tensor:
        return self.dropout(positions.embed(table(tokens_BT), offset))

    def _positions(self, causal: bool = False) -> Position:
        c = self.config
        return POSITIONS[c.positions].sized(
            width=c.width,
            heads=c.heads,
            key_width=c.attention.query_head_width,
            length=c.length,
            causal=causal,
        )

    def _layer(self, cross: bool) -> LayerConfig:
        c = self.config
        feedforward = FeedForwardConfig(
            width=c.width, hidden=c.hidden, activation=c.activation, dropout=c.hidden_dropout
        )
        return LayerConfig(
            attention=c.attention,
            feedforward=feedforward,
            norm=c.norm,
            order=c.order,
            cross=cross,
            dropout=c.dropout,
        )
