"""Maps as text: shades, percentages, aligned columns."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.look.maps import Map, draw_text


def test_a_map_by_hand():
    weights_TS = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    lines = draw_text(Map("two by two", weights_TS, ["a", "bc"], ["x", "longer"])).splitlines()
    assert lines == [
        "two by two",
        "      x longer",
        " a █100",
        "bc ░ 25   ▓ 75",
    ]


def test_less_than_half_a_percent_is_blank_and_the_rest_is_rounded():
    (_, _, row) = draw_text(
        Map("", torch.tensor([[0.0049, 0.006, 0.989]]), ["q"], ["a", "b", "c"])
    ).splitlines()
    assert row == "q" + 9 * " " + "1 █ 99"


def test_words_that_do_not_fit_the_weights_are_refused():
    with pytest.raises(
        QkvError, match=r"map 'm' has weights of shape \(2, 3\); \(2, 2\) is wanted, one row a query"
    ):
        draw_text(Map("m", torch.zeros(2, 3), ["a", "b"], ["c", "d"]))
