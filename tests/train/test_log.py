"""The log has every line that a checkpoint knows of, and no other."""

import math
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.train.log import Log, read


def test_lines_are_there_at_once_and_exact(tmp_path: Path):
    log = Log(tmp_path / "log.jsonl")
    rows = [{"step": 3, "loss": 1 / 3, "best": True}, {"step": 7, "loss": 5e-324, "name": "é ü\u2028"}]
    for number, row in enumerate(rows, 1):
        log.write(row)
        assert log.lines == number
        assert read(tmp_path / "log.jsonl") == rows[:number]
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_a_resumed_log_is_cut_where_its_checkpoint_was(tmp_path: Path, keep: int):
    path = tmp_path / "log.jsonl"
    log = Log(path)
    for step in range(3):
        log.write({"step": step})
    with path.open("a") as file:
        file.write('{"step": 3, "lo')  # killed in the middle of a line
    again = Log(path, keep=keep)
    assert again.lines == keep
    again.write({"step": 99})
    assert [row["step"] for row in read(path)] == [*range(keep), 99]


def test_a_new_run_starts_an_empty_log_even_if_one_is_left(tmp_path: Path):
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n')
    Log(tmp_path / "log.jsonl")
    assert read(tmp_path / "log.jsonl") == []


def test_what_is_no_number_stays_visible(tmp_path: Path):
    Log(tmp_path / "log.jsonl").write({"norm": math.inf})
    assert read(tmp_path / "log.jsonl") == [{"norm": math.inf}]


def test_a_full_disk_is_one_sentence():
    log = Log.__new__(Log)
    log._path, log.lines = Path("/dev/full"), 4
    with pytest.raises(
        QkvError, match=r"^/dev/full could not be written \(No space left on device\): make room"
    ):
        log.write({"step": 1})
    assert log.lines == 4


def test_a_place_that_is_gone_is_one_sentence(tmp_path: Path):
    with pytest.raises(QkvError, match=r"gone/log.jsonl could not be written \(No such file"):
        Log(tmp_path / "gone" / "log.jsonl")
