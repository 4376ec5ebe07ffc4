"""`qkv embed`: a vector for each line of text."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from qkv.cli.options import Encoding, Model, ReplaceInvalid, inputs_of, read_predictor, results, say
from qkv.errors import QkvError

if TYPE_CHECKING:
    import numpy as np

_WINDOW = 2000  # lines whose vectors are in memory at a time


def embed(
    run: Model,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Lines of text, also gzip, - is stdin; of a model for images: the images.",
        ),
    ] = None,
    pool: Annotated[
        Literal["class", "average", "max"] | None,
        typer.Option(
            help="How the tokens become one vector: the first one's, the mean, or the greatest values; by default the model's own way."
        ),
    ] = None,
    normalise: Annotated[
        bool, typer.Option("--normalise/--raw", help="Vectors of length 1, or as they come.")
    ] = True,
    encoding: Encoding = None,
    replace_invalid: ReplaceInvalid = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write to a file, which is replaced; one that ends in .npz holds the array `vectors`.",
        ),
    ] = None,
) -> None:
    """Embed, one vector for each line in, in order: a JSON list a line, or the rows of an array in FILE.npz."""
    bundle, reader = read_predictor(run)
    if not hasattr(reader, "embed"):
        raise QkvError(f"{run} is a model for {bundle.task}; one that embeds texts or images is wanted")
    inputs = iter(inputs_of(reader, files or [], encoding, replace_invalid))

    def vectors() -> "Iterator[np.ndarray]":
        while chunk := list(islice(inputs, _WINDOW)):
            yield reader.embed(chunk, pool=pool, normalise=normalise)

    if out and out.suffix == ".npz":
        write_npz(out, vectors(), files or [])
        return
    with results(out, files or []) as stream:
        for part in vectors():
            write_json(stream, part)


def write_json(stream: IO[str], vectors: "np.ndarray") -> None:
    """A list a line."""
    for vector in vectors.tolist():
        stream.write("[" + ", ".join(f"{value:.7g}" for value in vector) + "]\n")
    stream.flush()


def write_npz(out: Path, parts: "Iterator[np.ndarray]", inputs: list[str]) -> None:
    """One array of all, in numpy's format."""
    import numpy as np

    found = list(parts)
    arrays: dict[str, Any] = {"vectors": np.concatenate(found) if found else np.zeros((0, 0), np.float32)}
    with results(out, inputs) as stream:
        np.savez(stream.buffer, **arrays)  # pyright: ignore[reportAttributeAccessIssue] - a file, not stdout
    say(f"{out}: {' × '.join(map(str, arrays['vectors'].shape))} in {arrays['vectors'].dtype}")
