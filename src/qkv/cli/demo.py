"""`qkv demo`: train a translator of numbers, score it on numbers that it never saw, and look inside."""

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.options import Set, results, say, table
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.decode.translator import Translator

SHOWN = 227  # as LONG, it was held out; German says seven-and-twenty
LONG = 21_856
PAGE = "attention.html"


def demo(
    out: Annotated[
        Path, typer.Option(metavar="RUN", help="The run's directory; a finished one is used again.")
    ] = Path("runs/demo"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Train anew; what was in RUN is deleted.")] = False,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help="Train for so long, instead of for a fixed number of steps."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=5_000, help="How many held-out numbers.")] = 500,
    changes: Set = None,
) -> None:
    """Train a small Transformer that writes English numbers in five languages, in about two minutes on two cores.

    Then: exact matches on numbers that it never saw, where it looks while it writes, in the terminal and as a page, and
    what encoding once for all languages saves.
    """
    began = time.perf_counter()
    from qkv.train.machine import keep_memory

    keep_memory()  # before torch is used, while there is nothing to keep
    ends = [] if minutes is None else ["train.epochs=none", "train.steps=none", f"train.minutes={minutes}"]
    translator = trained(out, fresh, [*ends, *(changes or [])], began)
    with results(None):
        told(translator, count)
        looked_at(translator, out / PAGE)
        title("Next")
        print(_next(out))
        print(f"\nAll of this took {_time(time.perf_counter() - began)}.")


def trained(out: Path, fresh: bool, changes: Sequence[str], began: float) -> "Translator":
    """The model of the run: of a finished one as it is, of an interrupted one once it has gone on."""
    from qkv.recipe.recipe import resolve
    from qkv.recipe.shipped import shipped
    from qkv.tasks.task import kind, load
    from qkv.train.run import Run
    from qkv.train.train import train

    tree = shipped("numbers")
    task = kind(tree["task"])
    config = resolve(task.config, tree, task.presets, changes, "numbers.toml")
    run = Run(out)
    if run.exists:
        expect_numbers(run, task.config)
        if fresh:
            shutil.rmtree(out)
    if run.exists:
        saved = run.saved_recipe(task.config)
        expect_same(run, saved, config, changes)
        if run.model.exists():
            say(f"{out} is trained already, so its model is used again; --fresh trains anew")
        else:
            train(saved, out, resume=True, began=began)
    else:
        say("Numbers in words, from English into German, French, Czech, Italian and Danish.")
        train(config, out, began=began)
    return load(out)


def expect_numbers(run: Any, config: type) -> None:
    """Refuse a run on other data: nothing here is true of it, and --fresh would delete it."""
    from qkv.data.text import NUMBERS

    try:
        corpora = run.saved_recipe(config).data.train
    except QkvError:  # of another task, or of another version of qkv
        corpora = ()
    if {corpus.source for corpus in corpora} != {NUMBERS}:
        raise QkvError(
            f"{run.path} is a run on other data than the numbers: choose another directory with --out"
        )


def expect_same(run: Any, saved: Any, config: Any, changes: Sequence[str]) -> None:
    """Refuse changes that come too late for a run that has begun."""
    from qkv.recipe.config import differences

    found = differences(saved, config) if changes else []
    # A finished recipe also knows what the data turned out to be.
    found = [one for one in found if not one.startswith("model.") or "_vocabulary" not in one]
    if found:
        raise QkvError(
            f"{run.path} was trained otherwise: {'; '.join(found)}: add --fresh to train anew, or choose another --out"
        )


def told(translator: "Translator", count: int) -> None:
    """Scores on held-out numbers, some mistakes, and what encoding once saved."""
    from qkv.data.numbers import LANGUAGES, held_out, write

    rows = list(held_out(count * len(LANGUAGES)))
    sources = [english for english, _, _ in rows[:: len(LANGUAGES)]]
    wanted = {language: [text for _, tag, text in rows if tag == language] for language in LANGUAGES}
    translator.translate_into(sources[:100], LANGUAGES)  # the first call of everything is slow
    with timed(translator) as once:
        found = translator.translate_into(sources, LANGUAGES)
    with timed(translator) as each:
        again = {language: translator.translate(sources, to=language) for language in LANGUAGES}

    source = write(SHOWN)
    shown = translator.translate_into([source], LANGUAGES)
    title(f"{count:,} numbers that it never saw, written exactly")
    lines = [["", "right", "", f"   “{source}”"]]
    for language in LANGUAGES:
        right = sum(map(str.__eq__, found[language], wanted[language]))
        mark = "" if shown[language] == [write(SHOWN, language)] else " (wrong)"
        share = f"{100 * right / count:.1f} %"
        lines.append([language, f"{right:,}", share, f"   {shown[language][0]}{mark}"])
    print(_left(lines))
    print(_mistakes(sources, found, wanted))

    title(f"Encoding once for {len(LANGUAGES)} languages")
    print(
        table(
            [
                ["", "encoder calls", "in the encoder", "in all"],
                ["translate_into, all at once", *once.cells()],
                ["translate, one after another", *each.cells()],
            ]
        )
    )
    print(f"{'The same' if found == again else 'Other'} translations both times.")


def looked_at(translator: "Translator", page: Path) -> None:
    """One German number in the terminal, and all that can be seen as a page."""
    from qkv.data.numbers import LANGUAGES, write
    from qkv.look.cross import look
    from qkv.look.maps import draw_text
    from qkv.look.page import save_page

    asked = [(SHOWN, language) for language in LANGUAGES] + [(LONG, "de")]
    looks = [look(translator, write(number), language) for number, language in asked]
    title("Where it looked while it wrote German: sieben (seven) comes first, so the rows cross")
    print(draw_text(looks[0].mean(looks[0].sharpest)))
    print(f"\nEvery layer and head, in each language: {save_page(page, 'Where a translator looks', looks)}")


@dataclass
class Timed:
    """What translating took."""

    calls: int = 0
    encoder: float = 0.0
    seconds: float = 0.0

    def cells(self) -> list[str]:
        """For a table."""
        return [f"{self.calls:,}", f"{self.encoder:.2f} s", f"{self.seconds:.2f} s"]


@contextmanager
def timed(translator: "Translator") -> Iterator[Timed]:
    """Time what runs inside, and each call of the encoder in it."""
    found, encode = Timed(), translator.model.encode

    def timed_encode(*tensors: Any) -> Any:
        start = time.perf_counter()
        state = encode(*tensors)
        found.calls += 1
        found.encoder += time.perf_counter() - start
        return state

    vars(translator.model)["encode"] = timed_encode  # of this object only, and only for now
    start = time.perf_counter()
    try:
        yield found
    finally:
        found.seconds = time.perf_counter() - start
        del vars(translator.model)["encode"]


def title(text: str) -> None:
    """A heading; bold on a terminal that wants it."""
    bold = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(f"\n\033[1m{text}\033[0m\n" if bold else f"\n{text}\n")


def _mistakes(
    sources: Sequence[str], found: dict[str, list[str]], wanted: dict[str, list[str]], most: int = 3
) -> str:
    """The shortest mistakes."""
    wrong = [
        (source, language, text, right)
        for language in found
        for source, text, right in zip(sources, found[language], wanted[language], strict=True)
        if text != right
    ]
    if not wrong:
        return "\nNo mistakes."
    wrong.sort(key=lambda mistake: len(mistake[0]))
    lines = [f"\nMistakes: {len(wrong):,} of {len(sources) * len(found):,}, the shortest"]
    for source, language, text, right in wrong[:most]:
        lines += [
            fill(source, 78, initial_indent=f"  {language}     ", subsequent_indent=9 * " "),
            fill(text or "(nothing)", 78, initial_indent="  wrote  ", subsequent_indent=9 * " "),
            fill(right, 78, initial_indent="  right  ", subsequent_indent=9 * " "),
        ]
    return "\n".join(lines)


def _left(rows: Sequence[Sequence[str]]) -> str:
    """Columns as `table` makes them, but for the last one, which is text."""
    head = table([row[:-1] for row in rows]).splitlines()
    width = max(map(len, head))
    return "\n".join(f"{line:{width}}{row[-1]}".rstrip() for line, row in zip(head, rows, strict=True))


def _next(out: Path) -> str:
    commands = [
        (f"echo 'ninety-nine thousand and one' | qkv translate {out} --to de,fr", "translate"),
        (f"qkv evaluate {out} --data numbers-test --beam 5", "score it in full"),
        (f"qkv info {out}", "what it is and how its training went"),
        (f"qkv train {out}/recipe.toml --set model.width=64 --out {out}-64", "change it"),
        ("qkv init SOURCE TARGET", "a recipe for two files of your own"),
    ]
    return "\n".join(f"# {remark}\n{command}" for command, remark in commands)


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} minutes" if minutes else f"{rest} seconds"
