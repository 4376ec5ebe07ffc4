"""`qkv init`: a recipe for two files of sentences, or one of texts with labels, ready to train."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.options import Columns, Encoding, Json, Keys, print_json, say, two
from qkv.errors import QkvError


def init(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Sentences, one a line; or texts with labels, in any format of recipes."
        ),
    ],
    target: Annotated[
        str | None, typer.Argument(metavar="TGT", help="For translation: the translations, line by line.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The recipe to write.")] = Path("recipe.toml"),
    valid: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="SRC TGT",
            help="For translation: sentences to validate on; by default some are held out, in files of their own.",
        ),
    ] = None,
    columns: Columns = None,
    keys: Keys = None,
    encoding: Encoding = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Size of the model, e.g. tiny, small or base; by default as the data allow."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at the data and write a commented recipe that suits them; nothing that exists is overwritten.

    Two files: for translation. Without --valid, one sentence in twenty (at most 1,000) is held out: training and
    validation sentences are written into a folder beside the recipe, and your files stay as they are. One file, or a
    folder: for classifying texts; --columns, --keys and --encoding say how to read it.
    """
    from qkv.data.lines import STDIN, label

    folder = out.with_name(f"{out.stem}-data")
    for path in (out, *([folder] if target and not valid else [])):
        if path.exists():
            raise QkvError(f"{path} exists, and is never overwritten: name another recipe with --out")
    for path in (source, *filter(None, [target]), *(valid or ())):
        if path == STDIN or Path(path).is_fifo():
            raise QkvError(
                f"{label(path)} can be read only once, and a recipe's files are read again and again: "
                "save it to a file first, e.g. cat > FILE"
            )
    reading = {
        "columns": two("--columns", columns, "2,3"),
        "keys": two("--keys", keys, "en,de"),
        "encoding": encoding,
    }
    reading = {name: value for name, value in reading.items() if value is not None}
    if target is None:
        if valid:
            raise typer.BadParameter("--valid is for translation: name texts to validate on in the recipe")
        _for_labels({"source": source, **reading}, out, preset, as_json)
        return
    if reading:
        raise typer.BadParameter(
            f"--{next(iter(reading))} is for one file with texts and labels: leave it out"
        )
    _for_translation((source, target), valid, out, preset, as_json)


def _for_labels(corpus: dict[str, Any], out: Path, preset: str | None, as_json: bool) -> None:
    from qkv.data.labelled import LabelledCorpus
    from qkv.data.survey import survey_texts
    from qkv.recipe.starter import text_starter

    found = survey_texts(LabelledCorpus(**corpus))
    say(str(found.report))
    labels = ", ".join(f"{name} {count:,}" for name, count in found.labels.most_common(10))
    about = (
        f"{found.texts:,} texts of {found.characters:.0f} characters on average, {len(found.labels)} labels"
    )
    command = f"qkv train {shlex.quote(str(out))}"
    recipe, chosen = text_starter(corpus, found.texts, found.multiple, preset, about, command)
    _write(out, recipe)
    say(f"labels: {labels}{', …' if len(found.labels) > 10 else ''}")
    if as_json:
        print_json({"recipe": str(out), "texts": found.texts, "labels": dict(found.labels), "preset": chosen})
    else:
        print(f"{out}: {chosen} encoder, {len(found.labels)} labels; next: {command}")


def _for_translation(
    files: tuple[str, str], valid: tuple[str, str] | None, out: Path, preset: str | None, as_json: bool
) -> None:
    from qkv.data.survey import split, survey
    from qkv.data.text import Corpus
    from qkv.recipe.starter import plan, starter

    folder = out.with_name(f"{out.stem}-data")
    corpus = Corpus(source=files[0], target=files[1], format="lines")
    found = survey(corpus)
    say(str(found.report))
    if valid:
        say(str(survey(Corpus(source=valid[0], target=valid[1], format="lines")).report))
    chosen = plan(found.pairs, max(found.source_characters, found.target_characters), preset)
    train, held = (files, valid) if valid else _texts(split(corpus, found.pairs, folder))
    about = f"{found.pairs:,} pairs of {found.source_characters:.0f} and {found.target_characters:.0f} characters on average"
    command = f"qkv train {shlex.quote(str(out))}"
    _write(out, starter(chosen, about, command, train, held))
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


def _write(out: Path, recipe: str) -> None:
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(recipe)
    except OSError as error:
        raise QkvError(f"{out} cannot be written: {error.strerror}: name another recipe with --out") from None


def _texts(
    paths: tuple[tuple[Path, Path], tuple[Path, Path]],
) -> tuple[tuple[str, str], tuple[str, str]]:
    (one, two), (three, four) = paths
    return (str(one), str(two)), (str(three), str(four))
