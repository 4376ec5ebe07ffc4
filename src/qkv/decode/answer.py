"""What a classifier says of one of its inputs."""

from dataclasses import dataclass
from typing import NamedTuple


class Guess(NamedTuple):
    """A label, and how likely it is."""

    label: str
    probability: float


@dataclass(frozen=True)
class Answer:
    """One input of a stream, and what is thought of it."""

    source: str
    """The text, or the path of the file."""
    best: list[Guess]
    """Labels, the likeliest first; none of a blank text, or of what cannot be used."""
    fault: str | None = None
    """Why it cannot be used."""
