"""Pairs: parallel text as ids, a few flat arrays however many pairs there are."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from qkv.data.ragged import Ragged
from qkv.data.text import Pair, ParallelText
from qkv.data.tokens import Tokens
from qkv.errors import QkvError

_CHUNK = 10_000  # pairs held as text at a time


@dataclass(frozen=True)
class Pairs:
    """Encoded pairs, in the order in which they were read; start, tag and end are added when a batch is made."""

    sources: Ragged
    targets: Ragged
    tags: np.ndarray
    """The decoder's first token of each pair: a tag, or start."""
    corpora: np.ndarray
    """The corpus of each pair, as an index into `names` and `weights`."""
    lines: np.ndarray
    """The line in which each pair stands."""
    names: tuple[str, ...]
    weights: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.sources)

    def digest(self) -> str:
        """SHA-256 of all ids, lengths and tags."""
        found = hashlib.sha256()
        for side in (self.sources, self.targets):
            found.update(side.flat.tobytes() + side.lengths.tobytes())
        found.update(self.tags.tobytes())
        return found.hexdigest()

    def where(self, row: int) -> str:
        """The file and line of a pair, for messages."""
        return f"{self.names[self.corpora[row]]} line {self.lines[row]}"


def encode_pairs(text: ParallelText, source: Tokens, target: Tokens) -> Pairs:
    """All pairs of the text in one pass, in memory only as ids."""
    numbered = text.numbered()
    chunks = list(_chunks(numbered, source, target, text))
    if not chunks:
        raise QkvError(
            f"there are no pairs in {', '.join(c.name for c in text.corpora)}: see what was skipped, and why"
        )
    sources, targets, tags, corpora, lines = zip(*chunks, strict=True)
    return Pairs(
        Ragged.join(sources),
        Ragged.join(targets),
        np.concatenate(tags),
        np.concatenate(corpora),
        np.concatenate(lines),
        names=tuple(corpus.name for corpus in text.corpora),
        weights=tuple(corpus.weight for corpus in text.corpora),
    )


_Chunk = tuple[Ragged, Ragged, np.ndarray, np.ndarray, np.ndarray]


def _chunks(
    numbered: Iterator[tuple[int, Pair]], source: Tokens, target: Tokens, text: ParallelText
) -> Iterator[_Chunk]:
    ids: dict[str | None, int] = {}
    while chunk := list(islice(numbered, _CHUNK)):
        for index, pair in chunk:
            if pair.tag not in ids:
                try:
                    ids[pair.tag] = target.tag(pair.tag)
                except QkvError as error:
                    raise QkvError(f"{text.corpora[index].name} line {pair.line}: {error}") from None
        yield (
            source.encode_all(pair.source for _, pair in chunk),
            target.encode_all(pair.target for _, pair in chunk),
            np.array([ids[pair.tag] for _, pair in chunk], dtype=np.int32),
            np.array([index for index, _ in chunk], dtype=np.int32),
            np.array([pair.line for _, pair in chunk], dtype=np.int64),
        )
