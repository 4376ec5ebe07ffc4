"""Averages of a model's weights over training, which often do better than the last weights."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.recipe.training import AverageConfig


class Average:
    """An average of a model's weights, in fp32, that takes the model's place while it is evaluated.

    Tied weights count once. Buffers that are saved with the model (running statistics) are averaged with it; integers
    stay the model's own.
    """

    def __init__(self, config: AverageConfig):
        self.config = config
        self._updates = 0
        self._kept: deque[dict[str, Tensor]] = deque(maxlen=config.count if config.kind == "last" else 1)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take the model's present weights into the average."""
        if self.config.kind == "none":
            return
        weights = weights_of(model)
        if self.config.kind == "last" or not self._kept:
            self._kept.append({name: weight.to(torch.float32, copy=True) for name, weight in weights.items()})
        else:
            # Weights change most at first, so the memory grows with n updates: 1/10, 2/11, … up to the decay.
            decay = min(self.config.decay, (1 + self._updates) / (10 + self._updates))
            for name, average in self._kept[0].items():
                average.lerp_(weights[name].to(torch.float32), 1 - decay)
        self._updates += 1

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model with the averaged weights; its own return afterwards, bit for bit. Without any update, its own."""
        if not self._kept:
            yield
            return
        weights = weights_of(model)
        own = {name: weight.clone() for name, weight in weights.items()}
        _copy(self._mean(), weights)
        try:
            yield
        finally:
            _copy(own, weights)

    def tensors(self) -> dict[str, Tensor]:
        """Its whole state: `updates`, and `<number>.<name>` for each weight that it holds, oldest first."""
        held = {
            f"{number}.{name}": weight
            for number, weights in enumerate(self._kept)
            for name, weight in weights.items()
        }
        return {"updates": torch.tensor(self._updates), **held}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave, bit for bit."""
        held: dict[int, dict[str, Tensor]] = {}
        for key, weight in tensors.items():
            if key != "updates":
                number, _, name = key.partition(".")
                held.setdefault(int(number), {})[name] = weight.clone()
        if len(held) > (self._kept.maxlen or 0):
            raise QkvError(
                f"the state averages {len(held)} weights, but average.count is {self._kept.maxlen}: "
                "resume with the same recipe"
            )
        self._kept.clear()
        self._kept.extend(held[number] for number in sorted(held))
        self._updates = int(tensors["updates"])

    def _mean(self) -> dict[str, Tensor]:
        first, *others = self._kept
        if not others:
            return first
        return {
            name: torch.stack([weight, *(other[name] for other in others)]).mean(0)
            for name, weight in first.items()
        }


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Every floating-point tensor that is saved with the model, by its first name."""
    found: dict[tuple[int, torch.Size], tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            found.setdefault((tensor.data_ptr(), tensor.shape), (name, tensor))
    return dict(found.values())


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, weight in target.items():
        weight.copy_(source[name])
