"""The one exception users meet, and the help it gives when a name is wrong."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

Item = TypeVar("Item")


class QkvError(Exception):
    """What the user can put right: one sentence with the value, what was wanted and the fix.

    Our own broken invariants are `assert`s instead: no user could act on them.
    """


def nearest(name: str, choices: Iterable[str]) -> str:
    """The end of an error sentence: `; did you mean 'heads'?`, or nothing when no choice is close."""
    close = get_close_matches(name, list(choices), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def choose(kind: str, name: str, registry: Mapping[str, Item]) -> Item:
    """`registry[name]`, or the sentence that names the `kind` of thing, every choice and the nearest one."""
    if name in registry:
        return registry[name]
    choices = ", ".join(sorted(registry))
    raise QkvError(f"unknown {kind} {name!r}: choose one of {choices}{nearest(name, registry)}")
