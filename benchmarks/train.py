"""How many target tokens a second does training read, here and in the libraries that people use today?

    make bench-train            (or: python benchmarks/train.py --only tiny --peers huggingface --modes bf16)

Every contender trains the same model on the same batches in its own process: forward, backward, clipping and AdamW.
First each mode of a library runs one round; its best mode then takes turns with qkv. What is promised is the median of
the ratios of paired rounds. With --out, what an earlier report measured of other contenders is kept.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import (
    BENCHMARKS,
    DATA,
    ROOT,
    Promise,
    Worker,
    WorkerError,
    earlier,
    facts_line,
    machine,
    markdown,
    peer_python,
    promise,
    save,
    say,
    spread,
    verdict,
)

PAGE = """# How fast is training, beside the libraries that people use today?

Written by `python benchmarks/train.py --out docs/benchmarks/train` (`make bench-train`). Target tokens a second of
training (forward, backward, clipping of gradients, AdamW), Multi30k English to German, joint vocabulary of 8,000 pieces,
batches of up to 4,096 positions a side that every contender gets alike. qkv runs its own training loop, data and all.
The others run in their own environment, with fused AdamW and the same allocator setting, dropout at the same places
at the same rate. Each is shown in its best mode, with the spread of its rounds; *as it comes* is fp32 without those two
settings. The loss is that after as many updates as the rounds took, from each library's own initial weights.
"""
AS_IT_COMES = "as it comes"
MODES = (AS_IT_COMES, "fp32", "medium", "bf16", "bf16 compiled")
"""fp32, the allocator and the optimiser untouched; fp32; fp32 with oneDNN's products; bf16 autocast; that compiled."""
TRANSFORMERS = ("plain", "huggingface", "x-transformers", "fairseq", "joeynmt")
"""Folders of benchmarks/.peers, and modules of benchmarks/peers/libraries."""

TRAINING = ROOT / DATA / "multi30k" / "train.en.gz"


@dataclass(frozen=True)
class Cell:
    """A model and the batches that it is trained on."""

    name: str
    what: str
    model: dict[str, Any]
    batches: int
    """Of a round."""
    peers: tuple[str, ...] = TRANSFORMERS
    drawn: dict[str, int] | None = None
    wanted: dict[str, float] = field(default_factory=dict)
    """How many times as fast as a peer, or as `the best`, qkv should be."""


def drawn(length: int, vocabulary: int) -> Cell:
    return Cell(
        f"tiny-n{length}-v{vocabulary // 1000}k",
        f"tiny, n = {length}, {vocabulary:,} tokens",
        {"preset": "tiny"},
        batches=4,
        peers=("huggingface",),
        drawn={"length": length, "vocabulary": vocabulary},
    )


def recurrent(feeding: bool) -> Cell:
    return Cell(
        "luong-feeding" if feeding else "luong",
        f"LSTM with Luong attention, input feeding {'on' if feeding else 'off'}",
        {"kind": "luong", "preset": "small", "input_feeding": feeding},
        batches=3,
        peers=("joeynmt",),
        wanted={"joeynmt": 5.0},
    )


CELLS = (
    Cell(
        "tiny",
        "tiny (4+4 × 128/256)",
        {"preset": "tiny"},
        batches=6,
        wanted={"the best": 3.5, "joeynmt": 10.0},
    ),
    Cell("small", "small (6+6 × 256/1024)", {"preset": "small"}, batches=2, wanted={"the best": 2.5}),
    recurrent(feeding=False),
    recurrent(feeding=True),
    *(drawn(length, 8000) for length in (32, 128, 512)),
    *(drawn(32, vocabulary) for vocabulary in (1000, 32000)),
)


class Measurement:
    """One cell: qkv at the ready, and its peers one after the other."""

    def __init__(self, cell: Cell, folder: Path, rounds: int):
        self.cell, self.folder, self.rounds = cell, folder, rounds
        self.written = folder / "batches.npz"
        specification = {
            "model": cell.model,
            "batches": cell.batches,
            "data": str(TRAINING.parent),
            "write": str(self.written),
            "drawn": cell.drawn,
        }
        self.ours = Worker(
            [sys.executable, BENCHMARKS / "ours_training.py"], specification, folder / "qkv.log"
        )
        self.facts = self.ours.facts()
        self.history = [self.ours.ask(batches=cell.batches) for _ in range(2)]
        """What qkv said of each round; the first two are warm-ups, as for the others."""

    def close(self) -> None:
        self.ours.close()

    def peer(self, name: str, modes: Sequence[str]) -> dict[str, Any]:
        """All modes for one round, then the best in turns with qkv."""
        found: dict[str, Any] = {"modes": {}, "failed": {}}
        best: tuple[float, str, Worker] | None = None
        with ExitStack() as held:
            for mode in modes:
                say(f"{self.cell.name}: {name} {mode} …", end=" ")
                try:
                    worker = held.enter_context(self.start(name, mode))
                    facts = worker.facts()
                    worker.ask(batches=self.cell.batches)
                    speed = rate(worker.ask(batches=self.cell.batches))
                except WorkerError as error:
                    found["failed"][mode] = str(error)
                    say(str(error))
                    continue
                say(f"{speed:,.0f} tokens/s")
                found |= {key: facts[key] for key in ("version", "parameters")}
                found["modes"][mode] = speed
                if best is None or speed > best[0]:
                    best = (speed, mode, worker)
            if best:
                found["mode"] = best[1]
                found["rounds"] = list(self.turns(best[2]))
                after = 2 + self.rounds  # rounds since the weights were drawn, for both
                found["losses"] = [self.history[after - 1]["loss"], found["rounds"][-1]["peer"]["loss"]]
        return found

    def start(self, name: str, mode: str) -> Worker:
        command = [peer_python(name), BENCHMARKS / "peers" / "training.py"]
        library = name.replace("-", "_")
        kind = "Recurrent" if self.cell.model.get("kind") == "luong" else "Trainer"
        specification = {
            "library": library,
            "kind": kind,
            "mode": mode,
            "sizes": self.facts["sizes"],
            "batches": str(self.written),
        }
        return Worker(command, specification, self.folder / f"{name}.{mode}.log")

    def turns(self, other: Worker) -> Iterator[dict[str, Any]]:
        """Paired rounds, the one first and then the other."""
        for number in range(self.rounds):
            pair = {"qkv": self.ours, "peer": other}
            order = list(pair) if number % 2 == 0 else list(reversed(pair))
            answers = {name: pair[name].ask(batches=self.cell.batches) for name in order}
            self.history.append(answers["qkv"])
            yield answers


def rate(answer: dict[str, Any]) -> float:
    return answer["targets"] / answer["seconds"]


def ratios(peer: dict[str, Any]) -> list[float]:
    return [rate(one["qkv"]) / rate(one["peer"]) for one in peer.get("rounds", [])]


def measure(
    cells: Sequence[Cell], peers: Sequence[str], modes: Sequence[str], rounds: int
) -> Iterator[dict[str, Any]]:
    """A row for each peer of each cell."""
    for cell in cells:
        with tempfile.TemporaryDirectory() as folder:
            measurement = Measurement(cell, Path(folder), rounds)
            try:
                for name in (name for name in cell.peers if name in peers):
                    found = measurement.peer(name, modes)
                    ours = {
                        "ours": measurement.facts["parameters"],
                        "precision": measurement.facts["precision"],
                    }
                    yield {"cell": cell.name, "peer": name, **ours, **found}
            finally:
                measurement.close()


def merged(rows: list[dict[str, Any]], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """These rows, and earlier ones of contenders that were not measured again or are faster in another mode."""
    kept = {(row["cell"], row["peer"]): row for row in before}
    for row in rows:
        old = kept.get((row["cell"], row["peer"]))
        if old and old.get("mode") not in (None, *row["modes"]) and speed(old) > speed(row):
            row = old | {"modes": row["modes"] | old["modes"], "failed": old["failed"] | row["failed"]}
        elif old:
            row = row | {"modes": old["modes"] | row["modes"], "failed": old["failed"] | row["failed"]}
        kept[row["cell"], row["peer"]] = row
    order = [(cell.name, peer) for cell in CELLS for peer in cell.peers]
    return sorted(
        (kept[key] for key in order if key in kept), key=lambda row: order.index((row["cell"], row["peer"]))
    )


def speed(row: dict[str, Any], name: str = "peer") -> float:
    """The median over the paired rounds."""
    return statistics.median([rate(one[name]) for one in row.get("rounds", [])] or [0.0])


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each contender; qkv stands above those that it was measured with."""
    heads = [
        "model",
        "contender",
        "mode",
        "tokens/s",
        "spread",
        "as it comes",
        "qkv ÷ it",
        "parameters",
        "loss",
    ]
    lines: list[list[str]] = []
    for cell in CELLS:
        found = [row for row in rows if row["cell"] == cell.name]
        if found:
            lines.append(line_of_ours(cell, [row for row in found if row.get("rounds")], found[0]))
        lines += [line_of(row) for row in found]
    return markdown(heads, [[*line, *["–"] * (len(heads) - len(line))] for line in lines], texts=3)


def line_of_ours(cell: Cell, measured: Sequence[dict[str, Any]], row: dict[str, Any]) -> list[str]:
    ours = [rate(one["qkv"]) for row in measured for one in row["rounds"]] or [0.0]
    losses = {f"{row['losses'][0]:.2f}" for row in measured}
    here = f"**{statistics.median(ours):,.0f}**"
    name = [f"**{cell.what}**", "**qkv**", row["precision"], here, spread(ours)]
    return [*name, here, "1", f"{row['ours']:,}", ", ".join(sorted(losses))]


def line_of(row: dict[str, Any]) -> list[str]:
    if not row.get("rounds"):
        return ["", row["peer"], f"not measured: {'; '.join(dict.fromkeys(row['failed'].values()))}"]
    found = ratios(row)
    rates = [rate(one["peer"]) for one in row["rounds"]]
    plain = row["modes"].get(AS_IT_COMES)
    between = f"{min(found):.2f} to {max(found):.2f}"
    return [
        "",
        row["version"],
        row["mode"],
        f"{statistics.median(rates):,.0f}",
        spread(rates),
        f"{plain:,.0f}" if plain else "–",
        f"{statistics.median(found):.2f} ({between})",
        f"{row['parameters']:,}",
        f"{row['losses'][1]:.2f}",
    ]


def promises(rows: Sequence[dict[str, Any]]) -> list[Promise]:
    """The figures of the project, and that the work was equal."""
    found = []
    for cell in CELLS:
        measured = {row["peer"]: row for row in rows if row["cell"] == cell.name and row.get("rounds")}
        for against, bound in cell.wanted.items():
            name = (
                max(measured, key=lambda name: speed(measured[name]), default="")
                if against == "the best"
                else against
            )
            if name in measured:
                what = f"{cell.name}: qkv ÷ {name}{' (the best)' if against == 'the best' else ''}"
                found.append(promise(what, ratios(measured[name]), bound, least=True))
        for name, row in measured.items():
            apart = abs(row["parameters"] / row["ours"] - 1)
            found.append(
                promise(f"{cell.name}: parameters of {name} beside qkv's, share apart", [apart], 0.02)
            )
            one, other = row["losses"]
            found.append(
                promise(
                    f"{cell.name}: loss of {name} beside qkv's, share apart", [abs(other / one - 1)], 0.25
                )
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [cell.name for cell in CELLS]
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="CELL", help=f"of {', '.join(names)}"
    )
    parser.add_argument(
        "--peers",
        nargs="+",
        choices=TRANSFORMERS,
        default=TRANSFORMERS,
        metavar="PEER",
        help=f"of {', '.join(TRANSFORMERS)}",
    )
    parser.add_argument(
        "--modes", nargs="+", choices=MODES, default=MODES, metavar="MODE", help=f"of {', '.join(MODES)}"
    )
    parser.add_argument("--rounds", type=int, default=5, help="in turns with the best mode (default 5)")
    parser.add_argument("--quick", action="store_true", help="two rounds, without torch.compile")
    parser.add_argument("--table", action="store_true", help="measure nothing: only print what --out has")
    parser.add_argument("--out", type=Path, help="write the results to PATH.json and PATH.md", metavar="PATH")
    options = parser.parse_args()
    modes = [mode for mode in options.modes if not (options.quick and "compiled" in mode)]
    rounds = 2 if options.quick else options.rounds
    before = earlier(options.out)
    rows, facts = before.get("rows", []), before.get("machine") if options.table else machine()
    cells = [] if options.table else [cell for cell in CELLS if cell.name in options.only]
    if not TRAINING.exists():
        say(
            f"there is no {TRAINING}: put Multi30k's task 1 there; until then only drawn batches are measured"
        )
        cells = [cell for cell in cells if cell.drawn]
    for row in measure(cells, options.peers, modes, rounds):
        rows = merged([row], rows)
        if options.out:  # at once: an interrupted benchmark keeps what it has
            report(options.out, facts, rows)
    print("\n".join([*table(rows), "", *verdict(promises(rows))]))


def report(out: Path, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    text = "\n".join([f"{facts_line(facts)}.", "", *table(rows), "", *verdict(promises(rows))])
    save(out, PAGE, text, {"machine": facts, "rows": rows}, promises(rows))


if __name__ == "__main__":
    main()
