"""The decorator that turns a class into a Config, and one sentence for each way of filling it wrongly.

It stands below every layer, so that a Config can live beside the class that it builds; reading, writing and
overriding one is the business of `qkv.recipe.config`.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, dataclass_transform, get_args, get_origin

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from qkv.errors import QkvError, nearest

Built = TypeVar("Built")

_RULES = ConfigDict(
    extra="forbid",  # a typo is an error, not a default
    strict=True,  # "8" is not 8, and True is not 1
    use_attribute_docstrings=True,  # the string under a field is its help
    validate_default=True,
    ser_json_inf_nan="constants",  # pydantic's own default writes infinity as null
)


def one_of(registry: Iterable[str]) -> Any:
    """For `Annotated[str, one_of(SCORES)]`: the JSON Schema lists the names, so that editors can offer them."""
    return Field(json_schema_extra={"enum": [*sorted(registry)]})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field, Field))
def config(cls: type[Built]) -> type[Built]:
    """Make `cls` a frozen, keyword-only, strictly checked dataclass whose constructor raises `QkvError`.

    A string under a field is the field's help.
    """
    made: Any = dataclass(frozen=True, kw_only=True, config=_RULES)(cls)
    made.__init__ = one_sentence(made)(made.__init__)
    return made


@contextmanager
def one_sentence(cls: type, source: str = "") -> Iterator[None]:
    """Raise what goes wrong while a `cls` is filled as one `QkvError`, opening with `source` when there is one."""
    opening = f"{source}: " if source else ""
    try:
        yield
    except ValidationError as error:
        raise QkvError(opening + _explain(cls, error)) from None
    except QkvError as error:  # from a Config's own checks, in its __post_init__
        if not source:
            raise
        raise QkvError(opening + str(error)) from None


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, flattened; any other type is its own only member."""
    if get_origin(hint) is Annotated:
        return alternatives(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return tuple(member for part in get_args(hint) for member in alternatives(part))
    return (hint,)


def inside(options: tuple[Any, ...], key: str | int) -> tuple[Any, ...]:
    """The types admitted under `key` (a field, a dict's key, a position) of a value of one of these types."""
    return tuple(member for option in options for member in _inside(option, key))


def _inside(option: Any, key: str | int) -> tuple[Any, ...]:
    origin, arguments = get_origin(option), get_args(option)
    if key in _fields(option):
        return alternatives(_fields(option)[key].annotation)
    if origin is dict and isinstance(key, str):
        return alternatives(arguments[1])
    if origin is tuple and isinstance(key, int) and arguments[-1] is not ...:
        return alternatives(arguments[key]) if key < len(arguments) else ()
    if origin in (tuple, list) and isinstance(key, int):
        return alternatives(arguments[0])
    return ()


def _fields(option: Any) -> Mapping[str | int, Any]:
    """The fields of a Config, resolved; of any other type, none."""
    return getattr(option, "__pydantic_fields__", {})


def _explain(cls: type, error: ValidationError) -> str:
    """One sentence about the first fault, and the places of the others."""
    reports = error.errors(include_url=False)
    reports.sort(key=lambda report: not report["type"].startswith("unexpected"))
    if reports[0]["type"].startswith("unexpected"):
        # A misspelt or missing name also leaves the right one without a value: name the cause, not the effect.
        reports = [report for report in reports if report["type"] != "missing"]
    faults: dict[str, list[Any]] = {}
    for report in reports:  # a union reports once for each of its members
        faults.setdefault(_locate(cls, report)[0], []).append(report)
    (_, first), *others = faults.items()
    rest = f" (also wrong: {', '.join(place for place, _ in others)})" if others else ""
    return _describe(cls, first) + rest


def _locate(cls: type, report: Any) -> tuple[str, type, tuple[Any, ...]]:
    """Where a fault is: its dotted path, the Config that holds it, and the types admitted there."""
    path, owner, options = "", cls, (cls,)
    *_, last = report["loc"] or ("",)
    unknown = last if report["type"] == "unexpected_keyword_argument" else None
    for key in report["loc"]:
        owner = next((option for option in options if _fields(option)), owner)
        found = inside(options, key)
        if found or key == unknown:
            path += f"[{key}]" if isinstance(key, int) else f".{key}" if path else key
            options = found
        # otherwise `key` is pydantic's label for a member of a union: no place in what the user wrote
    return path, owner, options


def _describe(cls: type, reports: list[Any]) -> str:
    report = reports[0]
    path, owner, options = _locate(cls, report)
    value = short(report["input"])
    match report["type"]:
        case "unexpected_keyword_argument":
            known = sorted(str(name) for name in _fields(owner))
            key = str(report["loc"][-1])
            return f"{path} is not a key of {owner.__name__}: choose one of {', '.join(known)}{nearest(key, known)}"
        case "missing":
            kinds = " | ".join(getattr(option, "__name__", str(option)) for option in options)
            return f"{path} is missing: {owner.__name__} needs it, of type {kinds}"
        case "unexpected_positional_argument":
            return f"{value} came without a name: {cls.__name__} takes its values as name=value"
    wanted = [report["msg"] for report in reports]
    if not all(message.startswith("Input should be ") for message in wanted):
        message = wanted[0].removeprefix("Value error, ")
        return f"{path or cls.__name__} is {value}: {message[0].lower()}{message[1:]}"
    choices = [message.removeprefix("Input should be ") for message in wanted]
    if NoneType in options:
        choices.append("none")
    return f"{path or cls.__name__} is {value}; it should be {' or '.join(dict.fromkeys(choices))}"
