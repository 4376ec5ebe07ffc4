"""`qkv translate`: translate a file of any length, a pipe, or what is typed."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.options import Json, Model, Search, by_part, read_translator, results, say
from qkv.cli.style import Style
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.decode.config import SearchConfig
    from qkv.decode.translator import Line, Translator

_EVERY = 30.0  # seconds between lines about the progress


def translate(
    run: Model,
    file: Annotated[str, typer.Argument(help="Lines to translate, also gzip; - is stdin.")] = "-",
    to: Annotated[
        str | None, typer.Option(metavar="LANG,…", help="Languages, where the model knows several.")
    ] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Width of the beam; 1 is greedy.")] = None,
    n_best: Annotated[int | None, typer.Option(min=1, help="Translations of each line.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Sample, at this temperature, instead of searching.")
    ] = None,
    align: Annotated[
        bool, typer.Option("--align", help="Add which source word each word came from.")
    ] = False,
    changes: Search = None,
    window: Annotated[
        int | None,
        typer.Option(min=1, help="Lines read ahead, to sort them by length; 1 answers each at once."),
    ] = None,
    replace_invalid: Annotated[
        bool, typer.Option("--replace-invalid", help="Replace bytes that are not UTF-8 instead of stopping.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to a file, which is replaced.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Translate line by line: one line out for each line in, in order; blank ones stay blank.

    Several languages are columns, separated by tabs, in the order of --to. --n-best gives lines such as
    `0 ||| text ||| score` (`0 ||| de ||| text ||| score` for several languages), the line counted from 0; --align adds
    ` ||| 0-0 1-2`, words of source and translation counted from 0. --json gives one object a line with all of it.
    """
    _, translator = read_translator(run)
    config = search(translator, beam, n_best, temperature, by_part(changes, "search")["search"])
    languages = choose_languages(translator, to, run)
    style = Style(translator, languages, align, many=n_best is not None)
    form: Callable[[Line], Iterable[str]] = style.objects if as_json else style.text
    with results(out, [file]) as stream:
        for line in progress(read(translator, file, languages, config, window, replace_invalid), out):
            if line.flagged:
                say(f"line {line.number:,} {line.flagged}")
            for text in form(line):
                stream.write(text + "\n")
            stream.flush()


def search(
    translator: "Translator",
    beam: int | None,
    n_best: int | None,
    temperature: float | None,
    changes: Sequence[str] = (),
) -> "SearchConfig":
    """The search of the model's recipe, with these changes; `--set` has the last word."""
    from qkv.recipe.config import override

    if beam is None and temperature:
        beam = 1  # samples are drawn one by one
    chosen = {"beam": beam, "n_best": n_best or 1, "temperature": temperature}
    if beam == 1:
        chosen["coverage"] = 0  # with nothing to choose from there is nothing for it to decide
    given = [f"{name}={value}" for name, value in chosen.items() if value is not None]
    return override(translator.config, [*given, *changes])


def choose_languages(translator: "Translator", to: str | None, run: Path) -> list[str | None]:
    """The languages of `--to`; a model of one language need not be told."""
    known = translator.languages
    if to is None:
        if len(known) > 1:
            raise QkvError(
                f"{run} translates into {', '.join(known)}: choose with --to, e.g. --to {known[0]}"
            )
        return [known[0] if known else None]
    chosen: list[str | None] = [language.strip() for language in to.split(",")]
    for language in chosen:
        translator.target.tag(language)  # an unknown one is named before anything is read
    return chosen


def read(
    translator: "Translator",
    file: str,
    languages: Sequence[str | None],
    config: "SearchConfig",
    window: int | None,
    replace_invalid: bool,
) -> Iterator["Line"]:
    """The lines of a file or stdin, translated as they are read."""
    from qkv.data.lines import STDIN, read_lines
    from qkv.decode.translator import WINDOW

    typed = file == STDIN and sys.stdin.isatty()
    if typed:
        say("type a sentence and Enter for its translation; Ctrl-D ends")
    lines = read_lines(file, invalid="replace" if replace_invalid else "error")
    return translator.stream(lines, languages, config=config, window=window or (1 if typed else WINDOW))


def progress(lines: Iterable["Line"], out: Path | None) -> Iterator["Line"]:
    """The same lines; how many there were and how fast is told now and then, where results do not show it."""
    seen, start = 0, time.monotonic()
    told, quiet = start, out is None and sys.stdout.isatty()
    for line in lines:
        yield line
        seen, now = seen + 1, time.monotonic()
        if not quiet and now - told >= _EVERY:
            say(f"{seen:,} lines, {seen / (now - start):,.0f} a second")
            told = now
