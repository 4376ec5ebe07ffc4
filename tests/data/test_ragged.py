"""Ragged: a list of sequences in one array."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.ragged import Ragged

sequences = st.lists(st.lists(st.integers(0, 9), max_size=5))


@given(sequences, sequences)
def test_it_is_the_list_that_it_was_made_of(first, second):
    joined = Ragged.join([Ragged.of(first), Ragged.of(second)])
    assert [row.tolist() for row in joined] == first + second
    assert joined.lengths.tolist() == [len(row) for row in first + second]
    assert len(joined) == len(first + second)
    if len(joined):
        assert joined[-1].tolist() == (first + second)[-1]
    with pytest.raises(IndexError):
        joined[len(joined)]


@given(sequences.filter(bool), st.data(), st.integers(0, 7))
def test_padded_is_the_loop(given_rows, data, width):
    rows = data.draw(st.lists(st.integers(0, len(given_rows) - 1)))
    expected = [(given_rows[row] + [-1] * width)[:width] for row in rows]
    padded = Ragged.of(given_rows).padded(np.array(rows, dtype=np.int64), width, -1)
    assert padded.dtype == np.int64
    assert padded.shape == (len(rows), width)
    assert padded.tolist() == expected
