"""Which part of a model went wrong first, when a loss or a gradient is no finite number."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.recipe.training import Precision
from qkv.tasks.task import Task
from qkv.train.precision import computing_in


def describe_fault(
    task: Task[Any], group: Sequence[Any], loss: float, norm: float, random: Tensor, precision: Precision
) -> str | None:
    """What is not finite in an update, in words, or None.

    A bad loss is looked for in another forward pass over the same batches, with the random numbers of the first. A
    backward pass carries a bad gradient on to everything before it, so the last one in the model's order is named.
    """
    if math.isfinite(loss) and math.isfinite(norm):
        return None
    if not math.isfinite(loss):
        found, examples = _first_bad_output(task, group, random, precision)
        return f"the loss is {loss}, {found} (examples: {examples})"
    examples = _examples(task, group)
    gradients = [
        (name, weight.grad) for name, weight in task.model.named_parameters() if weight.grad is not None
    ]
    bad = [(name, gradient) for name, gradient in gradients if not gradient.isfinite().all()]
    if not bad:
        return (
            f"the norm of the gradient is {norm}, though each of its parts is finite (examples: {examples})"
        )
    name, gradient = bad[-1]
    kind = "nan" if gradient.isnan().any() else "inf"
    return (
        f"the gradient of {name} has {kind}, and {len(bad)} of {len(gradients)} gradients are not finite "
        f"(examples: {examples})"
    )


def _examples(task: Task[Any], group: Sequence[Any]) -> str:
    return "; ".join(f"{task.describe(batch)}, …" for batch in group)


def _first_bad_output(
    task: Task[Any], group: Sequence[Any], random: Tensor, precision: Precision
) -> tuple[str, str]:
    """Where a bad loss comes from, and the examples that have it."""
    bad_weights = [name for name, weight in task.model.named_parameters() if not weight.isfinite().all()]
    if bad_weights:
        return f"because the weight {bad_weights[0]} is not finite", _examples(task, group)
    torch.set_rng_state(random)
    # A compiled model would run as it was compiled, without the observers.
    with (
        torch.compiler.set_stance("force_eager"),
        _first_of(task.model) as found,
        torch.no_grad(),
        computing_in(task.model, precision),
    ):
        for batch in group:
            loss = task.loss(batch)
            if found:
                path, rows = found[0]
                examples = task.describe(batch, rows) if rows else _examples(task, [batch])
                return f"first in the output of {path}", examples
            if not loss.isfinite():
                group = [batch]
                break
    return "though the output of every module is finite", _examples(task, group)


@contextmanager
def _first_of(model: nn.Module) -> Iterator[list[tuple[str, list[int]]]]:
    """The paths of modules whose output is not finite, in the order in which they ran, and the rows where it is not."""
    found: list[tuple[str, list[int]]] = []

    def observer(path: str) -> Any:
        def observe(module: nn.Module, inputs: Any, output: Any) -> None:
            for x in output if isinstance(output, (tuple, list)) else [output]:
                if isinstance(x, Tensor) and x.is_floating_point() and not x.isfinite().all():
                    # Batches come first in every module but the packed sequences of a recurrent one.
                    rows = [] if x.dim() < 3 else (~x.isfinite()).flatten(1).any(1).nonzero()[:, 0].tolist()
                    found.append((path or "the model", rows))
                    return

        return observe

    handles = [module.register_forward_hook(observer(path)) for path, module in model.named_modules()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
