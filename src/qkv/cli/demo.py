"""`qkv demo`: train a small model on data that needs no file, test it on what it never saw, and look inside."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from qkv.cli import demo_images, demo_numbers
from qkv.cli.demo_parts import duration, trained
from qkv.cli.options import Set, results

# For each: the shipped recipe, which is also the name of its data, and the story.
_DEMOS = {"numbers": ("numbers", demo_numbers), "images": ("digits", demo_images)}


def demo(
    what: Annotated[Literal["numbers", "images"], typer.Argument(help="What to learn.")] = "numbers",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="The run's directory, by default runs/demo or runs/demo-images; a finished one is used again.",
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train anew; what was in RUN is deleted.")] = False,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help="Train for so long, instead of for a fixed number of steps."),
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, max=5_000, help="How many held-out examples, as far as there are.")
    ] = 500,
    changes: Set = None,
) -> None:
    """Train a small Transformer on two cores: numbers (in two minutes) or images (in one).

    numbers writes English numbers in five languages; images reads handwritten digits, and needs the extra `vision`.
    Then: how it does on what it never saw, and where it looks, in the terminal and as a page.
    """
    began = time.perf_counter()
    from qkv.train.machine import keep_memory

    keep_memory()  # before torch is used, while there is nothing to keep
    ends = [] if minutes is None else ["train.epochs=none", "train.steps=none", f"train.minutes={minutes}"]
    recipe, story = _DEMOS[what]
    out = out or Path("runs/demo" if what == "numbers" else f"runs/demo-{what}")
    predictor = trained(recipe, story.ABOUT, out, fresh, [*ends, *(changes or [])], began)
    with results(None):
        story.shown(predictor, out, count)
        print(f"\nAll of this took {duration(time.perf_counter() - began)}.")
