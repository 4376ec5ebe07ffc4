"""Patches against cutting and projecting by hand."""

import pytest
import torch

from qkv.blocks.patch import PatchEmbedding
from qkv.errors import QkvError


def test_equals_cutting_flattening_and_a_linear_map():
    torch.manual_seed(0)
    module = PatchEmbedding(channels=3, patch=2, width=11).double()
    image = torch.randn(2, 3, 2 * 5, 2 * 7, dtype=torch.float64)
    out = module(image)
    assert out.shape == (2, 35, 11)
    assert module.grid(10, 14) == (5, 7)
    weight, bias = module.projection.weight.reshape(11, 3 * 2 * 2), module.projection.bias
    assert bias is not None
    for row in range(5):
        for column in range(7):
            patch = image[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].reshape(2, -1)
            torch.testing.assert_close(out[:, 7 * row + column], patch @ weight.T + bias)


def test_equals_unfold_and_linear():
    module = PatchEmbedding(channels=1, patch=3, width=5)
    image = torch.randn(2, 1, 9, 6)
    patches_BTP = torch.nn.functional.unfold(image, kernel_size=3, stride=3).transpose(1, 2)
    wanted = torch.nn.functional.linear(
        patches_BTP, module.projection.weight.flatten(1), module.projection.bias
    )
    torch.testing.assert_close(module(image), wanted)


@pytest.mark.parametrize("size", [(10, 13), (9, 14), (0, 14)])
def test_a_picture_that_does_not_divide_is_refused(size: tuple[int, int]):
    with pytest.raises(
        QkvError, match=f"{size[0]} x {size[1]} pixels; multiples of the patch, 2, are wanted"
    ):
        PatchEmbedding(channels=3, patch=2, width=11)(torch.zeros(1, 3, *size))


@pytest.mark.parametrize("shape", [(3, 4, 4), (1, 1, 4, 4), (1, 4, 4, 3)])
def test_pictures_of_another_shape_are_refused(shape: tuple[int, ...]):
    with pytest.raises(QkvError, match=r"\(batch, 3, height, width\) is wanted"):
        PatchEmbedding(channels=3, patch=2, width=11)(torch.zeros(shape))


def test_a_patch_of_nothing_is_refused():
    with pytest.raises(QkvError, match=r"^channels=3, patch=0, width=4: each must be 1 or more"):
        PatchEmbedding(3, 0, 4)
