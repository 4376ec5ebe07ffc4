"""Recipes that come with the package."""

from importlib.resources import as_file, files
from typing import Any

from qkv.recipe.recipe import read


def shipped(name: str) -> dict[str, Any]:
    """The tree of the recipe `name`.toml beside this file."""
    with as_file(files("qkv.recipe") / f"{name}.toml") as path:
        return read(path)
