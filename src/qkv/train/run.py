"""The directory of a run: its recipe, the data it was given, its log, its checkpoints and in the end its model.

run/recipe.toml     the recipe, resolved
run/data.json       size and SHA-256 of each data file
run/begun.json      what was learnt from, as the model gets it, and with which versions and threads
run/log.jsonl       losses and scores
run/checkpoints/    where training can go on
run/model/          the finished model, a bundle
"""

import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.errors import QkvError
from qkv.recipe.config import differences, from_toml, to_toml
from qkv.store import checkpoint
from qkv.store.checkpoint import Checkpoint

# What may differ when a run goes on, as it changes nothing that is learnt.
FREE = ("train.checkpoint_minutes", "train.tensorboard")


@dataclass(frozen=True)
class Run:
    """Paths in a run's directory."""

    path: Path

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.toml"

    @property
    def data(self) -> Path:
        return self.path / "data.json"

    @property
    def begun(self) -> Path:
        return self.path / "begun.json"

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.recipe.exists()

    def expect_new(self) -> None:
        """Make the directory; one with anything in it is refused, but for what a run left that was killed as it began."""
        if self.exists:
            raise QkvError(
                f"{self.path} is a run already: go on with --resume, or choose another directory with --out"
            )
        begun = {self.data, self.begun, self._unfinished}
        if self.path.exists() and (not self.path.is_dir() or set(self.path.iterdir()) - begun):
            raise QkvError(f"{self.path} exists and is no run: choose another directory with --out")
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)

    def begin(self, config: Any, data: dict[str, Any], digest: str) -> None:
        """Write down what the run is made of.

        `data` is what `fingerprints` gave before the data were read, `digest` the task's hash of what was read.
        """
        recipe = to_toml(config)
        with self._writing():
            self.data.write_text(json.dumps(data, indent=2) + "\n", "utf-8")
            self.begun.write_text(
                json.dumps({"digest": digest, **_circumstances()}, indent=2) + "\n", "utf-8"
            )
            self._unfinished.write_text(recipe, "utf-8")
            self._unfinished.rename(self.recipe)  # last: with it the run exists

    def saved_recipe(self, cls: type) -> Any:
        """The recipe with which the run was begun."""
        return from_toml(cls, self.recipe.read_text("utf-8"), str(self.recipe))

    def go_on(self, config: Any, files: Sequence[str]) -> tuple[Checkpoint | None, list[str]]:
        """The last good checkpoint and notices about damaged ones, once nothing has changed since the run began."""
        changed = [
            change
            for change in differences(self.saved_recipe(type(config)), config)
            if not change.startswith(FREE)
        ]
        if changed:
            raise QkvError(
                f"the recipe is not the one that {self.path} was begun with: {'; '.join(changed)}: "
                "take that back, or begin another run with another --out"
            )
        before, now = json.loads(self.data.read_text("utf-8")), fingerprints(files)
        other = [path for path in before | now if before.get(path) != now.get(path)]
        if other:
            raise QkvError(
                f"the data of {self.path} changed since it was begun: {', '.join(other)}: "
                "bring the files back, or begin another run with another --out"
            )
        return checkpoint.newest(self.path)

    def expect_same(self, digest: str) -> list[str]:
        """Raise if other examples were read than when the run was begun; notices about what else is not the same."""
        if not self.begun.exists():  # runs of the first days
            return []
        before, now = json.loads(self.begun.read_text("utf-8")), {"digest": digest, **_circumstances()}
        if before["digest"] != now["digest"]:
            raise QkvError(
                f"what is read for {self.path} is not what it was begun with, though its files are the same: "
                "give stdin again what it was given, or go back to the versions in its begun.json"
            )
        other = [
            f"{name} was {before[name]} and is {now[name]}" for name in now if before.get(name) != now[name]
        ]
        return [f"going on, but not bit for bit: {', '.join(other)}"] if other else []

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the run for this process; another that trains it is named. The hold ends with the process."""
        with self.data.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise QkvError(
                    f"another process is training {self.path}: wait for it, or stop it first"
                ) from None
            except OSError:  # a file system without locks
                pass
            yield

    def board(self, step: int) -> Any:
        """A TensorBoard writer, going on after a step; what an interrupted sitting wrote of later ones is hidden."""
        return tensorboard()(self.path / "tensorboard", purge_step=step + 1)

    @property
    def _unfinished(self) -> Path:
        return self.path / "recipe.tmp"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise QkvError(f"{self.path} cannot be written: {error.strerror}: choose another --out") from None


def _circumstances() -> dict[str, Any]:
    """What decides the last bits of a sum."""
    return {"torch": torch.__version__, "threads": torch.get_num_threads()}


def tensorboard() -> Any:
    """The class of TensorBoard's writer."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise QkvError(
            "train.tensorboard is on, but TensorBoard is not installed: pip install 'qkv[log]'"
        ) from None
    return SummaryWriter


def fingerprints(files: Sequence[str]) -> dict[str, Any]:
    """Size and SHA-256 of each file; of a folder, of all the files in it and their names."""
    found: dict[str, Any] = {}
    for name in files:
        try:
            found[name] = _of_folder(Path(name)) if Path(name).is_dir() else _of_file(Path(name))
        except OSError as error:
            raise QkvError(f"{name} cannot be read: {error.strerror}: name an existing file") from None
    return found


def _of_file(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _of_folder(path: Path) -> dict[str, Any]:
    files = sorted(file for file in path.rglob("*") if file.is_file())
    facts = {file.relative_to(path).as_posix(): _of_file(file) for file in files}
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return {"bytes": sum(fact["bytes"] for fact in facts.values()), "sha256": digest}
