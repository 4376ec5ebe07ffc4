"""Lines of a file, a gzip file or stdin: only a line feed ends one, and each is decoded or named."""

import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, cast

from qkv.data.report import Report
from qkv.errors import QkvError, nearest

STDIN = "-"
UTF8 = "utf-8"


class Line(NamedTuple):
    """A line without its ending, or the kind of fault for which it has no text."""

    number: int
    text: str
    fault: str | None = None


def read_lines(
    path: str, *, invalid: Literal["error", "replace"] = "error", encoding: str = UTF8
) -> Iterator[str]:
    """Every line of a file (`-` is stdin) in order, blank ones too: what translation reads.

    Bytes that cannot be decoded are an error that names the line, or replaced by U+FFFD. The first line is read at once,
    so that a file which cannot be opened is named before anything is written.
    """
    errors = "replace" if invalid == "replace" else "strict"
    found = lines(path, Report(path), errors=errors, encoding=encoding)
    return _texts(path, encoding, chain(list(islice(found, 1)), found))


def lines(
    path: str,
    report: Report,
    *,
    limit: int = -1,
    errors: Literal["strict", "replace"] = "strict",
    encoding: str = UTF8,
) -> Iterator[Line]:
    """The lines of a file, in bounded memory: of one with more than `limit` bytes only the fault is given.

    A byte order mark and Windows line endings are removed and counted in the report.
    """
    file = label(path)
    for number, (raw, whole) in enumerate(_raw_lines(path, limit), 1):
        report.lines[file] += 1
        if number == 1 and encoding == UTF8 and raw.startswith(b"\xef\xbb\xbf"):
            raw = raw[3:]
            report.add(file, "byte order mark", 1)
        if not whole:
            yield Line(number, "", "over-long")
            continue
        if raw.endswith(b"\r\n"):
            raw = raw[:-2]
            report.add(file, "Windows line ending", number)
        elif raw.endswith(b"\n"):
            raw = raw[:-1]
        try:
            yield Line(number, raw.decode(encoding, errors))
        except UnicodeDecodeError:
            yield Line(number, "", "invalid UTF-8" if encoding == UTF8 else "undecodable")


def _texts(path: str, encoding: str, found: Iterator[Line]) -> Iterator[str]:
    for line in found:
        if line.fault:
            raise QkvError(undecodable(path, line.number, encoding))
        yield line.text


def label(path: str) -> str:
    """How messages name the file."""
    return "stdin" if path == STDIN else path


def invalid_utf8(path: str, number: int) -> str:
    """The sentence for a line that cannot be decoded."""
    return (
        f"{label(path)} line {number} is not UTF-8: convert the file first, "
        "e.g. iconv -f latin1 -t utf-8 (or -f utf-16) OLD > NEW"
    )


def undecodable(path: str, number: int, encoding: str) -> str:
    """The same where an encoding was named."""
    if encoding == UTF8:
        return invalid_utf8(path, number)
    return f"{label(path)} line {number} is not {encoding}: name the encoding that the file has, e.g. cp1252"


def expect_encoding(name: str) -> None:
    """Refuse what is no encoding of text, and those in which a line feed is not one byte."""
    try:
        known = "\n".encode(name) == b"\n"
    except LookupError:
        raise QkvError(
            f"encoding is {name!r}, which Python does not know: give one such as utf-8, latin-1 or cp1252"
        ) from None
    if not known:
        raise QkvError(
            f"encoding is {name!r}, in which lines cannot be told apart: convert the file first, "
            f"e.g. iconv -f {name} -t utf-8 OLD > NEW"
        )


def _raw_lines(path: str, limit: int) -> Iterator[tuple[bytes, bool]]:
    """Each line's bytes with its ending, and whether they are all of it; the rest of a longer one is passed over."""
    with _opened(path) as stream:
        try:
            while raw := stream.readline(limit):
                whole = len(raw) != limit or raw.endswith(b"\n")
                yield raw, whole
                while not whole:
                    rest = stream.readline(limit)
                    whole = not rest or rest.endswith(b"\n")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise QkvError(f"{label(path)} is damaged gzip ({error}): fetch or compress it again") from None
        except OSError as error:
            raise QkvError(f"{label(path)} cannot be read on: {error.strerror or error}") from None


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """The bytes of a file or stdin; gzip is recognised by its first two bytes, whatever the name."""
    try:
        stream = cast(BufferedReader, sys.stdin.buffer) if path == STDIN else open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise QkvError(f"{path} cannot be read: {error.strerror}{_similar(path)}") from None
    try:
        if stream.peek(2)[:2] == b"\x1f\x8b":
            with gzip.open(stream) as unpacked:
                yield cast(BinaryIO, unpacked)
        else:
            yield stream
    finally:
        if path != STDIN:
            stream.close()


def _similar(path: str) -> str:
    """`; did you mean …?` for the file beside it whose name is close."""
    folder = Path(path).parent
    return nearest(path, [str(folder / entry.name) for entry in folder.iterdir()]) if folder.is_dir() else ""
