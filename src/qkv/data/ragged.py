"""Many sequences of ids in one array: compact where millions of small arrays would not be."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np


class Ragged:
    """Sequences of int32 ids, one after the other in `flat`; `self[row]` is a view."""

    def __init__(self, flat: np.ndarray, lengths: np.ndarray):
        self.flat = flat.astype(np.int32, copy=False)
        self.lengths = lengths.astype(np.int32, copy=False)
        self._ends = np.cumsum(lengths, dtype=np.int64)
        assert len(self.flat) == (self._ends[-1] if len(lengths) else 0)

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> "Ragged":
        """From sequences of ids."""
        sequences = list(sequences)
        lengths = np.fromiter(map(len, sequences), np.int32, len(sequences))
        total = int(lengths.sum())
        return cls(np.fromiter(chain.from_iterable(sequences), np.int32, total), lengths)

    @classmethod
    def join(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """One after the other."""
        if not parts:
            return cls.of([])
        return cls(
            np.concatenate([part.flat for part in parts]), np.concatenate([part.lengths for part in parts])
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> np.ndarray:
        row = range(len(self))[row]
        end = self._ends[row]
        return self.flat[end - self.lengths[row] : end]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    def padded(self, rows: np.ndarray, width: int, fill: int) -> np.ndarray:
        """These rows as an int64 array of `width` columns, each cut or filled up at its end."""
        lengths = self.lengths[rows]
        column = np.arange(width)
        inside = column < lengths[:, None]
        starts = self._ends[rows] - lengths
        array = np.full((len(rows), width), fill, dtype=np.int64)
        array[inside] = self.flat[(starts[:, None] + column)[inside]]
        return array
