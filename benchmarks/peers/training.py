"""A library's model in training, as its users would run it at its best: a worker of benchmarks/train.py.

Run in the library's own environment with a specification: the library, its mode, the sizes, the file of batches.
"""

import importlib
import time
from contextlib import nullcontext
from itertools import cycle

import numpy as np
import torch
from worker import Line, keep_memory


class Batch:
    """One batch of the file; every library takes from it what it needs."""

    def __init__(self, arrays, number):
        def get(name):
            return torch.from_numpy(arrays[f"{number}.{name}"].astype(np.int64))

        self.source, self.target, self.label = get("source"), get("target"), get("label")
        self.keep_source, self.keep_target = get("keep_source").bool(), get("keep_target").bool()
        self.targets = int(self.keep_target.sum())


def optimizer_of(model, sizes, fused):
    return torch.optim.AdamW(
        model.parameters(),
        lr=sizes["rate"],
        betas=tuple(sizes["betas"]),
        eps=sizes["epsilon"],
        weight_decay=sizes["weight_decay"],
        fused=fused,
    )


def main():
    line = Line()
    mode, sizes = line.specification["mode"], line.specification["sizes"]
    as_it_comes = mode == "as it comes"  # without the allocator's setting and the fused optimiser
    if not as_it_comes:
        keep_memory()
    torch.manual_seed(0)
    if "medium" in mode:
        torch.set_float32_matmul_precision("medium")
    library = importlib.import_module(f"libraries.{line.specification['library']}")
    model = getattr(library, line.specification["kind"])(sizes).train()
    arrays = np.load(line.specification["batches"])
    batches = [Batch(arrays, number) for number in range(int(arrays["count"]))]
    optimizer = optimizer_of(model, sizes, fused=not as_it_comes)
    run = torch.compile(model, dynamic=True) if "compiled" in mode else model
    precision = torch.autocast("cpu", torch.bfloat16) if "bf16" in mode else nullcontext()

    def update(batch):
        optimizer.zero_grad()
        with precision:
            loss = run(batch.source, batch.keep_source, batch.target, batch.keep_target, batch.label)
        (loss / batch.targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), sizes["clip"], foreach=True)
        optimizer.step()
        return loss.item()

    line.say(
        parameters=sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
        version=library.VERSION,
    )
    rest = cycle(batches)
    while True:
        count = line.asked()["batches"]
        start = time.perf_counter()
        total = targets = 0
        for _ in range(count):
            batch = next(rest)
            total, targets = total + update(batch), targets + batch.targets
        line.say(seconds=time.perf_counter() - start, targets=targets, loss=total / targets)


if __name__ == "__main__":
    main()
