"""What several verbs share: their options, and where they write."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.decode.translator import Translator
    from qkv.store.bundle import Bundle

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change the recipe, e.g. model.heads=8; may be repeated."
    ),
]
Search = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change the search, e.g. search.alpha=0.6; may be repeated."
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict", help="Stop at the first pair that would be skipped, and name its file and line."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Model = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run, or of a model.")]


def say(text: str) -> None:
    """A line for the user, beside the results: on stderr."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One JSON value on stdout; on a terminal over several lines."""
    from qkv.recipe.config import json_text

    print(json_text(value, indent=2 if sys.stdout.isatty() else None))


@contextmanager
def results(out: Path | None, inputs: Sequence[str] = ()) -> Iterator[IO[str]]:
    """Where a verb writes its results: `--out`, or stdout; a file that is read from is never written to."""
    if out is None:
        if isinstance(sys.stdout, TextIOWrapper):  # text is UTF-8 with line feeds whatever the locale says
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    for path in inputs:
        if out.exists() and os.path.exists(path) and out.samefile(path):
            raise QkvError(f"--out {out} is also read from: give another file")
    try:
        file = out.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise QkvError(f"--out {out} cannot be written: {error.strerror}: give another file") from None
    with file:
        yield file


def by_part(changes: Sequence[str] | None, *parts: str) -> dict[str, list[str]]:
    """The changes of `--set` to each of these parts of a recipe; any other would change nothing, and is refused."""
    found: dict[str, list[str]] = {part: [] for part in parts}
    for change in changes or []:
        part, _, rest = change.strip().partition(".")
        if part not in found:
            wanted = " or ".join(f"{name}.…" for name in parts)
            raise QkvError(f"--set {change} has no effect on a finished model: set {wanted}, or train anew")
        found[part].append(rest)
    return found


def read_model(path: Path) -> "tuple[Bundle, Any]":
    """The model of a run or directory, and the predictor that its task makes of it."""
    from qkv.store import bundle
    from qkv.tasks.task import kind, model_of
    from qkv.train.machine import keep_memory

    keep_memory()
    found = bundle.read(model_of(path))
    return found, kind(found.task).load(found)


def read_translator(path: Path) -> "tuple[Bundle, Translator]":
    """The model of a run or directory, which must be one that translates."""
    found, predictor = read_model(path)
    expect_translator(path, found, predictor)
    return found, predictor


def expect_translator(path: Path, found: "Bundle", predictor: Any) -> None:
    """Refuse a model of another task."""
    from qkv.decode.translator import Translator

    if not isinstance(predictor, Translator):
        raise QkvError(f"{path} is a model for {found.task}; one that translates is wanted")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as columns of text: the first to the left, the others, numbers, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
