"""Every Config of the house, found by walking it, returns from JSON, TOML and --set as it went."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from importlib import import_module
from pkgutil import walk_packages
from types import NoneType
from typing import Any

import pytest

import qkv
from qkv.config import alternatives
from qkv.errors import QkvError
from qkv.recipe.config import from_json, from_toml, override, to_json, to_toml

NOTATIONS: list[tuple[Callable[[Any], str], Callable[[type, str], Any]]] = [
    (to_json, from_json),
    (to_toml, from_toml),
]


def configs() -> Iterator[type]:
    """The Configs by the modules that define them."""
    for module in walk_packages(qkv.__path__, "qkv."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(import_module(module.name)).values():
            if hasattr(value, "__pydantic_fields__") and getattr(value, "__module__", "") == module.name:
                yield value


CONFIGS = list(configs())

# What a Config that cannot be without values is given: by its field's name, the smallest that makes sense.
NEEDED: dict[str, Any] = {"width": 8, "heads": 2, "hidden": 11, "source": "numbers"}
# Where a field of that name means something else.
OTHERWISE: dict[str, dict[str, Any]] = {"ImageSet": {"source": "digits"}}


def smallest(cls: Any) -> Any:
    """A Config of this kind with its defaults, and with what has no default made up."""
    values = {}
    for name, field in cls.__pydantic_fields__.items():
        if not field.is_required():
            continue
        (kind, *_) = alternatives(field.annotation)
        if name in NEEDED:
            values[name] = {**NEEDED, **OTHERWISE.get(cls.__name__, {})}[name]
        elif dataclasses.is_dataclass(kind):
            values[name] = smallest(kind)
        else:  # a tuple, of Configs or of texts
            (inside, *_) = kind.__args__
            values[name] = (smallest(inside) if dataclasses.is_dataclass(inside) else inside("a.txt"),)
    return cls(**values)


def assert_returns(config: Any) -> None:
    for write, read in NOTATIONS:
        assert repr(read(type(config), write(config))) == repr(config), write.__name__


def test_the_walk_finds_them():
    assert {"AttentionConfig", "LayerConfig", "FeedForwardConfig", "TransformerConfig", "SearchConfig"} <= {
        cls.__name__ for cls in CONFIGS
    }


@pytest.mark.parametrize("cls", CONFIGS, ids=lambda cls: cls.__name__)
def test_it_returns_as_it_went(cls: type):
    assert_returns(smallest(cls))


@pytest.mark.parametrize("cls", CONFIGS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize(("word", "kind", "meaning"), [("none", NoneType, None), ("inf", float, math.inf)])
def test_none_and_infinity_return_from_every_field_that_takes_them(
    cls: Any, word: str, kind: type, meaning: object
):
    base = smallest(cls)
    for name, field in cls.__pydantic_fields__.items():
        if kind not in alternatives(field.annotation):
            continue
        try:
            wanted = dataclasses.replace(base, **{name: meaning})
        except QkvError:  # a bound, or another field, forbids it
            continue
        assert override(base, [f"{name}={word}"]) == wanted
        assert_returns(wanted)
