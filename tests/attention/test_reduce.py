"""Reducers: what streams over row blocks is what the whole map, in float64, says.

Axes: B batch, H heads, G key heads, T query length, S key length, K key width per head.
"""

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.attention import reference
from tests.attention.paths import Watching
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from qkv.attention import masks
from qkv.attention import reduce as module
from qkv.attention.attend import Attend, weights
from qkv.attention.masks import Mask
from qkv.attention.normalize import NORMALIZERS
from qkv.attention.reduce import REDUCERS, Entropy, MaxLogit, Reducer, Rows, TopK
from qkv.attention.scores import SCORES, Concat, Score
from qkv.attention.watch import watch
from qkv.errors import QkvError

B, H, K = 2, 3, 5

# What the reducers should give, from a whole map in float64


def entropy(w: Tensor, _: Tensor) -> Tensor:
    return -torch.where(w > 0, w * w.clamp(min=1e-300).log(), 0.0).sum(-1)


def distance(w: Tensor, _: Tensor) -> Tensor:
    T, S = w.shape[-2:]
    out = torch.zeros(w.shape[:-1], dtype=w.dtype)
    for t in range(T):
        for s in range(S):
            out[..., t] += w[..., t, s] * abs(S - T + t - s)
    return out


EXPECTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "full": lambda w, _: w,
    "entropy": entropy,
    "distance": distance,
    "column_mass": lambda w, _: w.sum(-2),
    "max_logit": lambda w, logits: torch.cat([logits.flatten(-2), torch.full((B, H, 1), -math.inf)], -1).amax(
        -1
    ),
}


def assert_reduced(name: str, kept: Tensor, w: Tensor, logits: Tensor) -> None:
    """`w` the weights and `logits` the logits, -inf where not allowed, both (B, H, T, S) in float64."""
    assert kept.dtype == torch.float32
    if name == "top_k":
        values, keys = kept.double().unbind(-1)
        k = min(5, w.shape[-1])
        torch.testing.assert_close(values, w.sort(-1, descending=True).values[..., :k], rtol=0, atol=2e-5)
        torch.testing.assert_close(values, w.gather(-1, keys.long()), rtol=0, atol=2e-5)
        assert all(len(row.unique()) == k for row in keys.flatten(0, -2))
    else:
        wanted = EXPECTED[name](w, logits)
        assert kept.shape == wanted.shape
        torch.testing.assert_close(kept.double(), wanted, rtol=1e-5, atol=3e-5)


def seen_by_all(
    attend: Attend, *inputs: Tensor, block: int = module.BLOCK, **options: Any
) -> dict[str, Tensor]:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(module, "BLOCK", block)
        seen = {name: stack.enter_context(watch(attend, keep=name)) for name in REDUCERS}
        attend(*inputs, **options)
        return {name: kept["attend"] for name, kept in seen.items()}


MASKS: dict[str, Callable[[int, int], Mask | Tensor | None]] = {
    "none": lambda T, S: None,
    "causal": lambda T, S: masks.causal(),
    "causal from 0": lambda T, S: masks.causal(offset=0),
    "window": lambda T, S: masks.window(1),
    "causal window": lambda T, S: masks.causal() & masks.window(2),
    "padding": lambda T, S: masks.padding(torch.tensor([max(S - 2, 0), S])),
    "nothing but padding": lambda T, S: masks.padding(torch.tensor([0, S])),
    "causal padding": lambda T, S: masks.causal() & masks.padding(torch.tensor([max(S - 2, 0), S])),
    "either": lambda T, S: masks.causal() | masks.padding(torch.arange(S).expand(B, S) % 2 == 0),
    "not causal": lambda T, S: ~masks.causal(),
    "dense": lambda T, S: torch.rand(B, H, T, S) < 0.5,
    "dense for all queries": lambda T, S: torch.rand(B, 1, 1, S) < 0.5,
    "blocked rows": lambda T, S: (torch.rand(B, H, T, 1) < 0.5).expand(B, H, T, S),
}


def dense(allow: Mask | Tensor | None, T: int, S: int) -> Tensor:
    if allow is None:
        return torch.ones(B, H, T, S, dtype=torch.bool)
    return allow.dense((B, H, T, S)) if isinstance(allow, Mask) else allow.expand(B, H, T, S)


@pytest.mark.parametrize("sizes", [(5, 7), (7, 5), (5, 5)], ids=str)
@pytest.mark.parametrize("kind", MASKS)
def test_every_reducer_equals_the_loop(kind: str, sizes: tuple[int, int]):
    """In one block, in several, and in one for each query."""
    T, S = sizes
    q, k, v, bias = (
        torch.randn(B, H, T, K),
        torch.randn(B, 1, S, K),
        torch.randn(B, 1, S, 2),
        torch.randn(B, H, T, S),
    )
    allow = MASKS[kind](T, S)
    may = dense(allow, T, S)
    w = torch.from_numpy(reference.weights(q, k, beta=0.7, allow=may.numpy(), bias=bias))
    logits = (0.7 * q.double() @ k.double().mT + bias).masked_fill(~may, -math.inf)
    for block in (module.BLOCK, 40, 1):
        for name, kept in seen_by_all(Attend(beta=0.7), q, k, v, allow=allow, bias=bias, block=block).items():
            assert_reduced(name, kept, w, logits)


@given(
    T=st.integers(0, 11),
    S=st.integers(0, 11),
    G=st.sampled_from([1, 3]),
    kind=st.sampled_from(sorted(MASKS)),
    normalize=st.sampled_from(sorted(NORMALIZERS)),
    block=st.sampled_from([1, 30, 100, module.BLOCK]),
    beta=st.sampled_from([None, 0.0, 2.0, -1.0, math.inf]),
    seed=st.integers(0, 1000),
)
def test_every_reducer_equals_the_whole_map(
    T: int, S: int, G: int, kind: str, normalize: str, block: int, beta: float | None, seed: int
):
    torch.manual_seed(seed)
    q, k, v = torch.randn(B, H, T, K), torch.randn(B, G, S, K), torch.randn(B, G, S, 2)
    allow = MASKS[kind](T, S)
    attend = Attend(beta=beta, normalize=normalize)
    seen = seen_by_all(attend, q, k, v, allow=allow, block=block)
    w = weights(q.double(), k.double(), beta=beta, normalize=normalize, allow=allow)
    factor = {None: K**-0.5, math.inf: 1.0}.get(beta, beta)
    logits = factor * (q.double() @ k.double().mT)
    logits = logits.masked_fill(~dense(allow, T, S), -math.inf)
    assert set(seen) == set(REDUCERS)
    for name, kept in seen.items():
        assert_reduced(name, kept, w, logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("block", [40, module.BLOCK])
@pytest.mark.parametrize("name", SCORES)
def test_every_score_in_every_dtype_with_blocked_rows(name: str, block: int, dtype: torch.dtype):
    """A masked score is the lowest number of fp32, whatever the dtype of the model is."""
    T, S = 5, 7
    score: Score = SCORES[name].sized(width=K, heads=H, length=S).to(dtype)
    q, k = torch.randn(B, H, T, K, dtype=dtype), torch.randn(B, H, S, K, dtype=dtype)
    bias = torch.randn(H, T, S, dtype=dtype)
    allow = masks.causal() & torch.tensor([True, False]).view(B, 1, 1, 1)
    seen = seen_by_all(Attend(score=score), q, k, k, allow=allow, bias=bias, block=block)
    with torch.no_grad():
        scores = score.double()(q.double(), k.double())
    logits = (scores / math.sqrt(K) + bias.double()).masked_fill(~dense(allow, T, S), -math.inf)
    w = logits.softmax(-1).nan_to_num(0.0)
    assert (w[1] == 0).all()
    # Here bf16 is the model's own: its scores, where they need products in bf16, are as exact as that.
    tolerance = 0.05 if dtype == torch.bfloat16 else 2e-5
    for reducer in EXPECTED:
        kept, wanted = seen[reducer].double(), EXPECTED[reducer](w, logits)
        torch.testing.assert_close(kept, wanted, rtol=tolerance, atol=tolerance)


# By hand


def keep(name: str | Reducer, q: Tensor, k: Tensor, allow: Mask | None = None, **choices: Any) -> Tensor:
    attend = Attend(**choices)
    with watch(attend, keep=name) as seen:
        attend(q, k, k, allow=allow)
    return seen["attend"]


def test_logits_0_and_1_by_hand():
    """Weights (1, e) / (1 + e); the query stands beside the second key."""
    q, k = torch.ones(1, 1, 1, 1), torch.tensor([0.0, 1.0]).view(1, 1, 2, 1)
    e = math.e
    torch.testing.assert_close(keep("full", q, k).flatten(), torch.tensor([1 / (1 + e), e / (1 + e)]))
    torch.testing.assert_close(keep("entropy", q, k).item(), math.log(1 + e) - e / (1 + e), rtol=1e-6, atol=0)
    torch.testing.assert_close(keep("distance", q, k).item(), 1 / (1 + e), rtol=1e-6, atol=0)
    torch.testing.assert_close(keep("column_mass", q, k).flatten(), torch.tensor([1 / (1 + e), e / (1 + e)]))
    torch.testing.assert_close(keep("top_k", q, k).flatten(), torch.tensor([e / (1 + e), 1, 1 / (1 + e), 0]))
    assert keep("max_logit", q, k).item() == 1.0
    assert keep("max_logit", q, -k).item() == 0.0


def test_uniform_attention_by_hand():
    """Query i of a causal average has i + 1 keys alike, at distances i, ..., 0; key 0 gets Σ 1 / (i + 1)."""
    T = 7
    q = torch.randn(B, H, T, K)
    seen = {name: keep(name, q, q, masks.causal(), beta=0.0) for name in REDUCERS}
    i = torch.arange(T)
    torch.testing.assert_close(seen["entropy"], (i + 1.0).log().expand(B, H, T))
    torch.testing.assert_close(seen["distance"], (i / 2).expand(B, H, T))
    share = (1 / (i + 1.0)).flip(0).cumsum(0).flip(0)
    torch.testing.assert_close(seen["column_mass"], share.expand(B, H, T))
    torch.testing.assert_close(seen["max_logit"], torch.zeros(B, H))
    torch.testing.assert_close(keep("entropy", q, q, beta=0.0), torch.full((B, H, T), math.log(T)))


@pytest.mark.parametrize("choices", [{"beta": math.inf}, {"normalize": "hard"}])
def test_hard_attention_has_no_entropy(choices: dict[str, Any]):
    q = torch.randn(B, H, 7, K)
    assert (keep("entropy", q, q, **choices) == 0).all()
    best = (q @ q.mT).argmax(-1)
    top = keep(TopK(1), q, q, **choices)
    assert torch.equal(top[..., 0, 0], torch.ones(B, H, 7))
    assert torch.equal(top[..., 0, 1].long(), best)
    torch.testing.assert_close(keep("distance", q, q, **choices), (torch.arange(7) - best).abs().float())


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_entropy_stays_between_0_and_log_of_the_keys(scale: float):
    q, k = torch.randn(B, H, 5, K), torch.randn(B, H, 7, K) * scale
    kept = keep("entropy", q, k)
    assert (kept >= 0).all()
    assert (kept <= math.log(7) + 1e-5).all()
    # Logits of size x are known in fp32 to 6e-8 x, and the entropy with them.
    wanted = entropy(weights(q.double(), k.double()), q)
    torch.testing.assert_close(kept.double(), wanted, rtol=1e-4, atol=1e-5 + 1e-6 * scale)


def test_not_a_number_is_not_hidden():
    """A run that blew up must not look like perfectly sharp attention."""
    q = torch.randn(B, H, 5, K)
    q[0, 0, 2] = math.nan
    for name in ("entropy", "distance", "full"):
        assert keep(name, q, torch.randn(B, H, 7, K))[0, 0, 2].isnan().all()
    assert keep("max_logit", q, torch.randn(B, H, 7, K))[0, 0].isnan()


def test_top_k_keeps_as_many_keys_as_wanted_and_there_are():
    q, k = torch.randn(B, H, 5, K), torch.randn(B, H, 7, K)
    for wanted, kept in ((1, 1), (3, 3), (7, 7), (11, 7)):
        assert keep(TopK(wanted), q, k).shape == (B, H, 5, kept, 2)
    with pytest.raises(QkvError, match="top_k keeps 0 keys; 1 or more are wanted"):
        TopK(0)


# Shapes


@pytest.mark.parametrize("block", [1, module.BLOCK])
@pytest.mark.parametrize(
    ("q", "k", "v", "lead"),
    [
        ((5, K), (7, K), (7, 2), ()),
        ((H, 5, K), (1, 7, K), (7, 2), (H,)),
        ((2, 2, H, 5, K), (2, 1, 1, 7, K), (1, 2, H, 7, 2), (2, 2, H)),
        ((1, H, 5, K), (1, H, 7, K), (B, H, 7, 2), (B, H)),
        ((B, 6, 5, K), (1, 3, 7, K), (B, 3, 7, 2), (B, 6)),
        ((0, H, 5, K), (0, H, 7, K), (0, H, 7, 2), (0, H)),
    ],
    ids=str,
)
def test_leading_axes_are_those_of_the_run(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], lead: tuple[int, ...], block: int
):
    inputs = [torch.randn(shape) for shape in (q, k, v)]
    attend = Attend()
    seen = seen_by_all(attend, *inputs, block=block)
    shapes = {name: tuple(kept.shape) for name, kept in seen.items()}
    assert shapes == {
        "full": (*lead, 5, 7),
        "entropy": (*lead, 5),
        "top_k": (*lead, 5, 5, 2),
        "distance": (*lead, 5),
        "column_mass": (*lead, 7),
        "max_logit": lead,
    }
    values = inputs[2]
    if lead and values.dim() > 2:
        values = values.repeat_interleave(lead[-1] // values.shape[-3], dim=-3)
    torch.testing.assert_close(seen["full"] @ values, attend(*inputs))


# A reducer of one's own


class Diagonal(Reducer):
    """The weight of each query's own position."""

    def reduce(self, rows: Rows) -> Tensor:
        i, j = rows.block.positions()
        return (rows.weights_BHTS * (i == j)).sum(-1)


class Calls(Reducer):
    """Counts the blocks."""

    by_row = False

    def reduce(self, rows: Rows) -> Tensor:
        return torch.ones(rows.weights_BHTS.shape[:2])

    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        return one + other


def test_a_reducer_of_ones_own(monkeypatch: pytest.MonkeyPatch):
    q = torch.randn(B, H, 7, K)
    whole = keep("full", q, q).diagonal(dim1=-2, dim2=-1)
    monkeypatch.setattr(module, "BLOCK", 2 * 7)
    torch.testing.assert_close(keep(Diagonal(), q, q, masks.window(7)), whole)
    assert torch.equal(keep(Calls(), q, q), torch.full((B, H), 4.0))


def test_a_reducer_that_cannot_merge_says_so(monkeypatch: pytest.MonkeyPatch):
    class Forgetful(Calls):
        merge = Reducer.merge

    q = torch.randn(B, H, 7, K)
    monkeypatch.setattr(module, "BLOCK", 1)
    with pytest.raises(NotImplementedError, match="Forgetful"):
        keep(Forgetful(), q, q)


# Memory


def peak(run: Callable[[], object]) -> int:
    """Most bytes alive at once that the run allocated, by torch's own profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    alive = most = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            most = max(most, alive)
    return most


N, HEADS = 2048, 4
LONG_MASKS: dict[str, Callable[[], Mask | None]] = {
    "none": lambda: None,
    "causal": masks.causal,
}


@pytest.mark.parametrize("kind", LONG_MASKS)
def test_streaming_reducers_hold_no_whole_map(kind: str):
    q = torch.randn(1, HEADS, N, 8)
    attend, allow, whole = Attend(), LONG_MASKS[kind](), N * N * HEADS

    def run(name: str | None = None) -> None:
        with ExitStack() as stack:
            if name:
                stack.enter_context(watch(attend, keep=name))
            attend(q, q, q, allow=allow)

    unwatched = peak(run)
    for name in REDUCERS:
        with Watching() as operations:
            extra = peak(lambda name=name: run(name)) - unwatched
        if name == "full":
            assert operations.largest >= whole, "the measurement sees what it should"
            assert extra >= 4 * whole
        else:
            assert operations.largest <= 2 * module.BLOCK, name
            assert operations.largest <= whole / 8, name
            assert extra <= 4 * whole / 2, name


def test_blocks_skip_the_keys_that_a_causal_mask_hides():
    """Half of a causal map is never computed: the blocks' keys stop where the last of their rows does."""
    spans = []

    class Spans(Calls):
        def reduce(self, rows: Rows) -> Tensor:
            spans.append((rows.block.rows, rows.block.keys, rows.weights_BHTS.shape[-1]))
            return super().reduce(rows)

    q = torch.randn(1, HEADS, 512, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", 512 * 128)
        keep(Spans(), q, q, masks.causal())
    assert spans == HEADS * [((t, t + 128), (0, t + 128), t + 128) for t in range(0, 512, 128)]


def test_rows_say_whether_they_are_softmax():
    """What `Entropy` relies on: its short formula holds for softmax alone."""
    q = torch.randn(B, H, 5, K)
    for name in NORMALIZERS:
        w = keep("full", q, q, normalize=name).double()
        torch.testing.assert_close(
            keep(Entropy(), q, q, normalize=name).double(), entropy(w, w), rtol=1e-5, atol=1e-5
        )


def test_max_logit_is_that_of_the_scaled_and_biased_scores():
    q, k, bias = torch.randn(B, H, 5, K), torch.randn(B, H, 7, K), torch.randn(B, H, 5, 7)
    score = Concat(K, heads=H, hidden=2)
    attend = Attend(score=score, beta=3.0, normalize="sigmoid")
    with watch(attend, keep=MaxLogit()) as seen:
        attend(q, k, k, bias=bias)
    torch.testing.assert_close(seen["attend"], (3.0 * score(q, k) + bias).amax((-1, -2)).detach())


@pytest.mark.parametrize("name", REDUCERS)
def test_a_batch_that_only_the_mask_or_the_bias_has(name: str):
    q, k, v = torch.randn(1, 3, 5, 4), torch.randn(1, 3, 7, 4), torch.randn(2, 3, 7, 4)
    allow = masks.padding(torch.tensor([5, 2]))
    expanded = [x.expand(2, -1, -1, -1) for x in (q, k, v)]
    bias = torch.randn(2, 1, 5, 7)

    def kept(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attention = Attend()
        with watch(attention, keep=name) as seen:
            attention(q, k, v, allow=allow, bias=bias)
        return seen["attend"]

    torch.testing.assert_close(kept(q, k, v), kept(*expanded))


@pytest.mark.parametrize("size", [1.0, 1e5, 1e8])
def test_entropy_of_large_logits(size: float):
    """Two equal keys far above a third: log 2, however large the logits are."""
    attention, k = Attend(beta=1.0), torch.tensor([[1.0], [1.0], [-1.0]])
    with watch(attention, keep="entropy") as seen:
        attention(torch.tensor([[10 * size]]), k, k)
    torch.testing.assert_close(seen["attend"], torch.tensor([math.log(2)]), rtol=1e-6, atol=1e-6)
