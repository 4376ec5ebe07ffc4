"""The recipe to begin with: it grows with the data, and says what it means."""

import tomllib

import pytest

from qkv.errors import QkvError
from qkv.recipe.starter import plan, starter


def test_more_data_get_a_larger_model_and_fewer_epochs():
    plans = [plan(pairs, 60.0) for pairs in (1_000, 30_000, 500_000, 20_000_000)]
    assert [one.preset for one in plans] == ["tiny", "tiny", "small", "base"]
    for name in ("vocabulary", "budget"):
        sizes = [getattr(one, name) for one in plans]
        assert sizes == sorted(sizes)
        assert len(set(sizes)) > 1
    assert plans[1].epochs > plans[2].epochs > plans[3].epochs >= 3


def test_a_long_text_counts_like_many_pairs():
    assert plan(1_000, 600.0).epochs < plan(1_000, 60.0).epochs
    assert (
        plan(1_000, 600.0, "small").epochs > plan(1_000, 600.0, "tiny").epochs
    )  # a larger model takes longer


def test_the_text_says_what_was_planned_whatever_the_files_are_called():
    chosen = plan(30_000, 60.0)
    files = ('a "quoted" \\ name', "b = 'c' # d")
    found = tomllib.loads(starter(chosen, "30,000 pairs", "qkv train x.toml", files, files))
    assert found["data"]["train"] == [{"source": files[0], "target": files[1]}]
    assert found["tokens"]["size"] == chosen.vocabulary
    assert found["batches"]["budget"] == chosen.budget
    assert found["train"]["epochs"] == chosen.epochs
    assert found["train"]["schedule"]["warmup"] == chosen.warmup
    assert found["model"] == {"kind": "transformer", "preset": chosen.preset, "dropout": chosen.dropout}


def test_an_unknown_preset_is_refused_with_the_choices():
    with pytest.raises(QkvError, match="unknown preset 'huge': choose one of base, big, small, tiny"):
        plan(1, 1.0, "huge")
