"""`qkv translate`: translate a file of any length, a pipe, or what is typed."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

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
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="Begin every translation with it, and go on from there.")
    ] = "",
    align: Annotated[
        bool, typer.Option("--align", help="Add which source word each word came from.")
    ] = False,
    changes: Search = None,
    engine: Annotated[
        Literal["native", "ctranslate2"],
        typer.Option(help="What searches: qkv itself, or CTranslate2 with the model converted for it."),
    ] = "native",
    int8: Annotated[
        bool, typer.Option("--int8", help="With --engine ctranslate2: weights rounded to 8 bits.")
    ] = False,
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
    if int8 and engine == "native":
        raise QkvError("--int8 is given without --engine ctranslate2, which alone can do it: give both")
    _, translator = read_translator(run)
    wanted = by_part(changes, "search")["search"]
    if engine == "ctranslate2":
        wanted = ["stop=quick", *wanted]  # the only way that it stops
    config = search(translator, beam, n_best, temperature, wanted)
    languages = choose_languages(translator, to, run)
    if align:
        expect_attention(translator, languages[0], run)
    if engine == "ctranslate2":
        translator = converted(translator, config, int8)
    style = Style(translator, languages, align, many=n_best is not None)
    form: Callable[[Line], Iterable[str]] = style.objects if as_json else style.text
    lines = read(translator, file, languages, config, window, replace_invalid, prefix)  # opens the file
    with results(out, [file]) as stream:
        for line in progress(lines, out, is_typed(file)):
            if line.flagged:
                say(f"line {line.number:,} {line.flagged}")
            for text in form(line):
                stream.write(text + "\n")
            stream.flush()


def converted(translator: "Translator", config: "SearchConfig", int8: bool) -> "Translator":
    """The same translator on CTranslate2; its files are gone once they are read."""
    from qkv.decode.engine import Engine, engine_options
    from qkv.store.ctranslate2 import export

    engine_options(config)  # what it cannot do is named before anything is converted
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        export(translator.model, translator.source, translator.target, path, int8=int8)
        return Engine(translator, path, int8=int8)


def search(
    translator: "Translator",
    beam: int | None,
    n_best: int | None,
    temperature: float | None,
    changes: Sequence[str] = (),
) -> "SearchConfig":
    """The search of the model's recipe, with these options and changes; `--set` has the last word."""
    from qkv.recipe.config import override

    if beam is None and temperature:
        beam = 1  # samples are drawn one by one
    options = {"beam": beam, "n_best": n_best, "temperature": temperature}
    given = {"n_best": 1} | {name: value for name, value in options.items() if value is not None}
    if beam == 1:
        given["coverage"] = 0  # with nothing to choose from there is nothing for it to decide
    try:
        return override(translator.config, [*(f"{name}={value}" for name, value in given.items()), *changes])
    except QkvError as error:
        # What was typed as an option is called by its name, not by that of the --set that it stands for.
        name, _, rest = str(error).removeprefix("--set: ").partition(" ")
        if options.get(name) is None or any(change.split("=")[0].strip() == name for change in changes):
            raise
        raise QkvError(f"--{name.replace('_', '-')} {rest}") from None


def choose_languages(translator: "Translator", to: str | None, run: Path) -> list[str | None]:
    """The languages of `--to`; a model of one language need not be told."""
    known = translator.languages
    if to is None:
        if len(known) > 1:
            raise QkvError(
                f"{run} translates into {', '.join(known)}: choose with --to, e.g. --to {known[0]}"
            )
        return [known[0] if known else None]
    if not known:
        raise QkvError(f"--to is {to!r}, but {run} knows one language only: leave --to out")
    chosen: list[str | None] = [language.strip() for language in to.split(",")]
    for language in chosen:
        translator.target.tag(language)  # an unknown one is named before anything is read
    return chosen


def expect_attention(translator: "Translator", language: str | None, run: Path) -> None:
    """Refuse alignments, before anything is translated, of a model that looks at no source."""
    from qkv.decode.translator import Translation

    try:
        translator.weights("", Translation.blank(), language)
    except QkvError:
        raise QkvError(
            f"--align shows where a model looked, and {run} was trained without attention to its source: leave --align out"
        ) from None


def is_typed(file: str) -> bool:
    """Whether somebody types the lines, and waits for each."""
    from qkv.data.lines import STDIN

    return file == STDIN and sys.stdin.isatty()


def read(
    translator: "Translator",
    file: str,
    languages: Sequence[str | None],
    config: "SearchConfig",
    window: int | None,
    replace_invalid: bool,
    prefix: str = "",
) -> Iterator["Line"]:
    """The lines of a file, which is opened at once, or of stdin, translated as they are read."""
    from qkv.data.lines import read_lines
    from qkv.decode.translator import WINDOW

    typed = is_typed(file)
    if typed:
        say("type a sentence and Enter for its translation; Ctrl-D ends")
    lines = read_lines(file, invalid="replace" if replace_invalid else "error")
    return translator.stream(
        lines, languages, config=config, window=window or (1 if typed else WINDOW), prefix=prefix
    )


def progress(lines: Iterable["Line"], out: Path | None, typed: bool) -> Iterator["Line"]:
    """The same lines; how many and how fast is told at the end, and now and then where results do not show it."""
    from qkv.train.machine import peak_mebibytes

    seen, tokens, start = 0, 0, time.monotonic()
    told, quiet = start, out is None and sys.stdout.isatty()
    for line in lines:
        yield line
        seen, now = seen + 1, time.monotonic()
        tokens += sum(len(best[0].tokens) + best[0].finished for best in line.best)
        if not quiet and now - told >= _EVERY:
            say(f"{seen:,} lines, {seen / (now - start):,.0f} a second")
            told = now
    seconds = max(time.monotonic() - start, 1e-9)
    if seen and not typed:
        say(
            f"{seen:,} lines in {seconds:,.1f} s: {seen / seconds:,.1f} lines/s, {tokens / seconds:,.0f} target tokens/s, "
            f"{peak_mebibytes():,} MiB at the most"
        )
