"""bf16 training: rounded images compute, the weights themselves stay and get the gradients."""

import pytest
import torch
from torch import nn

from qkv.blocks.embed import Embedding
from qkv.train.precision import computing_in


class Model(nn.Module):
    """A table, a tied pair of layers, a norm and an LSTM."""

    def __init__(self):
        super().__init__()
        self.table = Embedding(11, 5)
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.norm = nn.LayerNorm(5)
        self.cells = nn.LSTM(5, 3, batch_first=True)

    def forward(self, tokens):
        x = self.norm(self.second(self.first(self.table(tokens))))
        return self.cells(x)[0], x


TOKENS = torch.tensor([[1, 2, 3], [4, 4, 4]])


def test_everything_computes_in_bf16_and_everything_is_as_before_afterwards():
    model = Model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    names = [name for name, _ in model.named_parameters()]
    with computing_in(model, "bf16"):
        assert model.first.weight is model.second.weight
        out, x = model(TOKENS)
        assert out.dtype == x.dtype == torch.bfloat16
        assert model.table.table.dtype == torch.float32
    assert [name for name, _ in model.named_parameters()] == names
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(isinstance(weight, nn.Parameter) for weight in model.parameters())
    out, x = model(TOKENS)
    assert out.dtype == x.dtype == torch.float32


def test_gradients_arrive_at_the_weights_themselves_and_add_up():
    model, exact = Model(), Model()
    exact.load_state_dict(model.state_dict())
    for _ in range(2):
        with computing_in(model, "bf16"):
            out, x = model(TOKENS)
            (out.float().square().sum() + x.float().sum()).backward()
        out, x = exact(TOKENS)
        (out.square().sum() + x.sum()).backward()
    for (name, weight), reference in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert weight.grad is not None, name
        assert weight.grad.dtype == torch.float32
        scale = reference.grad.abs().max()
        assert (weight.grad - reference.grad).abs().max() <= 0.05 * scale + 1e-3, name


def test_a_frequent_tokens_gradient_is_summed_in_fp32():
    """In bf16 a sum of ones stops at 256."""
    table = Embedding(2, 1, scale=False)
    with computing_in(table, "bf16"):
        out = table(torch.ones(1, 1000, dtype=torch.long))
        assert out.dtype == torch.bfloat16
        out.sum().backward()
    assert table.table.grad[1].item() == 1000


def test_fp32_changes_nothing():
    model = Model()
    with computing_in(model, "fp32"):
        assert model(TOKENS)[0].dtype == torch.float32


def test_an_error_inside_leaves_the_weights_in_place():
    model = Model()
    with pytest.raises(ZeroDivisionError), computing_in(model, "bf16"):
        raise ZeroDivisionError
    assert model(TOKENS)[0].dtype == torch.float32
    assert not any(weight.grad is not None for weight in model.parameters())


def test_frozen_weights_stay_without_gradient():
    model = Model()
    model.norm.requires_grad_(False)
    with computing_in(model, "bf16"):
        model(TOKENS)[1].float().sum().backward()
    assert model.norm.weight.grad is None
    assert model.first.weight.grad is not None
