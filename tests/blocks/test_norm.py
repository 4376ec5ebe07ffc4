"""Norms against their formulas."""

import math

import pytest
import torch

from qkv.blocks.norm import NORMS, norm
from qkv.errors import QkvError


def test_layer_norm_by_hand():
    # Mean 3, variance 4: (1 - 3) / sqrt(4 + 5) with an epsilon large enough to see.
    x = torch.tensor([1.0, 5.0, 1.0, 5.0])
    torch.testing.assert_close(norm("layer", 4, epsilon=5.0)(x), torch.tensor([-2.0, 2.0, -2.0, 2.0]) / 3)


def test_rms_norm_by_hand():
    # Mean square (9 + 16 + 0 + 0) / 4; no mean is taken off.
    x = torch.tensor([3.0, -4.0, 0.0, 0.0])
    torch.testing.assert_close(norm("rms", 4, epsilon=0.0)(x), x / 2.5)
    torch.testing.assert_close(norm("rms", 4, epsilon=1.0)(x), x / math.sqrt(7.25))


@pytest.mark.parametrize("kind", NORMS)
def test_every_norm_forgets_the_scale_of_a_token_and_learns_its_own(kind: str):
    x = torch.randn(3, 5, 7)
    module = norm(kind, 7)
    scale = torch.rand(3, 5, 1) * 100 + 50
    torch.testing.assert_close(module(x * scale), module(x * 50), rtol=1e-3, atol=1e-4)
    before = module(x)
    torch.nn.init.constant_(module.weight, 3.0)
    torch.testing.assert_close(module(x), 3 * before)


def test_an_unknown_norm_names_the_choices():
    with pytest.raises(QkvError, match="layer"):
        norm("laier", 7)
