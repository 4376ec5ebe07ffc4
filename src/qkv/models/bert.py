"""BERT (Devlin et al. 2019): an encoder that reads a text both ways, and its heads for labels and for masked words.

Axes: B texts, T tokens, N masked positions, D width, L vocabulary, C labels.

Every choice in which BERT differs from a Transformer of today stands in the config, so that published weights fit.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.attention import masks
from qkv.attention.dropout import Dropout
from qkv.attention.heads import AttentionConfig
from qkv.attention.positions import POSITIONS
from qkv.blocks.embed import Embedding
from qkv.blocks.feedforward import FeedForwardConfig
from qkv.blocks.layer import Layer, LayerConfig, Layers
from qkv.blocks.norm import norm
from qkv.blocks.pool import TEXT_POOLS
from qkv.config import config
from qkv.errors import QkvError, choose
from qkv.models.interface import TextClassifier, TextReader

Share = Annotated[float, Field(ge=0, lt=1)]


@config
class BertConfig:
    """The sizes and choices of the encoder."""

    kind: Literal["bert"] = "bert"
    """Which model this configures."""
    vocabulary: NonNegativeInt = 0
    """Tokens that it knows; 0: as many as the data turn out to have."""
    width: PositiveInt = 256
    """Width of a token's vector."""
    hidden: PositiveInt = 1024
    """Width inside the feed-forward blocks."""
    heads: PositiveInt = 4
    """Heads of each attention."""
    layers: PositiveInt = 4
    """Layers of the encoder."""
    activation: Literal["relu", "gelu", "swiglu"] = "gelu"
    """The non-linearity of the feed-forward blocks."""
    norm: Literal["layer", "rms"] = "layer"
    """Kind of norm."""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-12
    """Added under each norm's square root."""
    order: Literal["pre", "post"] = "post"
    """Norm before each branch (steadier to train) or after each sum (the original)."""
    embedding_norm: bool = True
    """Whether what the first layer reads is normalised."""
    positions: str = "learned"
    """Where tokens stand: none, sinusoidal, learned, rotary, alibi, relative."""
    length: PositiveInt = 512
    """Longest text that learned positions know; the other kinds know no limit."""
    segments: NonNegativeInt = 2
    """Parts of a text that can be told apart; 0: none."""
    dropout: Share = 0.1
    """Share of embeddings and of branch outputs dropped in training."""
    attention_dropout: Share = 0.1
    """Share of attention weights dropped in training."""
    hidden_dropout: Share = 0.0
    """Share of hidden values in the feed-forward blocks dropped in training."""

    def __post_init__(self) -> None:
        choose("position", self.positions, POSITIONS)
        if self.positions == "grid":
            raise QkvError(
                "positions is 'grid', which is for pictures: choose learned, sinusoidal or rotary for text"
            )

    @property
    def attention(self) -> AttentionConfig:
        """Every attention of the model."""
        return AttentionConfig(width=self.width, heads=self.heads, dropout=self.attention_dropout)

    @property
    def layer(self) -> LayerConfig:
        """Every layer of the model."""
        feedforward = FeedForwardConfig(
            width=self.width, hidden=self.hidden, activation=self.activation, dropout=self.hidden_dropout
        )
        return LayerConfig(
            attention=self.attention,
            feedforward=feedforward,
            norm=self.norm,
            epsilon=self.epsilon,
            order=self.order,
            dropout=self.dropout,
        )


@config
class BertClassifierConfig(BertConfig):
    """The encoder, and how its vectors become labels."""

    labels: NonNegativeInt = 0
    """Labels that it knows; 0: as many as the data turn out to have."""
    pool: Literal["class", "average", "max", "attention"] = "class"
    """How the tokens become one vector: the first one's, the mean, the greatest values, or a learned probe's attention
    (MAP)."""
    pooler: bool = True
    """Whether a layer with tanh follows the pool, as in BERT."""
    output_dropout: Share = 0.1
    """Share of the pooled vector dropped in training."""


# Turc et al. 2019, table 1, and Wang et al. 2020 (MiniLM with 6 layers)
PRESETS: dict[str, dict[str, object]] = {
    "tiny": {"width": 128, "hidden": 512, "heads": 2, "layers": 2},
    "mini": {"width": 256, "hidden": 1024, "heads": 4, "layers": 4},
    "small": {"width": 512, "hidden": 2048, "heads": 8, "layers": 4},
    "minilm": {"width": 384, "hidden": 1536, "heads": 12, "layers": 6},
    "base": {"width": 768, "hidden": 3072, "heads": 12, "layers": 12},
}


class Bert(TextReader):
    """The encoder alone."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = c = config
        self.embedding = Embedding(c.vocabulary, c.width, scale=False)
        self.positions = POSITIONS[c.positions].sized(
            width=c.width, heads=c.heads, key_width=c.attention.query_head_width, length=c.length
        )
        self.segments = Embedding(c.segments, c.width, scale=False) if c.segments else None
        self.embedding_norm = norm(c.norm, c.width, c.epsilon) if c.embedding_norm else nn.Identity()
        self.dropout = Dropout(c.dropout)
        self.encoder = Layers(Layer(c.layer) for _ in range(c.layers))
        # In pre-norm order the stream itself is never normalised: one more norm at its end.
        self.encoder_norm = norm(c.norm, c.width, c.epsilon) if c.order == "pre" else nn.Identity()
        for table in (self.embedding, self.segments):
            if table is not None:  # as positions: the norm after their sum sees to the scale
                nn.init.normal_(table.table, std=0.02)

    def read(self, token_BT: Tensor, keep_BT: Tensor, segment_BT: Tensor | None = None) -> Tensor:
        x_BTD = self.embedding(token_BT)
        if self.segments is not None:
            x_BTD = x_BTD + self.segments(torch.zeros_like(token_BT) if segment_BT is None else segment_BT)
        elif segment_BT is not None:
            raise QkvError("the model tells no segments apart: leave them out, or set model.segments=2")
        x_BTD = self.dropout(self.embedding_norm(self.positions.embed(x_BTD)))
        allow = masks.padding(keep_BT)
        for layer in self.encoder:
            x_BTD = layer(x_BTD, allow=allow, positions=self.positions)
        return self.encoder_norm(x_BTD)

    forward = read


class BertClassifier(TextClassifier):
    """The encoder, a pool and one score for each label."""

    def __init__(self, config: BertClassifierConfig):
        super().__init__()
        self.config = c = config
        self.bert = Bert(c)
        self.pool = TEXT_POOLS[c.pool].sized(width=c.width, heads=c.heads, hidden=c.hidden)
        self.pooler = nn.Linear(c.width, c.width) if c.pooler else None
        self.dropout = Dropout(c.output_dropout)
        self.output = nn.Linear(c.width, c.labels)

    def read(self, token_BT: Tensor, keep_BT: Tensor, segment_BT: Tensor | None = None) -> Tensor:
        return self.bert.read(token_BT, keep_BT, segment_BT)

    def pooled(self, x_BTD: Tensor, keep_BT: Tensor) -> Tensor:
        x_BD = self.pool(x_BTD, keep_BT)
        return x_BD if self.pooler is None else torch.tanh(self.pooler(x_BD))

    def forward(self, token_BT: Tensor, keep_BT: Tensor, segment_BT: Tensor | None = None) -> Tensor:
        x_BD = self.pooled(self.read(token_BT, keep_BT, segment_BT), keep_BT)
        return self.output(self.dropout(x_BD))


class BertMasked(TextReader):
    """The encoder and, for each position that is asked about, a score for each token that may stand there."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = c = config
        self.bert = Bert(c)
        self.transform = nn.Linear(c.width, c.width)
        self.transform_norm = norm(c.norm, c.width, c.epsilon)
        self.bias = nn.Parameter(torch.zeros(c.vocabulary))

    def read(self, token_BT: Tensor, keep_BT: Tensor, segment_BT: Tensor | None = None) -> Tensor:
        return self.bert.read(token_BT, keep_BT, segment_BT)

    def forward(
        self, token_BT: Tensor, keep_BT: Tensor, asked_BT: Tensor, segment_BT: Tensor | None = None
    ) -> Tensor:
        """Scores of each token at the positions where asked is True, row by row: logits_NL."""
        x_ND = self.read(token_BT, keep_BT, segment_BT)[asked_BT]
        x_ND = self.transform_norm(F.gelu(self.transform(x_ND)))
        # The embedding's table is the output's, too, rounded as what it is compared with.
        return F.linear(x_ND, self.bert.embedding.table.to(x_ND.dtype), self.bias.to(x_ND.dtype))
