"""What every Config can do: be read from and written to TOML and JSON, be overridden, and describe itself.

TOML has no null and JSON has no infinity, so words stand for what a notation lacks. In a field that admits
None, `"none"` is None; in a field that admits a float, `"inf"`, `"-inf"` and `"nan"` are those numbers. The
words are read in TOML, JSON and `--set` alike, and written only where the notation has nothing of its own.
Writing reads its own text back first: a value that would return as another one (the *string* "none" in a
`str | None`) is refused, never changed.
"""

import dataclasses
import json
import math
import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from types import NoneType
from typing import Any, TypeVar, Union

import tomli_w
from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from qkv.config import inside, one_sentence
from qkv.errors import QkvError

Built = TypeVar("Built")

_NONE = "none"
_NUMBERS = ("inf", "-inf", "nan")  # what Python's `str` makes of them, and `float` reads


def to_json(config: Any) -> str:
    """Strict JSON, indented: None is null, infinity the string "inf"."""
    return _faithful(config, json_text(to_tree(config), indent=2) + "\n", from_json)


def json_text(tree: Any, indent: int | None = None) -> str:
    """Plain values as strict JSON; infinity, for which it has no number, is the text "inf"."""
    return json.dumps(_change(tree, _spell_infinite), ensure_ascii=False, indent=indent, allow_nan=False)


def from_json(cls: type[Built], text: str, source: str = "") -> Built:
    """A `cls` from JSON; `source` (a file name) opens the sentence of whatever is wrong."""
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise QkvError(f"{source or 'the text'} is not JSON: {error}") from None
    return _build(cls, tree, source)


def to_toml(config: Any) -> str:
    """TOML: infinity is inf, None the string "none"."""
    tree = _change(to_tree(config), _spell_none)
    return _faithful(config, tomli_w.dumps(tree), from_toml)


def from_toml(cls: type[Built], text: str, source: str = "") -> Built:
    """A `cls` from TOML; `source` (a file name) opens the sentence of whatever is wrong."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise QkvError(f"{source or 'the text'} is not TOML: {error}") from None
    return _build(cls, tree, source)


def to_tree(config: Any) -> dict[str, Any]:
    """Plain dicts, lists and values, infinity and None among them."""
    return _adapter(type(config)).dump_python(config, mode="json")


def from_tree(cls: type[Built], tree: Any, source: str = "") -> Built:
    """A `cls` from plain dicts, lists and values; `source` opens the sentence of whatever is wrong."""
    return _build(cls, tree, source)


def override(config: Built, changes: Iterable[str]) -> Built:
    """`config` with changes such as `model.heads=8`, `beta=inf` or `grid=[2, 3]`: what `--set` does.

    The field's type decides how the text is read: `seed=8` is a number, `name=8` a string. All changes are made
    before the result is checked, so that values which depend on one another can be changed together.
    """
    tree = to_tree(config)
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise QkvError(f"{change!r} sets nothing: write key=value, e.g. model.heads=8")
        *parents, key = path.strip().split(".")
        place, options = tree, (type(config),)
        for parent in parents:
            if not isinstance(place.get(parent), dict):
                place[parent] = {}  # an optional part that was None; a wrong path is refused below, by name
            place, options = place[parent], inside(options, parent)
        place[key] = _typed(text, inside(options, key))
    return _build(type(config), tree, "--set")


def differences(one: Any, other: Any) -> list[str]:
    """In words, where two configs of one kind differ: `model.heads was 8 and is 4`."""
    before, after = dict(_facts(one)), dict(_facts(other))
    return [
        f"{path} was {_show(before, path)} and is {_show(after, path)}"
        for path in before | after
        if before.get(path) != after.get(path)
    ]


def json_schema(cls: type) -> dict[str, Any]:
    """JSON Schema of a `cls` for editors, valid for its TOML and its JSON."""
    return _adapter(cls).json_schema(schema_generator=_Schema)


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def _build(cls: type[Built], tree: Any, source: str) -> Built:
    # Through pydantic's JSON reader: only there can strict types go together with an array for a tuple and a table
    # for a nested Config. It reads Python's Infinity and NaN; a TOML date arrives as its text.
    text = json.dumps(_read(tree, (cls,)), default=str)
    with one_sentence(cls, source):
        return _adapter(cls).validate_json(text, strict=True)


def _read(tree: Any, options: tuple[Any, ...]) -> Any:
    """`tree` with each word turned into the value it stands for, where these types admit that value."""
    if isinstance(tree, dict):
        return {key: _read(value, inside(options, key)) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_read(value, inside(options, index)) for index, value in enumerate(tree)]
    if tree == _NONE and NoneType in options:
        return None
    if tree in _NUMBERS and float in options:
        return float(tree)
    return tree


def _change(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _change(value, leaf) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_change(value, leaf) for value in tree]
    return leaf(tree)


def _spell_none(value: Any) -> Any:
    return _NONE if value is None else value


def _spell_infinite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _faithful(config: Any, text: str, read: Callable[[type, str], Any]) -> str:
    """`text`, once it is known to be read back as `config`."""
    before, after = dict(_facts(config)), dict(_facts(read(type(config), text)))
    for path in before | after:
        if before.get(path) != after.get(path):
            raise QkvError(
                f"{path} is {_show(before, path)}, which would be read back as {_show(after, path)}"
            )
    return text


def _facts(value: Any, path: str = "") -> Iterable[tuple[str, tuple[type, Any]]]:
    """Every path in a Config with the type and value found there; unlike `==`, nan is itself and 1 is not 1.0."""
    if dataclasses.is_dataclass(value):
        parts = {f".{field.name}": getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, dict):
        parts = {f".{key}": part for key, part in value.items()}
    elif isinstance(value, (list, tuple)):
        parts = {f"[{index}]": part for index, part in enumerate(value)}
    else:
        yield path, (type(value), value if value == value else str(value))
        return
    yield path, (type(value), None)
    for step, part in parts.items():
        yield from _facts(part, (path + step).removeprefix("."))


def _show(facts: dict[str, tuple[type, Any]], path: str) -> str:
    kind, value = facts.get(path, (NoneType, None))
    return repr(value) if value is not None or kind is NoneType else f"a {kind.__name__}"


def _typed(text: str, options: tuple[Any, ...]) -> Any:
    """The first reading of `text` that these types admit: a TOML value, a Python number, the bare text."""
    readings = [*_toml_value(text), *_number(text), text]
    return next((reading for reading in readings if _fits(reading, options)), readings[0])


def _toml_value(text: str) -> list[Any]:
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return []
    return [table["value"]] if len(table) == 1 else []  # more than one: the text held a line of its own


def _number(text: str) -> list[float]:
    """Python's numbers that TOML refuses, such as `.5`."""
    try:
        return [float(text)]
    except ValueError:
        return []


def _fits(value: Any, options: tuple[Any, ...]) -> bool:
    if not options:
        return False
    try:
        _adapter(Union[options]).validate_json(json.dumps(_read(value, options), default=str), strict=True)  # noqa: UP007
    except ValidationError:
        return False
    return True


class _Schema(GenerateJsonSchema):
    """pydantic's schema, which knows neither the words nor that JSON has no infinity."""

    def nullable_schema(self, schema: Any) -> JsonSchemaValue:
        return {"anyOf": [self.generate_inner(schema["schema"]), {"enum": [None, _NONE]}]}

    def float_schema(self, schema: Any) -> JsonSchemaValue:
        return {"anyOf": [super().float_schema(schema), {"enum": list(_NUMBERS)}]}

    def encode_default(self, dft: Any) -> Any:
        return _change(super().encode_default(dft), _spell_infinite)
