"""Batches: as many pairs of like length as a budget of positions holds, in an order that (seed, epoch) decides.

Axes: B batch, S source positions, T target positions.

A batch is a function of (seed, epoch, index) alone, so that two numbers resume any run. Only raw 64-bit draws decide:
numpy promises those, and no others, to stay the same in all its versions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from qkv.config import config
from qkv.data import draws
from qkv.data.pairs import Pairs
from qkv.data.ragged import Ragged
from qkv.data.tokens import END, PAD
from qkv.errors import QkvError

Output = TypeVar("Output")


@config
class BatchesConfig:
    """How pairs become batches."""

    budget: int = 4096
    """Positions of a batch on each side, padding included: rows × longest row is never more."""
    longest: int = 256
    """Tokens of the longest sentence, its end or tag included; pairs with a longer one are left out, and counted. A
    finished model has that of the longest that it learnt from, and takes longer lines in pieces."""
    jitter: float = 0.1
    """The part of the pairs that goes among those one token longer: epochs differ more in their batches, and pad more."""

    def __post_init__(self) -> None:
        if not 1 <= self.longest <= self.budget:
            raise QkvError(
                f"longest is {self.longest} and budget {self.budget}: a batch must hold the longest sentence, "
                "so raise budget or lower longest"
            )
        if not 0 <= self.jitter <= 1:
            raise QkvError(f"jitter is {self.jitter}; it is a part of the pairs, from 0 to 1: try 0.1")


@dataclass(frozen=True)
class Batch:
    """Pairs as tensors: each source ends in end, each target starts with its tag and each label ends in end."""

    source_BS: Tensor
    keep_BS: Tensor
    target_BT: Tensor
    label_BT: Tensor
    keep_BT: Tensor
    rows: np.ndarray
    """Which pairs these are, for `Pairs.where`."""


class Batches:
    """The epochs of a set of pairs: `batches.epoch(3)[17]` is the same batch wherever and whenever it is asked for."""

    def __init__(
        self, pairs: Pairs, config: BatchesConfig = BatchesConfig(), *, seed: int = 0, strict: bool = False
    ):
        self.pairs, self.config, self.seed = pairs, config, seed
        self._source, self._target = pairs.sources.lengths + 1, pairs.targets.lengths + 1
        fits = np.maximum(self._source, self._target) <= config.longest
        self._rows = np.flatnonzero(fits).astype(np.int32)
        self.too_long = np.flatnonzero(~fits)
        """The pairs left out, by row."""
        if not len(self._rows):
            raise QkvError(
                f"all {len(pairs)} pairs are longer than batches.longest = {config.longest} tokens: raise it"
            )
        if strict and self.notice:
            raise QkvError(f"{self.notice}: raise batches.longest, shorten them, or leave strict out")

    @property
    def longest(self) -> int:
        """Tokens of the longest sentence that is learnt from, its end or tag included."""
        return int(np.maximum(self._source, self._target)[self._rows].max())

    @property
    def notice(self) -> str | None:
        """What is left out, for the log; None when nothing is."""
        if not len(self.too_long):
            return None
        first = int(self.too_long[0])
        return (
            f"{len(self.too_long):,} of {len(self.pairs):,} pairs are longer than {self.config.longest} tokens and left "
            f"out, first {self.pairs.where(first)} with {max(self._source[first], self._target[first]):,}"
        )

    def epoch(self, number: int) -> "Epoch":
        """The batches of an epoch, in their order."""
        bits = draws.source(self.seed, number)
        rows = self._draw(bits)
        source, target = self._source[rows], self._target[rows]
        rows = rows[_order(source, target, self.config.jitter, bits)]
        # The first batch gets a part of the budget, so that the cuts fall elsewhere in each epoch.
        first = int(draws.uniform(bits, 1)[0] * self.config.budget)
        longest = np.maximum(self._source[rows], self._target[rows])
        starts = cut(longest, self.config.budget, first)
        shuffled = np.argsort(draws.uniform(bits, len(starts) - 1), kind="stable")
        return Epoch(self.pairs, rows, starts[:-1][shuffled], starts[1:][shuffled])

    def _draw(self, bits: np.random.PCG64) -> np.ndarray:
        """The rows of an epoch: weight 1.3 is each pair once, and with probability 0.3 once more."""
        weights = np.array(self.pairs.weights)[self.pairs.corpora[self._rows]]
        times = np.floor(weights).astype(np.int64)
        times += draws.uniform(bits, len(weights)) < weights - times
        return np.repeat(self._rows, times)


class Epoch:
    """The batches of one epoch, made when they are asked for; `start` goes on in the middle."""

    def __init__(self, pairs: Pairs, rows: np.ndarray, starts: np.ndarray, stops: np.ndarray):
        self._pairs, self._rows, self._starts, self._stops = pairs, rows, starts, stops

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Batch:
        return make_batch(self._pairs, self.rows(index))

    def __iter__(self) -> Iterator[Batch]:
        return self.start(0)

    def rows(self, index: int) -> np.ndarray:
        """The pairs of a batch, by row."""
        return self._rows[self._starts[index] : self._stops[index]]

    def start(self, index: int) -> Iterator[Batch]:
        """The batches from `index` on."""
        return (self[number] for number in range(index, len(self)))

    def real_share(self) -> float:
        """The part of all positions, both sides together, that is not padding."""
        real = padded = 0
        for lengths in (self._pairs.sources.lengths + 1, self._pairs.targets.lengths + 1):
            for index in range(len(self)):
                side = lengths[self.rows(index)]
                real += int(side.sum())
                padded += len(side) * int(side.max())
        return real / padded


def in_order(pairs: Pairs, budget: int = 4096) -> Epoch:
    """Every pair once, longest first and the same each time, for evaluation; one beyond the budget is alone."""
    source, target = pairs.sources.lengths, pairs.targets.lengths
    rows = np.lexsort((-target, -source)).astype(np.int32)
    starts = cut(np.maximum(source, target)[rows] + 1, budget)
    return Epoch(pairs, rows, starts[:-1], starts[1:])


@dataclass(frozen=True)
class SourceBatch:
    """Sentences to be translated, each ending in end, and the rows in which they were given."""

    source_BS: Tensor
    keep_BS: Tensor
    rows: np.ndarray


def source_batches(sources: Ragged, budget: int = 4096) -> Iterator[SourceBatch]:
    """Every sentence once, longest first: memory that does not suffice shows at once. One beyond the budget is alone."""
    rows = np.argsort(-sources.lengths, kind="stable")
    starts = cut(sources.lengths[rows] + 1, budget)
    for start, stop in pairwise(starts):
        batch = rows[start:stop]
        source_BS, keep_BS = _padded(sources, batch)
        yield SourceBatch(source_BS, keep_BS, batch)


def in_input_order(rows: Sequence[np.ndarray], outputs: Sequence[Sequence[Output]]) -> list[Output]:
    """The outputs of batches, one for each row, back in the order in which the sentences were given."""
    placed = {
        int(row): output
        for batch, given in zip(rows, outputs, strict=True)
        for row, output in zip(batch, given, strict=True)
    }
    return [placed[row] for row in range(len(placed))]


def make_batch(pairs: Pairs, rows: np.ndarray) -> Batch:
    """The tensors of these pairs."""
    source_BS, keep_BS = _padded(pairs.sources, rows)
    label_BT, keep_BT = _padded(pairs.targets, rows)
    target_BT = torch.cat(
        [torch.from_numpy(pairs.tags[rows].astype(np.int64))[:, None], label_BT[:, :-1]], dim=1
    )
    target_BT.masked_fill_(~keep_BT, PAD)  # the end of a shorter label, one position on
    return Batch(source_BS, keep_BS, target_BT, label_BT, keep_BT, rows)


def cut(longest: np.ndarray, budget: int, first: int | None = None) -> np.ndarray:
    """Where batches start, and the end: each takes rows while rows × longest fits, the first one `first` positions."""
    starts = [0]
    while starts[-1] < len(longest):
        start, room = starts[-1], budget if first is None else first
        first = None
        window = longest[start : start + max(1, room // int(longest[start]))]
        positions = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        starts.append(start + max(1, int(np.searchsorted(positions, room, side="right"))))
    return np.array(starts)


def _padded(sequences: Ragged, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Ids with end after each, padded, and which positions are real."""
    lengths = sequences.lengths[rows]
    width = int(lengths.max()) + 1
    ids = sequences.padded(rows, width, PAD)
    ids[np.arange(len(rows)), lengths] = END
    return torch.from_numpy(ids), torch.from_numpy(np.arange(width) <= lengths[:, None])


def _order(source: np.ndarray, target: np.ndarray, jitter: float, bits: np.random.PCG64) -> np.ndarray:
    """An order in which neighbours have like lengths on both sides, another one each time.

    By the longer side, then by how much longer the source is. That difference rises where the first is even and falls
    where it is odd, or the other way round, so that it never jumps.
    """
    shifted = draws.uniform(bits, len(source)) < jitter
    longer = np.maximum(source, target).astype(np.int64) + shifted
    difference = source.astype(np.int64) - target
    falling = (longer + int(bits.random_raw() & 1)) % 2 == 1
    difference[falling] *= -1
    chance = (bits.random_raw(len(source)) >> np.uint64(44)).astype(np.int64)
    return np.argsort((longer << 42) + (difference << 20) + chance, kind="stable")
