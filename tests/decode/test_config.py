"""The choices of a search: what is refused, and the numbers that follow from them."""

import pytest
import torch

from qkv.decode import SearchConfig
from qkv.errors import QkvError
from qkv.recipe.config import from_toml, to_toml


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"beam": 0}, "beam is 0; it should be greater than 0"),
        ({"n_best": 6}, "n_best is 6, but a beam of 5 finds no more: widen the beam"),
        ({"minimum": 9, "maximum": 9}, "minimum is 9, maximum 9: the end needs its place too"),
        ({"temperature": 1.0}, "temperature is 1.0 with beam 5: .* set beam=1, and n_best"),
        ({"top_k": 3}, "top_k is 3, top_p 1.0, but nothing is sampled: set a temperature"),
        ({"top_p": 0.5}, "top_k is None, top_p 0.5, but nothing is sampled"),
        ({"beam": 1, "temperature": 1.0, "top_p": 0.0}, "top_p is 0.0; it should be greater than 0"),
        ({"beam": 1, "temperature": -1.0}, "temperature is -1.0"),
        ({"beam": 1, "coverage": 0.2}, "coverage is 0.2 with beam 1"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"alpha": float("inf")}, "alpha is inf"),
        ({"normalize": "lenght"}, "normalize is 'lenght'; it should be 'length', 'gnmt' or 'none'"),
        ({"lenght": 3}, "lenght is not a key of SearchConfig"),
    ],
)
def test_bad_choices_are_one_sentence(choices: dict[str, object], message: str):
    with pytest.raises(QkvError, match=message):
        SearchConfig(**choices)


def test_limits_by_hand():
    lengths_B = torch.tensor([0, 3, 100])
    choices = SearchConfig(maximum=50, maximum_ratio=1.5, maximum_extra=2, minimum=3)
    assert choices.limits(lengths_B).tolist() == [4, 6, 50]  # 2 is less than 3 tokens and their end
    assert SearchConfig(maximum=50, maximum_ratio=None).limits(lengths_B).tolist() == [50, 50, 50]


def test_divisors_by_hand():
    gnmt = SearchConfig(normalize="gnmt", alpha=0.5).divisors(13)
    assert [gnmt[1], gnmt[4], gnmt[13]] == pytest.approx(
        [1.0, 1.5**0.5, 3**0.5]
    )  # Wu et al. 2016, equation 14
    assert SearchConfig(alpha=2.0).divisors(3).tolist() == [0.0, 1.0, 4.0, 9.0]
    assert SearchConfig(normalize="none").divisors(2).tolist() == [1.0, 1.0, 1.0]
    for normalize in ("length", "gnmt", "none"):  # the exact stop rests on this
        assert (SearchConfig(normalize=normalize, alpha=0.7).divisors(1000).diff() >= 0).all()


def test_a_config_survives_toml():
    choices = SearchConfig(beam=1, n_best=3, temperature=0.7, top_k=4, top_p=0.9, seed=3, maximum_ratio=None)
    assert from_toml(SearchConfig, to_toml(choices)) == choices
