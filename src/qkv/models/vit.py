"""The Vision Transformer (ViT: Dosovitskiy et al. 2021): an encoder reads a picture as a row of patches.

Axes: B pictures, C channels, Y and X height and width in pixels, T patches (row by row) and a class token if there is
one, D width, R rows and C columns of patches, L classes.
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from qkv.attention.dropout import Dropout
from qkv.attention.heads import AttentionConfig
from qkv.attention.positions import POSITIONS, Grid, Learned, interpolated
from qkv.blocks.feedforward import FeedForwardConfig
from qkv.blocks.layer import Layer, LayerConfig, Layers
from qkv.blocks.norm import norm
from qkv.blocks.patch import PatchEmbedding
from qkv.blocks.pool import POOLS
from qkv.config import config, one_of
from qkv.errors import QkvError, choose
from qkv.models.interface import ImageClassifier

Share = Annotated[float, Field(ge=0, lt=1)]
_EPSILON = 1e-6  # of the norms, as in the authors' code


@config
class ViTConfig:
    """The sizes and choices of a Vision Transformer."""

    kind: Literal["vit"] = "vit"
    """Which model this configures."""
    classes: NonNegativeInt = 0
    """Classes to choose from; 0: as many as the data turn out to have."""
    channels: NonNegativeInt = 0
    """Channels of a picture, 1 for grey and 3 for colours; 0: as the pictures turn out to have."""
    size: tuple[NonNegativeInt, NonNegativeInt] = (0, 0)
    """Height and width of a picture in pixels; 0: as the pictures turn out to have."""
    patch: PositiveInt = 4
    """Height and width of a patch; it divides those of the picture."""
    width: PositiveInt = 192
    """Width of a patch's vector."""
    hidden: PositiveInt = 768
    """Width inside the feed-forward blocks."""
    heads: PositiveInt = 3
    """Heads of each attention."""
    layers: PositiveInt = 6
    """Layers of the encoder."""
    activation: Literal["relu", "gelu", "swiglu"] = "gelu"
    """The non-linearity of the feed-forward blocks."""
    norm: Literal["layer", "rms"] = "layer"
    """Kind of norm."""
    order: Literal["pre", "post"] = "pre"
    """Norm before each branch (as in ViT) or after each sum (as in the first Transformer)."""
    positions: Annotated[str, one_of(POSITIONS)] = "learned"
    """Where patches stand: none, sinusoidal, learned, grid, rotary, alibi, relative; grid is learned, too, and kept
    in two dimensions."""
    pool: Annotated[str, one_of(POOLS)] = "average"
    """How patches become one vector: class (a token that stands for all), average, attention (a learned probe)."""
    dropout: Share = 0.0
    """Share of embeddings and of branch outputs dropped in training."""
    attention_dropout: Share = 0.0
    """Share of attention weights dropped in training."""
    hidden_dropout: Share = 0.0
    """Share of hidden values in the feed-forward blocks dropped in training."""
    depth_drop: Share = 0.0
    """Chance that a picture skips a branch of the last layer in training; towards the first it falls in equal parts."""

    def __post_init__(self) -> None:
        choose("position", self.positions, POSITIONS)
        choose("pool", self.pool, POOLS)
        if any(side % self.patch for side in self.size):
            raise QkvError(
                f"pictures of {self.size[0]} x {self.size[1]} pixels do not divide into patches of {self.patch}: "
                "set another model.patch, or images.size to multiples of it"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.size[0] // self.patch, self.size[1] // self.patch

    @property
    def attention(self) -> AttentionConfig:
        """Every attention between patches."""
        return AttentionConfig(width=self.width, heads=self.heads, dropout=self.attention_dropout)


PRESETS: dict[str, dict[str, object]] = {
    # Pictures of 8 x 8, such as the embedded digits: a quarter of a million parameters.
    "digits": {"patch": 2, "width": 96, "hidden": 192, "heads": 3, "layers": 3},
    # At most 0.8 million parameters, for pictures of about 32 x 32.
    "tiny": {"patch": 4, "width": 128, "hidden": 240, "heads": 4, "layers": 6},
    "small": {"patch": 4, "width": 192, "hidden": 768, "heads": 3, "layers": 6},
    # Dosovitskiy et al. 2021, table 1, for pictures of 224 x 224
    "base": {"patch": 16, "width": 768, "hidden": 3072, "heads": 12, "layers": 12, "pool": "class"},
}


class ViT(ImageClassifier):
    """Patches, positions, layers, a norm, a pool and an output; equations 1 to 4 where the pool is a class token."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config, self.size = config, config.size
        c, (rows, columns) = config, config.grid
        self.patches = PatchEmbedding(c.channels, c.patch, c.width)
        self.positions = POSITIONS[c.positions].sized(
            width=c.width,
            heads=c.heads,
            key_width=c.attention.query_head_width,
            length=rows * columns,
            grid=(rows, columns),
        )
        self.pool = POOLS[c.pool].sized(width=c.width, heads=c.heads, hidden=c.hidden)
        self.dropout = Dropout(c.dropout)
        self.encoder = Layers(Layer(self._layer(number)) for number in range(1, c.layers + 1))
        # In pre-norm order the stream itself is never normalised: one more norm at its end.
        self.norm = norm(c.norm, c.width, _EPSILON) if c.order == "pre" else nn.Identity()
        self.output = nn.Linear(c.width, c.classes)
        nn.init.normal_(self.output.weight, std=0.02)
        nn.init.zeros_(self.output.bias)

    def encode(self, image_BCYX: Tensor) -> Tensor:
        """(B,C,Y,X) of any height and width that the patch divides -> (B,T,D)."""
        grid = self.patches.grid(*image_BCYX.shape[2:])
        x_BTD = self._placed(self.patches(image_BCYX.to(self.output.weight.dtype)), grid)
        x_BTD = self.dropout(self.pool.prepend(x_BTD)[0])
        for layer in self.encoder:
            x_BTD = layer(x_BTD, positions=self.positions)
        return self.norm(x_BTD)

    def forward(self, image_BCYX: Tensor) -> Tensor:
        return self.output(self.pool(self.encode(image_BCYX)))

    def _placed(self, x_BTD: Tensor, grid: tuple[int, int]) -> Tensor:
        """Positions added; learned ones are interpolated for a picture of another size (their section 3.2).

        A class token has none: what it learns is its token and its position in one.
        """
        if grid == self.config.grid or not isinstance(self.positions, (Learned, Grid)):
            return self.positions.embed(x_BTD)
        table_RCD = self.positions.table.view(*self.config.grid, -1)
        return x_BTD + interpolated(table_RCD, *grid).flatten(0, 1).to(x_BTD.dtype)

    def _layer(self, number: int) -> LayerConfig:
        c = self.config
        feedforward = FeedForwardConfig(
            width=c.width, hidden=c.hidden, activation=c.activation, dropout=c.hidden_dropout
        )
        return LayerConfig(
            attention=c.attention,
            feedforward=feedforward,
            norm=c.norm,
            epsilon=_EPSILON,
            order=c.order,
            dropout=c.dropout,
            depth_drop=c.depth_drop * number / c.layers,  # Huang et al. 2016, equation 4
        )
