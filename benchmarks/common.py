"""What the benchmarks share: facts of the machine, workers that take turns, ratios with their spread, and reports."""

import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
DATA = Path("../shared/data")
"""Seen from the repository; none of it belongs to the project."""


def machine() -> dict[str, object]:
    """What the figures depend on."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform.startswith("linux") else []
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    return {"cpu": cpu, "threads": torch.get_num_threads(), **versions}


class Worker:
    """A contender in its own process: one JSON line in, one out, nothing in between, so that it waits while others run."""

    def __init__(
        self,
        command: Sequence[str | Path],
        specification: Mapping[str, Any],
        log: Path,
        threads: int | None = None,
    ):
        self.log = log
        cores = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [*map(str, command), json.dumps(specification)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | cores,
            )

    def facts(self) -> dict[str, Any]:
        """What it says of itself once it is ready."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise WorkerError(f"it ended: {self._last_words()}")
        return json.loads(line)

    def ask(self, **request: Any) -> dict[str, Any]:
        """What it answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self.facts()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last_words(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:200] if lines else "without a word"


class WorkerError(Exception):
    """A contender cannot be measured; the report says why."""


def peer_python(name: str) -> Path:
    """The interpreter that has a library; that of this process, where it needs no other."""
    if not (BENCHMARKS / "peers" / f"{name}.txt").exists():
        return Path(sys.executable)
    found = BENCHMARKS / ".peers" / name / "bin" / "python"
    if not found.exists():
        raise WorkerError("not installed (make bench-peers)")
    return found


@dataclass
class Promise:
    """A ratio between two contenders, or a figure, and its bound."""

    what: str
    value: float
    low: float
    high: float
    bound: float
    least: bool = False
    """Whether the bound is the least that is wanted; else it is the most."""

    @property
    def kept(self) -> bool:
        return self.value >= self.bound if self.least else self.value <= self.bound

    def __str__(self) -> str:
        interval = "" if self.low == self.high else f" ({self.low:.3f} to {self.high:.3f})"
        sign = "≥" if self.least else "≤"
        return (
            f"{'kept' if self.kept else 'SHORT'}: {self.what}: {self.value:.3f}{interval}, "
            f"promised {sign} {self.bound:g}"
        )


def promise(what: str, ratios: Iterable[float], bound: float, least: bool = False) -> Promise:
    """The median of ratios over paired rounds; its 95 % interval by order statistics (binomial)."""
    ratios = sorted(ratios)
    n = len(ratios)
    tail, k = 0.0, 0
    while k < n // 2 and (tail := tail + math.comb(n, k) / 2**n) <= 0.025:
        k += 1
    k = max(k - 1, 0)
    return Promise(what, statistics.median(ratios), ratios[k], ratios[n - 1 - k], bound, least)


def verdict(found: Sequence[Promise]) -> list[str]:
    """Lines about what is kept, and last what fell short."""
    short = [one for one in found if not one.kept]
    end = f"{len(found) - len(short)} of {len(found)} promises kept" + (", not these:" if short else ".")
    kept = [f"- {one}" for one in found if one.kept]
    return [*kept, *([""] if kept else []), end, *([""] if short else []), *(f"- {one}" for one in short)]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> list[str]:
    """A table; its first columns are texts, the others numbers."""
    ruler = "|" + "---|" * texts + "---:|" * (len(heads) - texts)
    return ["| " + " | ".join(heads) + " |", ruler, *("| " + " | ".join(row) + " |" for row in rows)]


def spread(values: Sequence[float]) -> str:
    """Half of the distance between the extremes, in percent of the median."""
    return f"±{50 * (max(values) - min(values)) / max(statistics.median(values), 1e-9):.0f} %"


def facts_line(facts: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in facts.items())


def save(out: Path, page: str, text: str, data: Mapping[str, Any], found: Sequence[Promise] = ()) -> None:
    """The report as PATH.md and all that it was made of as PATH.json."""
    out.parent.mkdir(parents=True, exist_ok=True)
    data = {**data, "promises": [asdict(one) for one in found]}
    out.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    out.with_suffix(".md").write_text(f"{page}\n{text}\n")


def earlier(out: Path | None) -> dict[str, Any]:
    """What an earlier report was made of."""
    kept = out.with_suffix(".json") if out else None
    return json.loads(kept.read_text()) if kept and kept.exists() else {}


def say(text: str, end: str = "\n") -> None:
    print(text, file=sys.stderr, flush=True, end=end)
