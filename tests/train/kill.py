"""Trains in children that are killed at seeded moments, and once without; run by test_resume.py as a process of its own.

    python kill.py DIRECTORY SCENARIO SEED KILLS

A moment is either a time after the start, or an operation on a file of the run (opening, renaming, removing: most of
them belong to the writing of a checkpoint) and up to 8 ms more, so that it lies inside of writes and flushes too.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: its threads would not live on in the children

import contextlib
import json
import random
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch._dynamo  # noqa: F401 - the optimiser imports it: 2 s that no child need spend

from qkv.data.augment import AugmentConfig
from qkv.data.batches import BatchesConfig
from qkv.data.image_batches import ImageBatchesConfig
from qkv.data.image_sets import ImageSet
from qkv.data.text import Corpus
from qkv.data.tokens import TokensConfig
from qkv.decode.config import SearchConfig
from qkv.models.luong import LuongConfig
from qkv.models.transformer import TransformerConfig
from qkv.models.vit import ViTConfig
from qkv.recipe.training import AverageConfig, OptimConfig, ScheduleConfig, TrainConfig
from qkv.tasks import classify_images
from qkv.tasks.translate import DataConfig, MetricsConfig, TranslateConfig
from qkv.train.progress import Display
from qkv.train.run import Run
from qkv.train.train import train

COMMON = TranslateConfig(
    data=DataConfig(
        train=(Corpus(source="numbers", limit=150),), valid=(Corpus(source="numbers", tag="de", limit=7),)
    ),
    tokens=TokensConfig(size=330),
    batches=BatchesConfig(budget=250, longest=40),
    model=TransformerConfig(width=12, hidden=20, heads=3, encoder_layers=1, decoder_layers=1, dropout=0.2),
    metrics=MetricsConfig(best_by="loss"),
    search=SearchConfig(maximum=6),
    train=TrainConfig(epochs=3, log_every=3, checkpoint_minutes=0.001, optimizer=OptimConfig(rate=0.01)),
)


def changed(**values: object) -> TranslateConfig:
    return replace(COMMON, train=replace(COMMON.train, **values))


PICTURES = "pictures.npz"  # in the directory where all happens
SCENARIOS = {
    "pictures, changed and mixed": classify_images.ClassifyImagesConfig(
        data=classify_images.DataConfig(train=(ImageSet(source=PICTURES),), hold_out=6),
        augment=AugmentConfig(shift=1, flip=True, changes=2, mixup=0.3),
        batches=ImageBatchesConfig(size=5),
        model=ViTConfig(patch=2, width=12, hidden=20, heads=3, layers=2, dropout=0.1, depth_drop=0.2),
        train=replace(COMMON.train, epochs=4, average=AverageConfig(kind="ema", decay=0.9)),
    ),
    "ema, bf16": changed(average=AverageConfig(kind="ema", decay=0.9)),
    "muon, last, accumulated": changed(
        optimizer=OptimConfig(kind="muon"),
        average=AverageConfig(kind="last", count=2),
        accumulate=2,
        schedule=ScheduleConfig(kind="cosine", warmup=4),
    ),
    "luong, early stop": replace(
        changed(patience=3, epochs=9, precision="fp32", clip=None, log_every=5),
        metrics=MetricsConfig(best_by="bleu"),  # which stays 0: so little is learnt
        model=LuongConfig(width=10, encoder_layers=1, decoder_layers=1, dropout=0.3),
    ),
    "by steps, every checkpoint": changed(
        epochs=None, steps=31, schedule=ScheduleConfig(kind="wsd", warmup=3), checkpoint_minutes=1e-9, validate_every=2
    ),
}  # fmt: skip
OPERATIONS = {
    "open",
    "os.rename",
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.scandir",
    "shutil.rmtree",
    "fcntl.flock",
}


def sitting(config: Any, out: Path, at: int) -> tuple[int, int]:
    """A child that trains; the pipe gets a byte at operation `at`, and their number at the end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    count = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event in OPERATIONS and (event != "open" or str(out) in str(arguments[0])):
            count += 1
            if count == at:
                os.write(writing, b"!")

    try:
        sys.addaudithook(hook)
        train(config, out, resume=Run(out).exists, display=Display(quiet=True))
        os.write(writing, str(count).encode())
        os._exit(0)
    except BaseException:  # noqa: BLE001 - to the parent
        traceback.print_exc()
        os._exit(1)


def to_the_end(config: Any, out: Path) -> tuple[int, float]:
    """Train without interruption: how many operations, how many seconds."""
    start = time.perf_counter()
    child, pipe = sitting(config, out, 0)
    assert os.waitpid(child, 0)[1] == 0
    operations = int(os.read(pipe, 20))
    os.close(pipe)
    return operations, time.perf_counter() - start


def killed(config: Any, out: Path, at: int, seconds: float) -> bool:
    """Train until a number of operations and seconds have passed; False if the run ended before."""
    child, pipe = sitting(config, out, at)
    if at:
        os.read(pipe, 1)
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    os.close(pipe)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def main(directory: Path, name: str, seed: int, kills: int) -> None:
    config, chance = SCENARIOS[name], random.Random(seed)
    os.chdir(directory)
    draw = np.random.default_rng(seed)
    np.savez(
        PICTURES, images=draw.integers(0, 256, (61, 8, 6, 3), dtype=np.uint8), labels=draw.integers(0, 3, 61)
    )
    operations, seconds = to_the_end(config, directory / "whole")
    moments: list[str] = []
    runs = 0
    while len(moments) < kills:
        runs += 1
        out = directory / f"killed{runs}"
        while len(moments) < kills:
            if len(moments) % 3 == 2:
                at, wait = 0, chance.uniform(0, seconds / 3)
            else:
                at, wait = chance.randint(1, max(1, operations // 3)), chance.uniform(0, 0.008)
            if not killed(config, out, at, wait):
                break
            checkpoints = sorted(out.glob("checkpoints/0*"))
            newest = checkpoints[-1].name if checkpoints else "none"
            unfinished = len(list(out.glob("checkpoints/.qkv-*")))
            moments.append(f"operation {at} + {wait * 1000:.1f} ms: {newest}, {unfinished} unfinished")
        to_the_end(config, out)
    print(json.dumps({"runs": runs, "moments": moments}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
