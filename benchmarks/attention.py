"""How fast is the attention core, how much memory does it take, and what does watching it cost?

    make bench        (or: python benchmarks/attention.py --seconds 5 --lengths 128 512)

Contenders run in alternating rounds in one process. Time is the median over rounds; extra memory is the
highest resident size of one run above that before it. The ratios that the project promises are medians
over paired rounds with their 95 % interval, and the last lines say which promise is not kept.
"""

import argparse
import ctypes
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from common import Promise, facts_line, machine, promise, save, verdict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.bert.modeling_bert import eager_attention_forward

from qkv.attention.attend import Attend
from qkv.attention.heads import MultiHeadAttention
from qkv.attention.watch import watch

PAGE = """# How fast is attention, and what does watching it cost?

Written by `python benchmarks/attention.py --out docs/benchmarks/attention` (`make bench` measures without writing).
Time is the median of alternating rounds in ms, in brackets the MiB by which one run raises the resident memory.
*Watched* runs the same attention and keeps its weights, or their entropy, beside the unchanged result. A promise is
the median of paired rounds with its 95 % interval (all rounds, where there were fewer than six).
"""
HEADS, KEY_WIDTH = 8, 64
WIDTH = HEADS * KEY_WIDTH
OURS, FULL, ENTROPY = "attend", "attend, watched: full maps", "attend, watched: entropy"
SDPA = "F.scaled_dot_product_attention"
MODULE, MODULE_FULL = "MultiHeadAttention", "MultiHeadAttention, watched: full maps"
TORCH, TORCH_WEIGHTS = "nn.MultiheadAttention", "nn.MultiheadAttention, need_weights"


@dataclass
class Result:
    """What was measured of one contender at one length and pass."""

    contender: str
    length: int
    batch: int
    backward: bool
    seconds: list[float] = field(default_factory=list)
    extra_mebibytes: float = math.nan

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def core_contenders(backward: bool, batch: int, length: int) -> dict[str, Callable[[], object]]:
    """Attention alone, from given queries, keys and values."""
    shape = (batch, length, HEADS, KEY_WIDTH)
    q, k, v = (torch.randn(shape).transpose(1, 2).requires_grad_(backward) for _ in range(3))
    ours = Attend()

    def watched(keep: str) -> Tensor:
        with watch(ours, keep=keep):
            return ours(q, k, v)

    def explicit() -> Tensor:
        return (q @ k.mT / math.sqrt(KEY_WIDTH)).softmax(-1) @ v

    def hugging_face() -> Tensor:
        return eager_attention_forward(nn.Module().eval(), q, k, v, None, scaling=KEY_WIDTH**-0.5)[0]

    runs: dict[str, Callable[[], Tensor]] = {
        OURS: lambda: ours(q, k, v),
        SDPA: lambda: F.scaled_dot_product_attention(q, k, v),
        FULL: lambda: watched("full"),
        ENTROPY: lambda: watched("entropy"),
        "explicit softmax": explicit,
        "Hugging Face eager": hugging_face,
    }
    return {name: with_gradient(run, backward, [q, k, v]) for name, run in runs.items()}


def module_contenders(backward: bool, batch: int, length: int) -> dict[str, Callable[[], object]]:
    """Whole modules, with their projections."""
    x = torch.randn(batch, length, WIDTH, requires_grad=backward)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    ours = MultiHeadAttention.from_torch(theirs)
    theirs.train()  # in eval mode torch may take its inference kernel; both are timed as trained

    def watched() -> Tensor:
        with watch(ours, keep="full"):
            return ours(x)

    runs: dict[str, Callable[[], Tensor]] = {
        MODULE: lambda: ours(x),
        MODULE_FULL: watched,
        TORCH: lambda: theirs(x, x, x, need_weights=False)[0],
        TORCH_WEIGHTS: lambda: theirs(x, x, x, need_weights=True, average_attn_weights=False)[0],
    }
    leaves = [x, *ours.parameters(), *theirs.parameters()]
    return {name: with_gradient(run, backward, leaves) for name, run in runs.items()}


def with_gradient(run: Callable[[], Tensor], backward: bool, leaves: list[Tensor]) -> Callable[[], object]:
    """The run alone without autograd, or the run and its backward pass."""

    def forward() -> object:
        with torch.no_grad():
            return run()

    def both() -> None:
        for leaf in leaves:
            leaf.grad = None
        run().sum().backward()

    return both if backward else forward


def measure(seconds: float, length: int, batch: int, backward: bool) -> Iterator[Result]:
    """Alternating rounds until the time is up, but three at least."""
    for contenders in (core_contenders, module_contenders):
        runs = contenders(backward, batch, length)
        results = {name: Result(name, length, batch, backward) for name in runs}
        for name, run in runs.items():
            results[name].extra_mebibytes = extra_memory(run)  # also the warm-up
        repeats = max(1, round(0.02 / timed(runs[next(iter(runs))], 1)))
        number, stop = 0, time.perf_counter() + seconds / 2
        while number < 3 or time.perf_counter() < stop:
            for name in list(runs) if number % 2 == 0 else reversed(runs):
                results[name].seconds.append(timed(runs[name], repeats))
            number += 1
        yield from results.values()


def timed(run: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def extra_memory(run: Callable[[], object]) -> float:
    """MiB by which one run raises the highest resident size (Linux only, else NaN)."""
    if not sys.platform.startswith("linux"):
        run()
        return math.nan
    run()  # the first run loads kernels; the second is measured
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident size starts again from now
    before = status("VmRSS")
    run()
    return max(0.0, status("VmHWM") - before)


def status(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def paired(what: str, one: Result, other: Result, bound: float) -> Promise:
    return promise(what, [a / b for a, b in zip(one.seconds, other.seconds, strict=True)], bound)


def promises(results: list[Result]) -> list[Promise]:
    by = {(r.contender, r.length, r.backward): r for r in results}
    found: list[Promise] = []
    for length, backward in sorted({(r.length, r.backward) for r in results}):
        at = f"n = {length}, {'forward + backward' if backward else 'forward'}"
        ours, sdpa = by[OURS, length, backward], by[SDPA, length, backward]
        if length >= 512:
            found.append(paired(f"attend ÷ bare fused kernel, {at}", ours, sdpa, 1.05))
        full, torch_weights = by[MODULE_FULL, length, backward], by[TORCH_WEIGHTS, length, backward]
        found.append(
            paired(f"full maps ÷ nn.MultiheadAttention with weights, {at}", full, torch_weights, 1.0)
        )
        if length >= 8192 and not backward:
            entropy = by[ENTROPY, length, backward]
            found.append(paired(f"watched entropy ÷ unwatched, {at}", entropy, ours, 2.2))
            extra = entropy.extra_mebibytes - ours.extra_mebibytes
            found.append(Promise(f"MiB that watching entropy adds, {at}", extra, extra, extra, 64))
    return found


def table(results: list[Result]) -> str:
    columns = sorted({(r.length, r.batch, r.backward) for r in results})
    names = list(dict.fromkeys(r.contender for r in results))
    by = {(r.contender, r.length, r.batch, r.backward): r for r in results}
    heads = [f"n={n} B={b} {'fwd+bwd' if g else 'fwd'}" for n, b, g in columns]
    lines = ["| ms (MiB extra) | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for name in names:
        cells = [by.get((name, *column)) for column in columns]
        texts = (f"{1e3 * r.median:.1f} ({r.extra_mebibytes:.0f})" if r else "–" for r in cells)
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


@contextmanager
def progress(text: str) -> Iterator[None]:
    print(f"{text} …", end=" ", flush=True, file=sys.stderr)
    start = time.perf_counter()
    yield
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=60, help="time for each length and pass (default 60)"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048, 8192], metavar="N")
    parser.add_argument("--forward-only", action="store_true", help="leave the backward passes out")
    parser.add_argument("--out", type=Path, help="write the results to PATH.json and PATH.md", metavar="PATH")
    options = parser.parse_args()
    torch.manual_seed(0)
    results: list[Result] = []
    for length in options.lengths:
        batch = 8 if length < 8192 else 1
        for backward in (False,) if options.forward_only else (False, True):
            with progress(f"n={length} B={batch} {'forward + backward' if backward else 'forward'}"):
                results += measure(options.seconds, length, batch, backward)
    found = promises(results)
    print(report(results, found))
    if options.out:
        data = {
            "machine": machine(),
            "results": [asdict(result) for result in results],
        }
        save(options.out, PAGE, report(results, found), data, found)


def report(results: list[Result], found: list[Promise]) -> str:
    """Machine, table, promises, and last what fell short."""
    lines = [
        f"H={HEADS} K={KEY_WIDTH} fp32; {facts_line(machine())}.",
        "",
        table(results),
        "",
        *verdict(found),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
