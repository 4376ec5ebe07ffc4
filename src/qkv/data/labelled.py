"""Texts and their labels, from lines, TSV, CSV, JSONL or a folder for each class, every fault named or counted."""

import csv
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

from qkv.config import config
from qkv.data.fields import expect_columns, json_row, json_text, json_value
from qkv.data.lines import STDIN, UTF8, Line, expect_encoding, label, lines, undecodable
from qkv.data.report import Report
from qkv.data.text import Rules, fault_of
from qkv.errors import QkvError, nearest

_COLUMNS, _KEYS = (1, 2), ("text", "label")
_ENDINGS = ("tsv", "csv", "jsonl")


@config
class LabelledCorpus:
    """Where texts come from, and their labels."""

    source: str
    """A file, `-` for stdin, or a folder that holds a folder of text files for each label; gzip is recognised by its
    content."""
    format: Literal["auto", "lines", "tsv", "csv", "jsonl", "folder"] = "auto"
    """How `source` is written; auto goes by its ending. lines: a label, a space and the text."""
    columns: tuple[int, int] | tuple[str, str] = _COLUMNS
    """TSV and CSV: the columns of text and label, counted from 1; or their names, which then stand in the first line."""
    keys: tuple[str, str] = _KEYS
    """JSONL: the keys of text and label; a dot leads into an object."""
    separator: str | None = None
    """What stands between several labels of one text, e.g. a comma; JSONL may also have lists of them."""
    encoding: str = UTF8
    """How the bytes are text, e.g. latin-1."""
    limit: int | None = None
    """Use only so many texts, the first ones; none is all."""

    def __post_init__(self) -> None:
        for wrong, sentence in self._faults():
            if wrong:
                raise QkvError(f"corpus {self.name}: {sentence}")
        expect_encoding(self.encoding)

    def _faults(self) -> Iterator[tuple[bool, str]]:
        numbers = [column for column in self.columns if isinstance(column, int)]
        yield min(numbers, default=1) < 1, "columns are counted from 1: give two of them, e.g. 1 and 2"
        for name, given, kinds in (
            ("columns", self.columns != _COLUMNS, ("tsv", "csv")),
            ("keys", self.keys != _KEYS, ("jsonl",)),
        ):
            yield (
                given and self.kind not in kinds,
                f"{name} are for {' and '.join(kinds)} and this is {self.kind}: leave them out, or set format",
            )
        yield self.separator == "", "separator is empty: give what stands between labels, or none"
        yield (
            self.limit is not None and self.limit < 1,
            f"limit is {self.limit}; give 1 or more, or none for all",
        )

    @property
    def kind(self) -> str:
        """The format, once auto is decided."""
        if self.format != "auto":
            return self.format
        if self.source != STDIN and Path(self.source).is_dir():
            return "folder"
        ending = self.source.removesuffix(".gz").rpartition(".")[2]
        return ending if ending in _ENDINGS else "lines"

    @property
    def name(self) -> str:
        """How messages name the corpus."""
        return label(self.source)

    @property
    def files(self) -> list[str]:
        """The files it reads: what must not change between a run and its resumption."""
        if self.kind == "folder":
            return [str(path) for path, _ in _in_folder(self)]
        return [] if self.source == STDIN else [self.source]


class Example(NamedTuple):
    """A text, its labels, and where it stands."""

    text: str
    labels: tuple[str, ...]
    where: str


def read_examples(
    corpus: LabelledCorpus, report: Report, rules: Rules = Rules(), *, labelled: bool = True
) -> Iterator[Example]:
    """The texts of one corpus that pass the rules; the others, and all that was cleaned, are in the report.

    Without `labelled`, lines are texts alone, and columns and keys of labels are not looked at.
    """
    seen: set[bytes] = set()
    for row in _READERS[corpus.kind](corpus, report, rules, labelled):
        if corpus.limit is not None and report.kept == corpus.limit:
            return
        kind = fault_of(row.line, rules)
        if kind is None and labelled and not row.labels and corpus.separator is None and not row.many:
            kind = "no label"
        if kind is None and rules.duplicates == "skip":
            digest = blake2b(repr((row.line.text, row.labels)).encode(), digest_size=12).digest()
            if digest in seen:
                kind = "duplicate"
            seen.add(digest)
        if kind is None:
            report.kept += 1
            yield Example(row.line.text, row.labels, row.where)
        elif kind in ("invalid UTF-8", "undecodable") and rules.invalid == "error":
            raise QkvError(_undecodable(corpus, row))
        elif rules.strict:
            raise QkvError(f"{row.where} {_STRICT[kind]}, or leave strict out to skip it")
        else:
            report.add(row.file, kind, row.line.number, row.line.text)


_STRICT = {
    "invalid UTF-8": "is not UTF-8: correct it",
    "undecodable": "cannot be decoded: correct it",
    "over-long": "is over-long: shorten it (a recipe may raise data.rules.longest)",
    "NUL": "is not text, it contains NUL: correct it",
    "empty": "has no text: fill it or remove it",
    "no label": "has no label: give it one or remove it",
    "duplicate": 'has the text and label of an earlier one: remove it (a recipe may say data.rules.duplicates = "keep")',
}


class _Row(NamedTuple):
    """A text as it was read, its labels, and the file it stands in."""

    line: Line
    labels: tuple[str, ...]
    file: str
    where: str
    many: bool = False
    """Whether the row could hold several labels, and so may have none."""


def _undecodable(corpus: LabelledCorpus, row: _Row) -> str:
    fix = 'name the encoding that it has, e.g. encoding = "latin-1" (--encoding latin-1 of qkv evaluate)'
    if corpus.encoding != UTF8:
        return undecodable(row.file, row.line.number, corpus.encoding)
    return f'{row.where} is not UTF-8: {fix}, or skip such lines in training: data.rules.invalid = "skip"'


def _lines(corpus: LabelledCorpus, report: Report, rules: Rules) -> Iterator[Line]:
    # A row may hold more than the text, hence the generous limit.
    return lines(corpus.source, report, limit=24 * rules.longest + (1 << 20), encoding=corpus.encoding)


def _row(corpus: LabelledCorpus, line: Line, labels: tuple[str, ...] = (), *, many: bool = False) -> _Row:
    return _Row(line, labels, corpus.name, f"{corpus.name} line {line.number}", many)


def _from_lines(corpus: LabelledCorpus, report: Report, rules: Rules, labelled: bool) -> Iterator[_Row]:
    for line in _lines(corpus, report, rules):
        if line.fault or not labelled:
            yield _row(corpus, line)
            continue
        first, *rest = line.text.split(None, 1) or [""]
        yield _row(corpus, line._replace(text=rest[0] if rest else ""), _labels(corpus, first))


def _from_table(corpus: LabelledCorpus, report: Report, rules: Rules, labelled: bool) -> Iterator[_Row]:
    rows = _csv_rows(corpus, report, rules) if corpus.kind == "csv" else _tsv_rows(corpus, report, rules)
    columns: tuple[int, ...] | None = None
    for line, cells in rows:
        where = f"{corpus.name} line {line.number}"
        if columns is None:
            columns, heading = _places(corpus, where, cells, labelled)
            if heading:
                continue
        if line.fault or not any(cell.strip() for cell in cells):
            yield _row(corpus, line)
            continue
        expect_columns(where, cells, max(columns))
        text, *rest = (cells[column - 1] for column in columns)
        yield _row(corpus, line._replace(text=text), _labels(corpus, rest[0]) if rest else ())


def _places(
    corpus: LabelledCorpus, where: str, cells: Sequence[str], labelled: bool
) -> tuple[tuple[int, ...], bool]:
    """The columns of text and label by number, and whether the first line only names them."""
    wanted = corpus.columns if labelled else corpus.columns[:1]
    places = []
    for column in wanted:
        if isinstance(column, str) and column not in cells:
            raise QkvError(
                f"{where} names the columns {', '.join(cells)}; one called {column!r} is wanted: set columns in the "
                f"recipe (--columns of qkv evaluate){nearest(column, cells)}"
            )
        places.append(cells.index(column) + 1 if isinstance(column, str) else column)
    return tuple(places), isinstance(wanted[0], str)


def _tsv_rows(corpus: LabelledCorpus, report: Report, rules: Rules) -> Iterator[tuple[Line, list[str]]]:
    for line in _lines(corpus, report, rules):
        yield line, line.text.split("\t")


def _csv_rows(corpus: LabelledCorpus, report: Report, rules: Rules) -> Iterator[tuple[Line, list[str]]]:
    """Rows of CSV, whose quoted cells may run over several lines; a row has the fault of any of its lines."""
    taken: list[Line] = []

    def texts() -> Iterator[str]:
        for line in _lines(corpus, report, rules):
            taken.append(line)
            yield line.text + "\n"

    rows = csv.reader(texts(), strict=True)
    while True:
        taken.clear()
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise QkvError(
                f"{corpus.name} line {taken[0].number} begins what is not CSV ({error}): quote a cell that holds "
                'commas or quotes, and write a quote inside it as "", or give a TSV file'
            ) from None
        fault = next((line.fault for line in taken if line.fault), None)
        yield Line(taken[0].number, ",".join(cells), fault), cells


def _from_json(corpus: LabelledCorpus, report: Report, rules: Rules, labelled: bool) -> Iterator[_Row]:
    for line in _lines(corpus, report, rules):
        if line.fault or not line.text.strip():
            yield _row(corpus, line)
            continue
        where = f"{corpus.name} line {line.number}"
        row = json_row(where, line.text)
        value = json_value(where, row, corpus.keys[1]) if labelled else ()
        text = line._replace(text=json_text(where, row, corpus.keys[0]))
        yield _row(corpus, text, _of_json(corpus, where, value), many=isinstance(value, list))


def _of_json(corpus: LabelledCorpus, where: str, value: Any) -> tuple[str, ...]:
    """Labels are text, whole numbers, true or false, or a list of these."""
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, (str, int)):
        return _labels(corpus, str(value))
    if isinstance(value, (list, tuple)):
        return tuple(name for part in value for name in _of_json(corpus, where, part))
    raise QkvError(
        f"{where} has {value!r:.40} as {corpus.keys[1]}; a label is text or a whole number, several are a list of them: "
        "correct the line, or set keys in the recipe (--keys of qkv evaluate)"
    )


def _from_folder(corpus: LabelledCorpus, report: Report, rules: Rules, labelled: bool) -> Iterator[_Row]:
    for number, (path, name) in enumerate(_in_folder(corpus), 1):
        # The lines of a file are one text, so a fault of one of them is the whole text's.
        found = list(lines(str(path), report, limit=4 * rules.longest + 6, encoding=corpus.encoding))
        fault = next((line.fault for line in found if line.fault), None)
        line = Line(number, "\n".join(part.text for part in found), fault)
        yield _Row(line, _labels(corpus, name) if labelled else (), str(path), str(path))


def _in_folder(corpus: LabelledCorpus) -> list[tuple[Path, str]]:
    """The files, each with its label; by the name of the file, so that the first ones are not all of one label."""
    folder = Path(corpus.source)
    if not folder.is_dir():
        raise QkvError(f"{folder} is no folder: give one that holds a folder of text files for each label")
    found = [
        (path, inner.name)
        for inner in sorted(folder.iterdir())
        if inner.is_dir() and not inner.name.startswith(".")
        for path in inner.iterdir()
        if path.is_file() and not path.name.startswith(".")
    ]
    if not found:
        raise QkvError(
            f"{folder} holds no folders with files: make a folder for each label and put one text into each file"
        )
    return sorted(found, key=lambda pair: (pair[0].name, pair[1]))


def _labels(corpus: LabelledCorpus, text: str) -> tuple[str, ...]:
    parts = [text] if corpus.separator is None else text.split(corpus.separator)
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


_READERS: dict[str, Callable[[LabelledCorpus, Report, Rules, bool], Iterator[_Row]]] = {
    "lines": _from_lines,
    "tsv": _from_table,
    "csv": _from_table,
    "jsonl": _from_json,
    "folder": _from_folder,
}
