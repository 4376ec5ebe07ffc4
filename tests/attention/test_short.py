"""The kernel for short rows where it differs from the others: sizes of scores, and what its backward pass keeps."""

import math

import pytest
import torch
from tests.attention.paths import PATHS, SHORT, attend_on, gradients
from torch import Tensor

from qkv import masks
from qkv.attention.normalize import exponentials

PRODUCTS = PATHS[0]
B, H, T, S, K, V = 2, 3, 5, 7, 11, 13


def qkv(size: float = 1.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = [(B, H, T, K), (B, H, S, K), (B, H, S, V)]
    q, k, v = (torch.randn(shape, dtype=dtype) for shape in shapes)
    return [x.requires_grad_() for x in (size * q, k, v)]


@pytest.mark.parametrize("size", [0.1, 10.0, 1e3])
@pytest.mark.parametrize("allow", [None, masks.causal(), masks.padding(torch.tensor([3, 0]))], ids=str)
def test_scores_of_any_size_neither_overflow_nor_vanish(size: float, allow: masks.Mask | None):
    inputs = qkv(size)
    results = []
    for on in (PRODUCTS, SHORT):
        out = attend_on(on, *inputs, allow=allow)
        results.append([out, *gradients(out, inputs)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9)


def test_exponentials_by_hand():
    found, shift = exponentials(torch.tensor([[0.0, math.log(3), 5.0]]), torch.tensor([True, True, False]))
    assert shift == 0
    torch.testing.assert_close(found, torch.tensor([[1.0, 3.0, 0.0]]))


def test_a_row_is_shifted_only_where_it_must_be():
    found, shift = exponentials(torch.tensor([[0.0, math.log(3)], [1000.0, 999.0], [-999.0, -1000.0]]))
    assert shift.flatten().tolist() == [0, 1000, -999]
    want = torch.tensor([[1.0, 3.0], [1.0, math.exp(-1)], [1.0, math.exp(-1)]])
    torch.testing.assert_close(found, want)


def test_bad_numbers_stay_visible():
    q, k, v = qkv()
    with torch.no_grad():
        q[0, 0, 0, 0] = math.nan
    out = attend_on(SHORT, q, k, v)
    assert out[0, 0, 0].isnan().all()
    assert out[1].isfinite().all()
