"""`qkv train`: train what a recipe says, or go on with a run."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.options import Json, Set, Strict, print_json

Recipe = Annotated[
    Path | None,
    typer.Argument(metavar="RECIPE.toml", help="The recipe; with --resume, by default the one of the run."),
]


def train(
    recipe: Recipe = None,
    changes: Set = None,
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="The run's directory; by default runs/RECIPE.")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="A run or model to start from: its weights, vocabulary and preprocessing are taken over.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show model, memory and first batches; write nothing.")
    ] = False,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Train a model; the run can be stopped at any time, and goes on with --resume.

    The scores are printed at the end, and the model is in RUN/model.
    """
    began = time.perf_counter()
    if recipe is None and (out is None or not resume):
        raise typer.BadParameter("give a RECIPE.toml, or --resume and --out RUN to go on with a run")
    from qkv.train.machine import keep_memory

    keep_memory()  # before torch is used, while there is nothing to keep
    given = [*(["data.rules.strict=true"] if strict else []), *([f"train.start={start}"] if start else [])]
    changes = [*given, *(changes or [])]
    config = read_recipe(recipe, out, changes)
    out = out or Path("runs") / _stem(recipe)
    if dry_run:
        from qkv.train.preview import preview, write

        found = preview(config)
        print_json(found) if as_json else print(write(found))
        return
    from qkv.store import bundle
    from qkv.train.run import Run
    from qkv.train.train import train

    try:
        model = train(config, out, resume=resume, began=began)
    except KeyboardInterrupt:  # the second, or the first before the run has begun
        kept = f": what was saved last is kept, go on with qkv train --resume --out {out}"
        raise KeyboardInterrupt(f"interrupted{kept if Run(out).exists else ''}") from None
    found = bundle.read(model).results
    if as_json:
        print_json({"run": str(out), "model": str(model), **found})
        return
    for name, value in found["scores"].items():
        print(f"{name} {value:.2f}  {found['signatures'].get(name, '')}".rstrip())


def read_recipe(recipe: Path | None, out: Path | None, changes: list[str]) -> Any:
    """The recipe of a file, or of the run that goes on, with its changes."""
    from qkv.errors import QkvError
    from qkv.recipe.recipe import read
    from qkv.tasks.task import resolved
    from qkv.train.run import Run

    if recipe is None:
        assert out is not None
        if not Run(out).exists:
            raise QkvError(f"{out} is no run, so there is nothing to resume: give a RECIPE.toml to begin one")
        recipe = Run(out).recipe
    return resolved(read(recipe), changes, str(recipe))


def _stem(recipe: Path | None) -> str:
    assert recipe is not None
    return recipe.stem
