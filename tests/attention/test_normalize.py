"""Normalisers against closed forms, an independent solver, and what must hold for each one in the registry."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.attention import reference
from torch import Tensor

from qkv.attention.normalize import NORMALIZERS, entmax15, hard, sigmoid, softmax, sparsemax

ON_THE_SIMPLEX = [name for name in NORMALIZERS if name != "sigmoid"]
SMOOTH = [name for name in NORMALIZERS if name != "hard"]


def rows(*numbers: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """One row of scores, with the axes that normalisers get."""
    return torch.tensor(numbers, dtype=dtype).reshape(1, 1, 1, -1)


# By hand


@pytest.mark.parametrize(
    ("normalizer", "scores", "wanted"),
    [
        (softmax, [0, 1], [1 / (1 + math.e), math.e / (1 + math.e)]),
        (softmax, [0, math.log(3)], [1 / 4, 3 / 4]),
        (hard, [1, 3, 2, 3], [0, 1, 0, 0]),  # the first of equals
        (hard, [-5], [1]),
        (sigmoid, [0, math.log(3), -math.log(3)], [1 / 2, 3 / 4, 1 / 4]),
        (sparsemax, [0, 1], [0, 1]),  # a lead of 1 takes all
        (sparsemax, [0, 0.5], [1 / 4, 3 / 4]),  # else (1 ± lead) / 2
        (sparsemax, [7, 7, 7], [1 / 3, 1 / 3, 1 / 3]),
        (sparsemax, [0.1, 1.1, 0.6], [0, 3 / 4, 1 / 4]),
        (entmax15, [0, 2], [0, 1]),  # a lead of 2 takes all
        (entmax15, [7, 7], [1 / 2, 1 / 2]),
        # p = (s/2 - τ)²: with s = (0, 1.2), (0.6 - τ)² + τ² = 1 for τ = 0.3 - √0.41
        (entmax15, [0, 1.2], [(0.3 - math.sqrt(0.41)) ** 2, (0.3 + math.sqrt(0.41)) ** 2]),
    ],
)
def test_by_hand(normalizer: object, scores: list[float], wanted: list[float]):
    torch.testing.assert_close(normalizer(rows(*scores)), rows(*wanted), atol=1e-14, rtol=0)  # pyright: ignore


# Against the solver


score_rows = st.lists(st.floats(-6, 6) | st.sampled_from([0.0, 1.0, -1.0, 2.0]), min_size=1, max_size=9)


@pytest.mark.parametrize("name", [name for name in NORMALIZERS if name != "hard"])
@given(score_rows)
def test_any_row_is_the_reference(name: str, scores: list[float]):
    want = np.array(reference.NORMALIZERS[name](scores))
    got = NORMALIZERS[name](rows(*scores)).flatten().numpy()
    assert np.abs(got - want).max() <= 1e-12


@given(score_rows)
def test_hard_is_the_first_of_the_best(scores: list[float]):
    assert hard(rows(*scores)).flatten().tolist() == reference.hard(scores)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
@given(score_rows, st.floats(-1e3, 1e3))
def test_a_shift_of_all_scores_changes_nothing(name: str, scores: list[float], shift: float):
    one, other = NORMALIZERS[name](rows(*scores)), NORMALIZERS[name](rows(*scores) + shift)
    torch.testing.assert_close(one, other, atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_zeros_are_exact(name: str):
    weights_S = NORMALIZERS[name](rows(0.4, 0.5, 0.7, -3, -9, -100)).flatten()
    assert (weights_S[:3] > 0).all()
    assert (weights_S[3:] == 0).all()


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 30.0])
def test_long_rows(name: str, dtype: torch.dtype, scale: float):
    """More keys than bf16 can count to (256): sums and counts need fp32 inside."""
    scores_BHTS = (scale * torch.randn(1, 2, 3, 1000)).to(dtype)
    got_BHTS = NORMALIZERS[name](scores_BHTS)
    assert got_BHTS.dtype == dtype
    want_BHTS = np.array(
        [reference.NORMALIZERS[name](row) for row in scores_BHTS.double().reshape(-1, 1000).tolist()]
    )
    atol = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-9}[dtype]
    error_BHTS = np.abs(got_BHTS.double().reshape(-1, 1000).numpy() - want_BHTS)
    assert error_BHTS.max() <= atol
    if dtype == torch.bfloat16:  # each weight is rounded once, at the end
        assert (error_BHTS <= 2**-8 * want_BHTS + 1e-5).all()


# Every normaliser in the registry


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NORMALIZERS)
def test_shape_dtype_and_range(name: str, dtype: torch.dtype):
    scores_BHTS = 3 * torch.randn(2, 3, 5, 7, dtype=dtype)
    weights_BHTS = NORMALIZERS[name](scores_BHTS)
    assert weights_BHTS.shape == scores_BHTS.shape
    assert weights_BHTS.dtype == dtype
    assert (weights_BHTS >= 0).all()
    assert (weights_BHTS <= 1).all()


@pytest.mark.parametrize("name", ON_THE_SIMPLEX)
def test_weights_sum_to_one(name: str):
    sums_BHT = NORMALIZERS[name](3 * torch.randn(2, 3, 5, 7, dtype=torch.float64)).sum(-1)
    torch.testing.assert_close(sums_BHT, torch.ones_like(sums_BHT), atol=1e-14, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NORMALIZERS)
def test_masked_keys_get_exactly_nothing_and_change_nothing(name: str, dtype: torch.dtype):
    lowest = torch.finfo(dtype).min
    scores_BHTS = 3 * torch.randn(2, 3, 5, 7, dtype=dtype)
    masked_BHTS = torch.cat([torch.full_like(scores_BHTS[..., :2], lowest), scores_BHTS], dim=-1)
    masked_BHTS.requires_grad_()
    weights_BHTS = NORMALIZERS[name](masked_BHTS)
    assert (weights_BHTS[..., :2] == 0).all()
    torch.testing.assert_close(
        weights_BHTS[..., 2:],
        NORMALIZERS[name](scores_BHTS),
        atol=1e-3 if dtype.itemsize == 2 else 1e-6,
        rtol=0,
    )
    if name == "hard":
        return
    (grad_BHTS,) = torch.autograd.grad((weights_BHTS * torch.arange(9)).sum(), masked_BHTS)
    assert grad_BHTS.isfinite().all()
    assert (grad_BHTS[..., :2] == 0).all()


@pytest.mark.parametrize("name", NORMALIZERS)
def test_a_row_of_nothing_but_masked_keys_is_finite(name: str):
    scores_BHTS = torch.full((1, 1, 1, 5), torch.finfo(torch.float32).min, requires_grad=True)
    weights_BHTS = NORMALIZERS[name](scores_BHTS)
    assert weights_BHTS.isfinite().all()
    if name == "hard":
        return
    (grad_BHTS,) = torch.autograd.grad((weights_BHTS * torch.arange(5)).sum(), scores_BHTS)
    assert grad_BHTS.isfinite().all()


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(
    "scores",
    [
        [0.0, 0.3, -0.4, 0.1, 0.25],  # all keys get weight
        [0.0, 1.3, -4.0, 0.9, -2.6],  # some do
        [0.0, 9.0, -4.0, 1.0, 2.0],  # one does
        [0.0],
        [0.5, 0.5, 0.5, -3.0, -3.0],  # ties
    ],
    ids=str,
)
def test_gradcheck_away_from_kinks(name: str, scores: list[float]):
    assert torch.autograd.gradcheck(NORMALIZERS[name], rows(*scores).requires_grad_())


def test_hard_has_no_gradient():
    assert not hard(rows(0, 1).requires_grad_()).requires_grad


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15"])
def test_a_score_that_is_no_number_gives_weights_that_are_none(name: str):
    assert NORMALIZERS[name](rows(1.0, math.nan, 3.0)).isnan().all()
