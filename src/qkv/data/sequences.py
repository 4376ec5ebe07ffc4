"""Single sequences: texts as ids between start and end, and batches of them that (seed, epoch) decides.

Axes: B batch, T positions.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import torch
from torch import Tensor

from qkv.config import config
from qkv.data import draws
from qkv.data.batches import cut
from qkv.data.ragged import Ragged
from qkv.data.tokens import Tokens
from qkv.errors import QkvError

_CHUNK = 10_000  # texts held at a time
_ENDS = 2  # start and end


@config
class SequencesConfig:
    """How texts become batches."""

    budget: int = 2048
    """Positions of a batch, padding included: rows × longest row is never more."""
    longest: int = 256
    """Tokens of the longest text, its start and end included; longer ones are cut there, and counted."""
    jitter: float = 0.1
    """The part of the texts that goes among those one token longer: epochs differ more in their batches."""

    def __post_init__(self) -> None:
        if not _ENDS < self.longest <= self.budget:
            raise QkvError(
                f"longest is {self.longest} and budget {self.budget}: a text needs more than {_ENDS} tokens, and a batch "
                "must hold the longest, so raise budget or lower longest"
            )
        if not 0 <= self.jitter <= 1:
            raise QkvError(f"jitter is {self.jitter}; it is a part of the texts, from 0 to 1: try 0.1")


@dataclass(frozen=True)
class Sequences:
    """Encoded texts, none longer than wanted."""

    ids: Ragged
    """Without start and end."""
    cut: int
    """How many texts lost their ends."""
    first_cut: int
    """The first of them, by row."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> np.ndarray:
        """With start and end."""
        return self.ids.lengths + _ENDS

    def notice(self, longest: int, where: Sequence[str]) -> str | None:
        """What was cut, for the log; None when nothing was. `where` says where each text stands."""
        if not self.cut:
            return None
        return (
            f"{self.cut:,} of {len(self):,} texts are longer than batches.longest = {longest} tokens and lose their ends, "
            f"first {where[self.first_cut]}"
        )

    def batch(self, rows: np.ndarray, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """These texts as token_BT, and keep_BT, True where a token is real."""
        lengths = self.lengths[rows]
        width = int(lengths.max())
        ids = np.full((len(rows), width), tokens.pad, dtype=np.int64)
        ids[:, 0] = tokens.start
        inner = self.ids.padded(rows, width - 1, tokens.pad)
        ids[:, 1:] = inner
        ids[np.arange(len(rows)), lengths - 1] = tokens.end
        return torch.from_numpy(ids), torch.from_numpy(np.arange(width) < lengths[:, None])


def expect_places(longest: int, positions: str, length: int) -> None:
    """Refuse texts longer than a model with a vector for each place can read."""
    if positions == "learned" and longest > length:
        raise QkvError(
            f"batches.longest is {longest}, but this model can tell {length} places apart: "
            f"set model.length={longest}, or lower batches.longest"
        )


def encode_texts(texts: Iterable[str], tokens: Tokens, longest: int) -> Sequences:
    """The ids of these texts, of each at most the first `longest` with start and end."""
    parts, rest, most = [], iter(texts), longest - _ENDS
    while chunk := list(islice(rest, _CHUNK)):
        parts.append(tokens.encode_all(chunk))
    whole = Ragged.join(parts)
    over = np.flatnonzero(whole.lengths > most)
    if not len(over):
        return Sequences(whole, 0, 0)
    lengths = np.minimum(whole.lengths, most)
    inside = (
        np.arange(len(whole.flat)) - np.repeat(np.cumsum(whole.lengths) - whole.lengths, whole.lengths) < most
    )
    return Sequences(Ragged(whole.flat[inside], lengths), len(over), int(over[0]))


def plan(lengths: np.ndarray, config: SequencesConfig, seed: int, epoch: int) -> list[np.ndarray]:
    """The batches of an epoch, by row: neighbours have like lengths, and both they and their order differ by epoch."""
    bits = draws.source(seed, epoch)
    shifted = lengths.astype(np.int64) + (draws.uniform(bits, len(lengths)) < config.jitter)
    chance = (bits.random_raw(len(lengths)) >> np.uint64(32)).astype(np.int64)
    rows = np.argsort((shifted << 32) + chance, kind="stable")
    # The first batch gets a part of the budget, so that the cuts fall elsewhere in each epoch.
    starts = cut(lengths[rows], config.budget, int(draws.uniform(bits, 1)[0] * config.budget))
    order = np.argsort(draws.uniform(bits, len(starts) - 1), kind="stable")
    return [rows[starts[index] : starts[index + 1]] for index in order]


def in_order(lengths: np.ndarray, budget: int) -> Iterator[np.ndarray]:
    """Every row once, longest first: memory that does not suffice shows at once. One beyond the budget is alone."""
    rows = np.argsort(-lengths, kind="stable")
    starts = cut(lengths[rows], budget)
    return (rows[start:stop] for start, stop in pairwise(starts))


def real_share(lengths: np.ndarray, batches: Sequence[np.ndarray]) -> float:
    """The part of all positions that is not padding."""
    real = sum(int(lengths[rows].sum()) for rows in batches)
    return real / sum(len(rows) * int(lengths[rows].max()) for rows in batches)
