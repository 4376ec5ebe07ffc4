"""Batches of pictures, each a function of (seed, epoch, index) alone, the random changes included.

Axes: B pictures, C channels, Y and X height and width in pixels.
"""

from dataclasses import dataclass

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from qkv.config import config
from qkv.data import draws
from qkv.data.augment import AugmentConfig, augmented, mixing
from qkv.data.images import Images, ImagesConfig
from qkv.errors import QkvError


@config
class ImageBatchesConfig:
    """How pictures become batches."""

    size: PositiveInt = 128
    """Pictures of a batch at the most; those of an epoch differ by one picture."""


@dataclass(frozen=True)
class ImageBatch:
    """Pictures as a model reads them; where two are mixed, the class of both and the first one's share."""

    image_BCYX: Tensor
    label_B: Tensor
    other_B: Tensor
    share_B: Tensor
    rows: np.ndarray
    """Which pictures these are."""


class ImageBatches:
    """The epochs of a set of pictures: `batches.epoch(3)[17]` is the same batch wherever and whenever it is asked for."""

    def __init__(
        self,
        images: Images,
        config: ImageBatchesConfig,
        augment: AugmentConfig,
        scale: "Scale",
        seed: int = 0,
    ):
        self.images, self.config, self.augment, self.scale, self.seed = images, config, augment, scale, seed

    def epoch(self, number: int) -> "ImageEpoch":
        """The batches of an epoch, in their order."""
        bits = draws.source(self.seed, number)
        rows = np.argsort(bits.random_raw(len(self.images)), kind="stable")
        return ImageEpoch(self, number, np.array_split(rows, -(-len(rows) // self.config.size)))


class ImageEpoch:
    """The batches of one epoch, made when they are asked for."""

    def __init__(self, batches: ImageBatches, number: int, rows: list[np.ndarray]):
        self._batches, self._number, self._rows = batches, number, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> ImageBatch:
        b, rows = self._batches, self._rows[index]
        bits = draws.source(b.seed, self._number, index + 1)  # 0 would draw what the order was drawn from
        image_BCYX = b.scale(augmented(b.images.pixels_NCYX[rows], b.augment, bits))
        label_B = torch.from_numpy(b.images.labels_N[rows])
        if not b.augment.mixup:
            return ImageBatch(image_BCYX, label_B, label_B, torch.ones(len(rows)), rows)
        share_B = mixing(len(rows), b.augment.mixup, bits)
        image_BCYX = torch.lerp(image_BCYX.roll(1, 0), image_BCYX, share_B[:, None, None, None])
        return ImageBatch(image_BCYX, label_B, label_B.roll(1), share_B, rows)


class Scale:
    """From 0 … 255 to about 0 in the mean and 1 in deviation, channel by channel."""

    def __init__(self, config: ImagesConfig):
        assert config.mean is not None
        assert config.deviation is not None
        if not len(config.mean) == len(config.deviation) == config.channels:
            raise QkvError(
                f"images.mean has {len(config.mean)} numbers, images.deviation {len(config.deviation)}, and the pictures "
                f"{config.channels} channels: give one of each a channel, or none"
            )
        mean_C, deviation_C = torch.tensor(config.mean), torch.tensor(config.deviation)
        # One product and one sum; fp32, as the pictures are.
        self._factor = (1 / (255 * deviation_C))[:, None, None]
        self._start = (-mean_C / deviation_C)[:, None, None]

    def __call__(self, image_BCYX: Tensor | np.ndarray) -> Tensor:
        if isinstance(image_BCYX, np.ndarray):
            image_BCYX = torch.from_numpy(image_BCYX).float()
        return torch.addcmul(self._start, image_BCYX, self._factor)


def measured(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, which goes from 0 to 1; of a channel that is all one value, 1."""
    counts = [np.bincount(channel.ravel(), minlength=256) for channel in images.pixels_NCYX.swapaxes(0, 1)]
    values = np.arange(256) / 255
    means = [float(count @ values / count.sum()) for count in counts]
    spreads = [
        float(np.sqrt(count @ (values - mean) ** 2 / count.sum()))
        for count, mean in zip(counts, means, strict=True)
    ]
    return tuple(means), tuple(spread or 1.0 for spread in spreads)
