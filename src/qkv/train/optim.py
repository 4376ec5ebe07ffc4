"""The optimiser: which weights it moves how, its exact state by name, and the gradients before it sees them."""

import fnmatch
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from qkv.errors import QkvError, nearest
from qkv.recipe.training import OptimConfig
from qkv.train.muon import Muon


class Optimizer:
    """AdamW, or Muon and AdamW, over the parameters of a model; tied ones count once, under their first name.

    Weights that the config wants frozen are told to need no gradient.
    """

    def __init__(self, model: nn.Module, config: OptimConfig):
        factors = rate_factors(model, config)
        self._names: dict[Tensor, str] = {
            weight: name for name, weight in model.named_parameters() if weight in factors
        }
        hidden = _hidden(model)
        by_muon = {weight for weight in hidden if weight.ndim == 2} if config.kind == "muon" else set()
        groups: dict[tuple[bool, float], list[Tensor]] = {}
        for weight in [weight for weight in self._names if weight not in by_muon]:
            groups.setdefault((weight in hidden, factors[weight]), []).append(weight)
        plain = {"weight_decay": 0.0}
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                [
                    {"params": weights, "factor": factor, **({} if decayed else plain)}
                    for (decayed, factor), weights in groups.items()
                ]
                or [{"params": []}],
                lr=config.rate,
                betas=config.betas,
                eps=config.epsilon,
                weight_decay=config.weight_decay,
                fused=True,
            )
        ]
        matrices = [weight for weight in model.parameters() if weight in by_muon and weight in factors]
        for factor in dict.fromkeys(factors[weight] for weight in matrices):
            self._optimizers.append(
                Muon(
                    [weight for weight in matrices if factors[weight] == factor],
                    lr=config.muon_rate * factor,
                    momentum=config.momentum,
                    weight_decay=config.weight_decay,
                )
            )

    def step(self, factor: float = 1.0) -> None:
        """Move the weights along their gradients, at `factor` times the rate."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = optimizer.defaults["lr"] * group.get("factor", 1.0) * factor
            optimizer.step()

    def zero(self) -> None:
        """Forget the gradients."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def tensors(self) -> dict[str, Tensor]:
        """Its whole state, `<parameter>.<what>`: the very tensors, to be saved before the next step."""
        return {
            f"{self._names[weight]}.{what}": value
            for optimizer in self._optimizers
            for weight, state in optimizer.state.items()
            for what, value in state.items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave, bit for bit."""
        rest = dict(tensors)
        for optimizer in self._optimizers:
            optimizer.state.clear()
            kinds = ("momentum",) if isinstance(optimizer, Muon) else ("step", "exp_avg", "exp_avg_sq")
            for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
                name = self._names[weight]
                found = {what: rest.pop(f"{name}.{what}") for what in kinds if f"{name}.{what}" in rest}
                if found:  # a parameter that never had a gradient has none
                    optimizer.state[weight] = {
                        what: _fit(name, weight, what, found.get(what)) for what in kinds
                    }
        if rest:
            raise QkvError(
                f"the optimiser has no place for {', '.join(sorted(rest)[:3])} ({len(rest)} in all): the state is that "
                "of another model or another kind of optimiser"
            )


def rate_factors(model: nn.Module, config: OptimConfig) -> dict[Tensor, float]:
    """The factor on the rate of each weight that is learnt; the others, frozen, are told so."""
    named = dict(model.named_parameters())
    for pattern in (*config.frozen, *config.rates):
        if not fnmatch.filter(named, pattern):
            near = nearest(pattern, [*named, *(f"{path}.*" for path, _ in model.named_modules() if path)])
            raise QkvError(
                f"no weight is called {pattern!r} (train.optimizer.frozen or rates): the model has "
                f"{', '.join([*named][:3])} and {max(0, len(named) - 3)} more{near}"
            )
    depths, factors = _depths(model), {}
    end = max(depths.values(), default=0)
    if config.layer_decay < 1 and not end:
        raise QkvError(
            f"layer_decay is {config.layer_decay}, and the model has no layers that could be counted: use rates instead"
        )
    for name, weight in named.items():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in config.frozen):
            weight.requires_grad_(False)
        if weight.requires_grad:
            chosen = [
                factor for pattern, factor in config.rates.items() if fnmatch.fnmatchcase(name, pattern)
            ]
            factors[weight] = config.layer_decay ** (end - depths[name]) * (chosen or [1.0])[-1]
    if not factors:
        raise QkvError(
            "every weight is frozen, so nothing could be learnt: leave some out of train.optimizer.frozen"
        )
    return factors


def _depths(model: nn.Module) -> dict[str, int]:
    """How many layers each weight, by name, lies behind: those of all stacks in the model's order.

    What comes before the first layer (embeddings) has 0, its weights 1, what comes after the last (the output) one more
    than that.
    """
    stacks = [f"{path}." for path, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    depths: dict[str, int] = {}
    seen: list[str] = []
    for name, _ in model.named_parameters():
        stack = next((stack for stack in stacks if name.startswith(stack)), None)
        layer = stack + name.removeprefix(stack).partition(".")[0] if stack else None
        if layer and layer not in seen:
            seen.append(layer)
        depths[name] = len(seen) + (layer is None and bool(seen))
    return depths


def clip(model: nn.Module, longest: float | None) -> float:
    """Scale all gradients so that their global norm is at most `longest`; return the norm that it was.

    Gradients that are not finite are left as they are, for `train.faults` to name.
    """
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    norm = get_total_norm(gradients, foreach=True)
    length = norm.item()
    if longest is not None and longest < length < math.inf:
        clip_grads_with_norm_(model.parameters(), longest, norm, foreach=True)
    return length


def _hidden(model: nn.Module) -> set[nn.Parameter]:
    """Weights between hidden vectors; not tables, nor the output, nor what is tied to one of them."""
    inner: set[nn.Parameter] = set()
    outer: set[nn.Parameter] = set()
    for path, module in model.named_modules():
        between = isinstance(module, (nn.Linear, nn.RNNBase, nn.RNNCellBase, _ConvNd))
        place = inner if between and path.split(".")[-1] != "output" else outer
        place.update(module.parameters(recurse=False))
    return {weight for weight in inner - outer if weight.ndim >= 2}


def _fit(name: str, weight: Tensor, what: str, value: Tensor | None) -> Tensor:
    """A copy of a saved value, laid out as the optimiser would have made it."""
    shape = torch.Size() if what == "step" else weight.shape
    if value is None or value.shape != shape:
        found = "missing" if value is None else f"of shape {tuple(value.shape)}"
        raise QkvError(
            f"the optimiser's {name}.{what} is {found}, it should be of shape {tuple(shape)}: "
            "the state is that of another model or another kind of optimiser"
        )
    if what == "step":
        return value.to(weight.device, copy=True)
    return torch.empty_like(weight, dtype=value.dtype, requires_grad=False).copy_(value)
