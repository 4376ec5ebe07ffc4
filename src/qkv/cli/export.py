"""`qkv export`: a finished model in the files of another engine, with a proof that it is the same."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from qkv.cli.options import Json, Model, print_json, read_translator, say


def export(
    run: Model,
    to: Annotated[Literal["ctranslate2"], typer.Option(help="The engine.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory to write; it must not exist.")],
    int8: Annotated[bool, typer.Option("--int8", help="Round the weights to 8 bits.")] = False,
    as_json: Json = False,
) -> None:
    """Convert a model for another engine. What the engine cannot compute is named before anything is written.

    The converted model is compared with the original on random sentences; what was found is kept in parity.json.
    """
    from qkv.store import ctranslate2

    _, translator = read_translator(run)
    proof = ctranslate2.export(translator.model, translator.source, translator.target, out, int8=int8)
    if as_json:
        print_json({"model": str(out), **proof})
        return
    say(
        f"the two are as sure of the same {proof['sentences']} translations up to {proof['largest_difference']:.2g} nats a "
        f"token, of half of them up to {proof['median_difference']:.2g}"
    )
    print(out)
