"""The checkpoints of a run: where training goes on after it was stopped, at whatever moment.

`run/checkpoints/00001234/` is what training had after step 1234: a safetensors file for each group of tensors (weights,
optimiser, …), and `checkpoint.json` with the facts that are no tensors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.errors import QkvError
from qkv.store.files import read_facts, read_tensors, write_facts, write_tensors
from qkv.store.manifest import Damaged, remove, sweep, verify, write_directory

FACTS = "checkpoint.json"
FORMAT = 1
_FOLDER = "checkpoints"
_DAMAGED = ".damaged"


@dataclass(frozen=True)
class Checkpoint:
    """All that training needs to go on after `step`."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    """For each group (a file) its tensors by name, on the CPU."""
    facts: dict[str, Any]


def save(
    run: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    facts: dict[str, Any],
    *,
    keep: int = 2,
) -> Path:
    """Write the checkpoint of a step; once it is complete, remove all but the newest `keep`."""
    assert keep >= 1, f"keep is {keep}: this checkpoint is one"
    older = _steps(run)
    if older and step <= max(older):
        raise QkvError(
            f"{run} already has a checkpoint of step {max(older)}, and step {step} is not after it: "
            "resume from it, or train into another directory"
        )
    path = run / _FOLDER / f"{step:08}"
    with write_directory(path) as directory:
        for group, named in tensors.items():
            write_tensors(directory / f"{group}.safetensors", named)
        write_facts(
            directory / FACTS, {"format": FORMAT, "step": step, "groups": list(tensors), "facts": facts}
        )
    for old in sorted(older)[: max(0, len(older) - keep + 1)]:
        remove(older[old])
    return path


def load(path: Path) -> Checkpoint:
    """Read one checkpoint after proving each of its files; a damaged one is refused, and the damage named."""
    if not path.is_dir():
        raise QkvError(f"{path} is no checkpoint: give a directory such as {_FOLDER}/00001234 of a run")
    prove(path)
    content = read_facts(path / FACTS)
    if content["format"] > FORMAT:
        raise QkvError(
            f"{path} has format {content['format']}, and this qkv knows {FORMAT}: install the newer one that wrote it"
        )
    tensors = {group: read_tensors(path / f"{group}.safetensors") for group in content["groups"]}
    return Checkpoint(step=content["step"], tensors=tensors, facts=content["facts"])


def prove(path: Path, names: Iterable[str] | None = None) -> None:
    """Raise one sentence if these files of a checkpoint are damaged, or any of its files."""
    go_on = f"qkv train --resume --out {path.parent.parent}"
    verify(path, names, fix=f"restore it from a copy, or go on from the checkpoint before it: {go_on}")


def newest(run: Path) -> tuple[Checkpoint | None, list[str]]:
    """The last good checkpoint of a run (none if there never was one), and a notice for each damaged one after it.

    A damaged one is set aside as `00001234.damaged`, so that training can write this step again.
    """
    folder = run / _FOLDER
    if folder.is_dir():
        sweep(folder)
    damaged: dict[Path, str] = {}
    for _, path in sorted(_steps(run).items(), reverse=True):
        try:
            checkpoint = load(path)
        except Damaged as error:
            damaged[path] = error.what
            continue
        return checkpoint, [f"{what}; set aside as {_set_aside(path).name}" for path, what in damaged.items()]
    if damaged:
        raise QkvError(
            f"{run} has no checkpoint that training could go on from: {'; '.join(damaged.values())}: restore one from "
            "a copy, or begin another run with another --out"
        )
    return None, []


def peek(run: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint and its facts, without proving or touching anything: a run may be looked at while it trains."""
    for _, path in sorted(_steps(run).items(), reverse=True):
        try:
            return path, read_facts(path / FACTS)["facts"]
        except (OSError, ValueError, KeyError):  # removed this moment, or damaged: the one before it will do
            continue
    return None


def _steps(run: Path) -> dict[int, Path]:
    """The checkpoints of a run, by step."""
    folder = run / _FOLDER
    paths = folder.iterdir() if folder.is_dir() else []
    return {int(path.name): path for path in paths if path.name.isdecimal()}


def _set_aside(path: Path) -> Path:
    aside = path.with_name(path.name + _DAMAGED)
    if aside.exists():  # the same step was damaged before
        remove(aside)
    return path.rename(aside)
