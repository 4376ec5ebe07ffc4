"""Run a small call on each of `attend`'s paths, by moving the sizes at which one path follows another."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import qkv.attention.attend as equation
from qkv.attention.attend import Path, attend, path
from qkv.attention.call import Call
from qkv.attention.normalize import softmax
from qkv.attention.scores import Dot

NEVER = 1 << 62
PATHS = [Path(kernel, in_blocks) for kernel in ("products", "fused") for in_blocks in (False, True)]
SHORT = Path("short", False)
PATHS.append(SHORT)
NAMES = [f"{kernel}{'-in-blocks' if in_blocks else ''}" for kernel, in_blocks in PATHS]


@contextmanager
def forced(wanted: Path, block: int = 64) -> Iterator[None]:
    """Prefer a path whatever the size; blocks hold about `block` scores (rows of them, one at least)."""
    sizes = {
        "FUSED_FROM": 0 if wanted.kernel == "fused" else NEVER,
        "SHORT_FROM": 0 if wanted.kernel == "short" else NEVER,
        "WHOLE_UP_TO": 0 if wanted.in_blocks else NEVER,
        "BLOCK": block,
    }
    with patch.multiple(equation, **sizes):
        yield


def path_of(q: Tensor, k: Tensor, v: Tensor, **choices: Any) -> Path:
    """The path that `attend` takes for these arguments."""
    defaults = {
        "score": Dot(),
        "beta": None,
        "allow": None,
        "bias": None,
        "normalize": softmax,
        "dropout": 0.0,
    }
    assert choices.keys() <= defaults.keys()
    return path(Call.of(q, k, v, **(defaults | choices)))


def attend_on(wanted: Path, q: Tensor, k: Tensor, v: Tensor, *, block: int = 64, **choices: Any) -> Tensor:
    """`attend` on that path and on no other."""
    with forced(wanted, block):
        assert path_of(q, k, v, **choices) == wanted
        return attend(q, k, v, **choices)


def takes(wanted: Path, q: Tensor, k: Tensor, v: Tensor, **choices: Any) -> bool:
    """Whether `attend` can take that path for these arguments, if sizes are no obstacle."""
    with forced(wanted):
        return path_of(q, k, v, **choices) == wanted


class Watching(TorchDispatchMode):
    """Sees every operation of torch: their names, and the number of elements of their largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.operations.append(str(function))
        for part in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(part, Tensor):
                self.largest = max(self.largest, part.untyped_storage().nbytes() // part.element_size())
        return result


def gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Of a fixed weighted sum of `out`, so that no gradient cancels by symmetry."""
    weights = torch.linspace(-1, 2, out.numel(), dtype=torch.float64).reshape(out.shape).to(out)
    return list(torch.autograd.grad((out * weights).sum(), inputs))
