"""Texts in, vectors and labels out: a model that reads whole texts, with its vocabulary.

Axes: N texts, B texts of a batch, T tokens, D width, C labels.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks.pool import TEXT_POOLS
from qkv.data.sequences import Sequences, encode_texts, in_order
from qkv.data.tokens import Tokens
from qkv.decode.answer import Answer, Guess, expect_top, guesses
from qkv.errors import QkvError
from qkv.models.interface import TextClassifier, TextReader

BUDGET = 4096
"""Positions of a batch, padding included."""
WINDOW = 2000
"""Texts of a stream that are read before any is judged: enough to sort them by length, little in memory."""
POOLS = ("class", "average", "max")  # those that need no weights; none is the model's own


class Reader:
    """A model with its vocabulary; what `qkv.load` returns for a model that reads texts."""

    reads: ClassVar[Literal["lines", "files"]] = "lines"
    """What its inputs are to the command line: lines of text, or paths of files such as images."""

    def __init__(self, model: TextReader, tokens: Tokens, longest: int = 256):
        self.model, self.tokens, self.longest = model.eval(), tokens, longest

    def embed(
        self,
        texts: Sequence[str],
        *,
        pool: Literal["class", "average", "max"] | None = None,
        normalise: bool = True,
    ) -> np.ndarray:
        """A vector for each text, (N, D) in float32, of length 1 unless `normalise` is false.

        `pool` is class (the first token's vector), average, max, or none for the model's own way.
        """
        if pool is not None and pool not in POOLS:
            raise QkvError(f"pool is {pool!r}; choose one of {', '.join(POOLS)}, or none for the model's own")
        how = self.model.pooled if pool is None else TEXT_POOLS[pool]()

        def vectors(token_BT: Tensor, keep_BT: Tensor) -> Tensor:
            x_BD = how(self.model.read(token_BT, keep_BT), keep_BT).float()
            return F.normalize(x_BD, dim=-1) if normalise else x_BD

        return run(vectors, self.encode(texts), self.tokens)

    def encode(self, texts: Sequence[str]) -> Sequences:
        """The ids of these texts; one that is longer than what the model learnt from loses its end."""
        if isinstance(texts, str):
            raise QkvError(f"texts is the text {texts!r:.40}: give a list of texts")
        return encode_texts(texts, self.tokens, self.longest)


class Classifier(Reader):
    """One that says which labels a text has."""

    model: TextClassifier

    def __init__(
        self,
        model: TextClassifier,
        tokens: Tokens,
        labels: Sequence[str],
        *,
        multiple: bool = False,
        longest: int = 256,
    ):
        super().__init__(model, tokens, longest)
        self.labels, self.multiple = tuple(labels), multiple

    def classify(self, texts: Sequence[str], top: int | None = None) -> list[list[Guess]]:
        """For each text its `top` likeliest labels, the likeliest first; none for a blank text.

        Without `top`: the likeliest one, or of a model for several labels all that are likelier than not.
        """
        if isinstance(texts, str):
            raise QkvError(f"texts is the text {texts!r:.40}: give a list of texts")
        return [answer.best for answer in self.stream(texts, top)]

    def stream(
        self, lines: Iterable[str], top: int | None = None, *, window: int = WINDOW
    ) -> Iterator[Answer]:
        """Each text judged, in order, in bounded memory; `window` texts are read ahead."""
        expect_top(top)
        rest = iter(lines)
        while chunk := list(islice(rest, window)):
            logits_NC = self.logits([text for text in chunk if text.strip()])
            found = guesses(logits_NC, self.labels, self.multiple, top)
            for text in chunk:
                yield Answer(text, next(found) if text.strip() else [])

    def logits(self, texts: Sequence[str]) -> np.ndarray:
        """The model's scores of the labels, logits_NC."""
        return run(self.model, self.encode(texts), self.tokens)


@torch.inference_mode()
def run(
    model: Callable[[Tensor, Tensor], Tensor], texts: Sequences, tokens: Tokens, budget: int = BUDGET
) -> np.ndarray:
    """What the model says of each text, in the order in which they were given, in float32."""
    found: list[Tensor] = []
    order: list[np.ndarray] = []
    for rows in in_order(texts.lengths, budget):
        found.append(model(*texts.batch(rows, tokens)).float())
        order.append(rows)
    if not found:
        return np.zeros((0, 0), np.float32)
    placed = torch.empty_like(whole := torch.cat(found))
    placed[torch.from_numpy(np.concatenate(order))] = whole
    return placed.numpy()
