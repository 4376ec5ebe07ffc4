"""What a step of qkv's training does and takes, and what this machine could do: the worker of benchmarks/roofline.py."""

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ours_training import Drawn, Drill, recipe
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from worker import Line

from qkv.train.loop import Loop
from qkv.train.machine import keep_memory
from qkv.train.precision import computing_in
from qkv.train.progress import Display
from qkv.train.run import Run

SIZES = (1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
"""Bytes of the arrays with which bandwidth is measured: from the caches to the memory."""
PICKS = ("aten.embedding", "aten.index", "aten.gather")  # they read as much of their table as they write
ROUND, ROUNDS = 2, 3


def best_of(run: Callable[[], object], seconds: float = 0.4) -> float:
    """The shortest time of a call."""
    run()
    found, stop = [], time.perf_counter() + seconds
    while len(found) < 3 or time.perf_counter() < stop:
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def peaks() -> dict[str, Any]:
    """FLOP/s of large products, bytes/s by the size of what is copied, and seconds of a call that does nothing."""
    found: dict[str, Any] = {}
    for name, dtype, precision in (
        ("fp32 MKL", torch.float32, "highest"),
        ("fp32 oneDNN", torch.float32, "medium"),
        ("bf16", torch.bfloat16, "highest"),
    ):
        torch.set_float32_matmul_precision(precision)
        rates = []
        for size in (1024, 2048):
            a, b = torch.randn(size, size).to(dtype), torch.nn.Linear(size, size, bias=False, dtype=dtype)
            with torch.no_grad():
                rates.append(2 * size**3 / best_of(lambda a=a, b=b: b(a)))
        found[name] = max(rates)
    torch.set_float32_matmul_precision("highest")
    found["bandwidth"] = {}
    for size in SIZES:
        one, other = torch.zeros(size // 4), torch.zeros(size // 4)
        repeats = max(1, (1 << 24) // size)

        def copy(one: Tensor = one, other: Tensor = other, repeats: int = repeats) -> None:
            for _ in range(repeats):
                other.copy_(one)

        found["bandwidth"][size] = 2 * size * repeats / best_of(copy)
    x = torch.zeros(8, requires_grad=True)

    def calls() -> None:
        y = x
        for _ in range(500):
            y = y * 1.0
        y.sum().backward()

    found["call"] = best_of(calls) / 1500  # forwards one, backwards two
    return found


@dataclass
class Traffic(TorchDispatchMode):
    """Counts what every kernel of a step is given and gives back, and the operations of its products."""

    flops: int = 0
    calls: int = 0
    products: int = 0
    """Bytes of products."""
    others: list[int] = field(default_factory=list)
    """Bytes of each other kernel."""

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name, returns = str(func), func._schema.returns
        looks_only = any(found.alias_info and not found.alias_info.is_write for found in returns)
        if looks_only or name.startswith(("aten.empty", "aten.detach", "aten._local_scalar")):
            return out
        written = sum(size(leaf) for leaf in tree_leaves(out))
        read = written if name.startswith(PICKS) else sum(size(leaf) for leaf in tree_leaves((args, kwargs)))
        self.calls += 1
        operations = flops(func, name, args, kwargs, out)
        self.flops += operations
        if operations:
            self.products += read + written
        else:
            self.others.append(read + written)
        return out


def flops(func: Any, name: str, args: Any, kwargs: Any, out: Any) -> int:
    """Of a product; of anything else 0."""
    if (count := flop_registry.get(func._overloadpacket)) is not None:
        return int(count(*args, **kwargs, out_val=out))
    if (
        "flash_attention_for_cpu" in name
    ):  # which the registry does not know: two products forwards, five back
        q, k = [leaf for leaf in args if isinstance(leaf, Tensor)][(1 if "backward" in name else 0) :][:2]
        return (10 if "backward" in name else 4) * q.numel() * k.shape[-2]
    return 0


def size(leaf: Any) -> int:
    return leaf.numel() * leaf.element_size() if isinstance(leaf, Tensor) else 0


class Enough(Exception):
    """The rounds that were wanted are measured."""


class Stopwatch(Display):
    """Seconds and targets of each round of updates, and an end after some."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.rounds: list[tuple[float, int]] = []
        self._start, self._targets = time.perf_counter(), 0

    def update(self, counters: Any, loss: float, seconds: float, done: float) -> None:
        self.rounds.append((time.perf_counter() - self._start, counters.targets - self._targets))
        self._targets = counters.targets
        if len(self.rounds) > ROUNDS:  # the first one warms up
            raise Enough
        self._start = time.perf_counter()


def point(model: dict[str, Any], drawn: Drawn) -> dict[str, Any]:
    """The traffic of a step and the time it takes in the training loop."""
    task = Drill(recipe(model, ROUND, Path()), drawn)
    batch = task.epoch(0)[0]
    with Traffic() as traffic, computing_in(task.model, task.training.precision):
        (task.loss(batch) / task.targets(batch)).backward()
    task.model.zero_grad()
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder, suppress(Enough):
        Loop(task, Run(Path(folder)), watch).run()
    return {
        "rounds": [(seconds / ROUND, targets // ROUND) for seconds, targets in watch.rounds[1:]],
        "flops": traffic.flops,
        "product_bytes": traffic.products,
        "other_bytes": traffic.others,
        "calls": traffic.calls,
        "parameters": sum(weight.numel() for weight in task.model.parameters()),
    }


def main() -> None:
    line = Line()
    keep_memory()
    line.say(peaks=peaks(), threads=torch.get_num_threads())
    while True:
        request = line.asked()
        line.say(**point(request["model"], Drawn(**request["drawn"])))


if __name__ == "__main__":
    main()
