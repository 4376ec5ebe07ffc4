"""`qkv info`: what a run or a model is, and how well it does."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.options import Json, print_json


def info(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The directory of a run, finished or not, or of a model.")
    ],
    as_json: Json = False,
) -> None:
    """Describe a run or a model: sizes, vocabulary, languages, data, how training went, scores and cost."""
    from qkv.train.about import about

    found = about(run)
    if as_json:
        print_json(found)
        return
    for name, text in lines(found):
        print(f"{name + ':':<14}{text}")
    if history := found.get("history"):
        from rich.console import Console

        from qkv.train.progress import history as table

        Console(file=sys.stdout, highlight=False).print(table(history))


def lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What is known, by name."""
    results, model = found["results"], found["recipe"].get("model", {})
    rows = [("run" if "run" in found else "model", found.get("run", found.get("model", "")))]
    if "run" in found:
        rows.append(("state", _state(found)))
    sizes = ", ".join(f"{name} {value}" for name, value in model.items() if name != "kind")
    rows += [("task", str(found["task"])), ("architecture", f"{model.get('kind')}: {sizes}")]
    if "parameters" in found:
        rows.append(("parameters", f"{found['parameters']:,}"))
    for file, tokens in found.get("vocabularies", {}).items():
        languages = f"; languages {', '.join(tokens['languages'])}" if tokens["languages"] else ""
        rows.append(("vocabulary", f"{tokens['size']:,} {tokens['kind']} ({file}){languages}"))
    if labels := found["recipe"].get("labels"):
        rows.append(("labels", f"{len(labels)}: {', '.join(labels[:20])}{', …' if len(labels) > 20 else ''}"))
    rows += [("data", line) for notice in results.get("notices", ()) for line in notice.splitlines()]
    rows += [("file", f"{name}, {facts['bytes']:,} bytes") for name, facts in found.get("data", {}).items()]
    if results:
        rows.append(("training", _training(results)))
    for name, value in results.get("scores", {}).items():
        rows.append((name, f"{value:.2f}  {results['signatures'].get(name, '')}".rstrip()))
    if "versions" in found:
        rows.append(("written by", ", ".join(f"{name} {value}" for name, value in found["versions"].items())))
    return rows


def _state(found: dict[str, Any]) -> str:
    if found["finished"]:
        return "finished"
    step = found["results"].get("steps")
    saved = "without a checkpoint yet" if step is None else f"saved at step {step:,}"
    return f"not finished, {saved}; if it was stopped: qkv train --resume --out {found['run']}"


def _training(results: dict[str, Any]) -> str:
    parts = [f"{results['steps']:,} steps, {results['epochs']} whole epochs"]
    if results["scores"]:
        parts.append(f"best at step {results['best_step']:,}")
    parts.append(f"{results['seconds'] / 60:.1f} minutes")
    parts.append(f"{results['targets'] / max(results['seconds'], 1e-9):,.0f} targets/s all in all")
    if "mebibytes" in results:
        parts.append(f"{results['mebibytes']:,} MiB at the most")
    return ", ".join(parts)
