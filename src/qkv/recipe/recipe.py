"""A recipe: TOML that says what to train on what, as a short delta on a named preset of a model."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from qkv.errors import QkvError, choose, nearest
from qkv.recipe.config import from_tree, json_schema, override

Built = TypeVar("Built")
Presets = Mapping[str, Mapping[str, Mapping[str, object]]]


def read(path: Path) -> dict[str, Any]:
    """The tree of a recipe's file."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        folder = path.parent
        near = nearest(str(path), [str(entry) for entry in folder.iterdir()]) if folder.is_dir() else ""
        raise QkvError(f"recipe {path} cannot be read: {error.strerror}{near}") from None
    except UnicodeDecodeError:
        raise QkvError(f"recipe {path} is not UTF-8: save it as such") from None
    except tomllib.TOMLDecodeError as error:
        raise QkvError(f"recipe {path} is not TOML: {error}") from None


def resolve(
    cls: type[Built], tree: dict[str, Any], presets: Presets, changes: Iterable[str] = (), source: str = ""
) -> Built:
    """The recipe of a tree with changes as `--set` takes them: first the preset, then the tree, then the changes.

    `model.kind` and `model.preset` are not changes like the others: they decide what the others change.
    """
    model, others = tree.get("model", {}), []
    if not isinstance(model, dict):
        raise QkvError(
            f"{source or 'the recipe'}: model is {model!r}; a table is wanted, e.g. preset = 'tiny'"
        )
    for change in changes:
        key, equals, value = change.partition("=")
        if key.strip() in ("model.kind", "model.preset") and equals:
            model = model | {key.strip().removeprefix("model."): value.strip().strip("'\"")}
        else:
            others.append(change)
    kind, name = model.get("kind", next(iter(presets))), model.get("preset")
    if name is not None:
        values = choose("preset", str(name), choose("model", str(kind), presets))
        model = {"kind": kind, **values} | {key: value for key, value in model.items() if key != "preset"}
    if model or "model" in tree:
        tree = tree | {"model": {"kind": kind} | model}
    return override(from_tree(cls, tree, source), others)


def editor_schema(cls: type, presets: Presets) -> dict[str, Any]:
    """JSON Schema of a recipe's file: that of the resolved `cls`, and what only files have, a model's preset."""
    found = json_schema(cls)
    for definition in found["$defs"].values():
        kind = definition["properties"].get("kind", {}).get("const")
        if kind in presets:
            definition["properties"]["preset"] = {
                "description": "Named sizes; the other keys change them.",
                "enum": [*presets[kind]],
            }
    model = found["properties"]["model"]
    if "oneOf" in model:  # without a kind, a table may fit several models
        model["anyOf"] = model.pop("oneOf")
        del model["discriminator"]
    return found
