"""Searches against the same searches written plainly, every sequence enumerated, and the laws that they obey."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decode.toy import END, START, Found, Plain, Scripted, Toy, luong, sources, transformer
from torch import Tensor

from qkv.decode import Hypothesis, SearchConfig, score, search
from qkv.errors import QkvError
from qkv.models.interface import Generator

PENALTIES = st.sampled_from(["length", "gnmt", "none"])
STOPS = st.sampled_from(["exact", "quick", "never"])


def agree(found: list[Hypothesis], wanted: list[Found]) -> None:
    assert [(one.tokens, one.finished) for one in found] == [(tokens, ended) for tokens, _, ended in wanted]
    assert [one.score for one in found] == pytest.approx(
        [score for _, score, _ in wanted], rel=1e-9, abs=1e-9
    )


def run(model: Generator, config: SearchConfig, *lengths: int, seed: int = 0) -> list[list[Hypothesis]]:
    source_BS, keep_BS = sources(*lengths, seed=seed)
    start = torch.full((len(lengths),), START)
    return search(model, source_BS, keep_BS, start=start, end=END, config=config)


@given(st.data())
def test_a_beam_as_wide_as_all_live_prefixes_finds_the_best_of_all_sequences(data: st.DataObject):
    vocabulary, maximum = data.draw(st.integers(3, 4)), data.draw(st.integers(1, 4))
    width = (vocabulary - 1) ** maximum
    config = SearchConfig(
        beam=max(width, 2),
        n_best=data.draw(st.integers(1, max(width, 2))),
        normalize=data.draw(PENALTIES),
        alpha=data.draw(st.sampled_from([0.0, 0.6, 1.0, 2.0])),
        stop=data.draw(st.sampled_from(["exact", "never"])),
        minimum=data.draw(st.integers(0, maximum - 1)),
        maximum=maximum,
    )
    model = Toy(vocabulary, data.draw(st.sampled_from([0.3, 1.0, 3.0])), seed=data.draw(st.integers(0, 99)))
    source_BS, keep_BS = sources(3, 3)
    found = search(model, source_BS, keep_BS, start=torch.tensor([1, 2]), end=END, config=config)
    for one, source_S, start in zip(found, source_BS, [[1], [2]], strict=True):
        agree(one, Plain(model, source_S, start, config).all())


@given(st.data())
def test_narrow_beams_do_as_plain_lists_do_and_stop_without_a_loss(data: st.DataObject):
    maximum, beam = data.draw(st.integers(2, 8)), data.draw(st.integers(2, 5))
    config = SearchConfig(
        beam=beam,
        n_best=data.draw(st.integers(1, beam)),
        normalize=data.draw(PENALTIES),
        alpha=data.draw(st.floats(0, 2)),
        stop=data.draw(STOPS),
        minimum=data.draw(st.integers(0, maximum - 1)),
        maximum=maximum,
    )
    model = Toy(6, data.draw(st.sampled_from([0.5, 2.0, 4.0])), seed=data.draw(st.integers(0, 99)))
    source_BS, keep_BS = sources(5, 5, 5)
    found = search(model, source_BS, keep_BS, start=torch.full((3, 1), START), end=END, config=config)
    for one, source_S in zip(found, source_BS, strict=True):
        agree(one, Plain(model, source_S, [START], config).beam())


@pytest.mark.parametrize("make", [transformer, luong])
@pytest.mark.parametrize("stop", ["exact", "quick"])
def test_the_transformer_and_the_recurrent_model_too(make, stop: str):
    model, config = make(), SearchConfig(beam=3, n_best=3, maximum=7, stop=stop)
    source_BS, keep_BS = sources(4, 7, 5)
    found = search(model, source_BS, keep_BS, start=torch.full((3,), START), end=END, config=config)
    for one, source_S, keep_S in zip(found, source_BS, keep_BS, strict=True):
        agree(one, Plain(model, source_S[keep_S], [START], config).beam())


@given(st.integers(0, 99), st.integers(0, 3))
def test_a_beam_of_one_takes_the_likeliest_token_and_stops_at_its_end(seed: int, minimum: int):
    model, config = Toy(7, 3.0, seed), SearchConfig(beam=1, minimum=minimum, maximum=9)
    source_BS, keep_BS = sources(5, 5, 5)
    found = search(model, source_BS, keep_BS, start=torch.full((3,), START), end=END, config=config)
    for one, source_S in zip(found, source_BS, strict=True):
        agree(one, Plain(model, source_S, [START], config).greedy())


@pytest.mark.parametrize("normalize", ["length", "gnmt", "none"])
def test_the_exact_stop_saves_steps(normalize: str):
    rows, found = {}, {}
    for stop in ("exact", "never"):
        model = Toy(6, 3.0, seed=1)
        found[stop] = run(model, SearchConfig(beam=3, normalize=normalize, stop=stop, maximum=25), 4, 5, 6, 7)
        rows[stop] = model.rows
    assert found["exact"] == found["never"]
    assert rows["never"] == [4, *[12] * 24]
    assert sum(rows["exact"]) < 0.8 * sum(rows["never"])


def test_a_live_prefix_that_may_still_win_is_waited_for():
    # Ending at once: log .5 / 1 = -0.69. Going on: log .4 = -0.92, but certain from then on, so that three tokens
    # have log .4 / 3 = -0.31. Whoever compared -0.92 with -0.69 would have stopped.
    model = Scripted([0.5, 0.4, 0.1], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0])
    ((best,),) = run(model, SearchConfig(beam=2, maximum=3), 4)
    assert best.tokens == [1, 1]
    assert best.score == pytest.approx(torch.tensor(0.4).log() / 3)
    # With two tokens at most, log .4 / 2 = -0.46 would still do, but it is cut there, and what ended comes first.
    model.rows.clear()
    ((best,),) = run(model, SearchConfig(beam=2, maximum=2), 4)
    assert (best.tokens, best.finished, len(model.rows)) == ([], True, 2)
    # Without normalisation -0.92 cannot become better than -0.69: one step is enough.
    model.rows.clear()
    ((best,),) = run(model, SearchConfig(beam=2, maximum=3, normalize="none"), 4)
    assert (best.tokens, len(model.rows)) == ([], 1)


@pytest.mark.parametrize("make", [lambda: Toy(9, 3.0), lambda: transformer(9), lambda: luong(9, seed=4)])
@pytest.mark.parametrize(
    "config",
    [
        SearchConfig(beam=4, n_best=2, maximum=12),
        SearchConfig(beam=4, n_best=2, maximum=12, stop="quick"),
        SearchConfig(beam=1, maximum=12),
        SearchConfig(beam=1, maximum=12, temperature=0.8, n_best=3, seed=5),
    ],
    ids=["exact", "quick", "greedy", "sampled"],
)
def test_neighbours_and_order_change_no_token(make, config: SearchConfig):
    model, lengths = make(), [1 + 7 * i % 13 for i in range(32)]
    source_BS, keep_BS = sources(*lengths)
    start, numbers_B = torch.arange(32) % 8 + 1, torch.arange(32)

    def written(order: torch.Tensor) -> list[list[tuple[list[int], float]]]:
        length = int(keep_BS[order].sum(1).max())  # no more padding than these sentences need
        found = search(
            model,
            source_BS[order, :length],
            keep_BS[order, :length],
            start=start[order],
            end=END,
            config=config,
            numbers_B=numbers_B[order],
        )
        return [[(one.tokens, pytest.approx(one.score, rel=1e-9)) for one in ones] for ones in found]

    together, order = written(numbers_B), torch.randperm(32)
    assert [together[i] for i in order] == written(order)
    assert together[::5] == [written(numbers_B[i : i + 1])[0] for i in range(0, 32, 5)]
    assert len({len(ones[0][0]) for ones in together}) > 2  # they do leave at different times


@pytest.mark.parametrize("make", [lambda: Toy(9, 3.0), lambda: transformer(9), lambda: luong(9, seed=4)])
def test_scores_are_those_of_teacher_forcing(make):
    model, config = make(), SearchConfig(beam=4, n_best=4, maximum=6, normalize="gnmt", alpha=0.7)
    source_BS, keep_BS = sources(3, 8, 5)
    start = torch.tensor([[1, 2], [3, 1], [2, 2]])
    found = search(model, source_BS, keep_BS, start=start, end=END, config=config)
    for rank in range(4):
        ones = [sentence[rank] for sentence in found]
        targets = [[*one.tokens, *[END] * one.finished] for one in ones]
        again = score(model, source_BS, keep_BS, start=start, targets=targets)
        for one, target, log_probability_T in zip(ones, targets, again, strict=True):
            assert one.log_probabilities == pytest.approx(log_probability_T.tolist(), rel=1e-9)
            length_penalty = ((5 + len(target)) / 6) ** 0.7
            assert one.score == pytest.approx(float(log_probability_T.sum()) / length_penalty, rel=1e-9)
            assert one.log_probability == pytest.approx(float(log_probability_T.sum()), rel=1e-9)


@pytest.mark.parametrize("make", [transformer, luong])
def test_in_fp32_neighbours_decide_ties_at_most(make):
    model, lengths, config = make(9).float(), [1 + 7 * i % 13 for i in range(32)], SearchConfig(maximum=12)
    source_BS, keep_BS = sources(*lengths)
    together = run(model, config, *lengths)
    for row, wanted in enumerate(together):
        mine = slice(row, row + 1), slice(0, lengths[row])
        (alone,) = search(
            model, source_BS[mine], keep_BS[mine], start=torch.tensor([START]), end=END, config=config
        )
        same = [one.tokens for one in alone] == [one.tokens for one in wanted]
        assert same or abs(alone[0].score - wanted[0].score) < 1e-4


class Endless(Toy):
    """Never ends."""

    def logits(self, x_BTD: Tensor) -> Tensor:
        return super().logits(x_BTD).index_fill(-1, torch.tensor(END), -torch.inf)


def test_minimum_maximum_and_ratio_are_kept():
    lengths = [2, 5, 9]
    for config in (SearchConfig, lambda **choices: SearchConfig(beam=1, **choices)):
        found = run(Toy(5, 0.1), config(minimum=4, maximum=6), *lengths)
        assert all(4 <= len(ones[0].tokens) <= 6 for ones in found)
        assert all(len(one.log_probabilities) <= 6 for ones in found for one in ones)
        found = run(
            Endless(5), config(maximum=12, maximum_ratio=1.5, maximum_extra=1, stop="quick"), *lengths
        )
        assert [len(ones[0].tokens) for ones in found] == [4, 8, 12]  # 1.5 · 2 + 1, 1.5 · 5 + 1, and 12
        assert not any(one.finished for ones in found for one in ones)
    assert run(Toy(5), SearchConfig(maximum_ratio=0.0, maximum_extra=0, minimum=2), 3)[0][0].finished


def test_given_tokens_are_neither_returned_nor_scored_but_read():
    model, (source_BS, keep_BS) = Toy(6), sources(4, 4)
    config = SearchConfig(beam=3, n_best=3, maximum=5)
    start = torch.tensor([[1, 2, 3], [4, 4, 1]])
    found = search(model, source_BS, keep_BS, start=start, end=END, config=config)
    for one, source_S, given_P in zip(found, source_BS, start.tolist(), strict=True):
        agree(one, Plain(model, source_S, given_P, config).beam())


@pytest.mark.parametrize("config", [SearchConfig(beam=3, maximum=20), SearchConfig(beam=1, maximum=20)])
def test_finished_sentences_leave_the_batch(config: SearchConfig):
    model = Toy(6, 4.0, seed=1)
    found = run(model, config, *range(1, 17))
    assert model.rows[0] == 16
    rows = model.rows[1:]
    assert rows[0] <= 16 * config.beam
    assert rows == sorted(rows, reverse=True)
    assert len(set(rows)) > 3
    if config.beam == 1:  # a sentence needs as many steps as it has tokens, with the end
        wanted = [
            sum(len(one[0].log_probabilities) > step for one in found) for step in range(len(model.rows))
        ]
        assert model.rows == wanted


def test_encode_once_and_write_in_many_languages():
    model, (source_BS, keep_BS) = transformer(9), sources(4, 7)
    config, tags = SearchConfig(beam=3, maximum=8), torch.tensor([1, 2, 3])
    rows = torch.arange(2).repeat_interleave(3)
    state, calls = model.encode(source_BS, keep_BS), []
    model.encoder[0].register_forward_hook(lambda *_: calls.append(1))
    start = tags.repeat(2)
    together = search(model, state.pick(rows), keep_BS[rows], start=start, end=END, config=config)
    assert not calls
    for number, tag in enumerate(tags):
        alone = search(model, source_BS, keep_BS, start=tag.expand(2), end=END, config=config)
        assert [ones[0].tokens for ones in together[number::3]] == [ones[0].tokens for ones in alone]
    assert len({tuple(ones[0].tokens) for ones in together}) > 2


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_no_numbers_are_one_sentence_of_error(bad: float):
    model = Toy(5)
    whole = model.step

    def step(tokens_RT, state):
        logits_RL, state = whole(tokens_RT, state)
        if len(model.rows) == 3:
            logits_RL[2 * len(logits_RL) // 3, 2] = bad
        return logits_RL, state

    model.step = step
    for beam in (1, 4):
        model.rows.clear()
        with pytest.raises(QkvError, match="logits for token 3 of sentence 2 are not numbers"):
            run(model, SearchConfig(beam=beam, minimum=5), 3, 4, 5)


def test_a_token_that_the_model_forbids_is_never_written():
    model = Toy(5)
    model.logits = lambda x_BTD: (x_BTD @ model.out).index_fill(-1, torch.tensor([2, 3]), -torch.inf)
    found = run(model, SearchConfig(beam=4, n_best=4, maximum=3), 3, 4)
    assert all({*one.tokens} <= {1, 4} for ones in found for one in ones)
    assert all(one.score > -torch.inf for ones in found for one in ones)


def test_half_precision_is_summed_in_fp32():
    model = transformer(9).bfloat16()
    ((one,), (_,)) = run(model, SearchConfig(maximum=6), 3, 5)
    assert one.log_probability == pytest.approx(one.score * len(one.log_probabilities), rel=1e-5)
    assert any(torch.tensor(value).bfloat16().item() != value for value in one.log_probabilities)


def test_an_empty_batch_and_an_empty_sentence():
    model = transformer()
    nothing = torch.zeros(0, 4, dtype=torch.long)
    assert search(model, nothing, nothing.bool(), start=nothing[:, 0], end=END) == []
    (alone,) = run(model, SearchConfig(maximum=5), 3)
    source_BS, keep_BS = sources(3, 3)
    keep_BS[1] = False
    found = search(
        model, source_BS, keep_BS, start=torch.full((2,), START), end=END, config=SearchConfig(maximum=5)
    )
    assert found[0][0].tokens == alone[0].tokens
    assert len(found[1]) == 1


def test_what_cannot_be_searched_is_said():
    model, (source_BS, keep_BS) = transformer(), sources(3, 5)
    start = torch.full((2,), START)
    with pytest.raises(QkvError, match="end is 7; one of the model's tokens, 0 to 6"):
        search(model, source_BS, keep_BS, start=start, end=7)
    with pytest.raises(QkvError, match=r"start is torch\.int64 of shape \(3,\) for 2 sentences"):
        search(model, source_BS, keep_BS, start=torch.full((3,), START), end=END)
    with pytest.raises(QkvError, match=r"start is torch\.float32"):
        search(model, source_BS, keep_BS, start=start.float(), end=END)
    with pytest.raises(QkvError, match=r"keep is torch\.int64"):
        search(model, source_BS, keep_BS.long(), start=start, end=END)
    with pytest.raises(QkvError, match=r"training mode.*model.eval\(\)"):
        search(model.train(), source_BS, keep_BS, start=start, end=END)
