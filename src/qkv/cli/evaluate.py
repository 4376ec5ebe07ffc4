"""`qkv evaluate`: the scores of a finished model on held-out data, whatever its task."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.options import (
    Columns,
    Encoding,
    Json,
    Keys,
    Model,
    Set,
    Strict,
    expect_settable,
    print_json,
    read_predictor,
    results,
    say,
    table,
    two,
)
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.store.bundle import Bundle
    from qkv.tasks.task import Evaluation

_WIDEST = 30  # columns of a table on a screen

# Which data, and how they are read.
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="A file or folder as in recipes; also twice: sources and targets, or pictures and classes. By default the "
        "recipe's validation data.",
    ),
]
Tag = Annotated[
    str | None, typer.Option(metavar="LANG", help="The language of --data, where the model knows several.")
]
TagColumn = Annotated[int | None, typer.Option(min=1, help="Or the column of a TSV file that holds it.")]
TagKey = Annotated[str | None, typer.Option(help="Or the key of a JSONL file that holds it.")]


def evaluate(
    run: Model,
    data: Data = None,
    columns: Columns = None,
    keys: Keys = None,
    encoding: Encoding = None,
    tag: Tag = None,
    tag_column: TagColumn = None,
    tag_key: TagKey = None,
    strict: Strict = False,
    beam: Annotated[int | None, typer.Option(min=1, help="Width of the beam; 1 is greedy.")] = None,
    tokenize: Annotated[
        str | None,
        typer.Option(
            help="sacreBLEU's tokenizer, none for text that has its tokens; by default the recipe's."
        ),
    ] = None,
    lowercase: Annotated[
        bool | None, typer.Option(help="Ignore case, or not; by default as the recipe says.")
    ] = None,
    changes: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write what the model says of each example to a file, which is replaced."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Score a model on held-out data: translations by BLEU, chrF and exact matches, labels by accuracy and F1.

    Several languages are scored one by one and all together. Classifiers are shown beside what simple ones reach, and
    with what they confuse. --set changes how a model is scored, e.g. search.alpha=0.6.
    """
    from qkv.tasks.task import Asked, kind

    bundle, predictor = read_predictor(run)
    task = kind(bundle.task)
    if task.evaluate is None:
        raise QkvError(
            f"{run} is a model for {bundle.task}, which has no scores beside those of its training"
        )
    options = as_changes(beam, tokenize, lowercase)
    expect_settable(bundle.task, task.settable, options, changes or [])
    places = {
        "columns": two("--columns", columns, "2,3"),
        "keys": two("--keys", keys, "en,de"),
        "encoding": encoding,
        "tag": tag,
        "tag_column": tag_column,
        "tag_key": tag_key,
    }
    reading = {name: value for name, value in places.items() if value is not None}
    config = recipe_of(bundle, [*options, *(changes or [])], data, reading)
    found = task.evaluate(predictor, config, Asked(data or (), reading, strict))
    for report in found.reports:
        if report.findings:  # scores are comparable only over all of a set, so what is left out is told
            say(str(report))
    if out:
        with results(out, [file for report in found.reports for file in report.lines]) as stream:
            stream.writelines(text.replace("\n", " ") + "\n" for text in found.outputs)
    print_json(as_tree(found)) if as_json else print(as_text(found))


def as_changes(beam: int | None, tokenize: str | None, lowercase: bool | None) -> list[str]:
    """The options of translation as `--set` would have them."""
    quick = {"search.coverage": 0} if beam == 1 else {}  # with nothing to choose from there is nothing for it
    wanted = {"search.beam": beam, **quick, "metrics.tokenize": tokenize, "metrics.lowercase": lowercase}
    return [f"{key}={str(value).lower()}" for key, value in wanted.items() if value is not None]


def recipe_of(bundle: "Bundle", changes: list[str], data: list[str] | None, reading: dict[str, Any]) -> Any:
    """The model's recipe with these changes; without data of its own there is nothing to read in another way."""
    from qkv.recipe.config import from_tree, override
    from qkv.tasks.task import kind

    if reading and not data:
        option = "--" + next(iter(reading)).replace("_", "-")
        raise typer.BadParameter(f"{option} is about --data: name that, too")
    config = from_tree(kind(bundle.task).config, bundle.recipe, str(bundle.path))
    if not data and not (config.data.valid or getattr(config.data, "hold_out", 0)):
        raise QkvError(f"{bundle.path} was trained without validation data: name some with --data")
    return override(config, changes)


def as_tree(found: "Evaluation") -> dict[str, Any]:
    """The result for a program."""
    tree: dict[str, Any] = {
        **found.facts,
        "signatures": dict(found.scores["all"].signatures),
        "scores": {
            name: {found.unit: found.counts[name], **scores.values} for name, scores in found.scores.items()
        },
    }
    if found.tables:
        tree["tables"] = {name: [list(row) for row in rows] for name, rows in found.tables.items()}
    return tree


def as_text(found: "Evaluation") -> str:
    """The result for people: a row for each group, how the scores were computed, and the other tables."""
    names = list(found.scores["all"].values)
    order = [*(name for name in found.scores if name != "all"), "all"]
    rows = [["", found.unit, *names]]
    for name in order:
        values = found.scores[name].values
        cells = (f"{values[key]:.2f}" if key in values else "" for key in names)
        rows.append([name, f"{found.counts[name]:,}", *cells])
    signatures = [f"{name}: {value}" for name, value in found.scores["all"].signatures.items()]
    tables = [f"\n{name}\n{_shown(rows)}" for name, rows in found.tables.items()]
    return "\n".join([table(rows), *signatures, *tables])


def _shown(rows: Sequence[Sequence[str]]) -> str:
    """A table, unless it is too wide for any screen."""
    columns = len(rows[0])
    return (
        table(rows) if columns <= _WIDEST else f"{columns} columns are too many to be read here: add --json"
    )
