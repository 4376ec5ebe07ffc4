"""What is sampled from, how often, and by which random numbers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decode.toy import END, START, Scripted, Toy, sources

from qkv.decode import SearchConfig, search
from qkv.decode.choices import best, filtered, random_numbers


def sample(model: Toy, lengths: list[int], numbers: list[int] | None = None, **choices: object):
    source_BS, keep_BS = sources(*lengths)
    config = SearchConfig(beam=1, **choices)
    start = torch.full((len(lengths),), START)
    numbers_B = None if numbers is None else torch.tensor(numbers)
    return search(model, source_BS, keep_BS, start=start, end=END, config=config, numbers_B=numbers_B)


def tokens_kept(probability_L: list[float], **filters: float) -> set[int]:
    logits_RL = torch.tensor([probability_L], dtype=torch.float64).log()
    probability_RK, tokens_RK = filtered(logits_RL, 1.0, **filters)
    return set(tokens_RK[probability_RK > 0].tolist())


def test_top_p_keeps_the_smallest_set_that_holds_its_share():
    probability_L = [0.0625, 0.5, 0.125, 0.25, 0.0625]  # exact in binary, so that shares can be met exactly
    for top_p, wanted in [(0.25, {1}), (0.5, {1}), (0.51, {1, 3}), (0.75, {1, 3}), (0.76, {1, 3, 2})]:
        assert tokens_kept(probability_L, top_p=top_p) == wanted
    assert tokens_kept(probability_L, top_p=1.0) == {0, 1, 2, 3, 4}
    assert tokens_kept(probability_L, top_k=2) == {1, 3}
    # Of the two that top_k leaves, with 2/3 and 1/3, the first alone holds 0.6.
    assert tokens_kept(probability_L, top_k=2, top_p=0.6) == {1}


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9), st.floats(0.01, 0.99))
def test_top_p_holds_its_share_and_would_not_without_its_least(logits: list[float], top_p: float):
    whole_L = torch.tensor(logits, dtype=torch.float64).softmax(-1)
    probability_RK, tokens_RK = filtered(torch.tensor([logits], dtype=torch.float64), 1.0, top_p=top_p)
    chosen = tokens_RK[probability_RK > 0]
    assert whole_L[chosen].sum() >= top_p - 1e-12
    assert whole_L[chosen].sum() - whole_L[chosen].min() < top_p + 1e-12
    left_out = torch.ones(len(logits), dtype=torch.bool).index_fill(0, chosen, False)
    assert not left_out.any() or whole_L[left_out].max() <= whole_L[chosen].min()


@pytest.mark.parametrize(
    "choices", [{"temperature": 1e-5}, {"temperature": 1e-300}, {"temperature": 5.0, "top_k": 1}]
)
def test_cold_or_from_one_token_is_greedy(choices: dict[str, float]):
    model = Toy(7)
    greedy = sample(model, [3, 5, 8], maximum=9)
    assert [ones[0].tokens for ones in sample(model, [3, 5, 8], maximum=9, **choices)] == [
        ones[0].tokens for ones in greedy
    ]


@pytest.mark.parametrize(
    ("choices", "wanted"),
    [
        ({"temperature": 1.0}, [0.0, 0.5, 0.3, 0.2]),
        ({"temperature": 0.5}, [0.0, 25 / 38, 9 / 38, 4 / 38]),
        ({"temperature": 1.0, "top_k": 2}, [0.0, 5 / 8, 3 / 8, 0.0]),
        ({"temperature": 1.0, "top_p": 0.7}, [0.0, 5 / 8, 3 / 8, 0.0]),
    ],
)
def test_tokens_come_as_often_as_they_are_likely(choices: dict[str, float], wanted: list[float]):
    draws = 4000
    model = Scripted([0.0, 0.5, 0.3, 0.2])
    (found,) = sample(model, [3], maximum=1, n_best=draws, **choices)
    shares = torch.bincount(torch.tensor([one.tokens[0] for one in found]), minlength=4) / draws
    for share, probability in zip(shares.tolist(), wanted, strict=True):
        bound = 4.5 * (probability * (1 - probability) / draws) ** 0.5  # exceeded once in 150,000 times
        assert abs(share - probability) <= bound
    # What a sample is scored by is what the model said, at temperature 1 and with nothing left out.
    for one in found[:: draws // 9]:
        assert one.log_probability == pytest.approx(torch.tensor([0.0, 0.5, 0.3, 0.2]).log()[one.tokens[0]])


def test_the_second_token_is_independent_of_the_first():
    model, draws = Scripted([0.0, 0.5, 0.5], [0.0, 0.5, 0.5]), 4000
    (found,) = sample(model, [3], maximum=2, n_best=draws, temperature=1.0)
    pairs = torch.bincount(
        torch.tensor([2 * one.tokens[0] + one.tokens[1] - 3 for one in found]), minlength=4
    )
    assert ((pairs / draws - 0.25).abs() < 4.5 * (0.25 * 0.75 / draws) ** 0.5).all()


def test_a_seed_and_a_number_decide_a_sample():
    choices = {"temperature": 1.0, "n_best": 3, "maximum": 9, "maximum_ratio": None}
    model = Toy(20, 1.0)
    assert sample(model, [4, 4], **choices) == sample(model, [4, 4], **choices)
    first, again = sample(model, [4, 4], **choices), sample(model, [4, 4], seed=1, **choices)
    assert all(one != other for one, other in zip(first, again, strict=True))
    # The same sentence twice is sampled twice, and alike where its number says so.
    model.source.zero_()
    two = sample(model, [4, 4], **choices)
    assert two[0] != two[1]
    one, other = sample(model, [4, 4], [7, 7], **choices)[0], sample(model, [4, 4], [3, 7], **choices)[1]
    assert [each.tokens for each in one] == [each.tokens for each in other]
    assert len({tuple(one.tokens) for one in two[0]}) == 3


def test_random_numbers_are_even_and_each_sentences_own():
    limit_B = torch.tensor([500, 3, 500])
    drawn_BTW = random_numbers(0, torch.tensor([5, 6, 9]), limit_B, 4)
    assert drawn_BTW.shape == (3, 500, 4)
    assert ((drawn_BTW >= 0) & (drawn_BTW < 1)).all()
    long_BTW = drawn_BTW[[0, 2]].flatten(1)
    assert (long_BTW.mean(1) - 0.5).abs().max() < 4.5 / (12 * 2000) ** 0.5
    assert torch.corrcoef(long_BTW)[0, 1].abs() < 0.1
    assert torch.equal(random_numbers(0, torch.tensor([9]), limit_B[2:], 4)[0], drawn_BTW[2])


def test_the_first_draws_of_many_sentences_are_even():
    first_B = random_numbers(3, torch.arange(4000), torch.ones(4000, dtype=torch.long), 1).flatten()
    counts = torch.histc(first_B, bins=16, min=0, max=1)
    assert ((counts - 250) ** 2 / 250).sum() < 50  # chi-square with 15 degrees: exceeded once in 80,000 times
    assert torch.corrcoef(torch.stack([first_B[:-1], first_B[1:]]))[0, 1].abs() < 4.5 / 4000**0.5


@given(st.integers(2048, 2300), st.integers(1, 9), st.booleans(), st.integers(0, 9))
def test_the_best_of_long_rows_are_those_of_topk(columns: int, k: int, has_ties: bool, seed: int):
    x_RL = torch.randn(5, columns, generator=torch.Generator().manual_seed(seed))
    if has_ties:
        x_RL = x_RL.round()
    x_RL[1, :-3] = -torch.inf  # the best stand in the incomplete block at the end
    values_RK, places_RK = best(x_RL, k)
    assert torch.equal(values_RK, x_RL.topk(k).values)
    assert torch.equal(x_RL.gather(-1, places_RK), values_RK)
    assert all(len(set(places)) == k for places in places_RK.tolist())
