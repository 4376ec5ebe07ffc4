"""How many sentences a second are translated, here and by the libraries that people use today, with the same weights?

    make bench-decode            (or: python benchmarks/decode.py --only tiny --peers huggingface)

The models are trained by `qkv train` for a few epochs, so that translations have the lengths that they should; their
weights go into each library. Each contender runs in its own process; for greedy search, beam 5, and one sentence at a
time, first each mode translates some sentences, then its best mode takes turns with qkv. No translation is scored.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
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

PAGE = """# How fast is translation, beside the libraries that people use today?

Written by `python benchmarks/decode.py --out docs/benchmarks/decode` (`make bench-decode`). Sentences a second over the
1,000 of test_2016_flickr (Multi30k English to German; of the sources, nothing is scored), and the median time of one
sentence alone. Every contender has the same weights, those of a model that qkv trained for a few epochs. qkv
translates text to text, the others ids to ids. A mode is a precision and how many sentences make a batch; CTranslate2's
names its workers × threads. *Same* is the share of sentences with the very tokens of qkv, *length* that of all tokens.
"""
SOURCE = DATA / "multi30k" / "test_2016_flickr.en.gz"
MODELS = {"tiny": ("model.preset=tiny", 5), "small": ("model.preset=small", 3)}
"""Changes to the recipe, and epochs."""
SCREENED, ALONE, LIMIT = 256, 40, 80
"""Sentences with which a mode is chosen, how many are translated one at a time, and the most tokens of a translation."""


@dataclass(frozen=True)
class Setting:
    """A way to search."""

    name: str
    beam: int
    alone: bool = False


SETTINGS = (Setting("greedy", 1), Setting("beam 5", 5), Setting("one at a time, beam 5", 5, alone=True))


@dataclass(frozen=True)
class Peer:
    """A contender: its library, its modes, and how many sentences it is given."""

    name: str
    library: str
    modes: tuple[str, ...]
    sentences: int = 1000


PEERS = (
    Peer("huggingface", "huggingface", ("fp32, 64", "fp32, 256", "medium, 64", "bf16, 64")),
    Peer("plain", "plain", ("fp32, 64", "fp32, 256", "medium, 64", "bf16, 64")),
    Peer("joeynmt", "joeynmt", ("fp32, 64", "bf16, 64"), sentences=128),
    Peer("ctranslate2", "ctranslate2", ("fp32 1×2, 64", "fp32 2×1, 64", "fp32 2×1, 32")),
    Peer("ctranslate2-int8", "ctranslate2", ("int8 1×2, 64", "int8 2×1, 64", "int8 2×1, 32")),
)
WANTED = {
    ("huggingface", "greedy"): 2.5,
    ("huggingface", "beam 5"): 2.5,
    ("huggingface", "one at a time, beam 5"): 2.5,
    ("ctranslate2", "greedy"): 1.0,
    ("ctranslate2", "beam 5"): 1.0,
}
"""How many times as fast as a peer qkv should be."""
P50 = {"tiny": 8.0}
"""Milliseconds that one sentence may take with beam 5."""


def trained(model: str, runs: Path) -> Path:
    """The run of a model, which is trained first if there is none."""
    run, (change, epochs) = runs / f"bench-{model}", MODELS[model]
    if (run / "model").exists():
        return run
    say(f"training {run} for {epochs} epochs …")
    command = [sys.executable, "-m", "qkv", "train", "recipes/multi30k-en-de.toml", "--out", str(run)]
    for setting in (change, f"train.epochs={epochs}", f"train.validate_from={epochs}", "metrics.beam=1"):
        command += ["--set", setting]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return run


class Measurement:
    """One model: qkv at the ready, and its peers one after the other."""

    def __init__(self, model: str, run: Path, folder: Path, rounds: int):
        self.model, self.folder, self.rounds = model, folder, rounds
        specification = {"run": str(run), "file": str(ROOT / SOURCE), "folder": str(folder)}
        command = [sys.executable, BENCHMARKS / "ours_decoding.py"]
        self.ours = Worker(command, specification, folder / "qkv.log")
        self.ours.facts()
        for setting in SETTINGS:
            self.ask(self.ours, setting, SCREENED)  # the warm-up

    def close(self) -> None:
        self.ours.close()

    def ask(self, worker: Worker, setting: Setting, count: int) -> dict[str, Any]:
        count = min(count, ALONE) if setting.alone else count
        return worker.ask(beam=setting.beam, alone=setting.alone, count=count, limit=LIMIT)

    def peer(self, peer: Peer, settings: Sequence[Setting]) -> Iterator[dict[str, Any]]:
        """For each setting a row: all modes on some sentences, then the best in turns with qkv."""
        failed: dict[str, str] = {}
        with ExitStack() as held:
            workers: dict[str, Worker] = {}
            version = peer.name
            for mode in peer.modes:
                try:
                    worker = held.enter_context(self.start(peer, mode))
                    version = worker.facts()["version"]
                    workers[mode] = worker
                except WorkerError as error:
                    failed[mode] = str(error)
            for setting in settings:
                row = {"model": self.model, "peer": peer.name, "setting": setting.name, "version": version}
                yield row | self.compared(peer, setting, workers, failed)

    def compared(
        self, peer: Peer, setting: Setting, workers: dict[str, Worker], failed: dict[str, str]
    ) -> dict[str, Any]:
        say(f"{self.model}, {setting.name}: {peer.name} …", end=" ")
        modes: dict[str, float] = {}
        for mode, worker in workers.items():
            try:
                self.ask(worker, setting, 8)  # the first shapes are slower
                answer = self.ask(worker, setting, min(SCREENED, peer.sentences))
                modes[mode] = speed(answer)
            except WorkerError as error:
                failed[mode] = str(error)
        found: dict[str, Any] = {"modes": modes, "failed": failed, "rounds": []}
        if not modes:
            say("not measured")
            return found
        found["mode"] = best = max(modes, key=modes.__getitem__)
        for number in range(self.rounds):
            pair = {"qkv": self.ours, "peer": workers[best]}
            order = list(pair) if number % 2 == 0 else list(reversed(pair))
            answers = {name: self.ask(pair[name], setting, peer.sentences) for name in order}
            found |= agreement(answers)
            found["rounds"].append({name: shortened(answer) for name, answer in answers.items()})
        say(f"{best}: qkv is {statistics.median(ratios(found)):.2f} × as fast")
        return found

    def start(self, peer: Peer, mode: str) -> Worker:
        name = "ctranslate2" if peer.library == "ctranslate2" else peer.name
        command = [peer_python(name), BENCHMARKS / "peers" / "decoding.py"]
        specification = {"library": peer.library, "mode": mode, "folder": str(self.folder)}
        return Worker(command, specification, self.folder / f"{peer.name} {mode}.log")


def speed(answer: dict[str, Any]) -> float:
    """Sentences a second; of sentences alone, by the median."""
    if answer["each"]:
        return 1 / statistics.median(answer["each"])
    return len(answer["tokens"]) / answer["seconds"]


def shortened(answer: dict[str, Any]) -> dict[str, float]:
    return {"speed": speed(answer), "tokens": sum(map(len, answer["tokens"]))}


def agreement(answers: dict[str, Any]) -> dict[str, float]:
    """Whether the same work was done: equal translations, and all their tokens together."""
    ours, theirs = answers["qkv"]["tokens"], answers["peer"]["tokens"]
    same = sum(map(list.__eq__, ours, theirs)) / len(ours)
    return {"same": same, "length": sum(map(len, theirs)) / sum(map(len, ours)), "sentences": len(ours)}


def ratios(row: dict[str, Any]) -> list[float]:
    return [one["qkv"]["speed"] / one["peer"]["speed"] for one in row["rounds"]]


def shown(values: Sequence[float], setting: str) -> str:
    """The median: sentences a second, or ms for one."""
    middle = statistics.median(values)
    return f"{1000 / middle:.1f} ms" if "one" in setting else f"{middle:,.0f}"


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    heads = ["model, search", "contender", "mode", "sentences/s", "spread", "qkv ÷ it", "same", "length"]
    lines: list[list[str]] = []
    for model in MODELS:
        for setting in SETTINGS:
            group = [row for row in rows if (row["model"], row["setting"]) == (model, setting.name)]
            whole = [row for row in group if row["rounds"] and (setting.alone or row["sentences"] > 500)]
            ours = [one["qkv"]["speed"] for row in whole for one in row["rounds"]]
            if ours:
                name = f"**{model}, {setting.name}**"
                lines.append(
                    [name, "**qkv**", "native", f"**{shown(ours, setting.name)}**", spread(ours), "1"]
                )
            lines += [line_of(row) for row in group]
    return markdown(heads, [[*line, *["–"] * (len(heads) - len(line))] for line in lines], texts=3)


def line_of(row: dict[str, Any]) -> list[str]:
    if not row["rounds"]:
        return ["", row["peer"], f"not measured: {'; '.join(dict.fromkeys(row['failed'].values()))}"]
    speeds, found = [one["peer"]["speed"] for one in row["rounds"]], ratios(row)
    few = f" ({row['sentences']} sentences)" if 100 < row["sentences"] < 500 else ""
    return [
        "",
        row["version"] + few,
        row["mode"],
        shown(speeds, row["setting"]),
        spread(speeds),
        f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})",
        f"{100 * row['same']:.1f} %",
        f"{100 * row['length']:.1f} %",
    ]


def promises(rows: Sequence[dict[str, Any]]) -> list[Promise]:
    """The figures of the project, and that the work was equal."""
    found = []
    for row in (row for row in rows if row["rounds"]):
        name = f"{row['model']}, {row['setting']}"
        if bound := WANTED.get((row["peer"], row["setting"])):
            found.append(promise(f"{name}: qkv ÷ {row['peer']}", ratios(row), bound, least=True))
        if "one" in row["setting"] and row["peer"] == "huggingface" and row["model"] in P50:
            taken = [1000 / one["qkv"]["speed"] for one in row["rounds"]]
            found.append(promise(f"{name}: ms of a sentence, p50", taken, P50[row["model"]]))
        if "one" not in row["setting"]:
            apart = abs(row["length"] - 1)
            found.append(promise(f"{name}: tokens of {row['peer']} beside qkv's, share apart", [apart], 0.05))
        if row["setting"] == "greedy" and "fp32" in row["mode"]:
            found.append(promise(f"{name}: same tokens as {row['peer']}", [row["same"]], 0.99, least=True))
    return found


def merged(rows: list[dict[str, Any]], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """These rows, and earlier ones of what was not measured again."""
    kept = {(row["model"], row["setting"], row["peer"]): row for row in [*before, *rows]}
    order = [(model, setting.name, peer.name) for model in MODELS for setting in SETTINGS for peer in PEERS]
    return [kept[key] for key in order if key in kept]


def limited(peer: Peer, modes: Sequence[str] | None) -> Peer:
    """With only these of its modes, if it has any of them."""
    kept = tuple(mode for mode in peer.modes if mode in (modes or ()))
    return replace(peer, modes=kept) if kept else peer


def report(out: Path, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    text = "\n".join([f"{facts_line(facts)}.", "", *table(rows), "", *verdict(promises(rows))])
    save(out, PAGE, text, {"machine": facts, "rows": rows}, promises(rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    peers, settings = [peer.name for peer in PEERS], [setting.name for setting in SETTINGS]
    parser.add_argument(
        "--only",
        nargs="+",
        choices=MODELS,
        default=[*MODELS],
        metavar="MODEL",
        help=f"of {', '.join(MODELS)}",
    )
    parser.add_argument(
        "--peers", nargs="+", choices=peers, default=peers, metavar="PEER", help=f"of {', '.join(peers)}"
    )
    parser.add_argument(
        "--settings",
        nargs="+",
        choices=settings,
        default=settings,
        metavar="SEARCH",
        help=f"of {', '.join(settings)}",
    )
    parser.add_argument("--modes", nargs="+", metavar="MODE", help="only these, where a contender has them")
    parser.add_argument("--rounds", type=int, default=3, help="in turns with the best mode (default 3)")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--table", action="store_true", help="measure nothing: only print what --out has")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="where bench-tiny and bench-small are (default runs/)"
    )
    parser.add_argument("--out", type=Path, help="write the results to PATH.json and PATH.md", metavar="PATH")
    options = parser.parse_args()
    if not (ROOT / SOURCE).exists():
        say(f"there is no {ROOT / SOURCE}: put Multi30k's task 1 there to measure decoding")
        return
    before = earlier(options.out)
    rows, facts = before.get("rows", []), before.get("machine") if options.table else machine()
    for model in [] if options.table else options.only:
        run = trained(model, options.runs)
        with tempfile.TemporaryDirectory() as folder:
            measurement = Measurement(model, run, Path(folder), 1 if options.quick else options.rounds)
            try:
                for peer in (peer for peer in PEERS if peer.name in options.peers):
                    chosen = [setting for setting in SETTINGS if setting.name in options.settings]
                    for row in measurement.peer(limited(peer, options.modes), chosen):
                        rows = merged([row], rows)
                        if options.out:  # at once: an interrupted benchmark keeps what it has
                            report(options.out, facts, rows)
            finally:
                measurement.close()
    print("\n".join([*table(rows), "", *verdict(promises(rows))]))


if __name__ == "__main__":
    main()
