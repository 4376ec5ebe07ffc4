"""`qkv classify`: name the classes of pictures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.options import Json, Model, print_json, read_model, results, say
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.tasks.classify_images import Classifier

Inputs = Annotated[
    list[str] | None, typer.Argument(metavar="PICTURE…", help="Files of pictures, or folders of them.")
]


def classify(
    run: Model,
    inputs: Inputs = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to name.")] = 5,
    as_json: Json = False,
) -> None:
    """Name the most probable classes of each input, the best first.

    A line for each: the file, then class and probability again and again, separated by tabs. What cannot be used is
    named on stderr and counted. --json gives one object a line.
    """
    bundle, predictor = read_model(run)
    if bundle.task != "classify_images":
        raise QkvError(f"{run} is a model for {bundle.task}; one that classifies is wanted")
    classify_images(predictor, inputs or [], top, as_json)


def classify_images(classifier: "Classifier", inputs: list[str], top: int, as_json: bool) -> None:
    """The classes of the pictures in these files, and in the files of these folders."""
    if not inputs:
        raise typer.BadParameter("give the files of pictures, or folders of them")
    seen = skipped = 0
    with results(None):
        for answer in classifier.stream(files(inputs), top):
            seen += 1
            if answer.fault:
                skipped += 1
                say(f"skipped: {answer.fault}")
            if as_json:
                print_json(tree(answer))
            elif not answer.fault:
                guesses = (f"{label}\t{100 * probability:.1f} %" for label, probability in answer.best)
                print("\t".join([answer.name, *guesses]), flush=True)
    if skipped == seen:
        raise QkvError(f"none of {seen:,} inputs is a picture that can be used: see what was said of each")
    if skipped:
        say(f"{skipped:,} of {seen:,} pictures skipped")


def tree(answer: Any) -> dict[str, Any]:
    """An answer in plain values."""
    best = [{"label": label, "probability": probability} for label, probability in answer.best]
    return {"input": answer.name, "classes": best} | ({"fault": answer.fault} if answer.fault else {})


def files(inputs: list[str]) -> list[str]:
    """The files, and in the place of a folder all that it holds, in the order of their names."""
    found: list[str] = []
    for name in inputs:
        path = Path(name)
        if path.is_dir():
            found += [str(file) for file in sorted(path.rglob("*")) if file.is_file() and file.name[0] != "."]
        else:
            found.append(name)
    return found
