"""From a recipe to a model: begin or go on with a run, and write the bundle that it ends in."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from qkv.errors import QkvError
from qkv.recipe.config import to_tree
from qkv.store import bundle, checkpoint
from qkv.tasks import task as tasks
from qkv.tasks.task import Task
from qkv.train.loop import Loop
from qkv.train.machine import Cost
from qkv.train.optim import rate_factors
from qkv.train.progress import Display
from qkv.train.run import Run, fingerprints, tensorboard
from qkv.train.state import Progress


def train(
    config: Any,
    out: Path | str,
    *,
    resume: bool = False,
    display: Display | None = None,
    began: float | None = None,
) -> Path:
    """Train what a recipe (such as `TranslateConfig`) says into the directory `out`; returns the model's directory.

    An interrupted run goes on with `resume`, to the same weights as if it had never stopped.
    """
    began = time.perf_counter() if began is None else began
    run, display, kind = Run(Path(out)), display or Display(), tasks.kind(config.task)
    files = tasks.files(config)
    found: checkpoint.Checkpoint | None = None
    if resume and not run.exists:
        raise QkvError(
            f"{run.path} is no run, so there is nothing to resume: leave --resume out to begin one"
        )
    with ExitStack() as held:
        if resume:
            held.enter_context(run.alone())
            found, notices = run.go_on(config, files)
            for notice in notices:
                display.say(notice)
            if run.model.exists():
                display.say(f"{run.path} is finished; its model is {run.model}")
                return run.model
        else:
            run.expect_new()
        if config.train.tensorboard:
            tensorboard()  # if it is missing, say so now
        data = None if resume else fingerprints(files)
        task = kind.build(config, tasks.starting(config))
        if data is not None:
            # Only now: with faulty data there is no run yet that could not be begun anew.
            run.begin(config, data, task.digest())
            held.enter_context(run.alone())
        changed = run.expect_same(task.digest()) if resume else []
        for notice in (*task.notices, *changed, summary(task)):
            display.say(notice)
        return _trained(task, run, display, found, began)


def _trained(
    task: Task[Any], run: Run, display: Display, found: checkpoint.Checkpoint | None, began: float
) -> Path:
    """Train to the end and write the model."""
    with display, _signals() as stop_at:
        loop = Loop(task, run, display, found, began)
        stop_at(loop.stop)
        with closing(loop):
            progress = loop.run()
    cost = Cost.of(task, progress)
    path = write_model(task, run.model, progress, cost)
    display.say(f"{cost}\nthe model is {path}")
    return path


def write_model(task: Task[Any], path: Path, progress: Progress, cost: Cost) -> Path:
    """Write the weights that the task's model has as a bundle."""
    facts = {"parameters": f"{parameters(task):,}", "steps": f"{progress.step:,}", "cost": str(cost)}
    for name, value in progress.best_scores.items():
        signature = f" ({progress.signatures[name]})" if name in progress.signatures else ""
        facts[f"validation {name}"] = f"{value:.2f}{signature}"
    return bundle.save(
        path,
        task=task.config.task,
        recipe=to_tree(task.config),
        tensors=task.model.state_dict(),
        tokenizers=task.tokenizers(),
        card=task.card(facts),
        results=results(task, progress, cost),
    )


def results(task: Task[Any], progress: Progress, cost: Cost) -> dict[str, Any]:
    """What a run came to, in plain values: for the model's directory, and so for `qkv info`."""
    return {
        "parameters": parameters(task),
        "steps": progress.step,
        "epochs": progress.epoch,
        "best_step": progress.best_step,
        "scores": progress.best_scores,
        "signatures": progress.signatures,
        "notices": list(task.notices),
        **asdict(cost),
    }


def parameters(task: Task[Any]) -> int:
    """How many numbers the model learns; tied ones count once."""
    return sum(weight.numel() for weight in task.model.parameters())


def summary(task: Task[Any]) -> str:
    """The model in a line."""
    c = task.training
    frozen = "" if not c.optimizer.frozen else f" ({_frozen(task):,} of them frozen)"
    return (
        f"{type(task.model).__name__} with {parameters(task):,} parameters{frozen}, {c.optimizer.kind} in {c.precision}, "
        f"{torch.get_num_threads()} threads"
    )


def _frozen(task: Task[Any]) -> int:
    learnt = rate_factors(task.model, task.training.optimizer)
    return sum(weight.numel() for weight in task.model.parameters() if weight not in learnt)


@contextmanager
def _signals() -> Iterator[Callable[[Callable[[int], None]], None]]:
    """While training, the first SIGINT or SIGTERM stops after the present update; the second at once."""
    actions: list[Callable[[int], None]] = []
    came: list[int] = []
    before = {}

    def handle(number: int, _: object) -> None:
        signal.signal(number, before[number])
        came.append(number)
        for act in actions:
            act(number)

    def on_signal(act: Callable[[int], None]) -> None:
        actions.append(act)
        if came:  # while the run was still being set up
            act(came[0])

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handle)
    except ValueError:  # not in the main thread, where no signals arrive
        pass
    try:
        yield on_signal
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
