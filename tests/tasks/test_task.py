"""Every task there is, from its recipe to the predictor of its model; a new one needs only an example here."""

import importlib
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.errors import QkvError
from qkv.recipe.config import from_json, from_toml, from_tree, json_schema, to_json, to_toml, to_tree
from qkv.recipe.recipe import resolve
from qkv.recipe.training import TrainConfig
from qkv.store import bundle
from qkv.tasks import task as tasks
from qkv.tasks.task import Kind, Scores, Task
from qkv.train.machine import Cost
from qkv.train.precision import computing_in
from qkv.train.state import Progress
from qkv.train.train import write_model

# A recipe for each task that trains within a moment, and something to give its predictor.
NUMBERS = {"source": "numbers", "tag": "de"}
TOPICS = str(Path(__file__).with_name("topics.tsv"))
EXAMPLES: dict[str, dict[str, Any]] = {
    "translate": {
        "data": {"train": [NUMBERS | {"limit": 60}], "valid": [NUMBERS | {"limit": 5}]},
        "tokens": {"size": 300},
        "batches": {"budget": 300, "longest": 50},
        "model": {"width": 12, "hidden": 20, "heads": 3, "encoder_layers": 1, "decoder_layers": 1},
        "search": {"maximum": 5},
    },
    "language": {
        "data": {"train": [__file__], "held_out": 0.1},
        "tokens": {"kind": "character", "size": 300},
        "windows": {"budget": 400},
        "model": {"length": 16, "width": 12, "hidden": 20, "heads": 3, "layers": 1},
    },
    "classify_text": {
        "data": {"train": [{"source": TOPICS}], "valid": [{"source": TOPICS, "limit": 9}]},
        "tokens": {"kind": "word", "minimum": 1},
        "batches": {"budget": 100, "longest": 20},
        "model": {"width": 12, "hidden": 20, "heads": 3, "layers": 1},
    },
    "masked": {
        "data": {"train": [{"source": TOPICS}], "valid": [{"source": TOPICS, "limit": 9}]},
        "tokens": {"kind": "word", "minimum": 1},
        "batches": {"budget": 100, "longest": 20},
        "model": {"width": 12, "hidden": 20, "heads": 3, "layers": 1},
    },
    "classify_images": {
        "data": {"train": [{"source": "digits-test"}], "hold_out": 40},
        "augment": {"shift": 1, "changes": 1, "mixup": 0.2},
        "batches": {"size": 80},
        "model": {"patch": 4, "width": 12, "hidden": 20, "heads": 3, "layers": 1},
    },
}  # fmt: skip


def example(name: str) -> tuple[Kind, Any]:
    kind = tasks.kind(name)
    return kind, resolve(kind.config, EXAMPLES[name], kind.presets)


@pytest.fixture(scope="module", params=tasks.names())
def made(request: pytest.FixtureRequest) -> tuple[Kind, Any, Task[Any]]:
    kind, config = example(request.param)
    return kind, config, kind.build(config, None)


Made = tuple[Kind, Any, Task[Any]]


def test_each_task_has_an_example_here():
    assert tasks.names()
    assert set(tasks.names()) == set(EXAMPLES)


@pytest.mark.parametrize("name", tasks.names())
def test_its_recipe_says_which_task_it_is_and_how_to_train(name: str):
    kind, config = example(name)
    assert config.task == name
    assert isinstance(config.train, TrainConfig)
    assert [field.name for field in fields(kind.config)].count("task") == 1
    assert importlib.import_module(f"qkv.tasks.{name}").__doc__


@pytest.mark.parametrize("name", tasks.names())
def test_its_recipe_returns_unchanged_with_every_preset(name: str):
    kind = tasks.kind(name)
    for model, presets in kind.presets.items():
        for preset in presets:
            tree = EXAMPLES[name] | {"model": {"kind": model, "preset": preset}}
            config = resolve(kind.config, tree, kind.presets)
            assert config.model.kind == model
            for field, value in presets[preset].items():
                assert getattr(config.model, field) == value
            assert from_toml(kind.config, to_toml(config)) == config
            assert from_json(kind.config, to_json(config)) == config
            assert from_tree(kind.config, to_tree(config)) == config
    assert json_schema(kind.config)["properties"]["task"]


def test_its_batches_have_a_loss_that_reaches_every_weight(made: Made):
    _, _, task = made
    task.model.train()
    epoch = task.epoch(0)
    assert len(epoch) >= 1
    for weight in task.model.parameters():
        weight.grad = None
    targets = 0
    for number in range(len(epoch)):
        loss = task.loss(epoch[number])
        assert loss.shape == ()
        assert 0 < loss.item() < math.inf
        loss.backward()
        targets += task.targets(epoch[number])
    without = [name for name, weight in task.model.named_parameters() if weight.grad is None]
    assert not without
    assert targets >= len(epoch)


def test_in_bf16_its_loss_is_about_the_same_and_reaches_every_weight(made: Made):
    _, _, task = made
    task.model.eval()
    batch = task.epoch(0)[0]
    with torch.no_grad():
        exact = task.loss(batch).item()
    for weight in task.model.parameters():
        weight.grad = None
    with computing_in(task.model, "bf16"):
        loss = task.loss(batch)
        loss.backward()
    assert loss.item() == pytest.approx(exact, rel=0.05)
    for name, weight in task.model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.dtype == weight.dtype
        assert weight.grad.isfinite().all(), name


def test_its_epochs_are_functions_of_their_number(made: Made):
    _, _, task = made
    first, again, other = (
        [task.describe(epoch[n]) for n in range(len(epoch))] for epoch in map(task.epoch, (0, 0, 1))
    )
    assert first == again != other


def test_its_loss_is_a_sum_over_targets(made: Made):
    """Untrained, it is about as surprised by each target, in whichever batch."""
    _, _, task = made
    task.model.eval()
    epoch = task.epoch(0)
    with torch.no_grad():
        per_target = [task.loss(epoch[n]).item() / task.targets(epoch[n]) for n in range(len(epoch))]
    assert max(per_target) < 2 * min(per_target)


def test_it_is_scored_by_what_it_says(made: Made):
    _, _, task = made
    task.model.eval()
    with torch.no_grad():
        scores = task.validate()
    assert scores is not None
    assert scores.best_by in scores.values
    assert set(scores.signatures) <= set(scores.values)
    assert all(math.isfinite(value) for value in scores.values.values())


def test_its_model_comes_back_from_its_directory(made: Made, tmp_path: Path):
    kind, config, task = made
    path = write_model(task, tmp_path / "model", Progress(), Cost(1.0, 2, 3))
    found = bundle.read(path)
    assert found.task == config.task
    again = kind.build(from_tree(kind.config, found.recipe), found)
    task.model.eval()
    again.model.eval()
    batch = task.epoch(0)[0]
    with torch.no_grad():
        assert torch.equal(task.loss(batch), again.loss(batch))
        assert task.validate() == again.validate()
    assert kind.load(found) is not None
    assert "qkv" in (path / "README.md").read_text()


def test_the_same_seed_gives_the_same_model_and_another_another(made: Made):
    kind, config, task = made
    torch.manual_seed(99)
    same = kind.build(config, None)
    other = kind.build(replace(config, train=replace(config.train, seed=5)), None)
    for name, weight in task.model.named_parameters():
        assert torch.equal(weight, same.model.get_parameter(name))
    assert any(
        not torch.equal(weight, other.model.get_parameter(name))
        for name, weight in task.model.named_parameters()
    )


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(
        QkvError, match=r"unknown task 'translat': choose one of .*translate.*; did you mean 'translate'\?"
    ):
        tasks.kind("translat")


def test_what_is_compared_grows_with_what_is_better():
    assert Scores({"bleu": 3.0, "loss": 2.0}, "bleu").best == 3
    assert Scores({"bleu": 3.0, "loss": 2.0}, "loss", more_is_better=False).best == -2
