"""What a classifier says of one of its inputs.

Axes: N inputs, C labels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from qkv.errors import QkvError


class Guess(NamedTuple):
    """A label, and how likely it is."""

    label: str
    probability: float


@dataclass(frozen=True)
class Answer:
    """One input of a stream, and what is thought of it."""

    source: str
    """The text, the path of the file, or which of the pictures."""
    best: list[Guess]
    """Labels, the likeliest first; none of a blank text, or of what cannot be used."""
    fault: str | None = None
    """Why it cannot be used."""


def guesses(
    logits_NC: np.ndarray, labels: Sequence[str], multiple: bool, top: int | None
) -> Iterator[list[Guess]]:
    """Labels with probabilities: softmax where one of them is right, a sigmoid for each where several may be."""
    logits = torch.from_numpy(logits_NC).double()
    likely_NC = (logits.sigmoid() if multiple else logits.softmax(-1)).tolist()
    for likely_C in likely_NC:
        order = sorted(range(len(labels)), key=lambda label: -likely_C[label])
        if top is None and multiple:
            order = [label for label in order if likely_C[label] > 0.5]
        yield [
            Guess(labels[label], likely_C[label])
            for label in order[: 1 if top is None and not multiple else top]
        ]


def expect_top(top: int | None) -> None:
    """Refuse to give no label."""
    if top is not None and top < 1:
        raise QkvError(f"top is {top}; how many labels to give is wanted, 1 or more")
