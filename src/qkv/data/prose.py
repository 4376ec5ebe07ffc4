"""Plain text: files read whole, cut into documents, and turned into one stream of ids and back.

A stream is line after line, each followed by `END`: that is the line feed. Where there are documents, `START` stands
before each, and so also ends the one before it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from qkv.data.lines import STDIN, invalid_utf8, label, lines
from qkv.data.report import Report
from qkv.data.tokens import END, PAD, START, Tokens
from qkv.errors import QkvError

_PART = "\ufffd"  # what bytes decode to before all those of their letter are there
Documents = Literal["none", "file", "line", "paragraph"]


@dataclass(frozen=True)
class Texts:
    """What files hold, and what a user should know of them."""

    texts: tuple[str, ...]
    """One for each file; every line ends in a line feed."""
    notices: tuple[str, ...]

    @property
    def characters(self) -> int:
        """Of all files."""
        return sum(map(len, self.texts))

    def split(self, share: float) -> tuple["Texts", "Texts"]:
        """All but the last share of each file's characters, and that share."""
        cuts = [int(len(text) * (1 - share)) for text in self.texts]
        parts = [(text[:cut], text[cut:]) for text, cut in zip(self.texts, cuts, strict=True)]
        first, last = zip(*parts, strict=True)
        return Texts(first, self.notices), Texts(last, ())


def read_texts(paths: Sequence[str]) -> Texts:
    """The text of each file (gzip by its content; `-` is stdin), which must be UTF-8.

    A byte order mark and Windows line endings are removed, and told.
    """
    if list(paths).count(STDIN) > 1:
        raise QkvError("stdin is named twice, but it can be read once: give files for the rest")
    texts, notices = [], []
    for path in paths:
        report = Report(path)
        text = "".join(_lines(path, report))
        if not text.strip():
            raise QkvError(f"{label(path)} has no text: give a file with some, or leave it out")
        texts.append(text)
        found = [f"{finding.count:,} × {kind} removed" for (_, kind), finding in report.findings.items()]
        size = f"{len(text):,} characters, lines: {report.lines[label(path)]:,}"
        notices.append(", ".join([f"{label(path)}: {size}", *found]))
    return Texts(tuple(texts), tuple(notices))


def _lines(path: str, report: Report) -> Iterable[str]:
    for line in lines(path, report):
        if line.fault:
            raise QkvError(invalid_utf8(path, line.number))
        yield line.text + "\n"


@dataclass(frozen=True)
class Prose:
    """A vocabulary, and how texts become streams of its ids."""

    tokens: Tokens
    documents: Documents = "none"
    """none: all is one running text; else what a document is: each file, each line, or what blank lines separate."""

    @property
    def first(self) -> int:
        """What stands before a text: the start of a document, or else the end of a line."""
        return END if self.documents == "none" else START

    @property
    def end(self) -> int:
        """What ends a text: the start of the next document. In running text it never comes."""
        return START

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text or a part of it, without what stands before it."""
        lines = self.tokens.encode_all(text.split("\n"))
        ids = np.full(len(lines.flat) + len(lines), END, dtype=np.int32)
        inside = np.ones(len(ids), dtype=bool)
        inside[np.cumsum(lines.lengths + 1) - 1] = False
        ids[inside] = lines.flat
        return ids[:-1]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids up to the end; `decode(encode(text)) == text`, but for words that the vocabulary lacks."""
        text: list[list[int]] = [[]]
        for index in map(int, ids):
            if index == self.end:
                break
            if index == END:
                text.append([])
            else:
                text[-1].append(index)
        return "\n".join(self.tokens.decode_all(text))

    def certain(self, ids: Sequence[int]) -> str:
        """The text of ids that stays as it is whatever follows: a letter of several bytes once they are all there."""
        ids = list(ids)
        while ids and ids[-1] in self._open:
            ids.pop()
        return self.decode(ids).rstrip(_PART)

    @cached_property
    def _open(self) -> set[int]:
        """Ids that are read with their neighbours: bytes of a letter that has no entry of its own, and what is no text."""
        entries = self.tokens.entries() if self.tokens.kind == "character" else []
        return {PAD, *(index for index, entry in enumerate(entries) if re.fullmatch(r"<0x\w\w>", entry))}

    def stream(self, texts: Iterable[str]) -> np.ndarray:
        """The ids of all texts, one after the other, with what stands before each document."""
        if self.documents == "none":
            parts = [[END], *map(self.encode, texts)]
        else:
            documents = (part for text in texts for part in self.split(text))
            parts = [ids for part in documents for ids in ([START], self.encode(part))]
        return np.concatenate([np.array(part, dtype=np.int32) for part in ([], *parts)])

    def split(self, text: str) -> list[str]:
        """The documents of a file; blank ones are none."""
        match self.documents:
            case "line":
                parts = text.split("\n")
            case "paragraph":
                parts = re.split(r"\n(?:[^\S\n]*\n)+", text.strip("\n"))
            case _:
                parts = [text]
        return [part for part in parts if part.strip()]
