"""Draws: the same for ever, and what is held out by them.

Axes: N examples.
"""

import numpy as np
import pytest

from qkv.data import draws
from qkv.errors import QkvError


def test_the_numbers_decide_and_their_order():
    assert draws.uniform(draws.source(3, 5), 3).tolist() == draws.uniform(draws.source(3, 5), 3).tolist()
    assert draws.uniform(draws.source(3, 5), 3).tolist() != draws.uniform(draws.source(5, 3), 3).tolist()
    # Written down when recipes were first measured: numpy promises that raw draws stay.
    assert draws.source(3, 5).random_raw(2).tolist() == [
        2_521_179_522_643_120_239,
        16_302_312_124_770_738_457,
    ]


def test_they_are_even():
    found = draws.uniform(draws.source(1), 20_000)
    assert found.min() >= 0
    assert found.max() < 1
    assert np.histogram(found, 10)[0] == pytest.approx(2000, abs=200)


def pictures(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    labels_N = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(2).integers(0, 256, (len(labels_N), 3, 3), dtype=np.uint8), labels_N


@pytest.mark.parametrize("count", [0, 1, 7, 20, 99])
def test_each_class_gives_its_share(count: int):
    pixels, labels = pictures([50, 30, 15, 5])
    held = draws.held_out(pixels, labels, count)
    assert held.sum() == count
    for label, share in enumerate([0.5, 0.3, 0.15, 0.05]):
        assert abs(held[labels == label].sum() - share * count) < 1


def test_pixels_decide_and_neither_order_nor_class_numbers():
    pixels, labels = pictures([40, 24])
    held = {one.tobytes() for one in pixels[draws.held_out(pixels, labels, 8)]}
    order = np.random.default_rng(3).permutation(64)
    again = pixels[order][draws.held_out(pixels[order], 1 - labels[order], 8)]
    assert {one.tobytes() for one in again} == held


def test_some_must_be_left():
    with pytest.raises(QkvError, match="5 of 5 pictures are to be held out: some must be left"):
        draws.held_out(*pictures([3, 2]), 5)
