"""Windows: a long stream of ids in contiguous pieces, in an order that (seed, epoch) decides.

Axes: B windows, T tokens of each.

A batch is a function of (seed, epoch, index) alone, so that two numbers resume any run; as in `batches`, only raw 64-bit
draws decide.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from qkv.config import config
from qkv.errors import QkvError


@config
class WindowsConfig:
    """How a text becomes batches."""

    budget: PositiveInt = 4096
    """Tokens of a batch, at most; a window is as long as the model's `length`."""
    stride: PositiveInt | None = None
    """In evaluation, tokens from one window to the next: of each but the first only the last so many count, which all
    have others before them; none: windows that do not overlap, and all of their tokens count."""


@dataclass(frozen=True)
class WindowBatch:
    """Windows as tensors: each label is the token after the one beside it."""

    tokens_BT: Tensor
    label_BT: Tensor
    starts: np.ndarray
    """Where each window starts in the stream."""


class Windows:
    """The epochs of a stream: `windows.epoch(3)[17]` is the same batch wherever and whenever it is asked for."""

    def __init__(self, stream: np.ndarray, length: int, budget: int, *, seed: int = 0):
        self.stream, self.length, self.rows, self.seed = stream, length, budget // length, seed
        if not self.rows:
            raise QkvError(
                f"windows.budget is {budget} and model.length {length}: a batch must hold a window, "
                "so raise the budget or lower the length"
            )
        if len(stream) <= length:
            raise QkvError(
                f"the text has {max(0, len(stream) - 1):,} tokens, less than a window of {length}: "
                "lower model.length, or give more text"
            )

    def epoch(self, number: int) -> "WindowEpoch":
        """Every token once, but for less than a window at both ends: the cuts fall elsewhere in each epoch."""
        bits = np.random.PCG64(np.random.SeedSequence([self.seed, number]))
        slack = min(self.length - 1, len(self.stream) - 1 - self.length)
        first = int(bits.random_raw() % (slack + 1))
        starts = np.arange(first, len(self.stream) - self.length, self.length)
        order = np.argsort(bits.random_raw(len(starts)), kind="stable")
        return WindowEpoch(self, starts[order])

    def batch(self, starts: np.ndarray) -> WindowBatch:
        """The windows that start here."""
        ids = self.stream[starts[:, None] + np.arange(self.length + 1)].astype(np.int64)
        ids_BT = torch.from_numpy(ids)
        return WindowBatch(ids_BT[:, :-1].contiguous(), ids_BT[:, 1:].contiguous(), starts)


class WindowEpoch:
    """The batches of one epoch, made when they are asked for."""

    def __init__(self, windows: Windows, starts: np.ndarray):
        self._windows, self._starts = windows, starts

    def __len__(self) -> int:
        return -(-len(self._starts) // self._windows.rows)

    def __getitem__(self, index: int) -> WindowBatch:
        rows = self._windows.rows
        return self._windows.batch(self._starts[index * rows : (index + 1) * rows])


class Evaluated(NamedTuple):
    """A window of a stream; what it says of the first `skipped` tokens does not count."""

    start: int
    stop: int
    skipped: int


def evaluated(tokens: int, length: int, stride: int | None = None) -> Iterator[Evaluated]:
    """Windows in which each of so many tokens counts once: all in the first one, then the last `stride` of each."""
    hop, done = stride or length, 0
    while done < tokens:
        start = max(0, done + hop - length)
        stop = min(tokens, start + length)
        yield Evaluated(start, stop, done - start)
        done = stop
