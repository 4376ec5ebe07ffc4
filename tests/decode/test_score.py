"""Scores of given targets, token by token."""

import pytest
import torch
from tests.decode.toy import Plain, Toy, sources, transformer

from qkv.decode import SearchConfig, score
from qkv.errors import QkvError


@pytest.mark.parametrize("make", [lambda: Toy(6), lambda: transformer(6)])
def test_scores_are_those_of_one_token_after_another(make):
    model, (source_BS, keep_BS) = make(), sources(3, 8, 5, 4)
    start = torch.tensor([[1, 2], [3, 1], [2, 2], [1, 1]])
    targets = [[4, 5, 0], [1], [], [2, 2, 2, 2, 0]]
    scores = score(model, source_BS, keep_BS, start=start, targets=targets)
    assert [len(log_probability_T) for log_probability_T in scores] == [3, 1, 0, 5]
    for number, (log_probability_T, target) in enumerate(zip(scores, targets, strict=True)):
        plain = Plain(model, source_BS[number][keep_BS[number]], start[number].tolist(), SearchConfig())
        wanted = [plain.next(target[:t])[token] for t, token in enumerate(target)]
        assert log_probability_T.tolist() == pytest.approx(wanted, rel=1e-9)


def test_nothing_to_score():
    source_BS, keep_BS = sources(3, 8)
    start = torch.tensor([1, 2])
    assert [len(one) for one in score(Toy(), source_BS, keep_BS, start=start, targets=[[], []])] == [0, 0]
    assert score(Toy(), source_BS[:0], keep_BS[:0], start=start[:0], targets=[]) == []


def test_a_target_for_each_sentence_is_wanted():
    source_BS, keep_BS = sources(3, 8)
    with pytest.raises(QkvError, match="1 targets for 2 sentences"):
        score(Toy(), source_BS, keep_BS, start=torch.tensor([1, 2]), targets=[[1]])
