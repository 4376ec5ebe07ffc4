"""What the demos share: a run that is trained once and used again, headings, and what to type next."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkv.cli.options import say
from qkv.errors import QkvError


def trained(recipe: str, about: str, out: Path, fresh: bool, changes: Sequence[str], began: float) -> Any:
    """The predictor of the run: of a finished one as it is, of an interrupted one once it has gone on."""
    from qkv.recipe.recipe import resolve
    from qkv.recipe.shipped import shipped
    from qkv.tasks.task import kind, load
    from qkv.train.run import Run
    from qkv.train.train import train

    tree = shipped(recipe)
    task = kind(tree["task"])
    config = resolve(task.config, tree, task.presets, changes, f"{recipe}.toml")
    run = Run(out)
    if run.exists:
        expect_data(run, task.config, recipe)
        if fresh:
            shutil.rmtree(out)
    if run.exists:
        saved = run.saved_recipe(task.config)
        expect_same(run, saved, config, changes)
        if run.model.exists():
            say(f"{out} is trained already, so its model is used again; --fresh trains anew")
        else:
            train(saved, out, resume=True, began=began)
    else:
        say(about)
        train(config, out, began=began)
    return load(out)


def expect_data(run: Any, config: type, wanted: str) -> None:
    """Refuse a run on other data: nothing here is true of it, and --fresh would delete it."""
    try:
        sets = run.saved_recipe(config).data.train
    except QkvError:  # of another task, or of another version of qkv
        sets = ()
    if {one.source for one in sets} != {wanted}:
        raise QkvError(
            f"{run.path} is a run on other data than the {wanted}: choose another directory with --out"
        )


def expect_same(run: Any, saved: Any, config: Any, changes: Sequence[str]) -> None:
    """Refuse changes that come too late for a run that has begun."""
    from qkv.recipe.config import differences

    found = differences(saved, config) if changes else []
    # A finished recipe also knows what the data turned out to be.
    found = [one for one in found if not one.startswith("model.") or "_vocabulary" not in one]
    if found:
        raise QkvError(
            f"{run.path} was trained otherwise: {'; '.join(found)}: add --fresh to train anew, or choose another --out"
        )


def title(text: str) -> None:
    """A heading; bold on a terminal that wants it."""
    bold = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(f"\n\033[1m{text}\033[0m\n" if bold else f"\n{text}\n")


def suggested(commands: Sequence[tuple[str, str]]) -> str:
    """Commands, each under a remark."""
    return "\n".join(f"# {remark}\n{command}" for command, remark in commands)


def duration(seconds: float) -> str:
    """Time in words."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} minutes" if minutes else f"{rest} seconds"
