"""The residual network against its equations, written with torch's functions.

Axes: B pictures, C channels, Y and X height and width.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.errors import QkvError
from qkv.models.convnet import Block, ConvNet, ConvNetConfig


def normalised(x: Tensor, groups: int, weight: Tensor, bias: Tensor) -> Tensor:
    """Mean 0 and variance 1 over each group of channels and all places of one picture."""
    grouped = x.unflatten(1, (groups, -1))
    mean = grouped.mean((2, 3, 4), keepdim=True)
    variance = ((grouped - mean) ** 2).mean((2, 3, 4), keepdim=True)
    return ((grouped - mean) / (variance + 1e-5).sqrt()).flatten(1, 2) * weight[:, None, None] + bias[
        :, None, None
    ]


def random(module: torch.nn.Module) -> dict[str, Tensor]:
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn_like(weight))
    return dict(module.named_parameters())


@pytest.mark.parametrize(("narrow", "wide"), [(4, 4), (4, 8)])
def test_a_block_is_its_equation(narrow: int, wide: int):
    block = Block(narrow, wide, 2).double()
    w, x = random(block), torch.randn(3, narrow, 5, 7, dtype=torch.float64)
    stride = wide // narrow
    h = F.conv2d(x, w["first.weight"], stride=stride, padding=1)
    h = normalised(h, 2, w["first_norm.weight"], w["first_norm.bias"]).clamp(min=0)
    h = F.conv2d(h, w["second.weight"], padding=1)
    h = normalised(h, 2, w["second_norm.weight"], w["second_norm.bias"])
    shortcut = x if stride == 1 else F.conv2d(x[:, :, ::2, ::2], w["shortcut.weight"])
    torch.testing.assert_close(block(x), (shortcut + h).clamp(min=0), rtol=0, atol=1e-10)


def test_a_new_block_is_its_shortcut():
    x = torch.randn(2, 4, 5, 5)
    torch.testing.assert_close(Block(4, 4, 2)(x), x.clamp(min=0))


def test_the_network_is_stem_stages_average_and_output():
    model = ConvNet(
        ConvNetConfig(classes=5, channels=3, size=(8, 12), width=4, blocks=(1, 2, 1), groups=2)
    ).double()
    w, x = random(model), torch.randn(2, 3, 8, 12, dtype=torch.float64)
    h = normalised(
        F.conv2d(x, w["stem.weight"], padding=1), 2, w["stem_norm.weight"], w["stem_norm.bias"]
    ).clamp(min=0)
    for block in model.stages:
        h = block(h)
    assert [tuple(block.second.weight.shape[:2]) for block in model.stages] == [
        (4, 4),
        (8, 8),
        (8, 8),
        (16, 16),
    ]
    assert h.shape == (2, 16, 2, 3)
    torch.testing.assert_close(model.encode(x), h.flatten(2).transpose(1, 2), rtol=0, atol=1e-10)
    wanted = h.mean((2, 3)) @ w["output.weight"].T + w["output.bias"]
    torch.testing.assert_close(model(x), wanted, rtol=0, atol=1e-10)


def test_what_cannot_be_built_is_refused():
    with pytest.raises(QkvError, match=r"blocks is empty; .*e\.g\. \[2, 2, 2\]"):
        ConvNetConfig(blocks=())
    with pytest.raises(QkvError, match="groups=4 does not divide width=30: choose a divisor"):
        ConvNetConfig(width=30)
