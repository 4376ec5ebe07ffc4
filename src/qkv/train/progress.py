"""What a user sees of a run while it goes on: a live bar on a terminal, plain lines elsewhere, all on stderr."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from qkv.tasks.task import Scores
from qkv.train.state import Progress as Counters

_WINDOW = 60.0  # seconds over which the speed is measured
_EVERY = 30.0  # seconds between plain lines about the loss


class Display:
    """Shows a run's progress; validations stay on the screen as a history."""

    def __init__(self, console: Console | None = None, quiet: bool = False):
        self.console = console or Console(stderr=True, quiet=quiet)
        self._quiet, self._live = quiet, self.console.is_terminal and not quiet
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[facts]}"),
            console=self.console,
            transient=True,
            disable=not self._live,
        )
        self._row = self._bar.add_task("training", total=1.0, facts="")
        self._speeds: deque[tuple[float, int]] = deque()
        self._printed = time.perf_counter()
        self._epoch = ""
        self.waited = 0.0
        """Seconds spent on validations so far: they say nothing of the speed of training."""

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def epoch(self, number: int, batches: int) -> None:
        """A pass over the data begins."""
        self._epoch = f"epoch {number}"

    def update(self, counters: Counters, loss: float, seconds: float, done: float) -> None:
        """Some more updates are done."""
        speed = self._speed(counters.targets)
        left = f", {_time(seconds / done * (1 - done))} left" if done > 0 else ""
        facts = f"{self._epoch}, step {counters.step:,}, loss {loss:.3f}, {speed:,.0f} targets/s{left}"
        self._bar.update(self._row, completed=done, facts=facts)
        if not self._live and time.perf_counter() - self._printed >= _EVERY:
            self.say(f"{_time(seconds)}  {facts}")
            self._printed = time.perf_counter()

    @contextmanager
    def validating(self) -> Iterator[None]:
        """While a validation runs."""
        start = time.perf_counter()
        self._bar.update(self._row, description="validating")
        try:
            yield
        finally:
            self._bar.update(self._row, description="training")
            self.waited += time.perf_counter() - start

    def validated(self, counters: Counters, scores: Scores, best: bool, seconds: float) -> None:
        """A validation is over."""
        values = ", ".join(f"{name} {value:.2f}" for name, value in scores.values.items())
        mark = "  ← best" if best else ""
        self.say(f"{_time(seconds)}  epoch {counters.epoch}, step {counters.step:,}: {values}{mark}")

    def _speed(self, targets: int) -> float:
        """Targets a second over the last minute, without validations."""
        now = time.perf_counter() - self.waited
        self._speeds.append((now, targets))
        while len(self._speeds) > 2 and now - self._speeds[0][0] > _WINDOW:
            self._speeds.popleft()
        (since, before) = self._speeds[0]
        return (targets - before) / (now - since) if now > since else 0.0


def history(rows: list[dict[str, object]]) -> Table | None:
    """The validations of a log as a table."""
    found = [row for row in rows if "best" in row]
    if not found:
        return None
    names = [name for name in found[0] if name.startswith("valid_")]
    table = Table("step", "epoch", "minutes", *(name.removeprefix("valid_") for name in names), "best")
    for row in found:
        cells = [f"{row['step']:,}", str(row["epoch"]), f"{float(str(row['seconds'])) / 60:.1f}"]
        cells += [f"{float(str(row[name])):.2f}" for name in names]
        table.add_row(*cells, "←" if row["best"] else "")
    return table


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
