"""qkv's side of the benchmarks: training as `qkv train` does it, on real or drawn batches; a worker, and its batches.

Axes: B sentences, S source length, T target length.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from worker import Line

from qkv.data.batches import Batch
from qkv.data.tokens import UNK
from qkv.recipe.recipe import resolve
from qkv.tasks.task import Epoch
from qkv.tasks.translate import KIND, TranslateConfig, Translation, build
from qkv.train.loop import Loop
from qkv.train.machine import keep_memory
from qkv.train.progress import Display
from qkv.train.run import Run

STEPS = 1 << 30  # more than any benchmark takes


@dataclass(frozen=True)
class Drawn:
    """Batches of random tokens that are all of one length."""

    length: int
    vocabulary: int
    tokens: int = 4096
    """Positions of a batch on each side."""
    count: int = 24

    def batches(self) -> list[Batch]:
        rows, generator = max(1, self.tokens // self.length), torch.Generator().manual_seed(0)
        keep_BT = torch.ones(rows, self.length, dtype=torch.bool)

        def draw() -> torch.Tensor:
            return torch.randint(UNK + 1, self.vocabulary, (rows, self.length), generator=generator)

        return [Batch(draw(), keep_BT, draw(), draw(), keep_BT, np.arange(rows)) for _ in range(self.count)]


class Drill(Translation):
    """The training of a translator on drawn batches, without any text."""

    def __init__(self, config: TranslateConfig, drawn: Drawn):
        sizes = {"source_vocabulary": drawn.vocabulary, "target_vocabulary": drawn.vocabulary}
        self.config = replace(config, model=replace(config.model, **sizes))
        self.notices, self.valid, self._batches = (), [], drawn.batches()
        torch.manual_seed(config.train.seed)
        self._model = build(self.config.model)

    def epoch(self, number: int) -> Epoch[Batch]:
        return self._batches


class Turns(Display):
    """A display that, after each round of updates, says what it took and waits for the next turn."""

    def __init__(self, line: Line):
        super().__init__(quiet=True)
        self._line, self._targets, self._start = line, 0, 0.0

    def await_turn(self) -> None:
        self._line.asked()
        self._start = time.perf_counter()

    def update(self, counters: Any, loss: float, seconds: float, done: float) -> None:
        took = time.perf_counter() - self._start
        self._line.say(seconds=took, targets=counters.targets - self._targets, loss=loss)
        self._targets = counters.targets
        self.await_turn()


def recipe(model: dict[str, Any], log_every: int, data: Path) -> TranslateConfig:
    """Multi30k English to German with a joint vocabulary of 8,000 pieces; a constant rate, as all contenders have."""
    train = {
        "epochs": "none",
        "steps": STEPS,
        "optimizer": {"rate": 1e-3},
        "schedule": {"kind": "constant", "warmup": 0},
        "validate_every": STEPS,
        "checkpoint_minutes": STEPS,
        "log_every": log_every,
    }
    tree = {
        "data": {"train": [{"source": str(data / "train.en.gz"), "target": str(data / "train.de.gz")}]},
        "tokens": {"size": 8000},
        "batches": {"budget": 4096},
        "model": model,
        "train": train,
    }
    return resolve(TranslateConfig, tree, KIND.presets)


def task_of(specification: dict[str, Any]) -> Translation:
    config = recipe(specification["model"], specification["batches"], Path(specification["data"]))
    drawn = specification.get("drawn")
    return Drill(config, Drawn(**drawn)) if drawn else Translation(config)


def write_batches(batches: Sequence[Batch], path: Path) -> None:
    """For the other contenders: the very batches, in the order in which they come."""
    arrays: dict[str, np.ndarray] = {"count": np.array(len(batches))}
    for number, batch in enumerate(batches):
        parts = {
            "source": batch.source_BS,
            "keep_source": batch.keep_BS,
            "target": batch.target_BT,
            "label": batch.label_BT,
            "keep_target": batch.keep_BT,
        }
        arrays |= {f"{number}.{name}": part.numpy() for name, part in parts.items()}
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]


def sizes_of(task: Translation) -> dict[str, Any]:
    """What the others need to build the same model and the same updates."""
    model, train = task.config.model, task.training
    names = ("width", "hidden", "heads", "encoder_layers", "decoder_layers", "dropout", "input_feeding")
    return {
        **{name: getattr(model, name) for name in names if hasattr(model, name)},
        "vocabulary": model.target_vocabulary,
        "length": 1024,
        "smoothing": task.config.smoothing,
        "rate": train.optimizer.rate,
        "betas": train.optimizer.betas,
        "epsilon": train.optimizer.epsilon,
        "weight_decay": train.optimizer.weight_decay,
        "clip": train.clip,
    }


def main() -> None:
    """The worker of benchmarks/train.py; it also writes the batches, if it is told where."""
    line = Line()
    keep_memory()  # as the command line does
    specification = line.specification
    task = task_of(specification)
    if path := specification.get("write"):
        epoch = task.epoch(0)
        write_batches([epoch[number] for number in range(len(epoch))], Path(path))
    parameters = sum(weight.numel() for weight in task.model.parameters())
    line.say(parameters=parameters, version="qkv", precision=task.training.precision, sizes=sizes_of(task))
    with tempfile.TemporaryDirectory() as folder:
        turns = Turns(line)
        turns.await_turn()
        Loop(task, Run(Path(folder)), turns).run()


if __name__ == "__main__":
    main()
