"""Weights from one model to another: what fits is the same, what does not is said, and rows follow their names."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.attention.positions import Grid, Learned
from qkv.errors import QkvError
from qkv.store.bundle import Bundle
from qkv.store.transfer import transfer


class Net(nn.Module):
    def __init__(self, labels: int = 3, length: int = 5, extra: bool = False):
        super().__init__()
        self.inner, self.places = nn.Linear(7, 7), Learned(length, 7)
        self.output = nn.Linear(7, labels)
        if extra:
            self.extra = nn.Linear(7, 2)


def bundle(model: nn.Module) -> Bundle:
    return Bundle(Path("old"), "some", {}, {}, model.state_dict(), {})


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_the_same_model_gets_everything():
    old, new = Net(), Net()
    told = transfer(new, bundle(old))
    assert all(torch.equal(tensor, new.state_dict()[name]) for name, tensor in old.state_dict().items())
    assert told == f"from old: 5 tensors loaded ({sum(p.numel() for p in old.parameters())} numbers)"


def test_what_is_new_and_what_is_left_over_is_said():
    old, new = Net(), Net(extra=True)
    before = weights(new)
    assert "2 new: extra.weight, extra.bias" in transfer(new, bundle(old))
    assert torch.equal(new.extra.weight, before["extra.weight"])
    assert "2 left over: extra.weight, extra.bias" in transfer(old, bundle(new))


def test_another_shape_is_new_unless_it_can_be_made_to_fit():
    old, new = Net(labels=4, length=8), Net()
    before = weights(new)
    told = transfer(new, bundle(old))
    assert "1 resized: places.table 8×7 → 5×7" in told
    assert "2 new: output.weight 3×7, where it was 4×7, output.bias 3, where it was 4" in told
    assert torch.equal(new.places.table, old.places.table[:5])
    assert torch.equal(new.output.weight, before["output.weight"])
    longer = Net(length=11)
    tail = longer.places.table[8:].clone()
    transfer(longer, bundle(old))
    assert torch.equal(longer.places.table, torch.cat((old.places.table, tail)))


def test_rows_follow_their_names():
    old, new = Net(labels=2), Net(labels=3)
    before = weights(new)
    rows: dict[str, Any] = {"output.weight": [1, None, 0], "output.bias": [1, None, 0]}
    told = transfer(new, bundle(old), rows)
    assert "2 resized: output.weight" in told
    assert torch.equal(new.output.weight[[0, 2]], old.output.weight[[1, 0]])
    assert torch.equal(new.output.weight[1], before["output.weight"][1])
    assert "2 new: output.weight" in transfer(new, bundle(old), dict.fromkeys(rows, [None] * 3))


def test_a_grid_is_interpolated():
    old, new = Grid(3, 5, 7), Grid(6, 10, 7)
    fitted = new.fit(old.table.detach())
    assert fitted is not None
    torch.testing.assert_close(fitted, old.resized(6, 10).table.detach())
    assert new.fit(torch.zeros(3, 5, 8)) is None
    assert Learned(3, 5).fit(torch.zeros(3, 4)) is None


def test_a_model_that_fits_nowhere_is_refused():
    with pytest.raises(QkvError, match="old is a model for some, and none of its 2 tensors fits this one"):
        transfer(Net(), bundle(nn.Linear(2, 3)))
