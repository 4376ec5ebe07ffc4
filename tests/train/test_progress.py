"""What is shown of a run: a bar that lives on a terminal, plain lines elsewhere, nothing if asked to be quiet."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from tests.train.toy import Rows, changed, loop

from qkv.tasks.task import Scores
from qkv.train import progress
from qkv.train.progress import Display, history
from qkv.train.state import Progress

SCORES = Scores({"loss": 1.234567, "bleu": 39.128}, "bleu")


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def display(terminal: bool = False, quiet: bool = False) -> tuple[Display, io.StringIO]:
    file = io.StringIO()
    return Display(Console(file=file, force_terminal=terminal, width=120, color_system=None), quiet), file


def test_where_there_is_no_terminal_there_are_plain_lines(clock: Clock):
    shown, file = display()
    with shown:
        shown.say("[bold] is no markup")
        shown.epoch(1, 100)
        for step in range(1, 61):
            clock.now += 1
            shown.update(Progress(step=step, targets=500 * step), 3.14159, float(step), step / 240)
        with shown.validating():
            clock.now += 10
        shown.validated(Progress(step=1234, epoch=2), SCORES, True, 3725.4)
        shown.validated(Progress(step=1300, epoch=3), SCORES, False, 3800)
    assert file.getvalue().splitlines() == [
        "[bold] is no markup",
        "0:30  epoch 1, step 30, loss 3.142, 500 targets/s, 3:30 left",
        "1:00  epoch 1, step 60, loss 3.142, 500 targets/s, 3:00 left",
        "1:02:05  epoch 2, step 1,234: loss 1.23, bleu 39.13  ← best",
        "1:03:20  epoch 3, step 1,300: loss 1.23, bleu 39.13",
    ]


def test_on_a_terminal_there_is_a_bar_and_validations_stay(clock: Clock):
    shown, file = display(terminal=True)
    with shown:
        shown.epoch(3, 100)
        clock.now += 40
        shown.update(Progress(step=7, targets=70), 2.5, 40.0, 0.42)
        shown.validated(Progress(step=7, epoch=3), SCORES, True, 41.0)
    text = file.getvalue()
    assert "training" in text
    assert "42 %" in text
    assert "epoch 3, step 7, loss 2.500" in text
    assert "\x1b[" in text  # it moves
    assert "\n0:40  epoch 3" not in text  # the bar says it already
    assert "epoch 3, step 7: loss 1.23, bleu 39.13  ← best\n" in text
    assert text.endswith("\x1b[2K")  # and at the end it is gone


@pytest.mark.parametrize("terminal", [False, True])
def test_quiet_is_quiet(terminal: bool, clock: Clock):
    shown, file = display(terminal, quiet=True)
    with shown:
        shown.say("hello")
        clock.now += 100
        shown.update(Progress(step=1, targets=9), 1.0, 100.0, 0.5)
        with shown.validating():
            pass
        shown.validated(Progress(), SCORES, True, 1.0)
    assert file.getvalue() == ""


def test_by_default_all_goes_to_stderr(capsys: pytest.CaptureFixture[str]):
    Display().say("hello")
    Display(quiet=True).say("nothing")
    assert capsys.readouterr() == ("", "hello\n")


def test_the_speed_is_of_training_not_of_validation(clock: Clock):
    shown, _ = display()
    shown._speed(0)
    clock.now += 10
    assert shown._speed(1000) == 100
    with shown.validating():
        clock.now += 1000
    clock.now += 10
    assert shown._speed(2000) == 100
    for number in range(1, 100):  # of the last minute: what was long ago is forgotten
        clock.now += 10
        speed = shown._speed(2000 + 500 * number)
    assert speed == 50


def test_what_is_left_is_known_within_the_first_epoch(tmp_path: Path):
    """And not only from one epoch to the next."""
    shares: list[float] = []

    class Watched(Display):
        def update(self, counters: Progress, loss: float, seconds: float, done: float) -> None:
            shares.append(done)

    sitting = loop(Rows(changed()), tmp_path)
    sitting.display = Watched(quiet=True)
    sitting.run()
    assert shares == pytest.approx([step / 18 for step in range(1, 19)])


def test_the_history_is_a_table_of_the_validations():
    rows: list[dict[str, object]] = [
        {"step": 20, "epoch": 0, "seconds": 3.0, "loss": 1.0},
        {"step": 1040, "epoch": 1, "seconds": 90.0, "best": True, "valid_bleu": 12.345},
        {"step": 2080, "epoch": 2, "seconds": 180.0, "best": False, "valid_bleu": 11.0},
    ]
    assert history(rows[:1]) is None
    console = Console(file=io.StringIO(), width=80)
    console.print(history(rows))
    cells = [line.replace("│", " ").split() for line in console.file.getvalue().splitlines()]
    assert ["1,040", "1", "1.5", "12.35", "←"] in cells or ["1,040", "1", "1.5", "12.34", "←"] in cells
    assert ["2,080", "2", "3.0", "11.00"] in cells
