"""Plain text: every character comes back, files are read as they are or named, documents are cut where they end."""

import gzip
import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.prose import Documents, Prose, Texts, read_texts
from qkv.data.tokens import END, START, Kind, Tokens
from qkv.errors import QkvError

TEXT = "To be, or not to be:\n\n  that is the question.\nWhether 'tis nobler — in the mind\t…\n"


def prose(kind: Kind = "character", documents: Documents = "none") -> Prose:
    return Prose(Tokens.train(TEXT.split("\n"), kind=kind, size=300, minimum=1), documents)


@pytest.mark.parametrize("kind", ["bpe", "character", "bytes"])
@pytest.mark.parametrize("documents", ["none", "file"])
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back(kind: Kind, documents: Documents, text: str):
    made = prose(kind, documents)
    ids = made.encode(text)
    assert made.decode(ids.tolist()) == text
    assert (ids == END).sum() == text.count("\n")
    assert START not in ids


def test_words_come_back_line_by_line():
    made = prose("word")
    assert made.decode(made.encode("not to be:\nthat is\n").tolist()) == "not to be:\nthat is\n"


def test_parts_of_a_text_are_encoded_one_after_the_other():
    made = prose()
    whole = made.encode(TEXT).tolist()
    for cut in range(len(TEXT)):
        assert [*made.encode(TEXT[:cut]).tolist(), *made.encode(TEXT[cut:]).tolist()] == whole


def test_what_follows_the_end_is_no_text():
    made = prose()
    assert made.decode([*made.encode("be\n").tolist(), START, *made.encode("or").tolist()]) == "be\n"


def test_running_text_has_one_stream_that_begins_as_after_a_line():
    made, parts = prose(), ["to be\n", "or not\n"]
    stream = made.stream(parts)
    assert stream[0] == made.first == END
    assert stream[1:].tolist() == made.encode("to be\nor not\n").tolist()


@pytest.mark.parametrize(
    ("documents", "wanted"),
    [
        ("file", ["a b\nc\n\n \n\nd\n", "e\n"]),
        ("line", ["a b", "c", "d", "e"]),
        ("paragraph", ["a b\nc", "d", "e"]),
    ],
)
def test_each_document_begins_with_a_start(documents: Documents, wanted: list[str]):
    made = prose(documents=documents)
    stream = made.stream(["a b\nc\n\n \n\nd\n", "e\n"]).tolist()
    assert stream[0] == made.first == made.end == START
    found = [[]]
    for index in stream[1:]:
        if index == START:
            found.append([])
        else:
            found[-1].append(index)
    assert [made.decode(ids) for ids in found] == wanted


def test_files_gzip_and_stdin_are_read_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plain, packed = tmp_path / "a.txt", tmp_path / "b.gz"
    plain.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    packed.write_bytes(gzip.compress(b"drei"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO("čtyři\n".encode()))))  # pyright: ignore[reportArgumentType]
    found = read_texts([str(plain), str(packed), "-"])
    assert found.texts == ("one\ntwo\n", "drei\n", "čtyři\n")
    assert found.characters == 8 + 5 + 6
    assert found.notices == (
        f"{plain}: 8 characters, lines: 2, 1 × byte order mark removed, 2 × Windows line ending removed",
        f"{packed}: 5 characters, lines: 1",
        "stdin: 6 characters, lines: 1",
    )


def test_what_cannot_be_read_is_named(tmp_path: Path):
    latin, blank = tmp_path / "latin.txt", tmp_path / "blank.txt"
    latin.write_bytes("gut\nschön\n".encode("latin-1"))
    blank.write_bytes(b"\n \n")
    with pytest.raises(QkvError, match=r"latin.txt line 2 is not UTF-8: convert the file first"):
        read_texts([str(latin)])
    with pytest.raises(QkvError, match=r"blank.txt has no text: give a file with some"):
        read_texts([str(blank)])
    with pytest.raises(QkvError, match=r"latim.txt cannot be read: .*did you mean '.*latin.txt'"):
        read_texts([str(tmp_path / "latim.txt")])
    with pytest.raises(QkvError, match="stdin is named twice"):
        read_texts(["-", "-"])


def test_the_last_share_of_each_file_is_held_out_to_the_character():
    text = Texts(("0123456789\n" * 10, "abc\n"), ("told",))
    first, last = text.split(0.1)
    assert (first.texts[0] + last.texts[0], first.texts[1] + last.texts[1]) == text.texts
    assert list(map(len, first.texts)) == [int(110 * 0.9), int(4 * 0.9)]
    assert first.notices == ("told",)
