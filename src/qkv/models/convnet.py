"""A small residual network (ResNet: He et al. 2016): what a Vision Transformer is compared with.

Axes: B pictures, C channels, Y and X height and width, T places of the last map (row by row), D width, L classes.
"""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks.pool import GlobalAverage
from qkv.config import config
from qkv.errors import QkvError
from qkv.models.interface import ImageClassifier


@config
class ConvNetConfig:
    """The sizes of a residual network."""

    kind: Literal["convnet"] = "convnet"
    """Which model this configures."""
    classes: NonNegativeInt = 0
    """Classes to choose from; 0: as many as the data turn out to have."""
    channels: NonNegativeInt = 0
    """Channels of a picture, 1 for grey and 3 for colours; 0: as the pictures turn out to have."""
    size: tuple[NonNegativeInt, NonNegativeInt] = (0, 0)
    """Height and width of a picture in pixels; 0: as the pictures turn out to have."""
    width: PositiveInt = 32
    """Channels of the first stage; each further one has twice as many, on half the height and width."""
    blocks: tuple[PositiveInt, ...] = (2, 2, 2)
    """Residual blocks of each stage."""
    groups: PositiveInt = 4
    """Groups of channels that are normalised together; it divides the width."""

    def __post_init__(self) -> None:
        if not self.blocks:
            raise QkvError(
                "blocks is empty; the residual blocks of one stage or more are wanted, e.g. [2, 2, 2]"
            )
        if self.width % self.groups:
            raise QkvError(f"groups={self.groups} does not divide width={self.width}: choose a divisor")


# Each learns and costs about as much as the Vision Transformer's preset of the same name.
PRESETS: dict[str, dict[str, object]] = {
    "digits": {"width": 24, "blocks": (3, 2, 1)},
    "tiny": {"width": 24, "blocks": (1, 3, 1, 1)},
    "small": {"width": 36, "blocks": (2, 1, 4, 1)},
}


class ConvNet(ImageClassifier):
    """A convolution, stages of residual blocks, the average over all places and an output.

    Groups of channels are normalised (Wu and He 2018), and not a batch as in the paper: a picture then counts by itself
    alone, in training as afterwards, and on a CPU it takes a fifth of the time.
    """

    def __init__(self, config: ConvNetConfig):
        super().__init__()
        self.config, self.size = config, config.size
        self.stem = nn.Conv2d(config.channels, config.width, 3, padding=1, bias=False)
        self.stem_norm = nn.GroupNorm(config.groups, config.width)
        stages: list[nn.Module] = []
        width = config.width
        for stage, count in enumerate(config.blocks):
            for number in range(count):
                wider = 2 * width if stage and not number else width
                stages.append(Block(width, wider, config.groups))
                width = wider
        self.stages = nn.Sequential(*stages)
        self.pool = GlobalAverage()
        self.output = nn.Linear(width, config.classes)

    def encode(self, image_BCYX: Tensor) -> Tensor:
        x_BCYX = F.relu(self.stem_norm(self.stem(image_BCYX.to(self.output.weight.dtype))))
        return self.stages(x_BCYX).flatten(2).mT

    def forward(self, image_BCYX: Tensor) -> Tensor:
        return self.output(self.pool(self.encode(image_BCYX)))


class Block(nn.Module):
    """relu(x + f(x)) with two convolutions in f (their figure 2); one that widens also halves height and width."""

    def __init__(self, narrow: int, wide: int, groups: int):
        super().__init__()
        stride = 1 if narrow == wide else 2
        self.first = nn.Conv2d(narrow, wide, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(groups, wide)
        self.second = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(groups, wide)
        nn.init.zeros_(self.second_norm.weight)  # at first the block is its shortcut (Goyal et al. 2017, 5.1)
        self.shortcut = nn.Conv2d(narrow, wide, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """(B,C,Y,X) -> as many channels as it has, on the same or half the height and width."""
        h_BCYX = F.relu(self.first_norm(self.first(x_BCYX)))
        return F.relu(self.shortcut(x_BCYX) + self.second_norm(self.second(h_BCYX)))
