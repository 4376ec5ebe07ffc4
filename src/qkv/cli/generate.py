"""`qkv generate`: let a language model go on with a text."""

from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.options import Json, Model, by_part, read_writer, results

if TYPE_CHECKING:
    from qkv.decode.writer import Writer, WritingConfig

Writing = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change the writing, e.g. writing.top_p=0.9; may be repeated."
    ),
]


def generate(
    run: Model,
    prompt: Annotated[str, typer.Argument(help="What the text begins with; - reads it from stdin.")] = "",
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="Below 1 it plays safe; 0 takes the likeliest token each time."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from so many likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the fewest tokens that hold this probability.")
    ] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Search the likeliest text with a beam, and draw nothing.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="How many texts.")] = None,
    maximum: Annotated[int | None, typer.Option(min=1, help="Most tokens of each.")] = None,
    stop: Annotated[str | None, typer.Option(metavar="TEXT", help="End before this text.")] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed draws other texts.")] = None,
    changes: Writing = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to a file, which is replaced.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a text that begins with the prompt, as it is drawn; several texts are separated by a line of ---.

    --json gives one object a text: prompt, text (what follows the prompt), score (log probability a token), finished.
    """
    writer = read_writer(run)
    options = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "beam": beam,
        "count": count,
        "maximum": maximum,
        "stop": stop,
        "seed": seed,
    }
    config = writing(writer, options, by_part(changes, "writing")["writing"])
    text = read_prompt(prompt)
    with results(out) as stream:
        write = write_objects if as_json else write_texts
        write(writer, text, config, stream)


def writing(writer: "Writer", options: dict[str, Any], changes: list[str]) -> "WritingConfig":
    """How the model's recipe writes, with these options and changes; `--set` has the last word."""
    from qkv.recipe.config import override

    given = {name: value for name, value in options.items() if value is not None}
    if given.get("beam", 1) > 1:  # nothing is drawn
        given = {"temperature": 0.0, "top_k": None, "top_p": 1.0} | given
    return override(replace(writer.config, **given), changes)


def read_prompt(prompt: str) -> str:
    """The prompt, or what stdin holds in its place, without its last line feed."""
    from qkv.data.lines import STDIN, read_lines

    return prompt if prompt != STDIN else "\n".join(read_lines(STDIN))


def write_texts(writer: "Writer", prompt: str, config: "WritingConfig", stream: IO[str]) -> None:
    """Texts as people read them, the first as it comes."""

    def tell(piece: str) -> None:
        stream.write(piece)
        stream.flush()

    tell(prompt)
    _, *others = writer.generate(prompt, config=config, tell=tell)
    for one in others:
        tell(f"\n---\n{prompt}{one.text}")
    tell("\n")


def write_objects(writer: "Writer", prompt: str, config: "WritingConfig", stream: IO[str]) -> None:
    """One JSON object a text."""
    from qkv.recipe.config import json_text

    for one in writer.generate(prompt, config=config):
        value = {"prompt": prompt, "text": one.text, "score": one.score, "finished": one.finished}
        stream.write(json_text(value) + "\n")
