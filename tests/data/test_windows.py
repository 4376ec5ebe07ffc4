"""Windows: each token of a stream once an epoch, in an order of its own, wherever and whenever it is asked for."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.windows import Windows, evaluated
from qkv.errors import QkvError

STREAM = np.arange(100, 100 + 77, dtype=np.int32)


def starts(windows: Windows, epoch: int) -> list[int]:
    found = windows.epoch(epoch)
    return [int(start) for number in range(len(found)) for start in found[number].starts]


def test_a_window_is_a_piece_of_the_stream_and_labels_are_what_follows():
    windows = Windows(STREAM, length=7, budget=25)
    epoch = windows.epoch(0)
    for number in range(len(epoch)):
        batch = epoch[number]
        assert batch.tokens_BT.shape == batch.label_BT.shape == (len(batch.starts), 7)
        assert len(batch.starts) == 3 or number == len(epoch) - 1
        for start, tokens, labels in zip(batch.starts, batch.tokens_BT, batch.label_BT, strict=True):
            assert tokens.tolist() == STREAM[start : start + 7].tolist()
            assert labels.tolist() == STREAM[start + 1 : start + 8].tolist()


@given(tokens=st.integers(2, 60), length=st.integers(1, 20), seed=st.integers(0, 5), epoch=st.integers(0, 5))
def test_an_epoch_has_each_token_once_but_for_less_than_a_window_at_both_ends(
    tokens: int, length: int, seed: int, epoch: int
):
    stream = np.arange(tokens + 1, dtype=np.int32)
    if tokens < length:
        with pytest.raises(QkvError, match=f"the text has {tokens} tokens, less than a window of {length}"):
            Windows(stream, length, budget=20)
        return
    found = sorted(starts(Windows(stream, length, budget=20, seed=seed), epoch))
    assert all(later - earlier == length for earlier, later in pairwise(found))
    assert found[0] < length
    assert tokens - (found[-1] + length) < length


def test_epochs_differ_in_their_order_and_in_where_they_cut_and_return_by_their_number():
    windows, same = (Windows(STREAM, 7, 25, seed=3) for _ in range(2))
    found = [starts(windows, epoch) for epoch in range(20)]
    assert found == [starts(same, epoch) for epoch in range(20)]
    assert {order[0] % 7 for order in found} == set(range(7))
    assert all(order != sorted(order) for order in found)
    assert found != [starts(Windows(STREAM, 7, 25, seed=4), epoch) for epoch in range(20)]


def test_the_draws_are_those_of_any_version_of_numpy():
    """By hand from raw 64-bit draws, which numpy promises to keep."""
    bits = np.random.PCG64(np.random.SeedSequence([5, 2]))
    first, raw = int(bits.random_raw()) % 7, [int(bits.random_raw()) for _ in range(11)]
    places = list(range(first, 77 - 7, 7))
    order = sorted(range(len(places)), key=raw[: len(places)].__getitem__)
    assert starts(Windows(STREAM, 7, 25, seed=5), 2) == [places[place] for place in order]


def test_a_batch_must_hold_a_window():
    with pytest.raises(QkvError, match=r"windows.budget is 6 and model.length 7: a batch must hold a window"):
        Windows(STREAM, length=7, budget=6)


@given(tokens=st.integers(0, 60), length=st.integers(1, 20), data=st.data())
def test_in_evaluation_each_token_counts_once_and_overlap_gives_it_others_before(
    tokens: int, length: int, data: st.DataObject
):
    stride = data.draw(st.none() | st.integers(1, length))
    counted = []
    for number, (start, stop, skipped) in enumerate(evaluated(tokens, length, stride)):
        assert 0 < stop - start <= length
        assert skipped == (length - (stride or length) if number else 0)
        counted += range(start + skipped, stop)
    assert counted == list(range(tokens))


def test_windows_of_evaluation_by_hand():
    assert list(evaluated(10, 4)) == [(0, 4, 0), (4, 8, 0), (8, 10, 0)]
    assert list(evaluated(10, 4, 2)) == [(0, 4, 0), (2, 6, 2), (4, 8, 2), (6, 10, 2)]
    assert list(evaluated(6, 4, 3)) == [(0, 4, 0), (3, 6, 1)]
