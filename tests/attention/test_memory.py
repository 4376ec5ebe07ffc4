"""Memory: cached decoding equals the full run, and a memory never answers from another's buffers.

Axes: B batch, T query length, S key length, D width, G key heads, K key width, V value width.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.attention import masks
from qkv.attention.heads import AttentionConfig, MultiHeadAttention
from qkv.attention.memory import Memory
from qkv.attention.positions import POSITIONS, Position
from qkv.attention.scores import SCORES
from qkv.errors import QkvError

B, T, S, G, K, V = 2, 5, 7, 3, 4, 11
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def built(**choices: Any) -> MultiHeadAttention:
    torch.manual_seed(0)
    sizes = {"width": 5, "heads": 6, "groups": 3, "key_width": 4, "value_width": 7}
    return MultiHeadAttention(AttentionConfig(**{**sizes, **choices})).double()


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def position(kind: str) -> Position:
    torch.manual_seed(0)
    return POSITIONS[kind].sized(width=5, heads=6, key_width=4, length=35, grid=(5, 7)).double()


def step_by_step(
    m: MultiHeadAttention, x_BTD: Tensor, chunks: list[int], positions: Position | None = None
) -> Tensor:
    """Cached self-attention, some tokens at a time."""
    memory, outs = None, []
    for chunk_BTD in x_BTD.split(chunks, dim=1):
        memory = m.remember(chunk_BTD, memory=memory, positions=positions)
        outs.append(m.recall(chunk_BTD, memory, allow=masks.causal(), positions=positions))
    return torch.cat(outs, dim=1)


def memory(rows: int = B, length: int = 1) -> Memory:
    return Memory(random(rows, G, length, K), random(rows, G, length, V))


def assert_holds(memory: Memory, keys: Tensor, values: Tensor) -> None:
    assert memory.length == keys.shape[-2]
    assert torch.equal(memory.keys, keys)
    assert torch.equal(memory.values, values)


# Decoding with it


@pytest.mark.parametrize("mode", MODES)
def test_attending_is_recalling_what_is_remembered(mode: str):
    m, x = built(inputs=(5, 2, 3)), (random(B, T, 5), random(B, S, 2), random(B, S, 3))
    with MODES[mode]():
        assert torch.equal(m(*x), m.recall(x[0], m.remember(*x[1:])))


@pytest.mark.parametrize("mode", MODES)
def test_a_sentence_is_projected_once_for_all_steps_of_cross_attention(mode: str):
    m, x, source = built(inputs=(5, 2, 2)), random(B, T, 5), random(B, S, 2)
    projected: list[int] = []
    for projection in (m.key, m.value):
        projection.register_forward_hook(lambda *_: projected.append(1))
    allow = masks.padding(torch.tensor([7, 3]))
    with MODES[mode]():
        full = m(x, source, allow=allow)
        projected.clear()
        once = m.remember(source)
        steps = [m.recall(x[:, t : t + 1], once, allow=allow) for t in range(T)]
    assert projected == [1, 1]
    torch.testing.assert_close(torch.cat(steps, dim=1), full, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", POSITIONS)
def test_token_by_token_equals_all_at_once(kind: str, mode: str):
    m, x, positions = built(), random(B, 11, 5), position(kind)
    with MODES[mode]():
        full = m(x, allow=masks.causal(), positions=positions)
        torch.testing.assert_close(step_by_step(m, x, [1] * 11, positions), full, rtol=0, atol=1e-12)


@pytest.mark.parametrize("score", SCORES)
def test_token_by_token_equals_all_at_once_with_every_score(score: str):
    m, x = built(score=score, qk_norm=True, length=11), random(B, 11, 5)
    with torch.no_grad():
        torch.testing.assert_close(
            step_by_step(m, x, [1] * 11), m(x, allow=masks.causal()), rtol=0, atol=1e-12
        )


@given(
    chunks=st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any),
    kind=st.sampled_from(sorted(POSITIONS)),
    mode=st.sampled_from(sorted(MODES)),
    window=st.none() | st.integers(0, 3),
)
def test_chunks_of_any_sizes_equal_all_at_once(chunks: list[int], kind: str, mode: str, window: int | None):
    m, x, positions = built(), random(B, sum(chunks), 5), position(kind)
    allow = masks.causal() if window is None else masks.causal() & masks.window(window)
    with MODES[mode]():
        full = m(x, allow=allow, positions=positions)
        memory, outs = None, []
        for chunk in x.split(chunks, dim=1):
            memory = m.remember(chunk, memory=memory, positions=positions)
            outs.append(m.recall(chunk, memory, allow=allow, positions=positions))
    assert memory is not None
    assert memory.length == sum(chunks)
    torch.testing.assert_close(torch.cat(outs, dim=1), full, rtol=0, atol=1e-12)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", ["none", "rotary", "alibi", "relative"])
def test_gradients_through_many_appends_are_those_of_the_full_run(kind: str, frozen: bool):
    """Also where the keys need no gradient: the queries' gradient needs them as they were at each step."""
    m, x, positions = built(), random(B, 11, 5), position(kind)
    if frozen:
        m.key.requires_grad_(False)
        m.value.requires_grad_(False)
    x.requires_grad_(not frozen)
    wanted = [x, *m.parameters(), *positions.parameters()]
    wanted = [parameter for parameter in wanted if parameter.requires_grad]
    weights = random(B, 11, 5)
    grads = [
        torch.autograd.grad((weights * out).sum(), wanted)
        for out in (
            m(x, allow=masks.causal(), positions=positions),
            step_by_step(m, x, [1, 2, 1, 1, 3, 1, 2], positions),
        )
    ]
    assert len(wanted) >= 4
    torch.testing.assert_close(*grads, rtol=0, atol=1e-11)


def test_beam_search_by_picking_rows_equals_decoding_each_row_alone():
    m, x = built(), random(3, 7, 5)
    rows = [torch.tensor(r) for r in ([0, 0, 1, 2], [3, 1, 1, 0], [2, 0], [1, 1, 0])]
    with torch.no_grad():
        memory, history = m.remember(x[:, :2]), x[:, :2]
        for picked, new in zip(rows, x[:1, 2:].unbind(1), strict=False):
            memory, history = memory.pick(picked), history[picked]
            token = new.unsqueeze(1).expand(len(picked), 1, 5) * torch.arange(1.0, 1 + len(picked)).view(
                -1, 1, 1
            )
            memory, history = m.remember(token, memory=memory), torch.cat([history, token], dim=1)
            step = m.recall(token, memory, allow=masks.causal())
            torch.testing.assert_close(step, m(history, allow=masks.causal())[:, -1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_batch_decodes_to_nothing(mode: str):
    m = built()
    with MODES[mode]():
        assert step_by_step(m, random(0, 3, 5), [1, 1, 1]).shape == (0, 3, 5)
        none_left = m.remember(random(B, 3, 5)).pick(torch.tensor([], dtype=torch.long))
        none_left = m.remember(random(0, 2, 5), memory=none_left)
        assert none_left.keys.shape == (0, 3, 5, 4)
        assert m.recall(random(0, 2, 5), none_left, allow=masks.causal()).shape == (0, 2, 5)


def test_a_prompt_of_no_tokens_is_a_memory_too():
    m, x = built(), random(B, 3, 5)
    with torch.no_grad():
        begun = m.remember(x[:, :0])
        begun = m.remember(x, memory=begun)
        assert torch.equal(m.recall(x, begun, allow=masks.causal()), m(x, allow=masks.causal()))


# The value itself


@pytest.mark.parametrize("mode", MODES)
def test_it_holds_what_was_appended(mode: str):
    keys, values = random(B, G, 11, K), random(B, G, 11, V)
    with MODES[mode]():
        held, end = Memory(keys[:, :, :2], values[:, :, :2]), 2
        for count in (1, 0, 3, 1, 4):
            held = held.append(keys[:, :, end : end + count], values[:, :, end : end + count])
            end += count
            assert_holds(held, keys[:, :, :end], values[:, :, :end])


@pytest.mark.parametrize("mode", MODES)
def test_what_the_caller_gave_is_never_written_to(mode: str):
    keys, values = random(B, G, 5, K), random(B, G, 5, V)
    before = keys.clone(), values.clone()
    with MODES[mode]():
        held = Memory(keys[:, :, :2], values[:, :, :2])
        for _ in range(3):
            held = held.append(random(B, G, 1, K), random(B, G, 1, V))
    assert torch.equal(keys, before[0])
    assert torch.equal(values, before[1])


@pytest.mark.parametrize("mode", MODES)
def test_a_consumed_memory_says_so_instead_of_answering(mode: str):
    m = built()
    with MODES[mode]():
        old = m.remember(random(B, 2, 5))
        new = m.remember(random(B, 1, 5), memory=old)
        for use in (
            lambda: old.keys,
            lambda: old.values,
            lambda: old.pick(torch.tensor([0])),
            lambda: m.remember(random(B, 1, 5), memory=old),
            lambda: m.recall(random(B, 1, 5), old),
        ):
            with pytest.raises(
                QkvError, match=r"memory of 2 positions was consumed .* use the memory that append returned"
            ):
                use()
        assert new.keys.shape == (B, 3, 3, 4)


@pytest.mark.parametrize("mode", MODES)
def test_pick_reorders_and_repeats_rows(mode: str):
    keys, values = random(3, G, 4, K), random(3, G, 4, V)
    with MODES[mode]():
        held = Memory(keys[:, :, :1], values[:, :, :1]).append(keys[:, :, 1:], values[:, :, 1:])
        for rows in ([2, 0, 0, 1, 2], [1], []):
            picked = held.pick(torch.tensor(rows, dtype=torch.long))
            assert_holds(picked, keys[rows], values[rows])
        assert_holds(held, keys, values)


@pytest.mark.parametrize("mode", MODES)
def test_a_picked_copy_knows_nothing_of_later_appends(mode: str):
    """With room left in the buffer, so that an append writes in place."""
    with MODES[mode]():
        held = memory(length=2).append(random(B, G, 1, K), random(B, G, 1, V))
        keys, values = held.keys.clone(), held.values.clone()
        copy = held.pick(torch.arange(B))
        one = random(B, G, 1, K), random(B, G, 1, V)
        other = random(B, G, 1, K), random(B, G, 1, V)
        held = held.append(*one)
        assert_holds(copy, keys, values)
        copy = copy.append(*other)
        assert_holds(held, torch.cat([keys, one[0]], -2), torch.cat([values, one[1]], -2))
        assert_holds(copy, torch.cat([keys, other[0]], -2), torch.cat([values, other[1]], -2))


def test_views_taken_before_an_append_stay_as_they_were():
    with torch.no_grad():
        held = memory(length=2).append(random(B, G, 1, K), random(B, G, 1, V))
        keys, copy = held.keys, held.keys.clone()
        held.append(random(B, G, 1, K), random(B, G, 1, V))
    assert torch.equal(keys, copy)


class Copied(TorchDispatchMode):
    """Counts the numbers that are copied, and the buffers that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.buffers = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.numbers += args[0].numel()
        self.buffers += "empty" in func.__name__
        assert "cat" not in func.__name__
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("count", [100, 1000])
def test_n_appends_copy_order_n(count: int):
    """Doubling: each position is written once and moved fewer than two times in all; 2·log2(n) buffers."""
    with torch.no_grad():
        new, held = memory(rows=1), memory(rows=1)
        with Copied() as copied:
            for _ in range(count):
                held = held.append(new.keys, new.values)
    assert held.length == count + 1
    assert copied.numbers <= 3 * count * G * (K + V)
    assert copied.buffers <= 2 * (count.bit_length() + 1)


def test_a_memory_made_in_inference_mode_can_be_appended_to_outside():
    with torch.inference_mode():
        held = memory(length=2).append(random(B, G, 1, K), random(B, G, 1, V))
    keys, new = held.keys, random(B, G, 1, K)
    with torch.no_grad():
        held = held.append(new, random(B, G, 1, V))
        held = held.append(new, random(B, G, 1, V))
    assert torch.equal(held.keys, torch.cat([keys, new, new], dim=-2))


def test_a_memory_made_without_gradient_can_be_appended_to_with_it():
    """A cached prompt, then a few steps that are trained: the gradient of the steps alone."""
    m, x = built(), random(B, 7, 5)
    with torch.no_grad():
        prompt = m.remember(x[:, :2])
        prompt = m.remember(x[:, 2:4], memory=prompt)
        past = prompt.keys.clone(), prompt.values.clone()
    held, outs = prompt, []
    for t in range(4, 7):
        held = m.remember(x[:, t : t + 1], memory=held)
        outs.append(m.recall(x[:, t : t + 1], held, allow=masks.causal()))
    grads = torch.autograd.grad(torch.cat(outs, 1).square().sum(), list(m.parameters()))
    fresh = m.remember(x[:, 4:])
    whole = Memory(torch.cat([past[0], fresh.keys], -2), torch.cat([past[1], fresh.values], -2))
    out = m.recall(x[:, 4:], whole, allow=masks.causal())
    torch.testing.assert_close(
        grads, torch.autograd.grad(out.square().sum(), list(m.parameters())), rtol=0, atol=1e-11
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("keys", "values", "parts"),
    [
        ((3, G, 1, K), (3, G, 1, V), ["keys", "(3, 3, 1, 4)", "(2, 3, 1, 4) is wanted"]),
        ((1, G, 1, K), (1, G, 1, V), ["keys", "(1, 3, 1, 4)", "(2, 3, 1, 4) is wanted"]),
        ((B, 1, 1, K), (B, 1, 1, V), ["keys", "(2, 1, 1, 4)", "(2, 3, 1, 4) is wanted"]),
        ((B, G, 1, 1), (B, G, 1, V), ["keys", "(2, 3, 1, 1)", "(2, 3, 1, 4) is wanted"]),
        ((G, 1, K), (G, 1, V), ["keys", "(3, 1, 4)", "(2, 3, 1, 4) is wanted"]),
        ((B, G, 2, K), (B, G, 1, V), ["values", "(2, 3, 1, 11)", "(2, 3, 2, 11) is wanted"]),
    ],
)
def test_an_append_that_does_not_fit_is_refused_and_consumes_nothing(
    mode: str, keys: tuple[int, ...], values: tuple[int, ...], parts: list[str]
):
    with MODES[mode]():
        held = memory(length=2)
        with pytest.raises(QkvError) as caught:
            held.append(random(*keys), random(*values))
        assert all(part in str(caught.value) for part in parts)
        assert held.append(random(B, G, 1, K), random(B, G, 1, V)).length == 3


@pytest.mark.parametrize("mode", MODES)
def test_an_append_in_another_dtype_is_refused(mode: str):
    with MODES[mode](), pytest.raises(QkvError, match=r"torch.float32 cannot follow .* torch.float64"):
        memory().append(random(B, G, 1, K).float(), random(B, G, 1, V).float())
