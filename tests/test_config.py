"""The `config` decorator: frozen, keyword-only, strict, and one sentence for each fault."""

import dataclasses
from typing import Literal

import pytest

from qkv.config import config
from qkv.errors import QkvError
from qkv.recipe.config import from_toml


@config
class Head:
    """One head."""

    width: int
    """Its width."""
    beta: float | None = None
    """Its inverse temperature."""
    kind: Literal["dot", "general"] = "dot"
    grid: tuple[int, int] = (2, 3)


@config
class Model:
    head: Head = Head(width=8)
    name: int | str = "small"

    def __post_init__(self):
        if self.name == "broken":
            raise QkvError("name is 'broken': take another")


def sentence(cls: type, **values: object) -> str:
    with pytest.raises(QkvError) as error:
        cls(**values)
    shown = error.value.__cause__ or (None if error.value.__suppress_context__ else error.value.__context__)
    assert shown is None, "pydantic's own report would be printed above the sentence"
    return str(error.value)


def test_values_are_kept_and_an_int_may_fill_a_float():
    head = Head(width=8, beta=2)
    assert (head.width, head.beta, head.kind, head.grid) == (8, 2.0, "dot", (2, 3))
    assert type(head.beta) is float


def test_it_is_frozen_hashable_comparable_and_replaceable():
    head = Head(width=8)
    with pytest.raises(dataclasses.FrozenInstanceError):
        head.width = 9  # pyright: ignore[reportAttributeAccessIssue]
    assert {head: 1}[Head(width=8)] == 1
    assert dataclasses.replace(head, width=9) == Head(width=9) != head


def test_replace_checks_too():
    with pytest.raises(QkvError, match="width is '9'; it should be a valid integer"):
        dataclasses.replace(Head(width=8), width="9")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"width": "8"}, "width is '8'; it should be a valid integer"),
        ({"width": 8.0}, "width is 8.0; it should be a valid integer"),
        ({"width": True}, "width is True; it should be a valid integer"),
        ({"width": 8, "beta": "inf"}, "beta is 'inf'; it should be a valid number or none"),
        ({"width": 8, "beta": True}, "beta is True; it should be a valid number or none"),
        ({"width": 8, "kind": "dott"}, "kind is 'dott'; it should be 'dot' or 'general'"),
        ({"width": 8, "grid": [2, 3]}, "grid is [2, 3]; it should be a valid tuple"),
        ({"width": 8, "grid": (2, "3")}, "grid[1] is '3'; it should be a valid integer"),
        (
            {"width": None, "grid": (2, "3")},
            "width is None; it should be a valid integer (also wrong: grid[1])",
        ),
        ({}, "width is missing: Head needs it, of type int"),
        (
            {"widht": 8},
            "widht is not a key of Head: choose one of beta, grid, kind, width; did you mean 'width'?",
        ),
    ],
)
def test_each_fault_is_one_sentence(values: dict[str, object], expected: str):
    assert sentence(Head, **values) == expected


def test_a_union_names_each_of_its_members():
    assert sentence(Model, name=2.5) == "name is 2.5; it should be a valid integer or a valid string"


def test_a_fault_inside_a_member_of_a_union_is_placed_where_the_user_wrote_it():
    @config
    class Either:
        head: Head | int = 1

    with pytest.raises(QkvError) as error:
        from_toml(Either, "head = {width = 'x', beta = 1}")
    assert str(error.value).startswith("head.width is 'x'; it should be a valid integer")
    assert sentence(Either, head="x") == "head is 'x'; it should be an instance of Head or a valid integer"


def test_a_positional_value_is_refused():
    with pytest.raises(QkvError, match=r"^8 came without a name: Head takes its values as name=value$"):
        Head(8)  # pyright: ignore[reportCallIssue]


def test_a_table_is_no_config_in_python():
    assert sentence(Model, head={"width": 8}).startswith(
        "head is {'width': 8}; it should be an instance of Head"
    )


def test_a_configs_own_check_speaks_for_itself():
    assert sentence(Model, name="broken") == "name is 'broken': take another"


def test_a_wrong_default_is_found_at_once():
    @config
    class Wrong:
        heads: int = "8"  # pyright: ignore[reportAssignmentType]

    assert sentence(Wrong) == "heads is '8'; it should be a valid integer"
