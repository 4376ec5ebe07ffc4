"""JSON that every reader takes: infinity, for which it has no number, is a word."""

import json
import math

import pytest

from qkv.recipe.config import from_json, json_text, to_tree
from qkv.recipe.training import TrainConfig


def test_json_has_words_where_it_has_no_numbers():
    value = {"a": [math.inf, -math.inf, 1.5], "b": (math.nan, None, True), "c": {"d": "é"}}
    wanted = {"a": ["inf", "-inf", 1.5], "b": ["nan", None, True], "c": {"d": "é"}}
    assert json.loads(json_text(value), parse_constant=pytest.fail) == wanted
    assert "é" in json_text(value)


def test_a_recipe_comes_back_from_it():
    config = TrainConfig(clip=math.inf)
    assert from_json(TrainConfig, json_text(to_tree(config))) == config
