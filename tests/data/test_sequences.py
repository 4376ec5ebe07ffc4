"""Single sequences: their batches hold each text once, are decided by (seed, epoch), and fit the budget."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.sequences import SequencesConfig, encode_texts, in_order, plan, real_share
from qkv.data.tokens import END, PAD, START, Tokens
from qkv.errors import QkvError

TEXTS = ["a b c d e", "a", "b c", "d e f g h i j"]


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return Tokens.train(TEXTS, kind="word", minimum=1)


def test_texts_stand_between_start_and_end_and_lose_what_is_too_much(tokens: Tokens):
    texts = encode_texts(TEXTS, tokens, longest=6)
    assert texts.lengths.tolist() == [6, 3, 4, 6]
    assert (texts.cut, texts.first_cut) == (2, 0)
    token, keep = texts.batch(np.array([1, 3]), tokens)
    ids = {word: tokens.encode(word)[0] for word in "abcdefghij"}
    assert token.tolist() == [
        [START, ids["a"], END, PAD, PAD, PAD],
        [START, *(ids[word] for word in "defg"), END],
    ]
    assert keep.tolist() == [[True] * 3 + [False] * 3, [True] * 6]
    notice = texts.notice(6, ["line 1", "", "", ""])
    assert notice is not None
    assert "2 of 4 texts are longer than batches.longest = 6" in notice
    assert "first line 1" in notice
    whole = encode_texts(TEXTS, tokens, longest=9)
    assert (whole.cut, whole.lengths.tolist(), whole.notice(9, [])) == (0, [7, 3, 4, 9], None)


def test_an_empty_text_is_a_text(tokens: Tokens):
    token, keep = encode_texts([""], tokens, 6).batch(np.array([0]), tokens)
    assert (token.tolist(), keep.tolist()) == ([[START, END]], [[True, True]])


lengths = st.lists(st.integers(2, 30), min_size=1, max_size=200).map(np.array)


@given(lengths, st.integers(0, 3), st.integers(0, 3))
def test_each_text_once_within_the_budget(lengths: np.ndarray, seed: int, epoch: int):
    config = SequencesConfig(budget=60, longest=30)
    batches = plan(lengths, config, seed, epoch)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert all(len(rows) * lengths[rows].max() <= 60 for rows in batches)
    again = plan(lengths, config, seed, epoch)
    assert all(np.array_equal(one, other) for one, other in zip(batches, again, strict=True))
    assert 0 < real_share(lengths, batches) <= 1
    ordered = list(in_order(lengths, 60))
    assert sorted(np.concatenate(ordered)) == list(range(len(lengths)))
    assert all(np.diff(lengths[np.concatenate(ordered)]) <= 0)


def test_epochs_and_seeds_differ_and_neighbours_are_alike():
    lengths = np.random.default_rng(0).integers(3, 30, 500)
    config = SequencesConfig(budget=100, longest=30)
    one, other, third = (np.concatenate(plan(lengths, config, *key)) for key in ((0, 0), (0, 1), (1, 0)))
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, third)
    assert real_share(lengths, plan(lengths, config, 0, 0)) > 0.9


@pytest.mark.parametrize(
    ("values", "said"),
    [({"longest": 2}, "longest is 2"), ({"budget": 10}, "budget 10"), ({"jitter": 2.0}, "jitter is 2.0")],
)
def test_what_cannot_be_is_said(values: dict[str, float], said: str):
    with pytest.raises(QkvError, match=said):
        SequencesConfig(**values)
