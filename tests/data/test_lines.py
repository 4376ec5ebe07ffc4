"""Lines: only a line feed ends one, whatever else the bytes hold; what cannot be read is named."""

import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.lines import Line, lines, read_lines
from qkv.data.report import Report
from qkv.errors import QkvError

# Everything that str.splitlines or universal newlines would end a line at, but a line feed does not.
TRAPS = "a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i\rj"


@pytest.fixture
def file(tmp_path: Path):
    def write(content: bytes) -> str:
        path = tmp_path / "some.txt"
        path.write_bytes(content)
        return str(path)

    return write


def test_only_line_feeds_end_lines(file):
    assert list(read_lines(file(f"{TRAPS}\nsecond\n".encode()))) == [TRAPS, "second"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n\nb", ["a", "", "", "b"]),
        (b" a \t\n", [" a \t"]),
        (b"\r\n", [""]),
        (b"a\r", ["a\r"]),
    ],
)
def test_blank_lines_and_spaces_stay_and_the_last_line_feed_is_optional(file, content, expected):
    assert list(read_lines(file(content))) == expected


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])).filter(
            lambda text: not text.endswith("\r")
        )
    )
)
def test_any_lines_come_back_from_gzip(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("lines") / "some.gz"
    content = "".join(text + "\n" for text in texts)
    path.write_bytes(gzip.compress(content.encode()))
    expected = [text.removeprefix("\ufeff") if row == 0 else text for row, text in enumerate(texts)]
    assert list(read_lines(str(path))) == expected


def test_a_byte_order_mark_and_windows_endings_are_removed_and_counted(file):
    path = file(b"\xef\xbb\xbfa\r\n\xef\xbb\xbfb\r\nc\n")
    report = Report("x")
    assert [line.text for line in lines(path, report)] == ["a", "\ufeffb", "c"]
    assert report.count("byte order mark") == 1
    assert report.count("Windows line ending") == 2
    assert report.findings[path, "Windows line ending"].line == 1
    assert report.lines[path] == 3


def test_bytes_that_are_not_utf8_name_the_line_or_are_replaced(file):
    path = file(b"good\nM\xe4dchen\n")
    with pytest.raises(
        QkvError, match=r"some\.txt line 2 is not UTF-8: convert the file first, e\.g\. iconv"
    ):
        list(read_lines(path))
    assert list(read_lines(path, invalid="replace")) == ["good", "M\ufffddchen"]


@pytest.mark.parametrize("tail", [b"\n", b"\r\n", b""])
def test_a_line_beyond_the_limit_is_passed_over_in_pieces(file, tail):
    path = file(b"a\n" + b"x" * 1000 + b"\nb\n" + b"y" * 10 + tail)
    found = list(lines(path, Report("x"), limit=13))
    assert found == [Line(1, "a"), Line(2, "", "over-long"), Line(3, "b"), Line(4, "y" * 10)]


def test_stdin_is_read_as_bytes_and_may_be_gzip(monkeypatch):
    for content in (b"a\xc3\xa4\r\n\nb", gzip.compress(b"a\xc3\xa4\n\nb\n")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content)), "latin-1"))
        assert list(read_lines("-")) == ["aä", "", "b"]


def test_reading_is_lazy(monkeypatch):
    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            buffer[:] = b"line\n" * (len(buffer) // 5) + b"\n" * (len(buffer) % 5)
            return len(buffer)

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    assert next(read_lines("-")) == "line"


def test_damaged_gzip_is_named(file):
    packed = gzip.compress(bytes(range(256)) * 100)
    for content in (packed[:-20], packed[:30] + b"\xff\xff\xff" + packed[33:]):
        with pytest.raises(QkvError, match=r"some\.txt is damaged gzip .*: fetch or compress it again"):
            list(read_lines(file(content), invalid="replace"))


def test_a_file_that_is_not_there_is_named_with_the_one_that_may_be_meant(file, tmp_path):
    file(b"a")
    with pytest.raises(
        QkvError, match=r"some\.tx cannot be read: No such file.*did you mean '.*some\.txt'\?"
    ):
        list(read_lines(str(tmp_path / "some.tx")))
    with pytest.raises(QkvError, match=r"cannot be read: Is a directory"):
        list(read_lines(str(tmp_path)))
    with pytest.raises(QkvError, match=r"nowhere/a cannot be read: No such file or directory$"):
        list(read_lines(str(tmp_path / "nowhere" / "a")))


def test_a_file_that_cannot_be_opened_is_named_before_its_first_line_is_asked_for(tmp_path: Path):
    with pytest.raises(QkvError, match=r"some\.txt cannot be read: No such file or directory"):
        read_lines(str(tmp_path / "some.txt"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(QkvError, match="folder cannot be read: Is a directory"):
        read_lines(str(tmp_path / "folder"))
