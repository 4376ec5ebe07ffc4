"""Does a run that is killed again and again end in the very model of the run that never was?

    python benchmarks/resume.py --kills 20 --steps 400

Trains a Transformer (2+2 layers of width 128) on the embedded numbers in bf16 with dropout and an averaged model: once
without interruption, then in processes that are killed with SIGKILL at random moments and resumed. Prints what was
lost at each kill, and whether weights, optimiser, averages, best model and every logged number are the same to the bit.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from qkv.data.batches import BatchesConfig
from qkv.data.text import Corpus
from qkv.data.tokens import TokensConfig
from qkv.decode.config import SearchConfig
from qkv.models.transformer import TransformerConfig
from qkv.recipe.config import from_toml, to_toml
from qkv.recipe.training import AverageConfig, OptimConfig, ScheduleConfig, TrainConfig
from qkv.store import bundle, checkpoint
from qkv.tasks.translate import DataConfig, TranslateConfig
from qkv.train.log import read
from qkv.train.run import Run
from qkv.train.train import train


def recipe(steps: int, optimizer: str) -> TranslateConfig:
    """A model and data of the size of the demo's."""
    return TranslateConfig(
        data=DataConfig(
            train=(Corpus(source="numbers", limit=20_000),),
            valid=(Corpus(source="numbers", limit=100),),
        ),
        tokens=TokensConfig(size=500),
        batches=BatchesConfig(budget=4096, longest=100),
        model=TransformerConfig(
            width=128, hidden=256, heads=4, encoder_layers=2, decoder_layers=2, dropout=0.1
        ),
        search=SearchConfig(maximum=40),
        train=TrainConfig(
            epochs=None,
            steps=steps,
            optimizer=OptimConfig(kind="muon" if optimizer == "muon" else "adamw"),
            schedule=ScheduleConfig(kind="cosine", warmup=50),
            average=AverageConfig(kind="ema", decay=0.99),
            log_every=5,
        ),
    )


def sitting(config: Path, out: Path, often: float) -> subprocess.Popen[bytes]:
    """A process that begins the run, or goes on with it."""
    return subprocess.Popen(
        [sys.executable, __file__, "--sitting", str(config), str(out), str(often)],
        stderr=out.with_suffix(".txt").open("ab"),
    )


def sit(config: Path, out: Path, often: float) -> None:
    """What that process does; how often it saves is free to differ."""
    found = from_toml(TranslateConfig, config.read_text())
    train(replace(found, train=replace(found.train, checkpoint_minutes=often)), out, resume=Run(out).exists)


def step_of(run: Path) -> int:
    """The newest checkpoint's."""
    names = [int(path.name) for path in run.glob("checkpoints/*") if path.name.isdecimal()]
    return max(names, default=0)


def logged(run: Path) -> int:
    """The newest step in the log; the last line may be half a one."""
    try:
        return int(str(read(run / "log.jsonl")[-1]["step"]))
    except (OSError, ValueError, IndexError):
        return 0


def differences(one: Path, other: Path) -> list[str]:
    """What is not the same, to the bit, in two finished runs."""
    found: list[str] = []

    def compare(name: str, first: dict[str, Any], second: dict[str, Any]) -> None:
        if first.keys() != second.keys() or not all(torch.equal(first[key], second[key]) for key in first):
            found.append(name)

    compare("the model", bundle.read(one / "model").tensors, bundle.read(other / "model").tensors)
    (first, _), (second, _) = checkpoint.newest(one), checkpoint.newest(other)
    assert first is not None
    assert second is not None
    for group, tensors in first.tensors.items():
        compare(group, tensors, second.tensors[group])
    if first.facts | {"seconds": 0} != second.facts | {"seconds": 0}:
        found.append("the counters")
    rows, others = ([row | {"seconds": 0} for row in read(run / "log.jsonl")] for run in (one, other))
    if rows != others:
        found.append("the log")
    return found


def killed(folder: Path, config: Path, kills: int, often: float, chance: random.Random) -> int:
    """Kill a run so many times, then let it end; how often it was killed before."""
    seconds = [float(str(row["seconds"])) for row in read(folder / "whole" / "log.jsonl")]
    start, training = seconds[0], seconds[-1] - seconds[0]  # reading the data comes before each sitting
    out = folder / "killed"
    print("\nkill  after (s)  from step  saved step  steps lost", flush=True)
    for number in range(1, kills + 1):
        before, wait = step_of(out), chance.uniform(0.5 * start, start + 1.5 * training / kills)
        process = sitting(config, out, often)
        try:
            process.wait(wait)
            return number - 1  # it was done before
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        lost = max(0, logged(out) - step_of(out))
        print(f"{number:4}  {wait:9.2f}  {before:9,}  {step_of(out):10,}  {lost:10,}", flush=True)
    if sitting(config, out, often).wait():
        raise SystemExit("the run could not be resumed: see killed.txt (keep it with --out)")
    return kills


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw")
    parser.add_argument("--checkpoint-seconds", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, help="where the runs stay (default: they are removed)")
    parser.add_argument("--sitting", nargs=3, metavar=("RECIPE", "OUT", "MINUTES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sitting:
        config, out, often = arguments.sitting
        sit(Path(config), Path(out), float(often))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "recipe.toml"
        config.write_text(to_toml(recipe(arguments.steps, arguments.optimizer)))
        often, start = arguments.checkpoint_seconds / 60, time.perf_counter()
        if sitting(config, folder / "whole", often).wait():
            raise SystemExit("the run without interruption failed: see whole.txt (keep it with --out)")
        print(f"without interruption: {time.perf_counter() - start:.1f} s")
        kills = killed(folder, config, arguments.kills, often, random.Random(arguments.seed))
        other = differences(folder / "whole", folder / "killed")
    same = "the same to the bit: model, weights, optimiser, averages, best weights, counters and log"
    print(
        f"\n{kills} kills in {arguments.steps} steps: {'NOT the same: ' + ', '.join(other) if other else same}"
    )
    return 1 if other or kills < arguments.kills else 0


if __name__ == "__main__":
    sys.exit(main())
