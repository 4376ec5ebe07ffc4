"""Where a run stands: all that decides its future, in and out of a checkpoint bit for bit."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.store.checkpoint import Checkpoint
from qkv.train.average import Average, weights_of
from qkv.train.optim import Optimizer


@dataclass
class Progress:
    """Counters of a run, saved with each checkpoint."""

    step: int = 0
    """Updates so far."""
    epoch: int = 0
    """Complete passes."""
    batch: int = 0
    """Batches of the present pass that are behind."""
    seconds: float = 0.0
    """Time spent, over all sittings."""
    targets: int = 0
    """Predictions learnt from."""
    best: float | None = None
    """The best score, where more is better."""
    best_step: int = 0
    best_scores: dict[str, float] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    worse: int = 0
    """Validations since the best."""
    logged: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Sum of losses and number of targets since the last line of the log."""
    lines: int = 0
    """Lines of the log when this was saved."""
    finished: bool = False
    """Whether the run has come to its end."""


@dataclass
class State:
    """A model in training."""

    model: nn.Module
    optimizer: Optimizer
    average: Average
    progress: Progress
    best: dict[str, Tensor] = field(default_factory=dict)
    """The weights with the best score so far."""

    def keep_best(self) -> None:
        """Remember the present weights as the best."""
        self.best = {name: tensor.clone() for name, tensor in weights_of(self.model).items()}

    def tensors(self) -> dict[str, Mapping[str, Tensor]]:
        """Groups of tensors for a checkpoint: no copies, so save them before the next step."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.tensors(),
            "average": self.average.tensors(),
            "best": self.best,
            "random": {"torch": torch.get_rng_state()},
        }

    def facts(self) -> dict[str, Any]:
        """The counters, for a checkpoint."""
        return asdict(self.progress)

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint, bit for bit."""
        groups = checkpoint.tensors
        try:
            self.model.load_state_dict(groups["model"])
        except RuntimeError as error:
            raise QkvError(
                f"the checkpoint of step {checkpoint.step} is of another model: {str(error).splitlines()[1].strip()}"
            ) from None
        self.optimizer.load(groups["optimizer"])
        self.average.load(groups["average"])
        self.best = groups["best"]
        self.progress = Progress(**checkpoint.facts)
        torch.set_rng_state(groups["random"]["torch"])
