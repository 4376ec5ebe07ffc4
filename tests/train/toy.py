"""A task small enough to follow by hand: rows of numbers in three classes, in float64, and a loop over it."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.recipe.training import OptimConfig, ScheduleConfig, TrainConfig
from qkv.store import checkpoint
from qkv.tasks.task import Scores, Task
from qkv.train.loop import Loop
from qkv.train.progress import Display
from qkv.train.run import Run

FEATURES, WIDTH, CLASSES = 5, 7, 3
PLAIN = TrainConfig(
    epochs=3,
    precision="fp32",
    clip=None,
    log_every=1,
    optimizer=OptimConfig(rate=0.05),
    schedule=ScheduleConfig(kind="constant", warmup=0),
)


def net(dropout: float = 0.0, seed: int = 0) -> nn.Sequential:
    """Modules 0 to 3: linear, tanh, dropout, linear."""
    torch.manual_seed(seed)
    layers = nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Dropout(dropout), nn.Linear(WIDTH, CLASSES)
    return nn.Sequential(*layers).double()


class Rows(Task[Tensor]):
    """22 rows in batches of 4 (the last has 2), in another order each epoch; a batch is the numbers of its rows."""

    def __init__(
        self,
        train: TrainConfig = PLAIN,
        *,
        model: nn.Module | None = None,
        dropout: float = 0.0,
        size: int = 4,
        score: Callable[["Rows"], float | None] | None = None,
    ):
        random = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(22, FEATURES, dtype=torch.float64, generator=random)
        self.labels = torch.randint(CLASSES, (22,), generator=random)
        self.config = SimpleNamespace(task="rows", train=train)
        self.size, self.score = size, score
        self._model = model or net(dropout)
        self.seen: list[list[int]] = []
        """The rows of every batch that the model learnt from."""
        self.validations = 0

    @property
    def model(self) -> nn.Module:
        return self._model

    def epoch(self, number: int) -> Sequence[Tensor]:
        order = torch.randperm(22, generator=torch.Generator().manual_seed(number))
        return order.split(self.size)

    def targets(self, batch: Tensor) -> int:
        return len(batch)

    def loss(self, batch: Tensor) -> Tensor:
        self.seen.append(batch.tolist())
        return self._loss(batch)

    def validate(self) -> Scores | None:
        assert not self.model.training
        assert not torch.is_grad_enabled()
        self.validations += 1
        if self.score is None:
            return Scores({"loss": self._loss(torch.arange(22)).item() / 22}, "loss", more_is_better=False)
        value = self.score(self)
        return None if value is None else Scores({"score": value}, "score", signatures={"score": "s|1"})

    def _loss(self, batch: Tensor) -> Tensor:
        inputs = self.inputs[batch].to(
            next(self.model.parameters()).dtype
        )  # of the weights, or of their images
        logits = self.model(inputs)
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        return F.cross_entropy(logits, self.labels[batch], reduction="sum")

    def describe(self, batch: Tensor, rows: Sequence[int] = ()) -> str:
        return f"rows {[batch.tolist()[row] for row in rows] or batch.tolist()}"

    def digest(self) -> str:
        return "rows"

    def tokenizers(self) -> Mapping[str, bytes]:
        return {}

    def card(self, facts: Mapping[str, str]) -> str:
        return "rows"


def silent() -> Display:
    """A display that writes nowhere."""
    return Display(Console(file=io.StringIO()))


def loop(task: Rows, path: Path, resume: bool = False) -> Loop:
    """A sitting of a run in `path`."""
    path.mkdir(exist_ok=True)
    found = checkpoint.newest(path)[0] if resume else None
    return Loop(task, Run(path), silent(), found)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of them."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same_bits(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether all tensors are the same, bit for bit."""
    assert one.keys() == other.keys()
    return all(one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one)


def changed(**values: object) -> TrainConfig:
    """PLAIN with other values."""
    return replace(PLAIN, **values)
