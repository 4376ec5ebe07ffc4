"""Dropout: the right share, the right scale, each value by itself, the same again under a seed."""

import math

import pytest
import torch

from qkv.attention.dropout import Dropout, drop
from qkv.errors import QkvError

N = 1 << 20


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_the_share_dropped_is_the_rate_and_the_mean_stays(rate: float):
    dropped = drop(torch.ones(N), rate)
    share = (dropped == 0).float().mean().item()
    error = math.sqrt(rate * (1 - rate) / N)  # of one standard deviation
    assert abs(share - rate) < 5 * error + 1 / (1 << 16)
    (scale,) = dropped[dropped != 0].unique()
    kept = (1 << 16) - round(rate * (1 << 16))
    assert scale.item() == pytest.approx((1 << 16) / kept)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 5, 8, 11])
def test_values_are_dropped_independently_of_their_neighbours(lag: int):
    """Four of them come from one draw, which must not show."""
    rate = 0.3
    zero = (drop(torch.ones(N), rate) == 0).double()
    both = (zero[lag:] * zero[:-lag]).mean().item()
    assert abs(both - rate**2) < 5 * math.sqrt(rate**2 * (1 - rate**2) / N)


def test_each_of_the_four_places_in_a_draw_has_the_same_rate():
    """The sign bit of the draw is random too."""
    zero = (drop(torch.ones(N), 0.3) == 0).view(-1, 4).double().mean(0)
    assert (zero - 0.3).abs().max() < 5 * math.sqrt(0.21 / (N / 4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5, 7), (7, 11)])
def test_gradients_pass_where_values_do_in_any_shape_and_dtype(shape: tuple[int, ...], dtype: torch.dtype):
    x = (torch.rand(shape) + 1).to(dtype).requires_grad_()
    out = drop(x, 0.5)
    assert (out.shape, out.dtype) == (x.shape, dtype)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad * x.detach(), out.detach())


def test_a_view_is_dropped_like_any_tensor():
    x = torch.ones(5, 7, 3).transpose(0, 2)
    assert set(drop(x, 0.5).unique().tolist()) == {0.0, 2.0}


def test_a_seed_gives_the_same_again():
    x, results = torch.randn(3, 5, 7), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(drop(x, 0.3))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_only_training_drops_and_no_rate_costs_no_random_numbers():
    x, state = torch.randn(3, 5), torch.get_rng_state()
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(Dropout(0.5)(x), x)


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_a_rate_that_is_no_share_is_refused(rate: float):
    with pytest.raises(QkvError, match="a share from 0 up to, not including, 1 is wanted"):
        Dropout(rate)


def test_compiled_code_drops_too():
    dropped = torch.compile(lambda x: drop(x, 0.5), fullgraph=True)(torch.ones(1000))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert 400 < (dropped == 0).sum() < 600


def test_a_rate_next_to_one_is_no_division_by_zero():
    assert drop(torch.ones(1000), 0.999999).isfinite().all()
