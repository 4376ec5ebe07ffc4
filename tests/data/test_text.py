"""Parallel text: every format gives the same pairs, and every fault is an error or a counted skip."""

import gzip
import io
import json
from pathlib import Path

import pytest

from qkv.data import numbers
from qkv.data.report import Report
from qkv.data.text import Corpus, Pair, ParallelText, Rules, read_pairs
from qkv.errors import QkvError

PAIRS = [("one two", "eins zwei"), ("three", "drei"), ("a\x85b\u2028c", "A\x0bB")]


@pytest.fixture
def two_files(tmp_path: Path, monkeypatch):
    """Writes `en` and `de`, and works where they are."""
    monkeypatch.chdir(tmp_path)

    def write(source: bytes | str, target: bytes | str) -> Corpus:
        for name, content in (("en", source), ("de", target)):
            Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
        return Corpus(source="en", target="de")

    return write


def read(corpus: Corpus, rules: Rules = Rules()) -> tuple[list[tuple[str, str]], Report]:
    report = Report(corpus.name)
    return [pair[:2] for pair in read_pairs(corpus, report, rules)], report


def as_tsv(pairs):
    return "".join(f"x\t{target}\t{source}\n" for source, target in pairs).encode()


def as_jsonl(pairs):
    return "".join(
        json.dumps({"id": 1, "translation": {"en": source, "de": target}}) + "\n" for source, target in pairs
    ).encode()


TSV = {"columns": (3, 2)}
JSONL = {"keys": ("translation.en", "translation.de")}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_two_files_tsv_and_jsonl_give_the_same_pairs(tmp_path, monkeypatch, pack):
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "en": "\n".join(source for source, _ in PAIRS).encode(),
        "de": "\n".join(target for _, target in PAIRS).encode(),
        "a.tsv.gz": as_tsv(PAIRS),
        "a.jsonl": as_jsonl(PAIRS),
    }.items():
        Path(name).write_bytes(pack(content))
    for corpus in (
        Corpus(source="en", target="de"),
        Corpus(source="a.tsv.gz", **TSV),
        Corpus(source="a.jsonl", **JSONL),
    ):
        pairs, report = read(corpus, Rules(strict=True))
        assert pairs == PAIRS
        assert (report.kept, report.skipped, report.findings) == (3, 0, {})


@pytest.mark.parametrize(("options", "content"), [
    ({"format": "tsv", **TSV}, as_tsv(PAIRS)),
    ({"format": "jsonl", **JSONL}, as_jsonl(PAIRS)),
])  # fmt: skip
def test_stdin_is_read_once_and_kept(monkeypatch, options, content):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
    text = ParallelText([Corpus(source="-", tag="de", **options)])
    for _ in range(2):
        assert [pair[:2] for pair in text] == PAIRS
        assert [report.kept for report in text.reports] == [3]
    assert text.reports[0].name == "stdin"


def test_line_counts_that_differ_name_both(two_files):
    for source, target, here, there in (
        ("a\nb\nc\n", "A\n", 3, 1),
        ("a\n", "A\nB\nC\nD", 1, 4),
        ("", "A", 0, 1),
    ):
        with pytest.raises(QkvError, match=f"en has {here} lines and de {there}: .*find the missing lines"):
            read(two_files(source, target))


def test_invalid_utf8_is_an_error_or_a_counted_skip(two_files):
    corpus = two_files("a\nb\nc\n", b"A\nB\xff\nC\n")
    with pytest.raises(
        QkvError,
        match=r"^de line 2 is not UTF-8: .* or remove such lines \(a recipe may .*: data.rules.invalid = \"skip\"\)$",
    ):
        read(corpus)
    pairs, report = read(corpus, Rules(invalid="skip"))
    assert pairs == [("a", "A"), ("c", "C")]
    assert str(report) == (
        "en → de: 2 pairs kept, 1 skipped (en 3 lines, de 3 lines)\n"
        "  de: 1 × invalid UTF-8 skipped, first at line 2: 'b'"
    )


def test_byte_order_marks_and_windows_endings_are_removed_and_counted(two_files):
    pairs, report = read(two_files(b"\xef\xbb\xbfa\r\nb\r\n", "A\nB\n"), Rules(strict=True))
    assert pairs == [("a", "A"), ("b", "B")]
    assert str(report).splitlines()[1:] == [
        "  en: 1 × byte order mark removed, first at line 1",
        "  en: 2 × Windows line ending removed, first at line 1",
    ]


SKIPS = [
    ("empty", "a\n\nc\n \n", "A\nB\nC\nD\n", "en", 2, "is empty on one side: fill it"),
    ("empty", "a\nb\nc\nd\n", "A\n\u3000\nC\n\n", "de", 2, "is empty on one side: fill it"),
    ("NUL", "a\nb\0b\nc\nd\0", "A\nB\nC\nD\n", "en", 2, "is not text, it contains NUL: correct it"),
    ("over-long", "a\n12345678\nc\nd\n", "A\nB\nC\n12345678\n", "en", 2, r"is over-long: .* may raise data\.rules\.longest"),
    ("over-long", f"a\n{'ä' * 99}\nc\n{'d' * 99}\n", "A\nB\nC\nD\n", "en", 2, "is over-long"),
    ("duplicate", "a\na\nc\nc\n", "A\nA\nC\nC\n", "en", 2, "is the same pair as an earlier one: remove it"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "source", "target", "file", "line", "sentence"), SKIPS)
def test_a_skip_is_counted_and_strict_makes_it_an_error(
    two_files, kind, source, target, file, line, sentence
):
    corpus = two_files(source, target)
    pairs, report = read(corpus, Rules(longest=7))
    assert pairs == [("a", "A"), ("c", "C")]
    assert report.count(kind) == report.skipped == 2
    assert report.findings[file, kind].line == line
    assert f"{file}: " in str(report)
    assert f"× {kind} skipped, first at line {line}" in str(report)
    with pytest.raises(QkvError, match=f"^{file} line {line} {sentence}"):
        read(corpus, Rules(longest=7, strict=True))


def test_a_line_of_the_longest_length_is_kept_whatever_its_bytes(two_files):
    longest = "🙂" * 7
    corpus = two_files("\ufeff" + longest + "\r\n" + longest, f"{longest}\r\nB\n")
    assert read(corpus, Rules(longest=7))[0] == [(longest, longest), (longest, "B")]


def test_every_line_read_is_kept_or_skipped(two_files):
    corpus = two_files("a\n\na\nb\0\nlong line\nz", "A\nB\nA\nC\nD\nZ")
    _, report = read(corpus, Rules(longest=7))
    assert (report.kept, report.skipped, report.lines["en"]) == (2, 4, 6)


def test_only_equal_pairs_are_duplicates_and_they_may_be_kept(two_files):
    corpus = two_files("a\na\na\n", "A\nB\nA\n")
    assert read(corpus)[0] == [("a", "A"), ("a", "B")]
    assert read(corpus, Rules(duplicates="keep"))[0] == [("a", "A"), ("a", "B"), ("a", "A")]


ROWS = [
    ("a.tsv", b"a\tb\nonly one\n", r"a\.tsv line 2 has 1 columns; columns up to 2 are wanted: separate them with tabs"),
    ("a.jsonl", b'{"source": "a", "target": "b"}\nnot json\n', r"a\.jsonl line 2 is not JSON \(.*\): write one object"),
    ("a.jsonl", b'{"source": "a"}\n', r"a\.jsonl line 1 has no target \(it has source\): set keys .* \(--keys of"),
    ("a.tsv", b"a\tb\nonly one\n", r"set columns in the recipe \(--columns of qkv evaluate\)"),
    ("a.jsonl", b'["a", "b"]\n', r"a\.jsonl line 1 has no source \(it has list\): set keys"),
    ("a.jsonl", b'{"source": 1, "target": "b"}\n', r"line 1 has 1 as source; text is wanted"),
    ("a.jsonl", b'{"source": "\\ud800", "target": "b"}\n', r"line 1 has half a surrogate pair as source"),
    ("a.jsonl", b"[" * 100_000 + b"\n", r"line 1 is not JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "sentence"), ROWS)
def test_a_row_of_another_form_is_an_error(tmp_path, monkeypatch, name, content, sentence):
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    with pytest.raises(QkvError, match=sentence):
        read(Corpus(source=name))


def test_the_key_of_the_language_has_a_setting_of_its_own(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"source": "a", "target": "b", "to": "de"}\n', "utf-8")
    with pytest.raises(QkvError, match=r"line 1 has no tag .*: set tag_key .* \(--tag-key of qkv evaluate\)"):
        read(Corpus(source=str(path), tag_key="tag"))


def test_faults_inside_rows_are_counted_too(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [
        {"source": s, "target": t}
        for s, t in (("a", "A"), ("", "B"), ("c\0", "C"), ("a", "A"), ("e" * 9, "E"))
    ]
    path.write_text("\n\n".join(map(json.dumps, rows)), "utf-8")
    pairs, report = read(Corpus(source=str(path)), Rules(longest=8))
    assert pairs == [("a", "A")]
    assert {kind: report.count(kind) for kind in ("empty", "NUL", "duplicate", "over-long")} == {
        "empty": 1 + 4,  # four rows are blank
        "NUL": 1,
        "duplicate": 1,
        "over-long": 1,
    }


def test_tags_come_from_the_corpus_a_column_or_a_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.tsv").write_text("a\tA\tde\na\tA\tfr\n", "utf-8")
    Path("a.jsonl").write_text('{"source": "b", "target": "B", "language": "cs"}\n', "utf-8")
    text = ParallelText(
        [
            Corpus(source="a.tsv", tag_column=3),
            Corpus(source="a.jsonl", tag_key="language"),
            Corpus(source="a.jsonl", tag="it"),
        ]
    )
    assert list(text.numbered()) == [
        (0, Pair("a", "A", "de", 1)),
        (0, Pair("a", "A", "fr", 2)),  # another language is another pair
        (1, Pair("b", "B", "cs", 1)),
        (2, Pair("b", "B", "it", 1)),  # so is another corpus
    ]
    assert text.tags() == ["cs", "de", "fr", "it"]
    assert [report.kept for report in text.reports] == [2, 1, 1]


def test_files_are_read_anew_and_a_limit_takes_the_first_pairs(two_files):
    two_files("a\n\nb\nc\n", "A\nX\nB\nC\n")
    text = ParallelText([Corpus(source="en", target="de", limit=2)])
    for _ in range(2):
        assert [pair.line for pair in text] == [1, 3]
        assert str(text.reports[0]).startswith("en → de: 2 pairs kept, 1 skipped")
    assert text.tags() == []


def test_numbers_to_validate_and_to_test_with_are_corpora_of_their_own():
    for source, make in (("numbers-valid", numbers.validation), ("numbers-test", numbers.held_out)):
        text = ParallelText([Corpus(source=source, limit=15)])
        assert [(pair.source, pair.tag, pair.target) for pair in text] == list(make(15))
        assert text.tags() == sorted(numbers.LANGUAGES)
        assert str(text.reports[0]) == f"{source}: 15 pairs kept, 0 skipped ({source} 15 lines)"


def test_numbers_are_a_corpus():
    text = ParallelText([Corpus(source="numbers", limit=10), Corpus(source="numbers", tag="fr", limit=3)])
    pairs = list(text)
    assert [pair[:3] for pair in pairs[:10]] == [
        (english, words, tag) for english, tag, words in numbers.pairs(10)
    ]
    assert [pair[:3] for pair in pairs[10:]] == [
        ("zero", "zéro", "fr"),
        ("one", "un", "fr"),
        ("two", "deux", "fr"),
    ]
    assert text.tags() == sorted(numbers.LANGUAGES)
    assert text.corpora[0].files == []
    assert list(text) == pairs


WRONG = [
    ({"source": "a"}, "corpus a: there is no target: give the file"),
    ({"source": "-"}, "corpus stdin: there is no target"),
    ({"source": "a", "target": "a"}, "are the same: give two files"),
    ({"source": "a", "target": "b", "format": "tsv"}, "as tsv it holds both sides, yet there is a target b: leave"),
    ({"source": "a.tsv", "weight": 0.0}, r"weight is 0\.0; give a number above 0"),
    ({"source": "a.tsv", "weight": float("nan")}, r"weight is nan; give a number above 0"),
    ({"source": "a.tsv", "columns": (0, 1)}, "counted from 1"),
    ({"source": "a.tsv", "tag_column": 0}, "counted from 1"),
    ({"source": "a", "target": "b", "columns": (2, 3)}, "columns are for tsv and this is lines: leave them out"),
    ({"source": "a.tsv", "keys": ("en", "de")}, "keys are for jsonl and this is tsv: leave them out"),
    ({"source": "a.tsv", "limit": 0}, "limit is 0; give 1 or more"),
    ({"source": "a.tsv", "tag": "de", "tag_column": 3}, "tags come from two places"),
    ({"source": "a.tsv", "tag_key": "x"}, "tag_key is for jsonl and this is tsv"),
    ({"source": "a.jsonl", "tag_column": 3}, "tag_column is for tsv and this is jsonl"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "sentence"), WRONG)
def test_a_corpus_that_cannot_be_is_refused(options, sentence):
    with pytest.raises(QkvError, match=sentence):
        Corpus(**options)


def test_nothing_to_read_and_stdin_twice_are_refused():
    with pytest.raises(QkvError, match="there is no corpus"):
        ParallelText([])
    with pytest.raises(QkvError, match="two corpora read stdin"):
        ParallelText([Corpus(source="-", target="b"), Corpus(source="a", target="-")])
    with pytest.raises(QkvError, match=r"'nl'.*choose of de, fr"):
        list(ParallelText([Corpus(source="numbers", tag="nl")]))
