"""`qkv demo numbers`: train a translator of numbers, score it on numbers that it never saw, and look inside."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from qkv.cli.demo_parts import suggested, title
from qkv.cli.options import table

if TYPE_CHECKING:
    from qkv.decode.translator import Translator

ABOUT = "Numbers in words, from English into German, French, Czech, Italian and Danish."
SHOWN = 227  # as LONG, it was held out; German says seven-and-twenty
LONG = 21_856
PAGE = "attention.html"


def shown(translator: "Translator", out: Path, count: int) -> None:
    """Scores, where it looked, and what to do next."""
    told(translator, count)
    looked_at(translator, out / PAGE)
    title("Next")
    print(suggested(_next(out)))


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


def _next(out: Path) -> list[tuple[str, str]]:
    return [
        (f"echo 'ninety-nine thousand and one' | qkv translate {out} --to de,fr", "translate"),
        (f"qkv evaluate {out} --data numbers-test --beam 5", "score it in full"),
        (f"qkv info {out}", "what it is and how its training went"),
        (f"qkv train {out}/recipe.toml --set model.width=64 --out {out}-64", "change it"),
        ("qkv init SOURCE TARGET", "a recipe for two files of your own"),
    ]
