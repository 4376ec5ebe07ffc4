"""What a recipe would do, before it does it: model, memory and first batches, with nothing written."""

from typing import Any

import torch
from torch import Tensor

from qkv.tasks import task as tasks
from qkv.tasks.task import Epoch, Task
from qkv.train.average import weights_of
from qkv.train.machine import Cost
from qkv.train.optim import Optimizer, clip
from qkv.train.precision import computing_in
from qkv.train.state import Progress
from qkv.train.train import parameters, summary

_TRIED = 200  # batches among which the largest is looked for
_SHOWN = 3
_MIB = 1 << 20


def preview(config: Any) -> dict[str, Any]:
    """The facts of a recipe, from its data, its model and one update on its largest batch."""
    task = tasks.kind(config.task).build(config, tasks.starting(config))
    epoch = task.epoch(0)
    c = task.training
    updates = -(-len(epoch) // c.accumulate)
    ends = [*([c.epochs * updates] if c.epochs else []), *([c.steps] if c.steps else [])]
    return {
        "notices": list(task.notices),
        "model": summary(task),
        "parameters": parameters(task),
        "vocabulary": dict(task.vocabulary()),
        "batches": len(epoch),
        "steps": min(ends, default=None),
        "real": task.real_share(epoch),
        "first": [list(task.look(epoch[number])) for number in range(min(_SHOWN, len(epoch)))],
        "mebibytes": memory(task, epoch),
    }


def memory(task: Task[Any], epoch: Epoch[Any]) -> dict[str, float]:
    """MiB of each thing that training holds, measured in one update, and the peak of the process with it.

    Activations are what the largest batch keeps for its backward pass; the peak holds them, what the data needed, the
    libraries, and whatever lived for a moment.
    """
    model, c = task.model, task.training
    weights = sum(tensor.nbytes for tensor in weights_of(model).values())
    optimizer = Optimizer(model, c.optimizer)
    activations = _update(task, optimizer, _largest(task, epoch))
    gradients = sum(weight.grad.nbytes for weight in model.parameters() if weight.grad is not None)
    copies = {"none": 0, "ema": 1, "last": c.average.count}[c.average.kind] + 1  # and the best weights so far
    found = {
        "weights": weights,
        "gradients": gradients,
        "optimizer": sum(tensor.nbytes for tensor in optimizer.tensors().values()),
        "averages and best": copies * weights,
        "activations": activations,
    }
    sizes = {name: round(size / _MIB, 1) for name, size in found.items()}
    return {**sizes, "peak": Cost.of(task, Progress()).mebibytes}


def write(found: dict[str, Any]) -> str:
    """The facts for people."""
    sizes = dict(found["mebibytes"])
    peak = sizes.pop("peak")
    vocabulary = ", ".join(f"{name} {size:,}" for name, size in found["vocabulary"].items())
    real = "" if found["real"] is None else f", {100 * found['real']:.1f} % of their positions real"
    steps = "" if found["steps"] is None else f"; updates at the most: {found['steps']:,}"
    lines = [*found["notices"], found["model"]]
    if vocabulary:
        lines.append(f"vocabulary: {vocabulary}")
    lines += [
        f"an epoch: {found['batches']:,} batches{real}{steps}",
        "memory in MiB: " + ", ".join(f"{name} {size:,.1f}" for name, size in sizes.items()),
        f"  with one update on the largest batch the whole process took {peak:,} MiB; validation may take more",
    ]
    for number, (shape, *examples) in enumerate(found["first"], 1):
        lines += [f"batch {number}: {shape}", *(f"  {example}" for example in examples)]
    return "\n".join(lines)


def _largest(task: Task[Any], epoch: Epoch[Any]) -> Any:
    """The batch with most targets among some, spread over the epoch."""
    step = max(1, len(epoch) // _TRIED)
    return max((epoch[number] for number in range(0, len(epoch), step)), key=task.targets)


def _update(task: Task[Any], optimizer: Optimizer, batch: Any) -> int:
    """One update at a rate of zero; the bytes that its forward pass keeps for the backward pass."""
    kept: dict[int, int] = {}
    own: set[int] = set()

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    task.model.train()
    with computing_in(task.model, task.training.precision):
        own.update(weight.untyped_storage().data_ptr() for weight in task.model.parameters())
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = task.loss(batch)
        (loss / task.targets(batch)).backward()
    clip(task.model, task.training.clip)
    optimizer.step(0.0)
    return sum(kept.values())
