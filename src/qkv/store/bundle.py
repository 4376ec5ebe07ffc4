"""A finished model as one directory: recipe, weights, tokenizers, card and manifest.

`qkv.json` holds the task, the resolved recipe (which alone rebuilds the model), what training came to, and the versions
that wrote it;
`model.safetensors` the weights; `tokenizer.json`, or `source.tokenizer.json` and `target.tokenizer.json`, the
vocabularies of a model that reads text; `README.md` is the card.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import safetensors
import torch
from torch import Tensor

from qkv import __version__
from qkv.errors import QkvError, nearest
from qkv.store.files import read_facts, read_tensors, write_facts, write_tensors
from qkv.store.manifest import MANIFEST, verify, write_directory

FACTS, WEIGHTS, CARD = "qkv.json", "model.safetensors", "README.md"
TOKENIZERS = ("tokenizer.json", "source.tokenizer.json", "target.tokenizer.json")
FORMAT = 1

# What people point at instead: a file or folder that tells it, what it is, and what to do about it.
_LOOKALIKES = {
    "checkpoint.json": (
        "a checkpoint, from which only training goes on",
        "give the model that the run wrote",
    ),
    "checkpoints": ("a run", "give the model inside it, or finish its training"),
    "config.json": ("a Hugging Face model", "give one that qkv wrote"),
    "model.bin": ("a CTranslate2 model", "give the one it was made from"),
}


class Savable(Protocol):
    """A vocabulary that can write itself into a file, such as `qkv.data.tokens.Tokens`."""

    def save(self, path: Path, /) -> None: ...


@dataclass(frozen=True)
class Bundle:
    """What a model directory holds."""

    path: Path
    task: str
    recipe: dict[str, Any]
    """Everything that was configured; it alone rebuilds the model."""
    versions: dict[str, str]
    """Of qkv, torch, safetensors and Python when it was written."""
    tensors: dict[str, Tensor]
    """The weights by name, on the CPU."""
    tokenizers: dict[str, Path]
    """The vocabulary files by name; none for a model that reads no text."""
    results: dict[str, Any] = field(default_factory=dict)
    """What training came to: steps, cost, scores and how they were computed."""


def save(
    path: Path,
    *,
    task: str,
    recipe: dict[str, Any],
    tensors: Mapping[str, Tensor],
    tokenizers: Mapping[str, bytes | Savable],
    card: str,
    results: dict[str, Any] | None = None,
) -> Path:
    """Write a model directory, whole or not at all; `tokenizers` are by file name, as in `TOKENIZERS`."""
    assert set(tokenizers) in ({TOKENIZERS[0]}, set(TOKENIZERS[1:]), set()), f"tokenizers {set(tokenizers)}"
    versions = {
        "qkv": __version__,
        "torch": str(torch.__version__),
        "safetensors": safetensors.__version__,
        "python": platform.python_version(),
    }
    with write_directory(path) as directory:
        write_facts(
            directory / FACTS,
            {
                "format": FORMAT,
                "task": task,
                "recipe": recipe,
                "versions": versions,
                "tokenizers": sorted(tokenizers),
                "results": results or {},
            },
        )
        write_tensors(directory / WEIGHTS, tensors)
        for name, content in tokenizers.items():
            if isinstance(content, bytes):
                (directory / name).write_bytes(content)
            else:
                content.save(directory / name)
        (directory / CARD).write_text(card, "utf-8", newline="\n")
    return path


def read(path: Path) -> Bundle:
    """Read a model directory after proving each file that is used; the card may be edited, and files added."""
    _expect_bundle(path)
    fix = _fix(path)
    verify(path, [FACTS], fix=fix)
    facts = read_facts(path / FACTS)
    if facts["format"] > FORMAT:
        raise QkvError(
            f"{path} has format {facts['format']}, written by qkv {facts['versions']['qkv']}, and this qkv "
            f"{__version__} knows {FORMAT}: pip install --upgrade qkv"
        )
    tokenizers = {name: path / name for name in facts["tokenizers"]}
    verify(path, [WEIGHTS, *tokenizers], fix=fix)
    return Bundle(
        path=path,
        task=facts["task"],
        recipe=facts["recipe"],
        versions=facts["versions"],
        tensors=read_tensors(path / WEIGHTS),
        tokenizers=tokenizers,
        results=facts.get("results", {}),  # models of the first days have none
    )


def _fix(path: Path) -> str:
    """What to do about a damaged model: the run that wrote it can write it again."""
    run = path.parent
    if (run / "checkpoints").is_dir():
        return f"move it away, and write it again from the last checkpoint: qkv train --resume --out {run}"
    return "restore it from a copy, or train it again"


def _expect_bundle(path: Path) -> None:
    """Raise one sentence unless this is a model directory; say what it is instead, where that can be seen."""
    if (path / FACTS).is_file() or ((path / MANIFEST).is_file() and (path / WEIGHTS).is_file()):
        return  # the second without the first is damaged, which `verify` says
    if not path.exists():
        siblings = [str(entry) for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise QkvError(f"there is no {path}: give a model directory{nearest(str(path), siblings)}")
    if not path.is_dir():
        raise QkvError(f"{path} is a file; a model is a directory with {FACTS} and {WEIGHTS}: give that")
    within = sorted(str(entry.parent) for entry in path.glob(f"*/{FACTS}"))
    if within:
        raise QkvError(
            f"{path} is no model, but {' and '.join(within)} {'is' if len(within) == 1 else 'are'}: give that"
        )
    for mark, (kind, fix) in _LOOKALIKES.items():
        if (path / mark).exists():
            raise QkvError(
                f"{path} is no model directory of qkv but looks like {kind} (it has {mark}): {fix}"
            )
    raise QkvError(f"{path} is no model directory (it has no {FACTS}): give one that qkv wrote")
