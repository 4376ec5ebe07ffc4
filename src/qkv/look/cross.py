"""Where a translator looked while it wrote: its attention to the source, layer by layer and head by head.

Axes: H heads, T target tokens, S source tokens; in a `Look`, after merging, readable pieces of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.data.tokens import END, SPECIALS, Tokens
from qkv.decode.translator import Translator
from qkv.errors import QkvError
from qkv.look.maps import Map

_BYTES = 4  # of the longest character in UTF-8


@dataclass(frozen=True)
class Look:
    """One translation, and the weights of every attention to the source that wrote it."""

    source: str
    text: str
    """The translation."""
    language: str | None
    keys: list[str]
    """The pieces of the source, and its end."""
    queries: list[str]
    """The pieces of the translation, and its end."""
    weights: dict[str, Tensor]
    """weights_HTS by the path of the attention, e.g. decoder.0.cross."""

    def mean(self, path: str) -> Map:
        """The average over the heads of one attention."""
        weights_HTS = self.weights[path]
        heads = f", mean of {len(weights_HTS)} heads" if len(weights_HTS) > 1 else ""
        return Map(f"{path}{heads}", weights_HTS.mean(0), self.queries, self.keys)

    @property
    def sharpest(self) -> str:
        """The attention whose mean over heads is the most decided: of the lowest entropy, averaged over the pieces."""
        entropy = {
            path: torch.special.entr(weights_HTS.mean(0)).sum(-1).mean().item()
            for path, weights_HTS in self.weights.items()
        }
        return min(entropy, key=lambda path: entropy[path])


def look(translator: Translator, source: str, to: str | None = None) -> Look:
    """Translate a sentence and see what each piece of the translation looked at."""
    if not source.strip():
        raise QkvError(f"the sentence is {source!r}: give one with words in it")
    best = translator.search([source], (to,))[0][0][0]
    weights = translator.weights(source, best, to)
    keys, columns = readable(translator.source, [*translator.source.encode(source).tolist(), END])
    queries, rows = readable(translator.target, [*best.tokens, END])
    merged = {path: _merged(weights_HTS, rows, columns) for path, weights_HTS in weights.items()}
    return Look(source, best.text, to, keys, queries, merged)


def readable(tokens: Tokens, ids: Sequence[int]) -> tuple[list[str], list[list[int]]]:
    """Tokens merged until each piece can be read, and the places of its tokens.

    A character may be cut into bytes, and the space before a word may be a token of its own: neither says anything
    alone. Pieces of words stay apart, as what they look at differs.
    """
    texts: list[str] = []
    places: list[list[int]] = []
    group: list[int] = []
    named = len(SPECIALS) + len(tokens.tags)
    for place, index in enumerate(ids):
        if index < named:  # a special or a tag stands alone, and what is before it can only end here
            if group:
                texts.append(_text(tokens, ids, group))
                places.append(group)
            texts.append(tokens.pieces([index])[0])
            places.append([place])
            group = []
            continue
        group.append(place)
        text = _text(tokens, ids, group)
        if text != _BLANK and ("\ufffd" not in text or len(group) >= _BYTES):
            texts.append(text)
            places.append(group)
            group = []
    if group:
        texts.append(_text(tokens, ids, group))
        places.append(group)
    return texts, places


_BLANK = "␣"


def _text(tokens: Tokens, ids: Sequence[int], group: list[int]) -> str:
    return tokens.decode([ids[place] for place in group]).strip() or _BLANK


def _merged(weights_HTS: Tensor, rows: list[list[int]], columns: list[list[int]]) -> Tensor:
    """A piece was looked at as much as its tokens together, and looked as its tokens did on average."""
    by_column = torch.stack([weights_HTS[..., column].sum(-1) for column in columns], dim=-1)
    return torch.stack([by_column[:, row].mean(1) for row in rows], dim=1)
