"""What several verbs share: their options, and where they write."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.decode.translator import Translator
    from qkv.decode.writer import Writer
    from qkv.store.bundle import Bundle

Predictor = TypeVar("Predictor")
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
Encoding = Annotated[
    str | None, typer.Option(help="How the bytes of a file are text, e.g. latin-1; by default UTF-8.")
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="ONE,TWO",
        help="The columns of a TSV or CSV file with source and target, or text and label, counted from 1; by default 1,2.",
    ),
]
Keys = Annotated[
    str | None,
    typer.Option(
        metavar="ONE,TWO",
        help="The same for the keys of a JSONL file; a dot leads into an object: translation.en.",
    ),
]
ReplaceInvalid = Annotated[
    bool,
    typer.Option("--replace-invalid", help="Replace bytes that cannot be decoded instead of stopping."),
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
            wanted = f"set {' or '.join(f'{name}.…' for name in parts)}, or " if parts else ""
            raise QkvError(f"--set {change} has no effect on a finished model: {wanted}train anew")
        found[part].append(rest)
    return found


def expect_settable(task: str, parts: Sequence[str], options: Sequence[str], changes: Sequence[str]) -> None:
    """Refuse changes of what a finished model cannot have changed; `options` stand for what was typed as an option."""
    for option in options:
        part, _, rest = option.partition("=")[0].partition(".")
        if part not in parts:
            raise QkvError(f"--{rest} is about a {part}, which a model for {task} has none of: leave it out")
    by_part(changes, *parts)


def read_predictor(path: Path) -> "tuple[Bundle, Any]":
    """The model of a run or directory, and what it predicts with."""
    from qkv.store import bundle
    from qkv.tasks.task import kind, model_of
    from qkv.train.machine import keep_memory

    keep_memory()
    found = bundle.read(model_of(path))
    return found, kind(found.task).load(found)


def read_translator(path: Path) -> "tuple[Bundle, Translator]":
    """The same, which must be one that translates; it does so with all cores."""
    import torch

    from qkv.decode.translator import Translator

    found, translator = _expected(path, Translator, "translates")
    translator.workers = torch.get_num_threads()
    return found, translator


def read_writer(path: Path) -> "Writer":
    """The model of a run or directory, which must be one that writes."""
    from qkv.decode.writer import Writer

    return _expected(path, Writer, "goes on with a text")[1]


def _expected(path: Path, wanted: "type[Predictor]", does: str) -> "tuple[Bundle, Predictor]":
    """A model and what it is for, which must be as wanted."""
    found, predictor = read_predictor(path)
    if not isinstance(predictor, wanted):
        raise QkvError(f"{path} is a model for {found.task}; one that {does} is wanted")
    return found, predictor


def two(option: str, text: str | None, example: str) -> tuple[Any, Any] | None:
    """Where the two sides stand, as `--columns` and `--keys` say it: by number or by name."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2:
        raise typer.BadParameter(
            f"{option} is {text}; where the two sides stand is wanted, e.g. {option} {example}"
        )
    one, other = parts
    numbers = option == "--columns" and one.isdecimal() and other.isdecimal()
    return (int(one), int(other)) if numbers else (one, other)


def is_typed(predictor: Any, files: Sequence[str]) -> bool:
    """Whether lines come from somebody who types them."""
    return predictor.reads == "lines" and list(files) in ([], ["-"]) and sys.stdin.isatty()


def inputs_of(
    predictor: Any, files: Sequence[str], encoding: str | None, replace_invalid: bool
) -> Iterable[str]:
    """What a predictor is to read: the lines of one file or of stdin, or the files themselves."""
    from qkv.data.lines import STDIN, UTF8, expect_encoding, read_lines

    if predictor.reads == "files":
        if not files:
            raise QkvError("the model reads files such as images: name at least one, or a folder of them")
        return files_of(files)
    if len(files) > 1:
        raise QkvError(
            f"{len(files)} files are given, and the model reads the lines of one: join them, e.g. cat A B | qkv …"
        )
    file = files[0] if files else STDIN
    if is_typed(predictor, files):
        say("type a line and Enter; Ctrl-D ends")
    expect_encoding(encoding or UTF8)
    return read_lines(file, invalid="replace" if replace_invalid else "error", encoding=encoding or UTF8)


def files_of(names: Sequence[str]) -> list[str]:
    """The files, and in the place of a folder all that it holds, in the order of their names."""
    found: list[str] = []
    for name in names:
        if not Path(name).is_dir():
            found.append(name)
            continue
        held = sorted(path for path in Path(name).rglob("*") if path.is_file() and path.name[0] != ".")
        if not held:
            raise QkvError(f"{name} is a folder without files: name one that holds some")
        found += map(str, held)
    return found


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
