"""`qkv init`: a recipe for two files of sentences, ready to train."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.options import Json, print_json, say
from qkv.errors import QkvError


def init(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Sentences, one a line.")],
    target: Annotated[str, typer.Argument(metavar="TGT", help="Their translations, line by line.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The recipe to write.")] = Path("recipe.toml"),
    valid: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="SRC TGT",
            help="Sentences to validate on; by default some are held out, in files of their own.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Size of the model: tiny, small, base or big; by default as the data allow."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at two files and write a commented recipe that suits them; nothing that exists is overwritten.

    Without --valid, one sentence in twenty (at most 1,000) is held out: training and validation sentences are written
    into a folder beside the recipe, and your files stay as they are.
    """
    from qkv.data.lines import STDIN, label
    from qkv.data.survey import split, survey
    from qkv.data.text import Corpus
    from qkv.recipe.starter import plan, starter

    folder = out.with_name(f"{out.stem}-data")
    for path in (out, *(() if valid else (folder,))):
        if path.exists():
            raise QkvError(f"{path} exists, and is never overwritten: name another recipe with --out")
    for path in (source, target, *(valid or ())):
        if path == STDIN or Path(path).is_fifo():
            raise QkvError(
                f"{label(path)} can be read only once, and a recipe's files are read again and again: "
                "save it to a file first, e.g. cat > FILE"
            )
    corpus = Corpus(source=source, target=target, format="lines")
    found = survey(corpus)
    say(str(found.report))
    if valid:
        say(str(survey(Corpus(source=valid[0], target=valid[1], format="lines")).report))
    chosen = plan(found.pairs, max(found.source_characters, found.target_characters), preset)
    train, held = ((source, target), valid) if valid else _texts(split(corpus, found.pairs, folder))
    about = f"{found.pairs:,} pairs of {found.source_characters:.0f} and {found.target_characters:.0f} characters on average"
    command = f"qkv train {shlex.quote(str(out))}"
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(starter(chosen, about, command, train, held))
    except OSError as error:
        raise QkvError(f"{out} cannot be written: {error.strerror}: name another recipe with --out") from None
    if not valid:
        say(
            f"held out for validation: {held[0]} and {held[1]}; the rest, to train on, is beside them in {folder}"
        )
    if as_json:
        print_json({"recipe": str(out), "pairs": found.pairs, "train": train, "valid": held, **vars(chosen)})
    else:
        print(
            f"{out}: {chosen.preset} model, {chosen.vocabulary:,} tokens, {chosen.epochs} epochs; next: {command}"
        )


def _texts(
    paths: tuple[tuple[Path, Path], tuple[Path, Path]],
) -> tuple[tuple[str, str], tuple[str, str]]:
    (one, two), (three, four) = paths
    return (str(one), str(two)), (str(three), str(four))
