"""Every recipe that comes with the repository or the package is one, and opens with how it is run."""

from pathlib import Path

import pytest

from qkv.recipe.recipe import read, resolve
from qkv.tasks.task import kind

ROOT = Path(__file__).parents[2]
RECIPES = sorted([*ROOT.glob("recipes/*.toml"), *ROOT.glob("src/qkv/recipe/*.toml")])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_it_resolves_and_says_how_it_is_run(path: Path):
    tree = read(path)
    task = kind(tree.get("task", "translate"))
    config = resolve(task.config, tree, task.presets, source=str(path))
    assert config.train.epochs or config.train.steps or config.train.minutes
    head = "".join(line for line in path.read_text("utf-8").splitlines(True) if line.startswith("#"))
    assert f"qkv train recipes/{path.name}" in head or "qkv demo" in head
