"""Language modelling: its loss and scores against loops, what is held out, documents, and the writer of its model."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv.data.tokens import END, START, TokensConfig
from qkv.data.windows import WindowsConfig
from qkv.decode.writer import Writer, WritingConfig
from qkv.errors import QkvError
from qkv.models.interface import no_source
from qkv.models.lm import LanguageModelConfig
from qkv.recipe.training import OptimConfig, ScheduleConfig, TrainConfig
from qkv.store.bundle import read
from qkv.tasks import task as tasks
from qkv.tasks.language import Language, LanguageConfig, ProseConfig
from qkv.train.train import train

LINES = [f"{n} green bottles standing on the wall\n" for n in range(60, 0, -1)]
MODEL = LanguageModelConfig(length=11, width=12, hidden=20, heads=3, layers=1, dropout=0.0)


def recipe(folder: Path, data: dict[str, Any] | None = None, **values: Any) -> LanguageConfig:
    path = folder / "bottles.txt"
    path.write_text("".join(LINES))
    given: dict[str, Any] = {"windows": WindowsConfig(budget=100), "model": MODEL, **values}
    return LanguageConfig(
        data=ProseConfig(**{"train": (str(path),), "held_out": 0.1, **(data or {})}),
        tokens=TokensConfig(kind="character", size=300),
        **given,
    )


def nats(task: Language, ids: list[int]) -> float:
    """Of the last id given those before it, in loops from the logits on."""
    with torch.no_grad():
        x = task.model(*no_source(1), torch.tensor([ids[:-1]]))
        logits = task.model.logits(x)[0, -1].tolist()
    return math.log(sum(map(math.exp, logits))) - logits[ids[-1]]


def test_the_loss_is_the_cross_entropy_of_each_next_token(tmp_path: Path):
    task = Language(recipe(tmp_path))
    task.model.double().eval()
    batch = task.epoch(0)[2]
    ids = task.windows.stream.tolist()
    total = sum(
        nats(task, ids[start : start + place + 1]) for start in batch.starts for place in range(1, 12)
    )
    assert task.loss(batch).item() == pytest.approx(total, rel=1e-9)
    assert task.targets(batch) == 11 * len(batch.starts) == batch.label_BT.numel()


@pytest.mark.parametrize("stride", [None, 4])
def test_validation_is_over_every_held_out_token_in_windows(tmp_path: Path, stride: int | None):
    task = Language(recipe(tmp_path, windows=WindowsConfig(budget=100, stride=stride)))
    text = "".join(LINES)
    held = text[int(len(text) * 0.9) :]
    ids = [END, *task.prose.encode(held).tolist()]
    task.model.double().eval()
    total, first, hop = 0.0, 0, stride or 11
    for place in range(1, len(ids)):
        while place > first + 11:
            first += hop
        total += nats(task, ids[first : place + 1])
    scores = task.validate()
    assert scores is not None
    assert scores.values["loss"] == pytest.approx(total / len(held), rel=1e-6)
    assert scores.values["perplexity"] == pytest.approx(math.exp(total / len(held)), rel=1e-6)
    assert scores.values["bits"] == pytest.approx(total / len(held) / math.log(2), rel=1e-6)
    assert scores.best == -scores.values["loss"]
    assert scores.signatures["loss"] == (f"nats a token, {len(held):,} tokens in windows of 11 every {hop}")


def test_what_is_held_out_is_not_learnt_from_and_files_to_validate_on_are_read(tmp_path: Path):
    other = tmp_path / "other.txt"
    other.write_text("Ünique\n")
    task = Language(recipe(tmp_path))
    text = "".join(LINES)
    assert task.prose.decode(task.windows.stream[1:].tolist()) == text[: int(len(text) * 0.9)]
    task = Language(recipe(tmp_path, {"valid": (str(other),), "held_out": 0.0}))
    assert task.prose.decode(task.windows.stream[1:].tolist()) == text
    assert task.valid is not None
    assert task.prose.decode(task.valid[1:].tolist()) == "Ünique\n"
    assert "Ü" not in task.prose.tokens.entries()
    assert Language(recipe(tmp_path, {"held_out": 0.0})).validate() is None


def test_documents_are_told_apart(tmp_path: Path):
    task = Language(recipe(tmp_path, {"documents": "line"}))
    stream = task.windows.stream.tolist()
    assert stream.count(START) == 54  # of 60 lines, 54 are wholly in the first 90 %
    assert END not in stream


def test_what_contradicts_itself_is_named(tmp_path: Path):
    with pytest.raises(QkvError, match=r"data.train is empty"):
        Language(recipe(tmp_path, {"train": ()}))
    with pytest.raises(QkvError, match=r"nothing to validate on: data.held_out = 1e-05 of"):
        Language(recipe(tmp_path, {"held_out": 1e-5, "documents": "line"}))
    with pytest.raises(QkvError, match=r"data.valid names files, and data.held_out is 0.1"):
        ProseConfig(train=("a",), valid=("b",), held_out=0.1)
    with pytest.raises(QkvError, match=r"windows.stride is 12, but a window has 11 tokens"):
        recipe(tmp_path, windows=WindowsConfig(stride=12))
    with pytest.raises(QkvError, match=r"tokens.joint is false, but a language model has one vocabulary"):
        LanguageConfig(data=ProseConfig(train=("a",)), tokens=TokensConfig(joint=False))


def test_it_learns_and_its_writer_knows_what_it_learnt(tmp_path: Path):
    config = recipe(
        tmp_path,
        model=LanguageModelConfig(length=32, width=24, hidden=48, heads=3, layers=1, dropout=0.0),
        windows=WindowsConfig(budget=320),
        writing=WritingConfig(temperature=0, maximum=36, stop="\n"),
        train=TrainConfig(
            epochs=None, steps=150, precision="fp32",
            optimizer=OptimConfig(kind="muon", rate=1e-2), schedule=ScheduleConfig(kind="linear", warmup=10),
        ),
    )  # fmt: skip
    path = train(config, tmp_path / "run")
    writer = tasks.load(path)
    assert isinstance(writer, Writer)
    (found,) = writer.generate("7 gre")
    assert found.text == "en bottles standing on the wall"
    assert found.finished
    learnt, other = writer.perplexity(LINES[3]), writer.perplexity("standing green on the bottles\n")
    assert learnt < 2.5 < 5 < other
    assert read(path).results["scores"]["loss"] < 1
    assert writer.config == config.writing


def test_looking_before_training_shows_windows(tmp_path: Path):
    task = Language(recipe(tmp_path))
    batch = task.epoch(0)[0]
    shape, first, *_ = task.look(batch)
    assert shape == "9 windows of 11 tokens, 99 targets"
    assert first.count("·") == 10
    assert f"from token {batch.starts[0]:,} on" in first
    assert (
        task.describe(batch, [1])
        == f"tokens {batch.starts[1]:,} to {batch.starts[1] + 11:,} of the training text"
    )
    assert task.digest() != Language(recipe(tmp_path, {"held_out": 0.2})).digest()
    assert np.array_equal(task.windows.stream, Language(recipe(tmp_path)).windows.stream)
