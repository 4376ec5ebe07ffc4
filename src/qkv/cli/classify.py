"""`qkv classify`: the labels of lines of text, or of files such as images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.options import (
    Encoding,
    Json,
    Model,
    ReplaceInvalid,
    inputs_of,
    is_typed,
    read_predictor,
    results,
    say,
)
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.decode.answer import Answer


def classify(
    run: Model,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Lines of text, also gzip, - is stdin; of a model for images: the images, or folders of them.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Give so many labels, the likeliest first; by default one, or of several all that are likely.",
        ),
    ] = None,
    encoding: Encoding = None,
    replace_invalid: ReplaceInvalid = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to a file, which is replaced.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Classify, one line out for each line (or image) in, in order; blank ones stay blank.

    Each line has label and probability, and again label and probability for further labels, separated by tabs; of images
    the path stands before them. What cannot be used is named, counted and has no label. --json gives one object a line with
    all of it.
    """
    bundle, classifier = read_predictor(run)
    if not hasattr(classifier, "classify"):
        raise QkvError(f"{run} is a model for {bundle.task}; one that classifies is wanted")
    inputs = inputs_of(classifier, files or [], encoding, replace_invalid)
    named = classifier.reads == "files"
    answered = {"window": 1} if is_typed(classifier, files or []) else {}  # each line at once
    seen = faulty = 0
    with results(out, list(inputs) if named else files or []) as stream:
        for seen, answer in enumerate(classifier.stream(inputs, top, **answered), 1):
            if answer.fault:
                faulty += 1
                say(answer.fault)
            stream.write((as_object(seen, answer) if as_json else as_text(answer, named)) + "\n")
            stream.flush()
    if faulty:
        told = f"{faulty:,} of {seen:,} files cannot be used"
        if faulty == seen:
            raise QkvError(f"{told}: see what was said of each")
        say(told)


def as_text(answer: "Answer", named: bool) -> str:
    """Columns: labels and probabilities."""
    cells = (cell for one in answer.best for cell in (one.label, f"{one.probability:.4f}"))
    return "\t".join([*([answer.source] if named else []), *cells])


def as_object(number: int, answer: "Answer") -> str:
    """One JSON object."""
    from qkv.recipe.config import json_text

    labels = [{"label": one.label, "probability": one.probability} for one in answer.best]
    value = {"line": number, "source": answer.source, "labels": labels}
    return json_text(value | ({"fault": answer.fault} if answer.fault else {}))
