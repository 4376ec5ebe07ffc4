"""`qkv evaluate`: BLEU, chrF, exact matches and loss of a model on held-out data."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.evaluate_images import evaluate_images, refuse
from qkv.cli.options import (
    Json,
    Model,
    Search,
    Strict,
    by_part,
    expect_translator,
    print_json,
    read_model,
    results,
    say,
    table,
)
from qkv.cli.translate import search
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.data.text import Corpus
    from qkv.tasks.translate import Evaluation, MetricsConfig

# Which data, and how they are read.
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="A TSV or JSONL file, or twice: sources and targets; by default the recipe's validation data.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="SOURCE,TARGET", help="The columns of a TSV file, counted from 1; by default 1,2."),
]
Keys = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE,TARGET",
        help="The keys of a JSONL file, by default source,target; a dot leads into an object: translation.en.",
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
    changes: Search = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the translations to a file, which is replaced."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Translate held-out data and compare: BLEU and chrF with their signatures, exact matches, loss in nats a token.

    Several languages are scored one by one and all together. Of a classifier of pictures (--data FOLDER, or --data
    IMAGES --data LABELS): accuracy, F1, each class, and what is taken for what.
    """
    from qkv.data.text import ParallelText, Rules
    from qkv.recipe.config import from_tree, override
    from qkv.tasks.translate import TranslateConfig, evaluate

    bundle, translator = read_model(run)
    if bundle.task == "classify_images":
        refuse({"tag": tag, "beam": beam, "tokenize": tokenize, "set": changes, "out": out})
        evaluate_images(translator, data, two("--keys", keys, str, "x,y"), strict, as_json)
        return
    expect_translator(run, bundle, translator)
    parts = by_part(changes, "search", "metrics")
    recipe = from_tree(TranslateConfig, bundle.recipe, str(bundle.path))
    places = {"columns": two("--columns", columns, int, "2,3"), "keys": two("--keys", keys, str, "en,de")}
    tags = {"tag": tag, "tag_column": tag_column, "tag_key": tag_key}
    corpora = chosen(data, places, tags, translator.languages) or recipe.data.valid
    if not corpora:
        raise QkvError(f"{run} was trained without validation data: name some with --data")
    asked: dict[str, Any] = {"tokenize": tokenize, "lowercase": lowercase}
    metrics = replace(recipe.metrics, **{name: value for name, value in asked.items() if value is not None})
    metrics = override(metrics, parts["metrics"])
    config = search(translator, beam, None, None, parts["search"])
    rules = Rules() if data else recipe.data.rules
    rules = replace(rules, duplicates="keep", strict=strict or rules.strict)
    # Scores are comparable only over all of a set, so what is left out is told.
    found = evaluate(translator, ParallelText(corpora, rules), metrics, config)
    for report in found.reports:
        if report.findings:
            say(str(report))
    if out:
        with results(out, [path for corpus in corpora for path in corpus.files]) as stream:
            stream.writelines(text.replace("\n", " ") + "\n" for text in found.found)
    print_json(as_tree(found, metrics, config.beam)) if as_json else print(as_text(found))


def two(option: str, text: str | None, kind: type, example: str) -> tuple[Any, Any] | None:
    """Where sources and targets stand, as `--columns` and `--keys` say it."""
    if text is None:
        return None
    try:
        source, target = (kind(part.strip()) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{option} is {text}; where sources and targets stand is wanted, e.g. {option} {example}"
        ) from None
    return source, target


def chosen(
    data: list[str] | None, places: dict[str, Any], tags: dict[str, Any], languages: Sequence[str]
) -> "tuple[Corpus, ...]":
    """The corpus of `--data`, read as these options say, in one of the languages that the model knows."""
    from qkv.data.text import NUMBERS, Corpus

    tagged = {name: value for name, value in tags.items() if value is not None}
    given = tagged | {name: value for name, value in places.items() if value is not None}
    if not data:
        if given:
            raise typer.BadParameter(f"{_option(given)} is about --data: name that, too")
        return ()
    if len(data) > 2:
        raise typer.BadParameter(f"--data was given {len(data)} times: once for one file, twice for two")
    if tagged and not languages:
        raise QkvError(f"the model knows one language only: leave {_option(tagged)} out")
    source, target = [*data, None][:2]
    assert source is not None
    corpus = Corpus(source=source, target=target, **given)
    if languages and not tagged and corpus.kind != NUMBERS:  # numbers come with their languages
        raise QkvError(
            f"the model writes {', '.join(languages)}: say with --tag which of them {data[-1]} has"
        )
    return (corpus,)


def _option(given: dict[str, Any]) -> str:
    """The first of these as it was typed."""
    return "--" + next(iter(given)).replace("_", "-")


def as_tree(found: "Evaluation", metrics: "MetricsConfig", beam: int) -> dict[str, Any]:
    """The result for a program."""
    return {
        "beam": beam,
        "signatures": dict(found.scores["all"].signatures),
        "scores": {
            name: {"sentences": found.sentences[name], **scores.values}
            for name, scores in found.scores.items()
        },
    }


def as_text(found: "Evaluation") -> str:
    """The result for people: a row for each language, and how the scores were computed."""
    names = list(found.scores["all"].values)
    order = [*(name for name in found.scores if name != "all"), "all"]
    rows = [["", "sentences", *names]]
    for name in order:
        values = found.scores[name].values
        rows.append([name, f"{found.sentences[name]:,}", *(f"{values[key]:.2f}" for key in names)])
    signatures = [f"{name}: {value}" for name, value in found.scores["all"].signatures.items()]
    return "\n".join([table(rows), *signatures])
