"""The convolutional network of Kim 2014 for sentences: n-grams that are looked for anywhere, and no attention.

Axes: B texts, T tokens, E width of a token's vector, F features of one kind of n-gram, D features of all, C labels.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.attention.dropout import Dropout
from qkv.blocks.embed import Embedding
from qkv.blocks.pool import GlobalMax
from qkv.config import config
from qkv.errors import QkvError
from qkv.models.interface import TextClassifier

Share = Annotated[float, Field(ge=0, lt=1)]


@config
class TextCnnConfig:
    """The sizes and choices of the network."""

    kind: Literal["textcnn"] = "textcnn"
    """Which model this configures."""
    vocabulary: NonNegativeInt = 0
    """Tokens that it knows; 0: as many as the data turn out to have."""
    labels: NonNegativeInt = 0
    """Labels that it knows; 0: as many as the data turn out to have."""
    width: PositiveInt = 300
    """Width of a token's vector."""
    windows: tuple[PositiveInt, ...] = (3, 4, 5)
    """Tokens of each kind of n-gram."""
    features: PositiveInt = 100
    """Features of each kind."""
    embedding_dropout: Share = 0.0
    """Share of the tokens' vectors dropped in training."""
    output_dropout: Share = 0.5
    """Share of the features dropped in training."""

    def __post_init__(self) -> None:
        if not self.windows:
            raise QkvError("windows is empty: name the length of at least one kind of n-gram, e.g. 3")


# Kim 2014, section 3.1
PRESETS: dict[str, dict[str, object]] = {
    "tiny": {"width": 50, "features": 20},
    "kim": {"width": 300, "features": 100, "output_dropout": 0.5},
}


class TextCnn(TextClassifier):
    """Convolutions over the tokens, the greatest value of each feature, and a score for each label."""

    def __init__(self, config: TextCnnConfig):
        super().__init__()
        self.config = c = config
        self.embedding = Embedding(c.vocabulary, c.width, scale=False)
        self.convolutions = nn.ModuleList(nn.Conv1d(c.width, c.features, window) for window in c.windows)
        self.pool = GlobalMax()
        self.embedding_dropout, self.dropout = Dropout(c.embedding_dropout), Dropout(c.output_dropout)
        self.output = nn.Linear(c.features * len(c.windows), c.labels)

    def read(self, token_BT: Tensor, keep_BT: Tensor, segment_BT: Tensor | None = None) -> Tensor:
        """max(0, w · x + b) for the n-gram around each token (equation 2), x_BTD; beyond the text there are zeros."""
        if segment_BT is not None:
            raise QkvError("the model tells no segments apart: leave them out, or choose model.kind=bert")
        x_BTE = self.embedding_dropout(self.embedding(token_BT)) * keep_BT.unsqueeze(-1)
        x_BET = x_BTE.transpose(1, 2)
        found = []
        for window, convolution in zip(self.config.windows, self.convolutions, strict=True):
            around_BET = F.pad(x_BET, ((window - 1) // 2, window // 2))
            found.append(F.relu(convolution(around_BET)))
        return torch.cat(found, dim=1).transpose(1, 2)

    def pooled(self, x_BTD: Tensor, keep_BT: Tensor) -> Tensor:
        """The greatest value of each feature (max over time); zeros for an empty text."""
        return self.pool(x_BTD, keep_BT)

    def forward(self, token_BT: Tensor, keep_BT: Tensor, segment_BT: Tensor | None = None) -> Tensor:
        return self.output(self.dropout(self.pooled(self.read(token_BT, keep_BT, segment_BT), keep_BT)))
