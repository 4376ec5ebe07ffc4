"""What a directory is, a run or a model: read without changing anything, also while the run goes on."""

import json
from pathlib import Path
from typing import Any

from qkv.data.tokens import Tokens
from qkv.recipe.recipe import read
from qkv.store import bundle, checkpoint
from qkv.store.files import count_numbers
from qkv.tasks.task import model_of
from qkv.train import log
from qkv.train.run import Run


def about(path: Path | str) -> dict[str, Any]:
    """The facts of a run, finished or not, or of a model, in plain values."""
    run = Run(Path(path))
    if not run.exists:
        return {"model": str(path), **_of_model(Path(path))}
    finished = run.model.exists()
    facts = _of_model(model_of(run.path)) if finished else _of_unfinished(run)
    return {
        "run": str(run.path),
        "finished": finished,
        **facts,
        "data": json.loads(run.data.read_text("utf-8")) if run.data.exists() else {},
        "history": [row for row in log.read(run.log) if "best" in row] if run.log.exists() else [],
    }


def _of_model(path: Path) -> dict[str, Any]:
    found = bundle.read(path)
    vocabularies = {name: Tokens.load(file) for name, file in found.tokenizers.items()}
    return {
        "task": found.task,
        "recipe": found.recipe,
        "parameters": found.results.get("parameters", count_numbers(path / bundle.WEIGHTS)),
        "vocabularies": {
            name: {"kind": tokens.kind, "size": tokens.size, "languages": list(tokens.tags)}
            for name, tokens in vocabularies.items()
        },
        "versions": found.versions,
        "results": found.results,
    }


def _of_unfinished(run: Run) -> dict[str, Any]:
    """Of a run that goes on or was stopped: as far as its newest checkpoint knows."""
    recipe = read(run.recipe)
    facts: dict[str, Any] = {"task": recipe.get("task"), "recipe": recipe, "results": {}}
    if found := checkpoint.peek(run.path):
        path, progress = found
        checkpoint.prove(path, ["model.safetensors"])
        facts["parameters"] = count_numbers(path / "model.safetensors")
        facts["results"] = {
            "steps": progress["step"],
            "epochs": progress["epoch"],
            "best_step": progress["best_step"],
            "scores": progress["best_scores"],
            "signatures": progress["signatures"],
            "seconds": progress["seconds"],
            "targets": progress["targets"],
        }
    return facts
