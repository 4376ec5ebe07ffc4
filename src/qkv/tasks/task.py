"""What the trainer needs of a task, and all that it knows of one."""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor, nn

from qkv.config import inside
from qkv.data.report import Report
from qkv.errors import QkvError, nearest
from qkv.recipe.config import to_tree
from qkv.recipe.recipe import resolve
from qkv.recipe.training import TrainConfig
from qkv.store import bundle
from qkv.store.bundle import Bundle, Savable

Batch = TypeVar("Batch")
Made = TypeVar("Made", covariant=True)


class Epoch(Protocol[Made]):
    """Batches by number; each is made when it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Made: ...


@dataclass(frozen=True)
class Scores:
    """What a validation found: numbers by name, and by which of them the best model is chosen."""

    values: Mapping[str, float]
    best_by: str
    more_is_better: bool = True
    signatures: Mapping[str, str] = field(default_factory=dict)
    """How each score was computed, where that is not obvious: sacreBLEU's signature."""

    @property
    def best(self) -> float:
        """The number that is compared, where more is better."""
        value = self.values[self.best_by]
        return value if self.more_is_better else -value


@dataclass(frozen=True)
class Asked:
    """What a finished model is to be scored on."""

    data: Sequence[str] = ()
    """Files; without any, the validation data of its recipe."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    """How to read them, as fields of the task's corpus."""
    strict: bool = False
    """Whether what would be left out is an error."""


@dataclass(frozen=True)
class Evaluation:
    """How well a finished model does on some data: over all, and by the groups that the task tells apart."""

    counts: Mapping[str, int]
    """How many examples each group has; `all` of them."""
    scores: Mapping[str, Scores]
    """By the same names."""
    unit: str
    """What is counted: sentences, texts."""
    outputs: Sequence[str] = ()
    """What the model says of each example, in the order of the data."""
    reports: Sequence[Report] = ()
    """What was found in the data."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else decided the scores, in plain values."""
    tables: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """What else there is to see, by name: rows of cells, the first of them the heading."""


class Task(ABC, Generic[Batch]):
    """A model, its training batches, and how well it does."""

    config: Any
    """The recipe, resolved: it alone rebuilds the model."""
    notices: Sequence[str] = ()
    """What a user should know of the data before training."""

    @property
    @abstractmethod
    def model(self) -> nn.Module:
        """What is trained."""

    @property
    def training(self) -> TrainConfig:
        """How to train."""
        return self.config.train

    @abstractmethod
    def epoch(self, number: int) -> Epoch[Batch]:
        """The batches of an epoch: a function of the seed and the number alone."""

    @abstractmethod
    def targets(self, batch: Batch) -> int:
        """How many predictions a batch asks for."""

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """The loss of the model on a batch, summed over its targets."""

    @abstractmethod
    def validate(self) -> Scores | None:
        """Score the model, in evaluation mode, on held-out data; None if there is none."""

    @abstractmethod
    def describe(self, batch: Batch, rows: Sequence[int] = ()) -> str:
        """The first examples of a batch, or the first of these rows of it, for a message about them."""

    @abstractmethod
    def digest(self) -> str:
        """A hash of all that is learnt from, as the model gets it."""

    def look(self, batch: Batch) -> Sequence[str]:
        """A batch for a user to look at before training: its shape, and its first examples as the model gets them."""
        return [self.describe(batch)]

    def real_share(self, epoch: Epoch[Batch]) -> float | None:
        """The part of an epoch's positions that is not padding; None where nothing is padded."""
        return None

    def vocabulary(self) -> Mapping[str, int]:
        """How many tokens each vocabulary has, by what it is for; none for a model that reads no text."""
        return {}

    @abstractmethod
    def tokenizers(self) -> Mapping[str, bytes | Savable]:
        """The vocabularies that belong to the model, by file name."""

    @abstractmethod
    def card(self, facts: Mapping[str, str]) -> str:
        """The model's README; `facts` are lines about how it was trained."""


class Kind(NamedTuple):
    """What a task's module offers as `KIND`."""

    config: type
    """Its recipe."""
    presets: Mapping[str, Mapping[str, Mapping[str, object]]]
    """Presets of each kind of model."""
    files: Callable[[Any], Sequence[str]]
    """The data files that a recipe names."""
    build: Callable[[Any, Bundle | None], Task[Any]]
    """The task of a recipe; with the vocabularies and weights of a model to start from, if one is given."""
    load: Callable[[Bundle], Any]
    """The predictor of a finished model, as `qkv.load` returns it."""
    evaluate: Callable[[Any, Any, Asked], Evaluation] | None = None
    """Scores of a predictor, by its recipe, on the data that are asked for."""
    settable: Sequence[str] = ()
    """The parts of a recipe that can be changed when a finished model is evaluated."""
    kept: Sequence[str] = ()
    """The parts of a recipe that a model which starts from another takes over: how its inputs are made."""


def names() -> list[str]:
    """Every task that there is: the modules beside this one."""
    package = importlib.import_module("qkv.tasks")
    found = [module.name for module in pkgutil.iter_modules(package.__path__) if not module.ispkg]
    return sorted(name for name in found if name != "task")  # packages hold what several tasks share


def kind(name: str) -> Kind:
    """A task by its name."""
    if name not in names():
        raise QkvError(f"unknown task {name!r}: choose one of {', '.join(names())}{nearest(name, names())}")
    return importlib.import_module(f"qkv.tasks.{name}").KIND


def resolved(tree: dict[str, Any], changes: Sequence[str] = (), source: str = "") -> Any:
    """The recipe of a tree, of whichever task, with changes as `--set` takes them.

    One that starts from a model (`train.start`) has the model's sizes and choices, but for those that it names itself,
    and prepares its inputs as that model did.
    """
    found = kind(str(tree.get("task", "translate")))
    place = _start_of(tree, changes)
    if place is None:
        return resolve(found.config, tree, found.presets, changes, source)
    start = bundle.read(model_of(place))
    own = tree.get("model", {})
    kept = {part: start.recipe.get(part, {}) | tree.get(part, {}) for part in found.kept}
    tree = tree | kept | {"model": _model_of(found, start, own)}
    config = resolve(found.config, tree, found.presets, changes, source)
    for part in found.kept:
        now, before = to_tree(config)[part], start.recipe.get(part, {})
        for name in now.keys() & before.keys():
            if now[name] != before[name]:
                raise QkvError(
                    f"{part}.{name} is {now[name]!r}, but {place}, from which training starts, was made with "
                    f"{before[name]!r}, and keeps it: leave {part}.{name} out"
                )
    return config


def starting(config: Any) -> Bundle | None:
    """The model that a recipe starts from, if any."""
    place = config.train.start
    return None if place is None else bundle.read(model_of(place))


def files(config: Any) -> list[str]:
    """The files that decide what a recipe's run learns: its data, and the model that it starts from."""
    place = config.train.start
    more = [] if place is None else [str(model_of(place) / bundle.WEIGHTS)]
    return [*kind(config.task).files(config), *more]


def _start_of(tree: dict[str, Any], changes: Sequence[str]) -> str | None:
    """Where a recipe says that training starts; the last change has the last word."""
    place = tree.get("train", {}).get("start") if isinstance(tree.get("train", {}), dict) else None
    for change in changes:
        key, _, value = change.partition("=")
        if key.strip() == "train.start":
            place = value.strip().strip("'\"")
    return None if place == "none" else place


def _model_of(found: Kind, start: Bundle, own: dict[str, Any]) -> dict[str, Any]:
    """The table of a model that starts from another: the other's values, and its own over them."""
    before = start.recipe.get("model", {})
    name = own.get("kind", before.get("kind"))
    configs = [
        option for option in inside((found.config,), "model") if hasattr(option, "__pydantic_fields__")
    ]
    match = next((one for one in configs if one.__pydantic_fields__["kind"].default == name), None)
    if match is None or name != before.get("kind"):
        raise QkvError(
            f"{start.path} is a {before.get('kind')} for {start.task}, and a {name} is wanted: start from a model of the "
            "same kind, or name no kind"
        )
    preset = found.presets[name].get(own.get("preset", ""), {})
    for key, value in preset.items():
        if before.get(key) != value and key not in own:
            raise QkvError(
                f"model.preset is {own['preset']!r}, with {key} = {value}, and {start.path}, from which training starts, has "
                f"{before.get(key)}: leave model.preset out"
            )
    rest = {key: value for key, value in own.items() if key != "preset"}
    return {key: value for key, value in before.items() if key in match.__pydantic_fields__} | rest


def load(path: Path | str) -> Any:
    """The predictor of a finished run, or of a model's directory: for a translation model its `Translator`."""
    found = bundle.read(model_of(path))
    return kind(found.task).load(found)


def model_of(path: Path | str) -> Path:
    """The model's directory that `path` is, or that the run `path` ended in."""
    path = Path(path)
    if not (path / "recipe.toml").is_file() or (path / bundle.FACTS).is_file():
        return path  # no run: whether it is a model, reading it will say
    if not (path / "model").exists():
        raise QkvError(
            f"{path} is a run without a model, as it is not finished: "
            f"go on with it, qkv train --resume --out {path}"
        )
    return path / "model"
