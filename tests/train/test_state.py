"""Everything that decides a run's future goes into a checkpoint and comes back, bit for bit."""

from pathlib import Path

import pytest
import torch
from tests.train.toy import net, same_bits
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.recipe.training import AverageConfig, OptimConfig
from qkv.store import checkpoint
from qkv.train.average import Average
from qkv.train.optim import Optimizer
from qkv.train.state import Progress, State


def state(model: nn.Module | None = None) -> State:
    model = model or net(dropout=0.5)
    return State(
        model, Optimizer(model, OptimConfig()), Average(AverageConfig(kind="last", count=2)), Progress()
    )


def one_step(state: State) -> Tensor:
    state.optimizer.zero()
    loss = state.model(torch.rand(3, 5, dtype=torch.float64)).square().sum()
    loss.backward()
    state.optimizer.step()
    state.average.update(state.model)
    return loss.detach()


def test_all_of_it_comes_back(tmp_path: Path):
    first = state()
    for _ in range(3):
        one_step(first)
    first.keep_best()
    one_step(first)
    first.progress = Progress(
        step=4, epoch=1, batch=3, seconds=1 / 3, targets=7, best=-0.1, best_step=3, best_scores={"loss": 0.1},
        signatures={"bleu": "s"}, worse=2, logged=[1e-17, 5], lines=6, finished=True,
    )  # fmt: skip
    checkpoint.save(tmp_path, 4, first.tensors(), first.facts())
    expected = [one_step(first) for _ in range(2)]

    found, _ = checkpoint.newest(tmp_path)
    assert found is not None
    second = state(net(dropout=0.5, seed=9))
    torch.manual_seed(99)
    second.load(found)
    best = {name: tensor.clone() for name, tensor in second.best.items()}
    assert second.progress == Progress(
        step=4, epoch=1, batch=3, seconds=1 / 3, targets=7, best=-0.1, best_step=3, best_scores={"loss": 0.1},
        signatures={"bleu": "s"}, worse=2, logged=[1e-17, 5], lines=6, finished=True,
    )  # fmt: skip
    assert [one_step(second) for _ in range(2)] == expected  # dropout and data draw the same numbers
    assert same_bits(first.model.state_dict(), second.model.state_dict())
    assert same_bits(first.optimizer.tensors(), second.optimizer.tensors())
    assert same_bits(first.average.tensors(), second.average.tensors())
    assert same_bits(first.best, best)
    assert same_bits(second.best, best)  # and is no view of the weights that have moved on


def test_the_best_weights_do_not_move_with_the_model():
    one = state()
    one.keep_best()
    before = {name: tensor.clone() for name, tensor in one.best.items()}
    one_step(one)
    assert same_bits(one.best, before)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path):
    one = state()
    checkpoint.save(tmp_path, 1, one.tensors(), one.facts())
    found, _ = checkpoint.newest(tmp_path)
    assert found is not None
    wider = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(), nn.Linear(8, 3)).double()
    with pytest.raises(
        QkvError, match=r"the checkpoint of step 1 is of another model: size mismatch for 0.weight"
    ):
        state(wider).load(found)
