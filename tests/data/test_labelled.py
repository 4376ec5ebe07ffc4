"""Labelled text: what each format gives, and that every fault is counted or named with its file and line."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.labelled import Example, LabelledCorpus, read_examples
from qkv.data.report import Report
from qkv.data.text import Rules
from qkv.errors import QkvError

Write = Callable[[str, str | bytes], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


def read(
    source: str, rules: Rules = Rules(), labelled: bool = True, **options: Any
) -> tuple[list[Example], Report]:
    corpus = LabelledCorpus(source=source, **options)
    report = Report(corpus.name, what="texts")
    return list(read_examples(corpus, report, rules, labelled=labelled)), report


def pairs(examples: list[Example]) -> list[tuple[str, str]]:
    return [(one.text, *one.labels) for one in examples]


WANTED = [("a fine film", "good"), ("dull", "bad")]


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.txt", "good a fine film\nbad dull\n", {}),
        ("a.txt", "good\ta fine film\r\nbad  dull", {}),
        ("a.tsv", "a fine film\tgood\ndull\tbad\n", {}),
        ("a.tsv", "7\tgood\tx\ta fine film\n8\tbad\tx\tdull\n", {"columns": (4, 2)}),
        ("a.tsv", "id\tlabel\ttext\n7\tgood\ta fine film\n8\tbad\tdull\n", {"columns": ("text", "label")}),
        ("a.csv", 'a fine film,good\n"dull",bad\n', {}),
        ("a.csv", '\ufefflabel,text\ngood,a fine film\nbad,"dull"\n', {"columns": ("text", "label")}),
        ("a.jsonl", '{"text": "a fine film", "label": "good"}\n{"label": ["bad"], "text": "dull"}\n', {}),
        ("a.jsonl", '{"x": {"y": "a fine film"}, "l": "good"}\n{"x": {"y": "dull"}, "l": "bad"}', {"keys": ("x.y", "l")}),
        ("a.data", '{"text": "a fine film", "label": "good"}\n{"label": "bad", "text": "dull"}', {"format": "jsonl"}),
    ],
)  # fmt: skip
def test_every_format_gives_the_same(write: Write, name: str, content: str, options: dict[str, Any]):
    examples, report = read(write(name, content), **options)
    assert pairs(examples) == WANTED
    assert (report.kept, report.skipped) == (2, 0)


def test_folders_are_labels_and_their_files_texts(write: Write, tmp_path: Path):
    write("d/good/2.txt", "a fine\nfilm\n")
    write("d/bad/1.txt", "dull")
    write("d/bad/.hidden", "no")
    write("d/README", "no")
    examples, report = read(str(tmp_path / "d"))
    assert pairs(examples) == [("dull", "bad"), ("a fine\nfilm", "good")]  # by file, so that labels mix
    assert examples[1].where == str(tmp_path / "d/good/2.txt")
    assert report.kept == 2
    assert LabelledCorpus(source=str(tmp_path / "d")).files == [one.where for one in examples]


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1).filter(
    str.strip
)


@given(st.lists(st.tuples(cells, st.sampled_from(["x", "y z", "ü"])), min_size=1))
def test_what_python_writes_as_csv_comes_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
):
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_text(stream.getvalue(), "utf-8", newline="")
    examples, _ = read(str(path), Rules(duplicates="keep", longest=10**6))
    assert pairs(examples) == rows


def test_a_cell_over_several_lines_counts_from_its_first(write: Write):
    examples, _ = read(write("a.csv", '"two\nlines",x\nthird,y\n'))
    assert [(one.text, one.where[-6:]) for one in examples] == [("two\nlines", "line 1"), ("third", "line 3")]


def test_several_labels(write: Write):
    text = "red,blue both\n, none\nred one\n"
    examples, report = read(write("a.txt", text), separator=",")
    assert [one.labels for one in examples] == [("red", "blue"), (), ("red",)]
    rows = [
        {"text": "a", "label": ["x", "y"]},
        {"text": "b", "label": []},
        {"text": "c", "label": 3},
        {"text": "d", "label": True},
    ]
    examples, report = read(write("a.jsonl", "\n".join(map(json.dumps, rows))))
    assert [one.labels for one in examples] == [("x", "y"), (), ("3",), ("true",)]
    assert report.skipped == 0


def test_texts_alone(write: Write):
    examples, _ = read(write("a.txt", "good a fine film\ndull\n"), labelled=False)
    assert pairs(examples) == [("good a fine film",), ("dull",)]
    assert pairs(read(write("a.tsv", "one\ntwo\n"), labelled=False)[0]) == [("one",), ("two",)]
    assert pairs(read(write("a.jsonl", '{"text": "one"}'), labelled=False)[0]) == [("one",)]


def test_latin_1_by_its_name(write: Write):
    path = write("a.txt", "good Café\n".encode("latin-1"))
    assert pairs(read(path, encoding="latin-1")[0]) == [("Café", "good")]
    with pytest.raises(QkvError, match=r"a\.txt line 1 is not UTF-8: name the encoding that it has, e\.g\."):
        read(path)
    _, report = read(path, Rules(invalid="skip"))
    assert "1 × invalid UTF-8 skipped, first at line 1" in str(report)
    with pytest.raises(QkvError, match=r"a\.txt line 1 is not ascii: name the encoding"):
        read(path, encoding="ascii")


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("empty", "good \ngood fine\n"),
        ("empty", "\ngood fine\n"),
        ("NUL", "good a\0b\ngood fine\n"),
        ("over-long", "good " + "x" * 31 + "\ngood fine\n"),
        ("duplicate", "good fine\ngood fine\n"),
    ],
)
def test_faults_are_counted_or_with_strict_named(write: Write, kind: str, content: str):
    path = write("a.txt", content)
    rules = Rules(longest=30)
    examples, report = read(path, rules)
    assert pairs(examples) == [("fine", "good")]
    line = 2 if kind == "duplicate" else 1
    assert f"1 × {kind} skipped, first at line {line}" in str(report)
    with pytest.raises(QkvError, match=rf"a\.txt line {line} .*, or leave strict out to skip it"):
        read(path, Rules(longest=30, strict=True))


def test_a_text_without_a_label_is_counted(write: Write):
    examples, report = read(write("a.tsv", "fine\tgood\nno label\t \n"))
    assert pairs(examples) == [("fine", "good")]
    assert "1 × no label skipped, first at line 2: 'no label'" in str(report)


def test_the_first_ones_alone(write: Write):
    assert len(read(write("a.txt", "a 1\na 2\na 3\n"), limit=2)[0]) == 2


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("a.tsv", "one\n", {}, r"line 1 has 1 columns; columns up to 2 are wanted"),
        ("a.tsv", "text\tlabel\n", {"columns": ("text", "lable")}, r"one called 'lable' is wanted.*did you mean 'label'\?"),
        ("a.csv", 'x,"open\nand on', {}, r"line 1 begins what is not CSV"),
        ("a.csv", 'x,"a"b\n', {}, r"line 1 begins what is not CSV"),
        ("a.jsonl", "{text}", {}, r"line 1 is not JSON"),
        ("a.jsonl", '{"texts": "x"}', {}, r"line 1 has no label \(it has texts\)"),
        ("a.jsonl", '{"text": 3, "label": "x"}', {}, r"has 3 as text; text is wanted"),
        ("a.jsonl", '{"text": "x", "label": 0.5}', {}, r"has 0\.5 as label; a label is text or a whole number"),
        ("a.txt", "x y", {"columns": (1, 3)}, r"columns are for tsv and csv and this is lines"),
        ("a.tsv", "x y", {"keys": ("a", "b")}, r"keys are for jsonl and this is tsv"),
        ("a.tsv", "x y", {"columns": (0, 1)}, r"columns are counted from 1"),
        ("a.tsv", "x y", {"limit": 0}, r"limit is 0; give 1 or more"),
        ("a.tsv", "x y", {"separator": ""}, r"separator is empty"),
        ("a.tsv", "x y", {"encoding": "latin-11"}, r"encoding is 'latin-11', which Python does not know"),
        ("a.tsv", "x y", {"encoding": "utf-16"}, r"encoding is 'utf-16', in which lines cannot be told apart: .*iconv"),
        ("a.tsv", "x y", {"encoding": "hex"}, r"encoding is 'hex', which Python does not know"),
        ("a.tsv", "x y", {"format": "folder"}, r"is no folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(
    write: Write, name: str, content: str, options: dict[str, Any], said: str
):
    with pytest.raises(QkvError, match=said):
        read(write(name, content), **options)


def test_an_empty_folder_and_a_missing_file_are_said(tmp_path: Path):
    with pytest.raises(QkvError, match="holds no folders with files"):
        read(str(tmp_path))
    with pytest.raises(QkvError, match="cannot be read"):
        read(str(tmp_path / "none.txt"))
