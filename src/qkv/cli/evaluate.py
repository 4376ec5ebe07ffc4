"""`qkv evaluate`: BLEU, chrF, exact matches and loss of a model on held-out data."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.options import Json, Model, Search, by_part, print_json, read_translator, results, say, table
from qkv.cli.translate import search
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.data.text import Corpus
    from qkv.tasks.translate import Evaluation, MetricsConfig


def evaluate(
    run: Model,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="A TSV or JSONL file, or twice: sources and targets; by default the recipe's validation data.",
        ),
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option(metavar="LANG", help="The language of --data, where the model knows several."),
    ] = None,
    tag_column: Annotated[
        int | None, typer.Option(min=1, help="Or the column of a TSV file that holds it.")
    ] = None,
    tag_key: Annotated[str | None, typer.Option(help="Or the key of a JSONL file that holds it.")] = None,
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

    Several languages are scored one by one and all together.
    """
    from qkv.data.text import ParallelText, Rules
    from qkv.recipe.config import from_tree, override
    from qkv.tasks.translate import TranslateConfig, evaluate

    bundle, translator = read_translator(run)
    parts = by_part(changes, "search", "metrics")
    recipe = from_tree(TranslateConfig, bundle.recipe, str(bundle.path))
    corpora = chosen(data, tag, tag_column, tag_key, translator.languages) or recipe.data.valid
    if not corpora:
        raise QkvError(f"{run} was trained without validation data: name some with --data")
    asked: dict[str, Any] = {"tokenize": tokenize, "lowercase": lowercase}
    metrics = replace(recipe.metrics, **{name: value for name, value in asked.items() if value is not None})
    metrics = override(metrics, parts["metrics"])
    config = search(translator, beam, None, None, parts["search"])
    rules = replace(recipe.data.rules, duplicates="keep") if data is None else Rules(duplicates="keep")
    # Scores are comparable only over all of a set, so what is left out is told.
    found = evaluate(translator, ParallelText(corpora, rules), metrics, config)
    for report in found.reports:
        if report.findings:
            say(str(report))
    if out:
        with results(out, [path for corpus in corpora for path in corpus.files]) as stream:
            stream.writelines(text.replace("\n", " ") + "\n" for text in found.found)
    print_json(as_tree(found, metrics, config.beam)) if as_json else print(as_text(found))


def chosen(
    data: list[str] | None,
    tag: str | None,
    tag_column: int | None,
    tag_key: str | None,
    languages: Sequence[str],
) -> "tuple[Corpus, ...]":
    """The corpus of `--data`, in one of the languages that the model knows."""
    from qkv.data.text import Corpus

    if not data:
        if tag or tag_column or tag_key:
            raise typer.BadParameter("a tag says of which language --data is: name that, too")
        return ()
    if len(data) > 2:
        raise typer.BadParameter(f"--data was given {len(data)} times: once for one file, twice for two")
    if languages and not (tag or tag_column or tag_key):
        raise QkvError(
            f"the model writes {', '.join(languages)}: say with --tag which of them {data[-1]} has"
        )
    source, target = [*data, None][:2]
    assert source is not None
    return (Corpus(source=source, target=target, tag=tag, tag_column=tag_column, tag_key=tag_key),)


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
