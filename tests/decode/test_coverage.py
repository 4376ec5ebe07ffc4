"""The coverage penalty: by hand, and in a search against every sequence enumerated."""

import math

import pytest
import torch
from tests.decode.toy import END, Plain, Toy, sources, transformer

from qkv.attention.watch import Seen
from qkv.decode import SearchConfig, search
from qkv.decode.coverage import Coverage
from qkv.errors import QkvError


def seen_by_two_layers(*maps: list[list[list[float]]]) -> Seen:
    """Weights of one head in each of two layers, (B,W,S): in one doubled less a bit, in the other only that bit."""
    seen = Seen()
    for path, share in (("a", 1.5), ("b", 0.5)):
        seen.keep(path, share * torch.tensor(maps[0]).unsqueeze(1))
    return seen


def test_by_hand():
    keep_BS = torch.tensor([[True, True, False]])
    seen = seen_by_two_layers([[[0.5, 0.5, 0.0]]])
    coverage = Coverage(seen, keep_BS, weight=2.0)
    assert float(coverage.penalty()) == pytest.approx(2 * (math.log(0.5) + math.log(0.5)))
    coverage.pick(torch.tensor([0]), torch.tensor([[0, 0]]))
    for path in seen:
        seen.keep(path, torch.tensor([[[[0.75, 0.25, 0.0], [0.25, 0.75, 0.0]]]]))
    coverage.look()  # 1.25 and 0.75 for the first prefix, 0.75 and 1.25 for the second: above 1 is no gain
    assert coverage.penalty().tolist() == [[pytest.approx(2 * math.log(0.75))] * 2]


@pytest.mark.parametrize("stop", ["exact", "quick", "never"])
def test_a_search_with_coverage_is_right(stop: str):
    model, (source_BS, keep_BS) = transformer(3), sources(3, 6)
    config = SearchConfig(beam=4, n_best=4, maximum=3, coverage=0.7, stop=stop)
    start = torch.tensor([[1, 2], [2, 1]])
    found = search(model, source_BS, keep_BS, start=start, end=END, config=config)
    for one, source_S, keep_S, given in zip(found, source_BS, keep_BS, start.tolist(), strict=True):
        plain = Plain(model, source_S[keep_S], given, config)
        wanted = plain.beam() if stop == "quick" else plain.all()
        assert [(h.tokens, h.finished) for h in one] == [(tokens, ended) for tokens, _, ended in wanted]
        assert [h.score for h in one] == pytest.approx([score for _, score, _ in wanted], rel=1e-5)
        without = search(
            model, source_BS, keep_BS, start=start, end=END, config=SearchConfig(beam=4, maximum=3)
        )
        assert one[0].score < without[0][0].score


def test_a_model_without_attention_is_named():
    source_BS, keep_BS = sources(3, 6)
    with pytest.raises(QkvError, match="Toy has no attention to watch"):
        search(
            Toy(), source_BS, keep_BS, start=torch.tensor([1, 1]), end=END, config=SearchConfig(coverage=0.2)
        )
