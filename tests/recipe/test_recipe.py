"""A recipe: first the preset, then what the file says, then the changes of the command line."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from qkv.config import config
from qkv.errors import QkvError
from qkv.recipe.recipe import read, resolve


@config
class Round:
    kind: Literal["round"] = "round"
    radius: int = 1
    colour: str = "red"


@config
class Square:
    kind: Literal["square"] = "square"
    side: int = 2


@config
class Recipe:
    name: str
    model: Annotated[Round | Square, Field(discriminator="kind")] = Round()


PRESETS = {
    "round": {"big": {"radius": 9, "colour": "blue"}},
    "square": {"big": {"side": 8}, "wide": {"side": 7}},
}


def made(model: dict[str, object] | None = None, *changes: str) -> Round | Square:
    tree: dict[str, object] = {"name": "a"} if model is None else {"name": "a", "model": model}
    return resolve(Recipe, tree, PRESETS, changes).model


def test_the_later_word_counts():
    assert made() == Round()
    assert made({"preset": "big"}) == Round(radius=9, colour="blue")
    assert made({"preset": "big", "radius": 5}) == Round(radius=5, colour="blue")
    assert made({"preset": "big", "radius": 5}, "model.radius=4") == Round(radius=4, colour="blue")
    assert made({"kind": "square", "preset": "big"}) == Square(side=8)


def test_preset_and_kind_are_chosen_before_what_changes_them():
    assert made({"radius": 5}, "model.preset=big") == Round(radius=5, colour="blue")
    assert made(None, "model.radius=4", "model.preset='big'") == Round(radius=4, colour="blue")
    assert made(None, "model.kind=square") == Square()
    assert made({"preset": "big"}, 'model.kind = "square"') == Square(side=8)
    assert made(None, "model.kind=square", "model.preset=wide", "model.side=3") == Square(side=3)


def test_the_first_kind_is_the_default():
    assert made({"radius": 3}) == Round(radius=3)


def test_what_is_wrong_is_named():
    for tree, change, wanted in (
        ({"preset": "bgi"}, "", r"unknown preset 'bgi': choose one of big; did you mean 'big'\?"),
        ({"kind": "suqare", "preset": "big"}, "", r"unknown model 'suqare': .*did you mean 'square'"),
        ({"preset": "wide"}, "", r"unknown preset 'wide': choose one of big"),
        ({"raduis": 1}, "", r"raduis is not a key of Round: .*did you mean 'radius'"),
        ({}, "model.radius=x", r"model.radius is 'x'"),
        ({}, "model.radius", r"'model.radius' sets nothing"),
    ):
        with pytest.raises(QkvError, match=wanted):
            made(tree, *filter(None, [change]))
    with pytest.raises(QkvError, match=r"a.toml: model is 'big'; a table is wanted, e.g. preset = 'tiny'"):
        resolve(Recipe, {"name": "a", "model": "big"}, PRESETS, source="a.toml")


def test_the_tree_that_was_given_is_not_changed():
    tree = {"name": "a", "model": {"preset": "big"}}
    resolve(Recipe, tree, PRESETS, ["model.radius=3", "name=b"])
    assert tree == {"name": "a", "model": {"preset": "big"}}
    assert PRESETS["round"] == {"big": {"radius": 9, "colour": "blue"}}


def test_a_file_is_read_and_each_fault_is_one_sentence(tmp_path: Path):
    good = tmp_path / "good.toml"
    good.write_bytes('\ufeff# Windows wrote it\r\nname = "é"\r\n'.encode())
    assert read(good) == {"name": "é"}
    (tmp_path / "bad.toml").write_text("name = = 3")
    (tmp_path / "latin.toml").write_bytes('name = "é"'.encode("latin-1"))
    for name, wanted in (
        ("bad.toml", r"bad.toml is not TOML: .*line 1"),
        ("latin.toml", "latin.toml is not UTF-8: save it as such"),
        ("goood.toml", r"goood.toml cannot be read: No such file or directory; did you mean '.*good.toml'\?"),
        ("nowhere/a.toml", r"nowhere/a.toml cannot be read: No such file or directory$"),
    ):
        with pytest.raises(QkvError, match=wanted):
            read(tmp_path / name)
