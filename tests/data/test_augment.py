"""Random changes, each against its formula pixel by pixel, and what must hold for every one in the registry.

Axes: B pictures, C channels, Y and X height and width in pixels.
"""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.data import augment, draws
from qkv.data.augment import CHANGES, AugmentConfig, augmented, mixing
from qkv.errors import QkvError

PIXELS_BCYX = np.random.default_rng(1).integers(0, 256, (11, 3, 5, 7), dtype=np.uint8)
IMAGE_BCYX = torch.from_numpy(PIXELS_BCYX).float()


def made(config: AugmentConfig, seed: int = 0, pixels: np.ndarray = PIXELS_BCYX) -> Tensor:
    return augmented(pixels, config, draws.source(seed))


def test_without_changes_pictures_come_as_they_are():
    assert torch.equal(made(AugmentConfig()), IMAGE_BCYX)


def moved(image: np.ndarray, down: int, right: int, mirrored: bool) -> np.ndarray:
    """One pixel at a time; what comes in is what mirrors at the edges show."""
    _C, Y, X = image.shape
    image = image[:, :, ::-1] if mirrored else image
    found = np.empty_like(image)
    for y in range(Y):
        for x in range(X):
            row, column = y - down, x - right
            while not 0 <= row < Y:
                row = -1 - row if row < 0 else 2 * Y - 1 - row
            while not 0 <= column < X:
                column = -1 - column if column < 0 else 2 * X - 1 - column
            found[:, y, x] = image[:, row, column]
    return found


@pytest.mark.parametrize(("shift", "flip"), [(1, False), (2, True), (6, True), (0, True)])
def test_each_picture_is_moved_and_mirrored_by_itself(shift: int, flip: bool):
    found = made(AugmentConfig(shift=shift, flip=flip)).numpy()
    kinds = set()
    for image, original in zip(found, PIXELS_BCYX, strict=True):
        fits = [
            (down, right, mirrored)
            for down in range(-shift, shift + 1)
            for right in range(-shift, shift + 1)
            for mirrored in ((False, True) if flip else (False,))
            if np.array_equal(image, moved(original, down, right, mirrored))
        ]
        assert fits
        kinds.add(fits[0])
    assert len(kinds) > (1 if not shift else 4)


def test_shifts_and_mirrors_are_even():
    one = np.repeat(np.arange(5, dtype=np.uint8)[None], 5, 0)[None]
    found = made(AugmentConfig(shift=2, flip=True), pixels=np.repeat(one[None], 4000, 0))[:, 0, 2]
    assert (found[:, 1] < found[:, 3]).float().mean().item() == pytest.approx(0.5, abs=0.03)
    assert found[:, 2].unique(return_counts=True)[1].tolist() == pytest.approx([800] * 5, abs=100)


def sampled(image: Tensor, x: float, y: float) -> Tensor:
    """The picture at a place in pixels between their centres, bilinearly; it must lie inside."""
    column, row = math.floor(x), math.floor(y)
    right, down = x - column, y - row
    return (
        (1 - right) * (1 - down) * image[:, row, column]
        + right * (1 - down) * image[:, row, column + 1]
        + (1 - right) * down * image[:, row + 1, column]
        + right * down * image[:, row + 1, column + 1]
    )


# Where the pixel (x, y), counted from the middle, comes from, for an amount a; width and height are 7 and 5.
SOURCES = {
    "rotate": lambda x, y, a: (
        x * math.cos(a * math.pi / 6) - y * math.sin(a * math.pi / 6),
        x * math.sin(a * math.pi / 6) + y * math.cos(a * math.pi / 6),
    ),
    "shear_x": lambda x, y, a: (x + 0.5 * a * y, y),
    "shear_y": lambda x, y, a: (x, y + 0.5 * a * x),
    "move_x": lambda x, y, a: (x + 0.25 * a * 7, y),
    "move_y": lambda x, y, a: (x, y + 0.25 * a * 5),
    "zoom": lambda x, y, a: (x * (1 + 0.3 * a), y * (1 + 0.3 * a)),
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("amount", [-1.0, -0.3, 0.25, 0.8])
def test_a_turned_picture_shows_what_its_map_says(kind: str, amount: float):
    turns_B33 = augment._TURNS[kind](torch.full((11,), amount))
    found = augment._turned(IMAGE_BCYX.clone(), turns_B33)
    compared = 0
    for row in range(5):
        for column in range(7):
            x, y = SOURCES[kind](column - 3, row - 2, amount)
            if 0 <= x + 3 < 6 and 0 <= y + 2 < 4:
                for image, turned in zip(IMAGE_BCYX, found, strict=True):
                    torch.testing.assert_close(
                        turned[:, row, column], sampled(image, x + 3, y + 2), rtol=0, atol=0.02
                    )
                compared += 1
    assert compared > 10


def grey(image: Tensor) -> Tensor:
    return image.mean(0, keepdim=True)


def blurred(image: Tensor) -> Tensor:
    found = torch.zeros_like(image)
    for y in range(5):
        for x in range(7):
            around = [(min(max(y + i, 0), 4), min(max(x + j, 0), 6)) for i in (-1, 0, 1) for j in (-1, 0, 1)]
            found[:, y, x] = sum(image[:, row, column] for row, column in around) / 9
    return found


SHADES = {
    "brightness": lambda image, a: image * (1 + 0.9 * a),
    "contrast": lambda image, a: image.mean() + (image - image.mean()) * (1 + 0.9 * a),
    "colour": lambda image, a: grey(image) + (image - grey(image)) * (1 + 0.9 * a),
    "sharpness": lambda image, a: blurred(image) + (image - blurred(image)) * (1 + 0.9 * a),
    "posterize": lambda image, a: image - image % 2 ** round(4 * abs(a)),
    "solarize": lambda image, a: torch.where(image > 255 - 255 * abs(a), 255 - image, image),
    "stretch": lambda image, a: torch.stack([(c - c.min()) / (c.max() - c.min()) * 255 for c in image]),
}


@pytest.mark.parametrize("kind", SHADES)
@pytest.mark.parametrize("amount", [-1.0, -0.3, 0.0, 0.2, 0.9])
def test_a_shaded_picture_is_what_its_formula_says(kind: str, amount: float):
    amount_B111 = torch.full((11, 1, 1, 1), amount)
    found = augment._SHADES[kind](IMAGE_BCYX, amount_B111)
    wanted = torch.stack([SHADES[kind](image, amount) for image in IMAGE_BCYX])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3)


def test_every_change_is_tested_here():
    assert {*SOURCES, *SHADES} == set(CHANGES)


@pytest.mark.parametrize("kind", CHANGES)
def test_every_change_does_something_within_bounds_to_grey_and_colours(kind: str):
    for pixels in (PIXELS_BCYX, PIXELS_BCYX[:, :1]):
        found = made(AugmentConfig(changes=1, strength=1.0, kinds=(kind,)), pixels=pixels)
        assert found.shape == pixels.shape
        assert found.dtype == torch.float32
        assert found.min() >= 0
        assert found.max() <= 255
        same = torch.equal(found, torch.from_numpy(pixels).float())
        assert same == (kind == "colour" and pixels.shape[1] == 1)
        flat = made(AugmentConfig(changes=1, kinds=(kind,)), pixels=np.full((2, 1, 4, 4), 255, np.uint8))
        assert flat.isfinite().all()


def test_the_source_decides_and_pictures_are_changed_each_by_itself():
    config = AugmentConfig(shift=1, flip=True, changes=2, strength=0.7)
    assert torch.equal(made(config, 3), made(config, 3))
    assert not torch.equal(made(config, 3), made(config, 4))
    torch.manual_seed(1)
    again = made(config, 3)
    assert torch.equal(again, made(config, 3))
    same = made(config, 3, np.repeat(PIXELS_BCYX[:1], 11, 0))
    assert len({image.numpy().tobytes() for image in same}) > 8
    other = PIXELS_BCYX.copy()
    other[4] = 0  # the neighbours do not see it
    changed = (made(config, 3) != made(config, 3, other)).flatten(1).any(1)
    assert changed.nonzero().flatten().tolist() == [4]


def test_the_bytes_that_come_in_stay():
    before = PIXELS_BCYX.copy()
    made(AugmentConfig(shift=1, flip=True, changes=2, strength=1.0, mixup=0.5))
    assert np.array_equal(PIXELS_BCYX, before)


@pytest.mark.parametrize("alpha", [0.1, 0.3, 1.0])
def test_shares_have_the_moments_of_beta(alpha: float):
    share_B = mixing(20_000, alpha, draws.source(5)).double()
    assert share_B.min() >= 0
    assert share_B.max() <= 1
    assert share_B.mean().item() == pytest.approx(0.5, abs=0.01)
    assert share_B.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.03)
    assert (share_B**4).mean().item() == pytest.approx(
        math.prod((alpha + r) / (2 * alpha + r) for r in range(4)), rel=0.03
    )


def test_an_unknown_change_names_the_nearest():
    with pytest.raises(QkvError, match=r"unknown change 'rotat'.*did you mean 'rotate'\?"):
        AugmentConfig(kinds=("rotat",))
