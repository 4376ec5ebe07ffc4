"""`qkv schema`: what a recipe may say, for editors that complete and check TOML."""

from typing import Annotated

import typer


def schema(
    task: Annotated[str, typer.Argument(metavar="TASK", help="What the recipe trains.")] = "translate",
) -> None:
    """Print the JSON Schema of a recipe.

    For Taplo and VS Code's Even Better TOML: qkv schema > recipe.schema.json, and as the first line of a recipe
    `#:schema recipe.schema.json`.
    """
    from qkv.recipe.config import json_text
    from qkv.recipe.recipe import editor_schema
    from qkv.tasks.task import kind

    found = kind(task)
    print(json_text(editor_schema(found.config, found.presets), indent=2))
