"""Averages of weights against loops by hand, in the model's place and out of it again."""

import math

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.recipe.training import AverageConfig
from qkv.store.files import read_tensors, write_tensors
from qkv.train.average import Average, weights_of


class Model(nn.Module):
    """A tied pair, a running statistic and a counter."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(3, 5), nn.Linear(5, 3)
        self.out.weight = self.table.weight
        self.norm = nn.BatchNorm1d(5)


def walk(model: nn.Module, number: int) -> None:
    """Other weights."""
    random = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for tensor in [*model.parameters(), model.norm.running_mean]:
            tensor.copy_(torch.randn(tensor.shape, generator=random))
        model.norm.num_batches_tracked.fill_(number)


def places(config: AverageConfig, count: int) -> tuple[Model, Average, list[dict[str, Tensor]]]:
    model, average, path = Model(), Average(config), []
    for number in range(count):
        walk(model, number)
        average.update(model)
        path.append({name: tensor.double().clone() for name, tensor in weights_of(model).items()})
    return model, average, path


def applied(average: Average, model: nn.Module) -> dict[str, Tensor]:
    with average.applied(model):
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("decay", [0.0, 0.2, 0.9])
def test_ema_by_hand(decay: float):
    """It starts at the first weights; the share of the past is 2/11, 3/12, … until it is the decay."""
    model, average, path = places(AverageConfig(kind="ema", decay=decay), 40)
    found = applied(average, model)
    for name, first in path[0].items():
        expected = first
        for n, place in enumerate(path[1:], 1):
            share = min(decay, (1 + n) / (10 + n))
            expected = share * expected + (1 - share) * place[name]
        torch.testing.assert_close(found[name].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("updates", [1, 2, 3, 7])
def test_last_is_the_mean_of_the_last_few(updates: int):
    model, average, path = places(AverageConfig(kind="last", count=3), updates)
    found = applied(average, model)
    for name in path[0]:
        kept = [place[name] for place in path[-3:]]
        torch.testing.assert_close(found[name].double(), sum(kept) / len(kept), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("config", [AverageConfig(kind="ema"), AverageConfig(kind="last", count=3)])
def test_the_models_own_weights_return_bit_for_bit(config: AverageConfig):
    model, average, _ = places(config, 5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inside = applied(average, model)
    assert not torch.equal(inside["out.weight"], before["out.weight"])
    assert torch.equal(inside["table.weight"], inside["out.weight"])
    assert not torch.equal(inside["norm.running_mean"], before["norm.running_mean"])
    assert inside["norm.num_batches_tracked"] == before["norm.num_batches_tracked"]

    def fail() -> None:
        with average.applied(model):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_none_and_an_average_of_nothing_are_the_model():
    model = Model()
    for average in (
        Average(AverageConfig()),
        Average(AverageConfig(kind="ema")),
        Average(AverageConfig(kind="last")),
    ):
        if average.config.kind == "none":
            average.update(model)
        inside = applied(average, model)
        assert all(torch.equal(tensor, inside[name]) for name, tensor in model.state_dict().items())


def test_tied_weights_count_once():
    assert set(weights_of(Model())) == {
        "table.weight", "out.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"
    }  # fmt: skip


@pytest.mark.parametrize(
    "config", [AverageConfig(kind="ema", decay=0.9), AverageConfig(kind="last", count=3)]
)
@pytest.mark.parametrize("before", [0, 2, 5])
def test_it_goes_on_from_its_state_bit_for_bit(config: AverageConfig, before: int, tmp_path):
    _, whole, _ = places(config, before + 4)
    model, first, _ = places(config, before)
    write_tensors(tmp_path / "a", first.tensors())
    second = Average(config)
    second.load(read_tensors(tmp_path / "a"))
    for number in range(before, before + 4):
        walk(model, number)
        second.update(model)
    one, other = whole.tensors(), second.tensors()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_more_weights_than_the_recipe_keeps_are_refused():
    _, average, _ = places(AverageConfig(kind="last", count=3), 3)
    with pytest.raises(QkvError, match=r"averages 3 weights, but average.count is 2"):
        Average(AverageConfig(kind="last", count=2)).load(average.tensors())


def test_it_is_kept_in_fp32():
    """bf16 would lose every small step: 1 + 1/512 is 1 there."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    average = Average(AverageConfig(kind="ema", decay=0.5))
    for value in (1.0, 1.0 + 1 / 128):
        nn.init.constant_(model.weight, value)
        average.update(model)
    kept = average.tensors()["0.weight"]
    assert kept.dtype == torch.float32
    assert math.isclose(kept.item(), 1 + (9 / 11) / 128, rel_tol=1e-6)


def test_the_memory_of_an_ema_grows():
    """While the weights run away from where they began, the average must not stay there: a fifth behind, not all."""
    model = nn.Linear(1, 1, bias=False)
    average, lags = Average(AverageConfig(kind="ema", decay=0.999)), []
    for number in range(1, 200):
        nn.init.constant_(model.weight, float(number))
        average.update(model)
        lags.append(1 - average.tensors()["0.weight"].item() / number)
    assert max(lags) < 0.2
