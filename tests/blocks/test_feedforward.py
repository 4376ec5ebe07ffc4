"""Feed-forward blocks against loops and the papers' formulas."""

import math
from typing import Literal, get_args, get_type_hints

import pytest
import torch
from torch import Tensor

from qkv.blocks.feedforward import ACTIVATIONS, FeedForward, FeedForwardConfig
from qkv.errors import QkvError

Kind = Literal["relu", "gelu", "gelu_tanh", "swiglu"]


def relu(x: float) -> float:
    return max(0.0, x)


def gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def swish(x: float) -> float:
    return x / (1 + math.exp(-x))


def dot(a: Tensor, b: Tensor) -> float:
    return sum(p * q for p, q in zip(a.tolist(), b.tolist(), strict=True))


@pytest.mark.parametrize("kind", get_args(Kind))
def test_equals_the_formula_in_loops(kind: Kind):
    torch.manual_seed(0)
    module = FeedForward(FeedForwardConfig(width=3, hidden=5, activation=kind)).double()
    x = torch.randn(2, 7, 3, dtype=torch.float64)
    up, down, gate = module.up, module.down, module.gate
    for b in range(2):
        for t in range(7):
            hidden = [dot(up.weight[f], x[b, t]) + up.bias[f].item() for f in range(5)]
            if kind == "swiglu":
                assert gate is not None
                hidden = [
                    swish(dot(gate.weight[f], x[b, t]) + gate.bias[f].item()) * hidden[f] for f in range(5)
                ]
            else:
                hidden = [{"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh}[kind](h) for h in hidden]
            wanted = [dot(down.weight[d], torch.tensor(hidden)) + down.bias[d].item() for d in range(3)]
            assert module(x)[b, t].tolist() == pytest.approx(wanted, abs=1e-6)


def test_the_config_offers_the_whole_registry():
    assert set(get_args(get_type_hints(FeedForwardConfig)["activation"])) == set(ACTIVATIONS)


def test_only_a_gated_activation_has_a_gate_and_bias_can_be_left_out():
    def names(activation: Kind, bias: bool) -> set[str]:
        config = FeedForwardConfig(width=3, hidden=5, activation=activation, bias=bias)
        return {name for name, _ in FeedForward(config).named_parameters()}

    assert names("relu", bias=False) == {"up.weight", "down.weight"}
    assert names("relu", bias=True) == {"up.weight", "up.bias", "down.weight", "down.bias"}
    assert names("swiglu", bias=False) == {"gate.weight", "up.weight", "down.weight"}


def test_dropout_acts_in_training_only():
    module = FeedForward(FeedForwardConfig(width=3, hidden=500, dropout=0.5))
    x = torch.randn(1, 1, 3)
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))


@pytest.mark.parametrize("wrong", [{"width": 0}, {"hidden": -1}, {"dropout": 1.0}, {"activation": "tanh"}])
def test_the_config_refuses_what_cannot_be(wrong: dict[str, object]):
    with pytest.raises(QkvError, match=f"{next(iter(wrong))} is "):
        FeedForwardConfig(**{"width": 3, "hidden": 5} | wrong)  # pyright: ignore[reportArgumentType]


def test_another_width_is_named():
    with pytest.raises(QkvError, match=r"^x has shape \(2, 4\); a last axis of 5 is wanted"):
        FeedForward(FeedForwardConfig(width=5, hidden=3))(torch.zeros(2, 4))
