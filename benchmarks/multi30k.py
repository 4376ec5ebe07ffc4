"""How well do the models of `recipes/` translate Multi30k, and what do attention and the Transformer add?

    python benchmarks/multi30k.py --out docs/benchmarks/multi30k       # all that is missing, then the table
    python benchmarks/multi30k.py tok-en-de ladder-transformer         # only these

Every model is trained by `qkv train` into runs/NAME (an interrupted one goes on), and its finished model reads the test
set once, by `qkv evaluate`; both are kept in the run, so that asking again only prints the table. The minutes are
those of the whole command, with validation; `--jobs 2` trains two models at a time, each with half of the cores.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import DATA, ROOT

RAW, TOKENIZED = DATA / "multi30k", DATA / "multi30k-tok"

PAGE = """# How well do the recipes translate Multi30k?

Written by `python benchmarks/multi30k.py --out docs/benchmarks/multi30k`: every model trained by `qkv train`, its test
set (test_2016_flickr, 1,000 sentences) read once by `qkv evaluate` with beam 5. Minutes are wall clock of `qkv train` from
the command to the saved model, vocabulary and validations included, with the number of threads beside them; models with
one thread were trained two at a time (`--jobs 2`).
"""


@dataclass(frozen=True)
class Entry:
    """A model: its recipe, changes to it, and what it is tested on."""

    name: str
    recipe: str
    test: tuple[Path, str, tuple[str, ...]]
    """Folder, source language, target languages."""
    wanted: float | None = None
    """BLEU that it should reach at least."""
    changes: tuple[str, ...] = ()
    tagged: bool = False


def rung(name: str, wanted: float | None, *changes: str, recipe: str = "multi30k-ladder") -> Entry:
    """A step of the ladder from a plain recurrent model to the Transformer, German to English."""
    return Entry(f"ladder-{name}", recipe, (RAW, "de", ("en",)), wanted, changes)


ENTRIES = (
    Entry("tok-en-de", "multi30k-tok-en-de", (TOKENIZED, "en", ("de",)), 41.0),
    Entry("tok-en-fr", "multi30k-tok-en-fr", (TOKENIZED, "en", ("fr",)), 61.8),
    Entry("en-de", "multi30k-en-de", (RAW, "en", ("de",)), 39.5),
    Entry("en-fr", "multi30k-en-fr", (RAW, "en", ("fr",))),
    Entry("en-cs", "multi30k-en-cs", (RAW, "en", ("cs",))),
    Entry("en-de-fr-cs", "multi30k-en-de-fr-cs", (RAW, "en", ("de", "fr", "cs")), tagged=True),
    rung("lstm", 13.8, "model.cell=lstm", "model.attention=none"),
    rung("gru-plain", None, "model.attention=none"),
    # Each step is given the plain average of the source, as the published GRU is given its summary.
    rung("gru", 20.6, "model.score=dot", "model.beta=0"),
    rung("gru-dot", 28.3, "model.score=dot"),
    rung("gru-general", 28.3, "model.score=general"),
    rung("gru-concat", 28.3, "model.score=concat"),
    rung("gru-location", 28.3, "model.score=location"),
    rung("gru-feeding", 28.3, "model.score=concat", "model.input_feeding=true"),
    rung("transformer", 36.5, recipe="multi30k-ladder-transformer"),
)
LADDER = (
    ("lstm",),
    ("gru",),
    ("gru-dot", "gru-general", "gru-concat", "gru-location"),
    ("gru-feeding",),
    ("transformer",),
)
"""Models that should each translate better than all on the step below."""
BEHIND = 1.0
"""BLEU that the model of several languages may lose against the models of one."""


def train(entry: Entry, run: Path, threads: int) -> None:
    """Train the model, or go on with it; what it says goes to RUN.log."""
    if (run / "model").exists():
        return
    command = [sys.executable, "-m", "qkv", "train"]
    if (run / "recipe.toml").exists():
        command += ["--resume"]
    else:
        command += [f"recipes/{entry.recipe}.toml"]
        command += [part for change in entry.changes for part in ("--set", change)]
    run.parent.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with run.with_suffix(".log").open("a") as log:
        subprocess.run(
            [*command, "--out", str(run)],
            check=True,
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )
    (run / "threads").write_text(f"{threads}\n")
    print(f"{entry.name}: trained in {(time.perf_counter() - start) / 60:.1f} minutes", file=sys.stderr)


def evaluate(entry: Entry, run: Path) -> dict[str, Any]:
    """Scores on the test set by language, read once and kept."""
    kept = run / "test.json"
    if not kept.exists():
        folder, source, targets = entry.test
        found = {}
        for target in targets:
            data = [folder / f"test_2016_flickr.{language}.gz" for language in (source, target)]
            command = [sys.executable, "-m", "qkv", "evaluate", str(run), "--beam", "5", "--json"]
            command += [part for path in data for part in ("--data", str(path))]
            command += ["--tag", target] if entry.tagged else []
            done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            found[target] = json.loads(done.stdout)
        kept.write_text(json.dumps(found, indent=1) + "\n")
    return json.loads(kept.read_text())


def threads(run: Path) -> int | None:
    """With how many it was trained, if this program trained it."""
    kept = run / "threads"
    return int(kept.read_text()) if kept.exists() else None


def result(entry: Entry, run: Path) -> list[dict[str, Any]]:
    """A row for each language that the model writes."""
    facts = json.loads((run / "model" / "qkv.json").read_text())["results"]
    rows = []
    for language, found in evaluate(entry, run).items():
        scores = found["scores"]["all"]
        rows.append(
            {
                "model": entry.name,
                "into": language,
                "parameters": facts["parameters"],
                "minutes": facts["seconds"] / 60,
                "threads": threads(run),
                "epochs": facts["epochs"],
                "valid_bleu": facts["scores"]["bleu"],
                "bleu": scores["bleu"],
                "chrf": scores["chrf"],
                "wanted": entry.wanted,
                "signatures": found["signatures"],
                "command": " ".join(
                    [
                        f"qkv train recipes/{entry.recipe}.toml",
                        *(f"--set {change}" for change in entry.changes),
                    ]
                ),
            }
        )
    return rows


def with_earlier(rows: list[dict[str, Any]], kept: Path) -> list[dict[str, Any]]:
    """These rows, and those of an earlier report for models that were not measured again."""
    earlier = json.loads(kept.read_text()) if kept.exists() else []
    rows = rows + [old for old in earlier if old["model"] not in {row["model"] for row in rows}]
    order = [entry.name for entry in ENTRIES]
    return sorted((row for row in rows if row["model"] in order), key=lambda row: order.index(row["model"]))


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown, the commands and signatures below."""
    lines = [
        "| model | into | parameters | epochs | minutes (threads) | BLEU, validation | BLEU, test | chrF, test | wanted |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        wanted = f"≥ {row['wanted']}" if row["wanted"] else "–"
        lines.append(
            f"| {row['model']} | {row['into']} | {row['parameters'] / 1e6:.2f} M | {row['epochs']} | "
            f"{row['minutes']:.1f} ({row['threads'] or '?'}) | {row['valid_bleu']:.2f} | **{row['bleu']:.2f}** | "
            f"{row['chrf']:.2f} | {wanted} |"
        )
    short = [
        f"{row['model']} ({row['bleu']:.2f} of {row['wanted']})"
        for row in rows
        if row["wanted"] and row["bleu"] < row["wanted"]
    ]
    lines += ["", f"Short of what was wanted: {', '.join(short) or 'none'}.", ladder(rows), tagged(rows)]
    lines += ["", "| model | command | signature of BLEU |", "|---|---|---|"]
    for row in rows:
        lines.append(
            f"| {row['model']} → {row['into']} | `{row['command']}` | `{row['signatures']['bleu']}` |"
        )
    return "\n".join(lines)


def ladder(rows: list[dict[str, Any]]) -> str:
    """Whether each step of the ladder, of those that are trained, is better than all on the step below."""
    bleu = {row["model"]: row["bleu"] for row in rows}
    steps = [[name for rung in step if (name := f"ladder-{rung}") in bleu] for step in LADDER]
    steps = [step for step in steps if step]
    wrong = [
        f"{upper} ({bleu[upper]:.2f}) is not above {lower} ({bleu[lower]:.2f})"
        for below, above in pairwise(steps)
        for upper in above
        for lower in below
        if bleu[upper] <= bleu[lower]
    ]
    order = " < ".join(" ".join(name.removeprefix("ladder-") for name in step) for step in steps)
    if len(steps) < 2:
        return "The order of the ladder is not known yet."
    return f"The order of the ladder, {order}, {'does not hold: ' + ', '.join(wrong) if wrong else 'holds'}."


def tagged(rows: list[dict[str, Any]]) -> str:
    """How the models of several languages do against the models of one, in BLEU of each language."""
    bleu = {(row["model"], row["into"]): row["bleu"] for row in rows}
    found = []
    for entry in (entry for entry in ENTRIES if entry.tagged):
        _, source, targets = entry.test
        for into in targets:
            both, alone = (entry.name, into), (f"{source}-{into}", into)
            if both in bleu and alone in bleu:
                difference = bleu[both] - bleu[alone]
                found.append(f"{into} {difference:+.2f}{'' if difference >= -BEHIND else ' (too far)'}")
    told = ", ".join(found) or "not known yet"
    return f"The model of several languages against those of one (wanted: at most {BEHIND:g} BLEU behind): {told}."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [entry.name for entry in ENTRIES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs"),
        help="where runs are, seen from the repository (default runs/)",
    )
    parser.add_argument("--jobs", type=int, default=1, help="models trained at a time (default 1)")
    parser.add_argument("--no-train", action="store_true", help="only what is trained already")
    parser.add_argument("--out", type=Path, help="write the results to PATH.json and PATH.md", metavar="PATH")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"no model is called {', '.join(sorted(unknown))}: choose of {', '.join(names)}")
    if not (ROOT / RAW).exists():
        parser.error(f"there is no {RAW}: put Multi30k's task 1 there as train.en.gz, train.de.gz, …")
    chosen = [entry for entry in ENTRIES if not options.names or entry.name in options.names]
    runs = ROOT / options.runs  # where the commands run, wherever this one was started
    each = max(1, (os.cpu_count() or 1) // options.jobs)
    if not options.no_train:
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda entry: train(entry, runs / entry.name, each), chosen))
    rows = [
        row
        for entry in chosen
        if (runs / entry.name / "model").exists()
        for row in result(entry, runs / entry.name)
    ]
    if options.out:
        rows = with_earlier(rows, options.out.with_suffix(".json"))
    print(table(rows))
    if options.out:
        options.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(f"{PAGE}\n{table(rows)}\n")


if __name__ == "__main__":
    main()
