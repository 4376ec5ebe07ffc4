"""How many minutes does `qkv train` take to a translation quality, from the command on?

    python benchmarks/minutes.py recipes/multi30k-en-de.toml --set train.epochs=12 --out docs/benchmarks/minutes

Trains the recipe with each seed, one after the other, validating with beam 5 after every epoch. The minutes to a score are
those to the first validation from which the score never falls below it, vocabulary and validations included; beside them
stand those to the saved model. A finished run is not trained again.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import ROOT, Promise, earlier, facts_line, machine, markdown, promise, save, say, verdict

PAGE = """# How many minutes to a translation quality?

Written by `python benchmarks/minutes.py RECIPE --out docs/benchmarks/minutes`. Minutes of `qkv train`, from the command to
the first validation (BLEU, cased, beam 5) from which the score stays at least as high, and to the saved model: the median
over seeds, in brackets the least and the most.
"""
SCORES = (30.0, 35.0, 38.0)
WITHIN = {38.0: 5.0}
"""Minutes in which a score should be reached."""


def train(recipe: Path, changes: Sequence[str], seed: int, run: Path) -> None:
    """Train the recipe with a seed, unless that is done."""
    if (run / "model").exists():
        return
    say(f"training {run} …")
    settings = (f"train.seed={seed}", "metrics.beam=5", "train.validate_every=1", *changes)
    command = [sys.executable, "-m", "qkv", "train", str(recipe), "--out", str(run)]
    command += [part for setting in settings for part in ("--set", setting)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def result(run: Path, seed: int) -> dict[str, Any]:
    """Minutes to each score that was reached for good, and to the model."""
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    points = [(row["seconds"] / 60, row["valid_bleu"]) for row in rows if "valid_bleu" in row]
    facts = json.loads((run / "model" / "qkv.json").read_text())["results"]
    return {
        "seed": seed,
        "minutes": {str(score): reached(points, score) for score in SCORES},
        "model": facts["seconds"] / 60,
        "bleu": facts["scores"]["bleu"],
        "points": points,
    }


def reached(points: Sequence[tuple[float, float]], score: float) -> float | None:
    """The first minute from which no validation is below the score."""
    found = None
    for minute, bleu in points:
        found = None if bleu < score else minute if found is None else found
    return found


def shown(values: Sequence[float | None]) -> str:
    """Median, least and most; how many never got there."""
    there = [value for value in values if value is not None]
    if len(there) < len(values):
        return f"{len(there)} of {len(values)} seeds"
    return f"{statistics.median(there):.1f} ({min(there):.1f} to {max(there):.1f})"


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    heads = ["recipe", *(f"minutes to {score:g}" for score in SCORES), "to the model", "BLEU, validation"]
    lines = [
        [
            f"`{row['name']}`",
            *(shown([run["minutes"][str(score)] for run in row["runs"]]) for score in SCORES),
            shown([run["model"] for run in row["runs"]]),
            shown([run["bleu"] for run in row["runs"]]),
        ]
        for row in rows
    ]
    return markdown(heads, lines)


def promises(rows: Sequence[dict[str, Any]]) -> list[Promise]:
    """Of the quickest recipe."""
    found = []
    for score, bound in WITHIN.items():
        taken = [[run["minutes"][str(score)] or float("inf") for run in row["runs"]] for row in rows]
        if taken:
            found.append(promise(f"minutes to {score:g} BLEU", min(taken, key=statistics.median), bound))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are (default runs/)")
    parser.add_argument("--name", help="of the recipe with its changes, for the table and the runs")
    parser.add_argument("--out", type=Path, help="write the results to PATH.json and PATH.md", metavar="PATH")
    options = parser.parse_args()
    name = options.name or " ".join([options.recipe.stem, *options.set])
    runs = []
    for seed in options.seeds:
        run = options.runs / f"minutes-{name.replace('/', '-').replace(' ', '-')}-{seed}"
        train(options.recipe, options.set, seed, run)
        runs.append(result(run, seed))
    before = earlier(options.out).get("rows", [])
    rows = [
        *(row for row in before if row["name"] != name),
        {"name": name, "changes": options.set, "runs": runs},
    ]
    text = "\n".join([f"{facts_line(machine())}.", "", *table(rows), "", *verdict(promises(rows))])
    print(text)
    if options.out:
        save(options.out, PAGE, text, {"machine": machine(), "rows": rows}, promises(rows))


if __name__ == "__main__":
    main()
