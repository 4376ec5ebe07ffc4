"""Batches: within budget, every pair, little padding, and any position again from two numbers."""

import subprocess
import sys
import time
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.batches import (
    Batch,
    Batches,
    BatchesConfig,
    _order,
    cut,
    in_input_order,
    in_order,
    make_batch,
    source_batches,
)
from qkv.data.pairs import Pairs, encode_pairs
from qkv.data.ragged import Ragged
from qkv.data.text import Corpus, ParallelText
from qkv.data.tokens import Tokens
from qkv.errors import QkvError

MULTI30K = Path(__file__).parents[2].parent / "shared" / "data" / "multi30k"


def made_of(lengths: list[tuple[int, int]], weights: tuple[float, ...] = (1.0,)) -> Pairs:
    """Pairs of these lengths; pair n is of corpus n modulo the number of weights, and all its ids are 10 + n."""
    sources, targets = ([[10 + row] * pair[side] for row, pair in enumerate(lengths)] for side in (0, 1))
    return Pairs(
        Ragged.of(sources),
        Ragged.of(targets),
        tags=np.full(len(lengths), 4, dtype=np.int32),
        corpora=np.arange(len(lengths)) % len(weights),
        lines=np.arange(1, len(lengths) + 1),
        names=tuple(f"corpus{index}" for index in range(len(weights))),
        weights=weights,
    )


def some(count: int, weights: tuple[float, ...] = (1.0,)) -> Pairs:
    generator = np.random.default_rng(0)
    source = generator.integers(0, 40, count)
    target = np.maximum(0, source + generator.integers(-5, 6, count))
    return made_of(list(zip(source.tolist(), target.tolist(), strict=True)), weights)


lengths = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=60)


def equal(one: Batch, other: Batch) -> bool:
    fields = ("source_BS", "keep_BS", "target_BT", "label_BT", "keep_BT")
    return all(torch.equal(getattr(one, field), getattr(other, field)) for field in fields) and (
        one.rows.tolist() == other.rows.tolist()
    )


def test_a_batch_by_hand():
    pairs = made_of([(2, 1), (0, 3)])
    batch = make_batch(pairs, np.array([1, 0]))
    assert batch.source_BS.tolist() == [[2, 0, 0], [10, 10, 2]]
    assert batch.keep_BS.tolist() == [[True, False, False], [True, True, True]]
    assert batch.target_BT.tolist() == [[4, 11, 11, 11], [4, 10, 0, 0]]
    assert batch.label_BT.tolist() == [[11, 11, 11, 2], [10, 2, 0, 0]]
    assert batch.keep_BT.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.rows.tolist() == [1, 0]
    assert {batch.source_BS.dtype, batch.target_BT.dtype, batch.label_BT.dtype} == {torch.int64}
    assert {batch.keep_BS.dtype, batch.keep_BT.dtype} == {torch.bool}


@given(lengths, st.integers(13, 60), st.integers(0, 1), st.integers(0, 3), st.integers(0, 3))
def test_the_budget_is_never_exceeded_and_every_pair_comes_once(shapes, budget, jitter, seed, epoch):
    config = BatchesConfig(budget=budget, longest=13, jitter=float(jitter))
    batches = Batches(made_of(shapes), config, seed=seed).epoch(epoch)
    seen = []
    for batch in batches:
        assert 0 < batch.source_BS.numel() <= budget
        assert 0 < batch.target_BT.numel() <= budget
        assert batch.keep_BS.any(dim=0).all(), "a column of nothing but padding"
        assert batch.keep_BT.any(dim=0).all(), "a column of nothing but padding"
        seen += batch.rows.tolist()
    assert sorted(seen) == list(range(len(shapes)))


def test_batches_are_cut_where_the_budget_is_full():
    lengths = np.array([2, 2, 2, 2, 2, 3, 3, 9, 1])
    assert cut(lengths, 4).tolist() == [0, 2, 4, 5, 6, 7, 8, 9]
    assert cut(lengths, 6).tolist() == [0, 3, 5, 7, 8, 9]  # two 2s and a 3 would be 9 positions; 9 is alone
    assert cut(lengths, 6, 2).tolist() == [0, 1, 4, 6, 7, 8, 9]
    assert cut(np.array([], dtype=np.int64), 6).tolist() == [0]


def test_neighbours_have_like_lengths_on_both_sides():
    generator = np.random.default_rng(0)
    source, target = generator.integers(1, 9, (2, 5000))
    order = _order(source, target, 0.0, np.random.PCG64(0))
    longer = np.maximum(source, target)[order]
    difference = (source - target)[order]
    assert (np.diff(longer) >= 0).all()
    # To and fro: from one pair to the next the difference never jumps, not even where the longer side grows.
    assert np.abs(np.diff(difference)).max() == 1


def test_any_position_is_the_same_after_a_restart():
    pairs, config = some(700), BatchesConfig(budget=300)
    for epoch in (0, 5):
        whole = list(Batches(pairs, config, seed=3).epoch(epoch))
        again = Batches(pairs, config, seed=3).epoch(epoch)  # an object that has made no other epoch
        assert len(again) == len(whole) > 50
        for index in (0, 17, len(whole) - 1):
            assert equal(again[index], whole[index])
        resumed = list(again.start(17))
        assert len(resumed) == len(whole) - 17
        assert all(map(equal, resumed, whole[17:]))


def test_another_process_makes_the_same_plan():
    code = (
        "import sys, runpy; module = runpy.run_path(sys.argv[1]);"
        "print([batch.rows.tolist() for batch in module['Batches'](module['some'](300), seed=7).epoch(2)])"
    )
    run = subprocess.run([sys.executable, "-c", code, __file__], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str([batch.rows.tolist() for batch in Batches(some(300), seed=7).epoch(2)])


def test_seed_and_epoch_decide_the_order():
    plans = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1)):
        plan = Batches(some(700), BatchesConfig(budget=300), seed=seed).epoch(epoch)
        plans.append([plan.rows(index).tolist() for index in range(len(plan))])
    assert len({str(plan) for plan in plans}) == 4
    # Not only the order of the batches is another one: the pairs are together with others.
    first, second = ({frozenset(rows) for rows in plan} for plan in plans[:2])
    assert len(first & second) < 0.1 * len(first)


def test_batches_of_all_lengths_are_mixed():
    plan = Batches(some(2000), BatchesConfig(budget=300)).epoch(0)
    widths = [plan[index].source_BS.shape[1] for index in range(len(plan))]
    first, second = np.mean(widths[: len(widths) // 2]), np.mean(widths[len(widths) // 2 :])
    assert abs(first - second) < 4, "short batches came before long ones"


def test_weights_are_kept_on_average_and_whole_parts_always():
    weights = (1.0, 0.25, 2.5)
    batches = Batches(some(600, weights), BatchesConfig(budget=500), seed=1)
    totals = Counter()
    for epoch in range(40):
        plan = batches.epoch(epoch)
        times = Counter(chain.from_iterable(plan.rows(index).tolist() for index in range(len(plan))))
        assert {times[row] for row in range(0, 600, 3)} == {1}
        assert {times[row] for row in range(1, 600, 3)} <= {0, 1}
        assert {times[row] for row in range(2, 600, 3)} == {2, 3}
        totals.update(times)
    for corpus, weight in enumerate(weights):
        mean = sum(totals[row] for row in range(corpus, 600, 3)) / (200 * 40)
        assert mean == pytest.approx(weight, abs=0.02)  # the fraction's standard error is 0.006


def test_longer_pairs_are_left_out_and_said_to_be():
    batches = Batches(made_of([(3, 3), (9, 3), (3, 12), (8, 8)]), BatchesConfig(budget=30, longest=9))
    assert batches.too_long.tolist() == [1, 2]
    assert batches.notice == (
        "2 of 4 pairs are longer than 9 tokens and left out, first corpus0 line 2 with 10"
    )
    plan = batches.epoch(0)
    assert sorted(chain.from_iterable(batch.rows.tolist() for batch in plan)) == [0, 3]
    assert Batches(made_of([(3, 3)])).notice is None


def test_what_cannot_make_a_batch_is_refused():
    with pytest.raises(
        QkvError, match="longest is 300 and budget 256: a batch must hold the longest sentence"
    ):
        BatchesConfig(budget=256, longest=300)
    with pytest.raises(QkvError, match=r"jitter is 2\.0; it is a part of the pairs"):
        BatchesConfig(jitter=2.0)
    with pytest.raises(QkvError, match=r"all 1 pairs are longer than batches\.longest = 9 tokens: raise it"):
        Batches(made_of([(9, 1)]), BatchesConfig(longest=9))
    with pytest.raises(
        QkvError, match=r"1 of 2 pairs are longer .* corpus0 line 1 with 10: raise batches\.longest"
    ):
        Batches(made_of([(9, 1), (1, 1)]), BatchesConfig(longest=9), strict=True)


@given(lengths, st.integers(5, 60))
def test_evaluation_takes_every_pair_once_and_long_ones_alone(shapes, budget):
    plan = in_order(made_of(shapes), budget)
    batches = list(plan)
    assert sorted(chain.from_iterable(batch.rows.tolist() for batch in batches)) == list(range(len(shapes)))
    for batch in batches:
        assert len(batch.rows) == 1 or max(batch.source_BS.numel(), batch.target_BT.numel()) <= budget
    assert all(map(equal, in_order(made_of(shapes), budget), batches))


@given(lengths, st.integers(5, 60))
def test_translations_return_to_the_order_of_their_sentences(shapes, budget):
    sources = made_of(shapes).sources
    batches = list(source_batches(sources, budget))
    widths = [batch.source_BS.shape[1] for batch in batches]
    assert widths == sorted(widths, reverse=True)
    for batch in batches:
        assert len(batch.rows) == 1 or batch.source_BS.numel() <= budget
        assert (batch.source_BS != 0).equal(batch.keep_BS)
    outputs = [[row.tolist() for row in batch.source_BS] for batch in batches]
    ordered = in_input_order([batch.rows for batch in batches], outputs)
    expected = [[10 + row] * length + [2] for row, (length, _) in enumerate(shapes)]
    assert [[index for index in ids if index] for ids in ordered] == expected


def test_no_sentences_are_no_batches():
    assert list(source_batches(Ragged.of([]))) == []
    assert in_input_order([], []) == []


def test_a_million_pairs_are_planned_in_about_a_second():
    generator = np.random.default_rng(0)
    source = np.clip(generator.lognormal(3, 0.5, 1_000_000), 1, 200).astype(np.int32)
    target = np.clip(source * generator.normal(1.1, 0.15, 1_000_000), 1, 200).astype(np.int32)
    sides = [Ragged(np.zeros(side.sum(), dtype=np.int32), side) for side in (source, target)]
    zeros = np.zeros(1_000_000, dtype=np.int32)
    batches = Batches(Pairs(*sides, tags=zeros, corpora=zeros, lines=zeros, names=("x",), weights=(1.0,)))
    start = time.process_time()
    plan = batches.epoch(0)
    assert time.process_time() - start < 2  # 0.25 s here, with room for slow machines
    assert sum(len(plan.rows(index)) for index in range(len(plan))) == 1_000_000 - len(batches.too_long)


@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"needs Multi30k in {MULTI30K} (see SOURCES.md there)")
def test_most_positions_are_real_on_multi30k():
    files = [str(MULTI30K / f"train.{language}.gz") for language in ("en", "de")]
    text = ParallelText([Corpus(source=files[0], target=files[1])])
    tokens = Tokens.train((side for pair in text for side in pair[:2]), size=8000)
    batches = Batches(encode_pairs(text, tokens, tokens), BatchesConfig(budget=4096))
    assert [report.kept + report.skipped for report in text.reports] == [29_000]
    for epoch in range(3):
        assert batches.epoch(epoch).real_share() >= 0.95
