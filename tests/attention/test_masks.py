"""Masks against brute force over pairs of positions, and the laws that let attend work in blocks."""

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.attention import reference
from tests.attention.strategies import composed, composed_at, offsets
from torch import Tensor

from qkv import QkvError, attend, masks
from qkv.attention.masks.values import Block, Lengths, Mask, Padding, as_mask, cut

CPU = torch.device("cpu")
B, H = 2, 3
# Queries and keys: fewer, as many, more, one
SIZES = [(3, 7), (5, 5), (7, 3), (1, 5), (5, 1)]
IDS = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [5, 5, 5, 5, 9, 5, 5]])


def block(T: int, S: int, rows: tuple[int, int], keys: tuple[int, int]) -> Block:
    return Block((B, H, T, S), rows, keys, CPU)


def dense(mask: Mask, T: int, S: int) -> np.ndarray:
    allow_BHTS = mask.dense((B, H, T, S))
    assert allow_BHTS.dtype == torch.bool
    return allow_BHTS.numpy()


def inside(mask: Mask, block: Block) -> Tensor:
    """The mask in that block, spread over all its axes."""
    allow = mask.block(block)
    shape = (*block.shape[:-2], block.rows[1] - block.rows[0], block.keys[1] - block.keys[0])
    return torch.ones(shape, dtype=torch.bool) if allow is None else allow.expand(shape)


# Each kind against a double loop


@pytest.mark.parametrize(("T", "S"), SIZES)
@pytest.mark.parametrize("offset", [None, -3, 0, 1, 4, 99])
def test_causal(T: int, S: int, offset: int | None):
    want = np.array([[j <= (S - T if offset is None else offset) + t for j in range(S)] for t in range(T)])
    got_BHTS = dense(masks.causal(offset), T, S)
    assert (got_BHTS == want).all()


def test_causal_by_hand():
    assert masks.causal().dense((2, 4)).tolist() == [[True, True, True, False], [True, True, True, True]]
    assert masks.causal(0).dense((2, 4)).tolist() == [[True, False, False, False], [True, True, False, False]]


@pytest.mark.parametrize(("T", "S"), SIZES)
@pytest.mark.parametrize("distance", [0, 1, 2, 99])
def test_window(T: int, S: int, distance: int):
    want = np.array([[abs(S - T + t - j) <= distance for j in range(S)] for t in range(T)])
    assert (dense(masks.window(distance), T, S) == want).all()


def test_window_by_hand():
    assert masks.window(1).dense((2, 4)).tolist() == [[False, True, True, True], [False, False, True, True]]
    assert masks.window(0).dense((3, 3)).tolist() == torch.eye(3, dtype=torch.bool).tolist()


@pytest.mark.parametrize(("T", "S"), SIZES)
@pytest.mark.parametrize("kind", [torch.int32, torch.int64, torch.uint8])
def test_padding_by_lengths(T: int, S: int, kind: torch.dtype):
    counts = [0, S // 2 + 1]
    want_BHTS = np.array(
        [[[[j < count for j in range(S)] for _ in range(T)] for _ in range(H)] for count in counts]
    )
    assert (dense(masks.padding(torch.tensor(counts, dtype=kind)), T, S) == want_BHTS).all()


@pytest.mark.parametrize(("T", "S"), SIZES)
def test_padding_by_what_is_kept(T: int, S: int):
    keep_BS = torch.rand(B, S) < 0.5
    want_BHTS = np.array(
        [[[[bool(keep_BS[b, j]) for j in range(S)] for _ in range(T)] for _ in range(H)] for b in range(B)]
    )
    assert (dense(masks.padding(keep_BS), T, S) == want_BHTS).all()
    assert (dense(masks.padding(keep_BS[:1]), T, S) == want_BHTS[:1]).all()
    assert (dense(masks.padding(keep_BS[0]), T, S) == want_BHTS[0]).all()


@pytest.mark.parametrize("T", [1, 3, 7])
def test_documents(T: int):
    S = IDS.shape[1]
    want_BTS = [
        [[bool(IDS[b, S - T + t] == IDS[b, j]) for j in range(S)] for t in range(T)] for b in range(B)
    ]
    assert (dense(masks.documents(IDS), T, S) == np.array(want_BTS)[:, None]).all()


def test_a_packed_row_of_documents_is_as_good_as_each_alone():
    ids_S = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    q, k, v = (torch.randn(1, 2, 7, 5) for _ in range(3))
    packed = attend(q, k, v, allow=masks.documents(ids_S) & masks.causal())
    for part in (slice(0, 3), slice(3, 7)):
        alone = attend(q[:, :, part], k[:, :, part], v[:, :, part], allow=masks.causal())
        torch.testing.assert_close(packed[:, :, part], alone)


def test_cached_decoding_sees_what_the_whole_sees():
    """Row t of the whole is the only row of step t; a chunk of rows is the same chunk of the whole."""
    for mask in [masks.causal(), masks.causal() & masks.window(2), masks.window(1)]:
        whole_TS = mask.dense((7, 7))
        for t in range(7):
            step_1S = (mask & masks.causal()).dense((1, t + 1))
            assert torch.equal(step_1S[0], (whole_TS & masks.causal().dense((7, 7)))[t, : t + 1])
        assert torch.equal(mask.dense((3, 7)), whole_TS[4:])


# Laws


sizes = st.tuples(st.integers(1, 6), st.integers(1, 6))


@given(st.data(), sizes)
def test_composition_means_what_it_says(data: st.DataObject, size: tuple[int, int]):
    T, S = size
    offset = data.draw(offsets(T, S))
    (one, one_BHTS), (other, other_BHTS) = (data.draw(composed_at(B, H, T, S, offset)) for _ in range(2))
    assert (dense(one, T, S) == one_BHTS).all()
    assert (dense(one & other, T, S) == (one_BHTS & other_BHTS)).all()
    assert (dense(one | other, T, S) == (one_BHTS | other_BHTS)).all()
    assert (dense(~one, T, S) == ~one_BHTS).all()
    assert (dense(~~one, T, S) == one_BHTS).all()
    assert (dense(~(one & other), T, S) == dense(~one | ~other, T, S)).all()  # De Morgan
    assert (dense(one & ~one, T, S) == False).all()  # noqa: E712 - an array
    assert (dense(one | ~one, T, S) == True).all()  # noqa: E712


def blocks_of(data: st.DataObject, T: int, S: int) -> Block:
    start, left = data.draw(st.integers(0, T - 1)), data.draw(st.integers(0, S))
    return block(T, S, (start, data.draw(st.integers(start + 1, T))), (left, data.draw(st.integers(left, S))))


@given(st.data(), sizes)
def test_a_block_is_a_cut_of_the_whole(data: st.DataObject, size: tuple[int, int]):
    T, S = size
    mask, want_BHTS = data.draw(composed(B, H, T, S))
    part = blocks_of(data, T, S)
    got = inside(mask, part).numpy()
    assert (got == want_BHTS[:, :, slice(*part.rows), slice(*part.keys)]).all()


@given(st.data(), sizes)
def test_a_span_hides_no_allowed_key(data: st.DataObject, size: tuple[int, int]):
    T, S = size
    mask, want_BHTS = data.draw(composed(B, H, T, S))
    part = blocks_of(data, T, S)
    start, stop = mask.span(part)
    assert part.keys[0] <= start <= stop <= part.keys[1]
    allowed_S = want_BHTS[:, :, slice(*part.rows)].any((0, 1, 2))
    hidden = [s for s in range(*part.keys) if not start <= s < stop]
    assert not allowed_S[hidden].any()
    got = inside(mask, replace(part, keys=(start, stop))).numpy()
    assert (got == want_BHTS[:, :, slice(*part.rows), start:stop]).all()


@given(st.data(), sizes)
def test_a_mask_that_is_not_per_query_has_one_row(data: st.DataObject, size: tuple[int, int]):
    T, S = size
    mask, want_BHTS = data.draw(composed(B, H, T, S))
    if mask.per_query:
        return
    assert (want_BHTS == want_BHTS[:, :, :1]).all()
    allow = mask.block(block(T, S, (0, T), (0, S)))
    assert allow is None or allow.shape[-2] == 1


@pytest.mark.parametrize(
    ("mask", "per_query"),
    [
        (masks.causal(), True),
        (masks.window(3), True),
        (masks.documents(IDS), True),
        (masks.padding(torch.tensor([3, 7])), False),
        (masks.padding(IDS > 1), False),
        (~masks.padding(IDS > 1), False),
        (masks.padding(IDS > 1) & masks.padding(torch.tensor([3, 7])), False),
        (masks.padding(IDS > 1) | masks.padding(torch.tensor([3, 7])), False),
        (masks.padding(IDS > 1) & masks.causal(), True),
        (masks.causal() | masks.padding(IDS > 1), True),
        (~masks.causal(), True),
        (masks.from_sdpa(torch.ones(7, dtype=torch.bool)), False),
        (masks.from_sdpa(torch.ones(1, 7, dtype=torch.bool)), False),
        (masks.from_sdpa(torch.ones(2, 1, 1, 7, dtype=torch.bool)), False),
        (masks.from_sdpa(torch.ones(5, 1, dtype=torch.bool)), True),
    ],
)
def test_whether_a_mask_differs_from_query_to_query(mask: Mask, per_query: bool):
    assert mask.per_query == per_query


def test_spans_skip_what_they_can():
    rows = block(10, 10, (4, 6), (0, 10))
    assert masks.causal().span(rows) == (0, 6)
    assert masks.window(2).span(rows) == (2, 8)
    assert (masks.causal() & masks.window(2)).span(rows) == (2, 6)
    assert (masks.causal() | masks.window(2)).span(rows) == (0, 8)
    assert masks.causal(-9).span(rows) == (0, 0)
    assert (masks.causal() & masks.padding(torch.tensor([3, 7]))).span(rows) == (0, 6)
    assert (~masks.causal()).span(rows) == (0, 10)


def test_a_mask_that_allows_all_costs_nothing():
    assert masks.causal().block(block(1, 5, (0, 1), (0, 5))) is None
    assert masks.causal().block(block(5, 5, (3, 5), (0, 4))) is None
    assert (masks.causal() | masks.window(1)).block(block(1, 5, (0, 1), (0, 5))) is None
    keep_BS = torch.rand(B, 5) < 0.5
    both = (masks.causal() & masks.padding(keep_BS)).block(block(1, 5, (0, 1), (0, 5)))
    assert both is not None
    assert torch.equal(both[:, 0, 0], keep_BS)


# Leading axes


@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 3, 5), (2, 3, 5, 7)])
def test_batch_axes_stand_at_the_front_of_the_scores(lead: tuple[int, ...]):
    """Padding (a, b, S) belongs to the first axes a, b of the scores, whatever stands between them and T, S."""
    T, S = 3, 7
    shape = (*lead, T, S)
    for own in range(len(lead) + 1):
        keep = torch.rand(*lead[:own], S) < 0.5
        allow = masks.padding(keep).dense(shape)
        ids = torch.randint(0, 3, (*lead[:own], S))
        same = masks.documents(ids).dense(shape)
        for place in np.ndindex(*shape[:-1]):
            *batch, t = place
            assert torch.equal(allow[place], keep[tuple(batch[:own])])
            row = ids[tuple(batch[:own])]
            assert torch.equal(same[place], row[S - T + t] == row)


def test_lengths_belong_to_the_first_axis():
    allow = masks.padding(torch.tensor([2, 3])).dense((2, 5, 7, 3, 4))
    assert allow.sum().item() == 5 * 7 * 3 * (2 + 3)
    assert allow[1, 4, 6, 2].tolist() == [True, True, True, False]


def test_a_dense_mask_is_aligned_from_the_right():
    allow_HTS = torch.rand(3, 5, 7) < 0.5
    assert torch.equal(as_mask(allow_HTS).dense((2, 3, 5, 7))[1], allow_HTS)
    keys_S = torch.rand(7) < 0.5
    assert torch.equal(as_mask(keys_S).dense((2, 3, 5, 7))[1, 2, 4], keys_S)


def test_tensors_take_part_in_compositions():
    allow_TS = torch.rand(5, 7) < 0.5
    causal_TS = masks.causal().dense((5, 7))
    assert torch.equal((masks.causal() & allow_TS).dense((5, 7)), causal_TS & allow_TS)
    assert torch.equal((masks.causal() | allow_TS).dense((5, 7)), causal_TS | allow_TS)
    assert torch.equal((allow_TS & masks.causal()).dense((5, 7)), causal_TS & allow_TS)
    assert torch.equal((allow_TS | masks.causal()).dense((5, 7)), causal_TS | allow_TS)


def test_cut_leaves_axes_of_one_alone():
    x = torch.arange(35).reshape(5, 7)
    assert cut(x, (1, 3), (2, 7)).tolist() == x[1:3, 2:].tolist()
    assert cut(x[:1], (1, 3), (2, 7)).tolist() == x[:1, 2:].tolist()
    assert cut(x[:, :1], (1, 3), (2, 7)).tolist() == x[1:3, :1].tolist()


@pytest.mark.parametrize(
    "mask", [masks.causal(), masks.window(1), masks.padding(torch.zeros(0, dtype=torch.long))]
)
def test_an_empty_batch_has_a_mask_too(mask: Mask):
    assert mask.dense((0, 3, 5, 7)).shape == (0, 3, 5, 7)


def test_no_keys_have_a_mask_too():
    for mask in [
        masks.causal(),
        masks.window(1),
        masks.padding(torch.zeros(2, dtype=torch.long)),
        masks.padding(IDS[:, :0] > 0),
    ]:
        assert mask.dense((2, 3, 5, 0)).shape == (2, 3, 5, 0)


# Misfits


def call(function: Any, *arguments: Any) -> Any:
    """Without the tests' own check of types, which would speak first."""
    return inspect.unwrap(function)(*arguments)


@pytest.mark.parametrize(
    ("function", "argument", "sentence"),
    [
        (masks.window, -1, "window is -1; a distance, an int of 0 or more, is wanted (0 sees only itself)"),
        (masks.window, 1.5, "window is 1.5; a distance, an int of 0 or more, is wanted (0 sees only itself)"),
        (
            masks.window,
            True,
            "window is True; a distance, an int of 0 or more, is wanted (0 sees only itself)",
        ),
        (
            masks.causal,
            1.5,
            "offset is 1.5; a whole number or None is wanted: the position of the first query",
        ),
        (
            masks.causal,
            True,
            "offset is True; a whole number or None is wanted: the position of the first query",
        ),
        (
            masks.padding,
            torch.zeros(2, 5),
            "padding got torch.float32 of shape (2, 5); booleans (…, S) or integer lengths (B,) are wanted",
        ),
        (
            masks.padding,
            torch.tensor(True),
            "padding got torch.bool of shape (); booleans (…, S) or integer lengths (B,) are wanted",
        ),
        (
            masks.padding,
            torch.ones(2, 5, dtype=torch.long),
            "padding got integers of shape (2, 5); lengths have one axis (B,): "
            "if they are a 0/1 mask with 1 for a real token, pass keep.bool()",
        ),
        (
            masks.padding,
            torch.tensor(3),
            "padding got integers of shape (); lengths have one axis (B,): "
            "if they are a 0/1 mask with 1 for a real token, pass keep.bool()",
        ),
        (
            masks.documents,
            torch.zeros(2, 5),
            "documents got torch.float32 of shape (2, 5); integer ids (…, S) are wanted, one a position",
        ),
        (
            masks.documents,
            torch.tensor(3),
            "documents got torch.int64 of shape (); integer ids (…, S) are wanted, one a position",
        ),
        (as_mask, [True], "allow is list; a boolean tensor or a mask is wanted: e.g. masks.causal()"),
    ],
)
def test_each_misfit_has_its_sentence(function: Any, argument: Any, sentence: str):
    with pytest.raises(QkvError) as caught:
        call(function, argument)
    assert str(caught.value) == sentence


def test_a_mask_is_no_truth_value():
    # `and` would return its second mask and forget the first: the future would be seen, silently.
    with pytest.raises(
        QkvError, match=r"^Causal\(offset=None\) is neither true nor false; write &, \| and ~"
    ):
        masks.causal() and masks.window(2)
    with pytest.raises(QkvError, match="is neither true nor false"):
        bool(~masks.window(2))


def test_a_composition_names_what_is_wrong_in_it():
    with pytest.raises(QkvError, match=r"^allow is torch.int64; a boolean tensor is wanted"):
        masks.causal() & torch.ones(5, 5, dtype=torch.long)
    with pytest.raises(QkvError, match=r"^lengths run from 3 to 9, but there are 7 keys"):
        (masks.causal() & masks.padding(torch.tensor([3, 9]))).dense((2, 3, 5, 7))


def test_padding_knows_lengths_from_what_is_kept():
    assert isinstance(masks.padding(torch.tensor([3, 7])), Lengths)
    assert isinstance(masks.padding(torch.tensor([True, False])), Padding)


def test_a_mask_of_your_own_needs_only_block():
    class Even(Mask):
        """The keys at even positions."""

        def block(self, block: Block) -> Tensor:
            i, j = block.positions()
            return (j % 2 == 0).expand(len(i), len(j))

    q, k, v = (torch.randn(1, 1, 6, 3, dtype=torch.float64) for _ in range(3))
    allow_TS = reference.pairs(6, 6, lambda i, j: j % 2 == 0 and j <= i)
    want = reference.attend(q.numpy(), k.numpy(), v.numpy(), allow=allow_TS)
    assert np.abs(attend(q, k, v, allow=Even() & masks.causal()).numpy() - want).max() <= 1e-12


def test_masks_of_positions_share_their_offset():
    """A static cache: 8 keys, the one query stands at position 3."""
    near = masks.causal(offset=3) & masks.window(1, offset=3)
    assert near.dense((1, 8)).nonzero()[:, 1].tolist() == [2, 3]
    ids = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2])
    assert (masks.causal(3) & masks.documents(ids, offset=3)).dense((1, 8)).nonzero()[:, 1].tolist() == [2, 3]
    with pytest.raises(QkvError, match=r"have offsets 3 and None; .* give both the same offset$"):
        masks.causal(offset=3) & masks.window(1)
    with pytest.raises(QkvError, match=r"queries reach position 9: give more ids$"):
        masks.documents(ids, offset=8).dense((1, 8))
