"""An over-long line in pieces that a model can read: its sentences, and what has no end at its spaces."""

import re

from qkv.data.tokens import Tokens, no_text
from qkv.errors import QkvError

_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’»)]*\s+|(?<=[。！？])[”’」』)]*\s*")


def pieces(line: str, tokens: Tokens, longest: int) -> tuple[list[str], str | None]:
    """The sentences to translate one by one, of at most `longest` tokens with their end; and what a user should know.

    A line that fits stays whole, however many sentences it has; a blank one has none.
    """
    try:
        size = len(line.encode())
    except (AttributeError, UnicodeEncodeError):
        raise QkvError(no_text([line])) from None
    if not line.strip():
        return [], None
    # No token is shorter than a byte, but a word may get a space, and a small letter have more bytes than its capital.
    if 2 * size < longest or _fits(line, tokens, longest):
        return [line], None
    sentences = _sentences(line)
    parts = [part for sentence in sentences for part in _cut(sentence, tokens, longest)]
    length = max(len(tokens.encode(sentence)) for sentence in sentences) + 1
    if length <= longest:
        return parts, None
    return parts, (
        f"has {length:,} tokens without a sentence end, the model learnt from up to {longest}, so it was cut between words: "
        "check its translation, or split it"
    )


def _sentences(line: str) -> list[str]:
    """The sentences of a line, by what ends them; a space at its end begins no other one."""
    line = line.strip()
    ends = [match.end() for match in _SENTENCE_END.finditer(line)]
    parts = [line[start:stop].strip() for start, stop in zip([0, *ends], [*ends, len(line)], strict=True)]
    return [part for part in parts if part]


def _cut(sentence: str, tokens: Tokens, longest: int) -> list[str]:
    """A sentence whole if it fits, else in halves of its words (or of its letters, if it is one), and so on."""
    if len(sentence) < 2 or _fits(sentence, tokens, longest):
        return [sentence]
    middle = len(sentence) // 2
    spaces = [place for place in (sentence.find(" ", middle), sentence.rfind(" ", 0, middle)) if place > 0]
    if spaces:
        middle = min(spaces, key=lambda place: abs(place - middle))
    halves = sentence[:middle].strip(), sentence[middle:].strip()
    return [part for half in halves if half for part in _cut(half, tokens, longest)]


def _fits(text: str, tokens: Tokens, longest: int) -> bool:
    return len(tokens.encode(text)) < longest
