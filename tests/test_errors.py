"""A wrong name is answered with the right one."""

import pytest

from qkv.errors import QkvError, choose, nearest

SCORES = {"dot": 1, "general": 2, "concat": 3}


def test_choose_returns_what_the_name_stands_for():
    assert choose("score", "general", SCORES) == 2


def test_choose_names_the_kind_the_choices_and_the_nearest():
    with pytest.raises(QkvError) as error:
        choose("score", "dott", SCORES)
    assert str(error.value) == "unknown score 'dott': choose one of concat, dot, general; did you mean 'dot'?"


def test_nothing_is_suggested_when_nothing_is_close():
    with pytest.raises(QkvError) as error:
        choose("score", "xyzzy", SCORES)
    assert str(error.value) == "unknown score 'xyzzy': choose one of concat, dot, general"


@pytest.mark.parametrize(
    ("name", "sentence"), [("haeds", "; did you mean 'heads'?"), ("", ""), ("completely other", "")]
)
def test_nearest(name: str, sentence: str):
    assert nearest(name, ["heads", "width"]) == sentence
