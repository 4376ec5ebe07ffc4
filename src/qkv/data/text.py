"""Parallel text: pairs of sentences from two files, TSV, JSONL or the embedded numbers, every fault named or counted."""

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import zip_longest
from typing import Literal, NamedTuple

from qkv.config import config
from qkv.data import numbers
from qkv.data.fields import expect_columns, json_row, json_text
from qkv.data.lines import STDIN, Line, invalid_utf8, label, lines
from qkv.data.report import Report
from qkv.errors import QkvError

NUMBERS = "numbers"
# The embedded corpora: how to make each, and how many pairs are all of it.
_EMBEDDED = {
    NUMBERS: (numbers.pairs, 115_000),
    "numbers-valid": (numbers.validation, 5_000),
    "numbers-test": (numbers.held_out, 5_000),
}
_COLUMNS, _KEYS = (1, 2), ("source", "target")


@config
class Corpus:
    """Where pairs of sentences come from, and how often they are seen."""

    source: str
    """A file, `-` for stdin, or an embedded corpus: `numbers`, and `numbers-valid` and `numbers-test`, which it leaves
    out; gzip is recognised by its content."""
    target: str | None = None
    """The file with the translations, line by line; none if `source` holds both sides."""
    format: Literal["auto", "lines", "tsv", "jsonl"] = "auto"
    """How `source` is written; auto goes by its ending, and is lines when there is a target."""
    tag: str | None = None
    """The language of the targets, e.g. de, when one model translates into several."""
    columns: tuple[int, int] = _COLUMNS
    """TSV: the columns of source and target, counted from 1."""
    tag_column: int | None = None
    """TSV: the column that holds the language of each target."""
    keys: tuple[str, str] = _KEYS
    """JSONL: the keys of source and target; a dot leads into an object, e.g. translation.de."""
    tag_key: str | None = None
    """JSONL: the key that holds the language of each target."""
    weight: float = 1.0
    """How often a pair of this corpus is seen in an epoch, on average."""
    limit: int | None = None
    """Use only so many pairs, the first ones; none is all (of the numbers: 115,000, and 5,000 of those left out)."""

    def __post_init__(self) -> None:
        for wrong, sentence in self._faults():
            if wrong:
                raise QkvError(f"corpus {self.name}: {sentence}")

    def _faults(self) -> Iterator[tuple[bool, str]]:
        one_file = self.kind != "lines"
        yield (
            not one_file and self.target is None,
            "there is no target: give the file with the translations, too, or one file with both that ends in .tsv or "
            ".jsonl (in a recipe, format says so whatever its name is)",
        )
        yield (
            one_file and self.target is not None,
            f"as {self.kind} it holds both sides, yet there is a target {self.target}: leave one out",
        )
        yield self.source == self.target, "source and target are the same: give two files"
        yield not 0 < self.weight < float("inf"), f"weight is {self.weight}; give a number above 0, e.g. 0.5"
        yield (
            min(*self.columns, 1 if self.tag_column is None else self.tag_column) < 1,
            "columns are counted from 1: give two of them, e.g. 1 and 2",
        )
        yield (
            self.limit is not None and self.limit < 1,
            f"limit is {self.limit}; give 1 or more, or none for all",
        )
        yield (
            self.columns != _COLUMNS and self.kind != "tsv",
            f"columns are for tsv and this is {self.kind}: leave them out",
        )
        yield (
            self.keys != _KEYS and self.kind != "jsonl",
            f"keys are for jsonl and this is {self.kind}: leave them out",
        )
        yield (
            self.tag_column is not None and self.kind != "tsv",
            f"tag_column is for tsv and this is {self.kind}: give tag",
        )
        yield (
            self.tag_key is not None and self.kind != "jsonl",
            f"tag_key is for jsonl and this is {self.kind}: give tag",
        )
        yield (
            self.tag is not None and bool(self.tag_column or self.tag_key),
            "tags come from two places: give tag, or where they stand in the file",
        )

    @property
    def kind(self) -> str:
        """The format, once auto is decided."""
        if self.format != "auto":
            return self.format
        if self.source in _EMBEDDED and self.target is None:
            return NUMBERS
        ending = self.source.removesuffix(".gz").rpartition(".")[2]
        return ending if ending in ("tsv", "jsonl") and self.target is None else "lines"

    @property
    def name(self) -> str:
        """How messages name the corpus."""
        return label(self.source) + (f" → {label(self.target)}" if self.target else "")

    @property
    def files(self) -> list[str]:
        """The files it reads: what must not change between a run and its resumption."""
        named = [self.source, self.target] if self.kind != NUMBERS else []
        return [path for path in named if path not in (None, STDIN)]


@config
class Rules:
    """What is done about lines that training is better without; every skip is counted in the report."""

    longest: int = 5000
    """Characters of the longest line; a pair with a longer one is skipped."""
    duplicates: Literal["skip", "keep"] = "skip"
    """Pairs that are the same, letter by letter, as an earlier one of their corpus."""
    invalid: Literal["error", "skip"] = "error"
    """Lines that are not UTF-8: often a whole file in another encoding, hence an error."""
    strict: bool = False
    """Make each skip an error that names file and line."""


class Pair(NamedTuple):
    """A sentence, its translation, the language of the translation if it is tagged, and the line it stands in."""

    source: str
    target: str
    tag: str | None
    line: int


class ParallelText:
    """The pairs of several corpora, in order, as often as they are asked for.

    Files are read anew each time, in bounded memory; what comes from stdin or is made (the numbers) is kept.
    After each complete pass `reports` has one report for each corpus.
    """

    def __init__(self, corpora: Sequence[Corpus], rules: Rules = Rules()):
        if not corpora:
            raise QkvError("there is no corpus: name at least one, e.g. source and target files")
        if [path for corpus in corpora for path in (corpus.source, corpus.target)].count(STDIN) > 1:
            raise QkvError("two corpora read stdin: it can be read once, so give files for all but one")
        self.corpora, self.rules = tuple(corpora), rules
        self.reports: list[Report] = []
        self._kept: dict[int, tuple[list[Pair], Report]] = {}

    def tags(self) -> list[str]:
        """The languages of the targets; where they stand in the file itself, this takes a pass."""
        tags = {corpus.tag for corpus in self.corpora}
        if any(corpus.tag_column or corpus.tag_key for corpus in self.corpora):
            tags |= {pair.tag for pair in self}
        if any(corpus.kind == NUMBERS and corpus.tag is None for corpus in self.corpora):
            tags |= {*numbers.LANGUAGES}
        return sorted(tag for tag in tags if tag is not None)

    def __iter__(self) -> Iterator[Pair]:
        for _, pair in self.numbered():
            yield pair

    def numbered(self) -> Iterator[tuple[int, Pair]]:
        """Each pair with the index of its corpus."""
        reports = []
        for index, corpus in enumerate(self.corpora):
            kept = self._kept.get(index)
            report = kept[1] if kept else Report(corpus.name)
            pairs = kept[0] if kept else read_pairs(corpus, report, self.rules)
            if kept is None and (corpus.kind == NUMBERS or STDIN in (corpus.source, corpus.target)):
                pairs = list(pairs)
                self._kept[index] = pairs, report
            for pair in pairs:
                yield index, pair
            reports.append(report)
        self.reports = reports


def read_pairs(corpus: Corpus, report: Report, rules: Rules = Rules()) -> Iterator[Pair]:
    """The pairs of one corpus that pass the rules; the others, and all that was cleaned, are in the report."""
    seen: set[bytes] = set()
    for row in _READERS[corpus.kind](corpus, report, rules):
        if corpus.limit is not None and report.kept == corpus.limit:
            return
        kind, path, example = _fault(row, rules)
        if kind is None and rules.duplicates == "skip" and corpus.kind != NUMBERS:
            # A digest of 12 bytes for each pair, not its text: a billion pairs meet by chance once in 10^11 corpora.
            digest = blake2b(
                repr((row.source.text, row.target.text, row.tag)).encode(), digest_size=12
            ).digest()
            if digest in seen:
                kind, path, example = "duplicate", row.source_path, row.source.text
            seen.add(digest)
        if kind is None:
            report.kept += 1
            yield Pair(row.source.text, row.target.text, row.tag, row.source.number)
        elif kind == "invalid UTF-8" and rules.invalid == "error":
            raise QkvError(
                f"{invalid_utf8(path, row.source.number)}, or remove such lines "
                '(a recipe may skip them in training: data.rules.invalid = "skip")'
            )
        elif rules.strict:
            raise QkvError(
                f"{label(path)} line {row.source.number} is {_STRICT[kind]}, or leave strict out to skip it"
            )
        else:
            report.add(label(path), kind, row.source.number, example)


_STRICT = {
    "invalid UTF-8": "not UTF-8: correct it",
    "over-long": "over-long: shorten it (a recipe may raise data.rules.longest)",
    "NUL": "not text, it contains NUL: correct it",
    "empty": "empty on one side: fill it or remove it on both",
    "duplicate": 'the same pair as an earlier one: remove it (a recipe may say data.rules.duplicates = "keep")',
}


def fault_of(line: Line, rules: Rules) -> str | None:
    """The kind of fault for which a line is not learnt from."""
    if line.fault:
        return line.fault
    if not line.text or line.text.isspace():
        return "empty"
    if "\0" in line.text:
        return "NUL"
    return "over-long" if len(line.text) > rules.longest else None


class _Row(NamedTuple):
    """Two sides as they were read, and the files they stand in."""

    source: Line
    target: Line
    tag: str | None
    source_path: str
    target_path: str


def _fault(row: _Row, rules: Rules) -> tuple[str | None, str, str]:
    """The kind of the row's first fault, the file it is in, and an example."""
    for line, path, other in (
        (row.source, row.source_path, row.target),
        (row.target, row.target_path, row.source),
    ):
        if kind := fault_of(line, rules):
            # Of a side without text, the other one shows which pair it is.
            return kind, path, (other if line.fault or kind == "empty" else line).text
    return None, "", ""


def _two_files(corpus: Corpus, report: Report, rules: Rules) -> Iterator[_Row]:
    assert corpus.target is not None
    # No valid line has more bytes: four for each character, a byte order mark and the ending.
    limit = 4 * rules.longest + 6
    sides = zip_longest(lines(corpus.source, report, limit=limit), lines(corpus.target, report, limit=limit))
    for source, target in sides:
        if source is None or target is None:
            for _ in sides:
                pass  # to the end, for the count
            here, there = report.lines[label(corpus.source)], report.lines[label(corpus.target)]
            raise QkvError(
                f"{label(corpus.source)} has {here:,} lines and {label(corpus.target)} {there:,}: "
                "line by line one translates the other, so find the missing lines or give the files that belong together"
            )
        yield _Row(source, target, corpus.tag, corpus.source, corpus.target)


def _one_file(corpus: Corpus, report: Report, rules: Rules) -> Iterator[_Row]:
    """The rows of TSV and JSONL; a row may hold more than the two sides, hence the generous limit."""
    split = _columns if corpus.kind == "tsv" else _values
    for line in lines(corpus.source, report, limit=24 * rules.longest + (1 << 20)):
        if line.fault or not line.text.strip():
            yield _Row(line, line, None, corpus.source, corpus.source)
            continue
        source, target, tag = split(corpus, line)
        yield _Row(Line(line.number, source), Line(line.number, target), tag, corpus.source, corpus.source)


def _columns(corpus: Corpus, line: Line) -> tuple[str, str, str | None]:
    cells = line.text.split("\t")
    wanted = max(*corpus.columns, corpus.tag_column or 1)
    expect_columns(f"{label(corpus.source)} line {line.number}", cells, wanted)
    source, target = (cells[column - 1] for column in corpus.columns)
    return source, target, cells[corpus.tag_column - 1] if corpus.tag_column else corpus.tag


def _values(corpus: Corpus, line: Line) -> tuple[str, str, str | None]:
    where = f"{label(corpus.source)} line {line.number}"
    row = json_row(where, line.text)
    source, target = (json_text(where, row, key) for key in corpus.keys)
    return source, target, json_text(where, row, corpus.tag_key, "tag_key") if corpus.tag_key else corpus.tag


def _numbers(corpus: Corpus, report: Report, _rules: Rules) -> Iterator[_Row]:
    make, count = _EMBEDDED[corpus.source]
    languages = numbers.LANGUAGES if corpus.tag is None else (corpus.tag,)
    for number, (english, tag, text) in enumerate(make(corpus.limit or count, languages=languages), 1):
        report.lines[corpus.source] += 1
        yield _Row(Line(number, english), Line(number, text), tag, corpus.source, corpus.source)


_READERS: dict[str, Callable[[Corpus, Report, Rules], Iterator[_Row]]] = {
    "lines": _two_files,
    "tsv": _one_file,
    "jsonl": _one_file,
    NUMBERS: _numbers,
}
