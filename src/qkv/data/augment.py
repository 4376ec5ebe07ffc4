"""Pictures changed at random, a whole batch at a time: shifted, mirrored, turned, recoloured, mixed.

Axes: B pictures, C channels, Y and X height and width in pixels; pixels go from 0 to 255 throughout.

All draws come from one source of raw 64-bit numbers, so that what happens to a batch is decided by what decided that.
"""

import math
from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor
from torch.nn import functional as F

from qkv.config import config
from qkv.data.draws import uniform
from qkv.errors import choose

Strength = Annotated[float, Field(ge=0, le=1)]


@config
class AugmentConfig:
    """What happens to training pictures; without any of it they come as they are."""

    shift: NonNegativeInt = 0
    """Pixels by which a picture is moved at the most, up or down and left or right; what comes in is mirrored."""
    flip: bool = False
    """Whether half of them are mirrored, left for right; not for digits, nor for text."""
    changes: NonNegativeInt = 0
    """How many of `kinds` happen to a picture, one after the other (RandAugment: Cubuk et al. 2020)."""
    strength: Strength = 0.5
    """How much of each at the most; it is drawn from nothing up to this."""
    kinds: tuple[str, ...] = ()
    """Which changes there are to draw from; none named: all of them."""
    mixup: Strength = 0.0
    """Mix two pictures and their classes (Zhang et al. 2018), by shares from Beta(mixup, mixup); 0: never."""

    def __post_init__(self) -> None:
        for kind in self.kinds:
            choose("change", kind, CHANGES)


def augmented(pixels_BCYX: np.ndarray, config: AugmentConfig, bits: np.random.PCG64) -> Tensor:
    """Bytes -> the same pictures as fp32, changed."""
    if config.shift or config.flip:
        pixels_BCYX = _moved(pixels_BCYX, config.shift, config.flip, bits)
    image_BCYX = torch.from_numpy(np.ascontiguousarray(pixels_BCYX)).float()
    if not config.changes:
        return image_BCYX
    kinds, count = config.kinds or tuple(CHANGES), len(image_BCYX)
    turns_B33 = torch.eye(3).repeat(count, 1, 1)
    for _ in range(config.changes):
        chosen_B = (uniform(bits, count) * len(kinds)).astype(int)
        # Towards either side; a change that has but one takes the distance.
        amount_B = torch.from_numpy((2 * uniform(bits, count) - 1) * config.strength).float()
        for number, kind in enumerate(kinds):
            rows = torch.from_numpy(np.flatnonzero(chosen_B == number))
            if not len(rows):
                continue
            if kind in _TURNS:
                turns_B33[rows] = _TURNS[kind](amount_B[rows]) @ turns_B33[rows]
            else:
                amount_B111 = amount_B[rows][:, None, None, None]
                image_BCYX[rows] = _SHADES[kind](image_BCYX[rows], amount_B111).clamp(0, 255)
    return _turned(image_BCYX, turns_B33)


def mixing(count: int, alpha: float, bits: np.random.PCG64) -> Tensor:
    """Shares of the first of two pictures, from Beta(alpha, alpha); share_B.

    Of two powers of uniform numbers that add up to at most 1, the share of the first (Jöhnk 1964).
    """
    shares = np.empty(count)
    open_rows = np.arange(count)
    while len(open_rows):
        logs = np.log(1 - uniform(bits, 2 * len(open_rows)).reshape(2, -1)) / alpha
        total = np.logaddexp(*logs)
        taken = total <= 0
        shares[open_rows[taken]] = np.exp(logs[0] - total)[taken]
        open_rows = open_rows[~taken]
    return torch.from_numpy(shares).float()


def _moved(pixels_BCYX: np.ndarray, shift: int, flip: bool, bits: np.random.PCG64) -> np.ndarray:
    """Each picture moved and mirrored by itself: for each of its places, which pixel is there now."""
    B, C, Y, X = pixels_BCYX.shape
    down_B, right_B = ((uniform(bits, 2 * B) * (2 * shift + 1)).astype(int) - shift).reshape(2, B)
    rows_BY = _inside(np.arange(Y) - down_B[:, None], Y)
    columns_BX = np.repeat(np.arange(X)[None], B, 0)
    if flip:
        mirrored_B = uniform(bits, B) < 0.5
        columns_BX[mirrored_B] = columns_BX[mirrored_B, ::-1]
    columns_BX = _inside(columns_BX - right_B[:, None], X)
    which_B, channel_C = np.arange(B)[:, None, None, None], np.arange(C)[:, None, None]
    return pixels_BCYX[which_B, channel_C, rows_BY[:, None, :, None], columns_BX[:, None, None, :]]


def _inside(place: np.ndarray, length: int) -> np.ndarray:
    """Places beyond an end, mirrored there as often as it takes."""
    place = place % (2 * length)
    return np.minimum(place, 2 * length - 1 - place)


def _turned(image_BCYX: Tensor, turns_B33: Tensor) -> Tensor:
    """Pictures seen through an affine map of their coordinates, each from -1 to 1."""
    moved = (turns_B33 != torch.eye(3)).flatten(1).any(1)
    if not moved.any():
        return image_BCYX
    part_BCYX = image_BCYX[moved]
    Y, X = part_BCYX.shape[2:]
    # As if pixels were square, however long the sides are.
    sides = torch.tensor([[1.0, Y / X, 1.0], [X / Y, 1.0, 1.0]])
    grid = F.affine_grid(turns_B33[moved, :2] * sides, list(part_BCYX.shape), align_corners=False)
    image_BCYX[moved] = F.grid_sample(
        part_BCYX, grid, mode="bilinear", padding_mode="reflection", align_corners=False
    ).clamp(0, 255)
    return image_BCYX


def _matrix(like_B: Tensor, *entries: Tensor | float) -> Tensor:
    """Affine maps of x and y, row by row; (B,3,3)."""
    six_B6 = torch.stack([torch.zeros_like(like_B) + entry for entry in entries], dim=1)
    last_B3 = torch.tensor([0.0, 0.0, 1.0]).expand(len(like_B), 3)
    return torch.cat([six_B6, last_B3], dim=1).unflatten(1, (3, 3))


def _rotate(amount_B: Tensor) -> Tensor:
    angle_B = amount_B * math.radians(30)
    sine_B, cosine_B = angle_B.sin(), angle_B.cos()
    return _matrix(amount_B, cosine_B, -sine_B, 0, sine_B, cosine_B, 0)


def _contrast(image_BCYX: Tensor, amount_B111: Tensor) -> Tensor:
    mean_B111 = image_BCYX.mean((1, 2, 3), keepdim=True)
    return mean_B111 + (image_BCYX - mean_B111) * (1 + 0.9 * amount_B111)


def _colour(image_BCYX: Tensor, amount_B111: Tensor) -> Tensor:
    grey_B1YX = image_BCYX.mean(1, keepdim=True)
    return grey_B1YX + (image_BCYX - grey_B1YX) * (1 + 0.9 * amount_B111)


def _sharpness(image_BCYX: Tensor, amount_B111: Tensor) -> Tensor:
    smooth_BCYX = F.avg_pool2d(F.pad(image_BCYX, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return smooth_BCYX + (image_BCYX - smooth_BCYX) * (1 + 0.9 * amount_B111)


def _posterize(image_BCYX: Tensor, amount_B111: Tensor) -> Tensor:
    """Up to 4 of the 8 bits are lost."""
    step_B111 = 2 ** (4 * amount_B111.abs()).round()
    return (image_BCYX / step_B111).floor() * step_B111


def _solarize(image_BCYX: Tensor, amount_B111: Tensor) -> Tensor:
    """What is bright becomes dark."""
    return torch.where(image_BCYX > 255 * (1 - amount_B111.abs()), 255 - image_BCYX, image_BCYX)


def _stretch(image_BCYX: Tensor, amount_B111: Tensor) -> Tensor:
    """The darkest value of each channel to 0, the brightest to 255."""
    low, high = image_BCYX.amin((2, 3), keepdim=True), image_BCYX.amax((2, 3), keepdim=True)
    return torch.where(high > low, (image_BCYX - low) * (255 / (high - low).clamp(min=1)), image_BCYX)


# Changes of where pixels are, as maps of coordinates: those of a picture go together, and it is read once.
_TURNS: dict[str, Callable[[Tensor], Tensor]] = {
    "rotate": _rotate,
    "shear_x": lambda amount_B: _matrix(amount_B, 1, 0.5 * amount_B, 0, 0, 1, 0),
    "shear_y": lambda amount_B: _matrix(amount_B, 1, 0, 0, 0.5 * amount_B, 1, 0),
    "move_x": lambda amount_B: _matrix(amount_B, 1, 0, 0.5 * amount_B, 0, 1, 0),
    "move_y": lambda amount_B: _matrix(amount_B, 1, 0, 0, 0, 1, 0.5 * amount_B),
    "zoom": lambda amount_B: _matrix(amount_B, 1 + 0.3 * amount_B, 0, 0, 0, 1 + 0.3 * amount_B, 0),
}
# Changes of what they are.
_SHADES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda image_BCYX, amount_B111: image_BCYX * (1 + 0.9 * amount_B111),
    "contrast": _contrast,
    "colour": _colour,
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "stretch": _stretch,
}
CHANGES: dict[str, Callable[..., Tensor]] = {**_TURNS, **_SHADES}
