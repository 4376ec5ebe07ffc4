"""The embedded corpus: numbers in English words, translated into five languages by num2words."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cache
from hashlib import blake2b
from itertools import chain, islice
from typing import Any, Literal

import numpy as np
from num2words import CONVERTER_CLASSES

from qkv.errors import QkvError, nearest

LANGUAGES = ("de", "fr", "cs", "it", "da")
LIMIT = 1_000_000  # numbers are below it
_SMALL = 1_100  # every number below it that is not held out is trained on: the words and how they combine
_WORDS = 21  # numbers below it are never held out: some words, such as zero, stand nowhere else
_SHARE = 50  # one number in so many is held out, and one for validation


def pairs(count: int, seed: int = 0, languages: Sequence[str] = LANGUAGES) -> Iterator[tuple[str, str, str]]:
    """`count` pairs to train on, as (English words, language, words in it), number by number.

    First every small number, then as many others as needed, mixed over the magnitudes.
    """
    drawn = (number for number in _drawn(seed) if number >= _SMALL)
    numbers = (number for number in chain(range(_SMALL), drawn) if split(number) == "train")
    return _translated(numbers, count, languages, LIMIT // 2)


def held_out(
    count: int, seed: int = 0, languages: Sequence[str] = LANGUAGES
) -> Iterator[tuple[str, str, str]]:
    """`count` pairs of numbers that `pairs` never gives, whatever its seed; mixed alike."""
    return _translated(filter(is_held_out, _drawn(seed)), count, languages, LIMIT // _SHARE // 2)


def validation(
    count: int, seed: int = 0, languages: Sequence[str] = LANGUAGES
) -> Iterator[tuple[str, str, str]]:
    """The same of others, to choose by: the held-out ones are for the end."""
    numbers = (number for number in _drawn(seed) if split(number) == "valid")
    return _translated(numbers, count, languages, LIMIT // _SHARE // 2)


def split(number: int) -> Literal["train", "valid", "test"]:
    """What a number is for, chosen by its hash: the same everywhere, for ever."""
    if number < _WORDS:
        return "train"
    digest = blake2b(str(number).encode(), digest_size=8).digest()
    share = int.from_bytes(digest, "big") % _SHARE
    return "test" if share == 0 else "valid" if share == 1 else "train"


def is_held_out(number: int) -> bool:
    """Whether it is one of those that no model is trained on, nor chosen by."""
    return split(number) == "test"


def write(number: int, language: str = "en") -> str:
    """`number` in words."""
    return _writer(language)(number)


def _translated(
    numbers: Iterator[int], count: int, languages: Sequence[str], most: int
) -> Iterator[tuple[str, str, str]]:
    """The first `count` pairs; `most` is how many numbers there are before they become scarce and slow to draw."""
    for language in languages:
        if language not in LANGUAGES:
            choices = f"choose of {', '.join(LANGUAGES)}{nearest(language, LANGUAGES)}"
            raise QkvError(f"the numbers are not written in {language!r}: {choices}")
    if count > most * len(languages):
        raise QkvError(
            f"{count:,} pairs of numbers are wanted and {most * len(languages):,} are there: ask for fewer"
        )

    def endless() -> Iterator[tuple[str, str, str]]:
        for number in numbers:
            english = write(number)
            for language in languages:
                yield english, language, write(number, language)

    return islice(endless(), count)


def _drawn(seed: int) -> Iterator[int]:
    """Distinct numbers for ever: first how many digits, then a number of at most so many.

    Only raw 64-bit draws and integers are used: numpy promises those, and no others, to stay as they are.
    """
    bits = np.random.PCG64(np.random.SeedSequence(seed))
    seen: set[int] = set()
    while True:
        draws = bits.random_raw(4096)
        limits = np.array([10**3, 10**4, 10**5, 10**6, 10**6], dtype=np.uint64)[draws % np.uint64(5)]
        for number in ((draws >> np.uint64(8)) % limits).tolist():
            if number not in seen:
                seen.add(number)
                yield number


@cache
def _writer(language: str) -> Callable[[int], str]:
    """num2words for numbers below the limit, ten times as fast.

    Most of its time goes into looking at the names of numbers up to 10^600, one by one, from the largest. A copy that
    knows only those that can occur gives the same words; a converter that works otherwise is used as it is.
    """
    converter: Any = copy(CONVERTER_CLASSES[language])
    if cards := getattr(converter, "cards", None):
        converter.cards = type(cards)((value, word) for value, word in cards.items() if value <= LIMIT)
    return converter.to_cardinal
