"""Compiled without a break in the graph, multi-head attention gives the same outputs and gradients.

Axes: B batch, T query length, S key length, D width.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.attention import masks
from qkv.attention.heads import AttentionConfig, MultiHeadAttention
from qkv.attention.positions import POSITIONS

B, T, S, D = 2, 5, 7, 12


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def causal_and_padding(m: MultiHeadAttention, x: Tensor, keep_BS: Tensor) -> Tensor:
    return m(x, allow=masks.causal() & masks.padding(keep_BS))


def cross(m: MultiHeadAttention, x: Tensor, source: Tensor, lengths_B: Tensor) -> Tensor:
    return m(x, source, allow=masks.padding(lengths_B))


def cached(m: MultiHeadAttention, x: Tensor) -> Tensor:
    """Three steps of decoding: a prompt of two tokens, one more, and the rest."""
    memory = m.remember(x[:, :2])
    outs = [m.recall(x[:, :2], memory, allow=masks.causal())]
    for start, stop in ((2, 3), (3, T)):
        memory = m.remember(x[:, start:stop], memory=memory)
        outs.append(m.recall(x[:, start:stop], memory, allow=masks.causal()))
    return torch.cat(outs, dim=1)


class Positioned(nn.Module):
    """Attention with positions that turn and positions that bias."""

    def __init__(self, kind: str):
        super().__init__()
        self.position = POSITIONS[kind].sized(width=D, heads=3, key_width=4, length=11)
        self.attention = MultiHeadAttention(AttentionConfig(width=D, heads=3))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.attention(x_BTD, positions=self.position, allow=masks.causal())


def results(run: Callable[..., Tensor], m: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """The output and the gradients of inputs and parameters."""
    m.zero_grad(set_to_none=True)
    inputs = tuple(x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs)
    out = run(m, *inputs)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    grads = [x.grad for x in (*inputs, *m.parameters()) if x.grad is not None]
    assert len(grads) >= 5
    return [out.detach(), *grads]


def assert_compiles(
    run: Callable[..., Tensor], m: nn.Module, *inputs: Tensor, backend: str = "aot_eager"
) -> None:
    compiled = torch.compile(run, fullgraph=True, backend=backend)
    m, inputs = m.double(), tuple(x.double() if x.is_floating_point() else x for x in inputs)
    torch.testing.assert_close(results(compiled, m, *inputs), results(run, m, *inputs), rtol=0, atol=1e-10)


KEEP = torch.tensor([[True] * 3 + [False] * 2, [False] * 5])  # the second sentence is nothing but padding


@pytest.mark.parametrize(("backend", "length"), [("inductor", T), ("aot_eager", 256)])
def test_self_attention_with_causal_and_padding_compiles(backend: str, length: int):
    """Short (products), with the code that users get, and long (fused): that kernel is called as it is."""
    m = MultiHeadAttention(AttentionConfig(width=D, heads=3))
    keep = torch.arange(length) < torch.tensor([[length - 2], [0]])
    assert_compiles(causal_and_padding, m, torch.randn(B, length, D), keep, backend=backend)


CHOICES: list[dict[str, Any]] = [
    {"groups": 1, "value_width": 7, "qk_norm": True, "beta": "learned", "score": "general"},
    {"score": "concat"},
    {"score": "gaussian", "normalize": "sparsemax"},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_choices_compile(choices: dict[str, Any]):
    m = MultiHeadAttention(AttentionConfig(width=D, heads=3, **choices))
    assert_compiles(causal_and_padding, m, torch.randn(B, T, D), KEEP)


def test_cross_attention_compiles():
    m = MultiHeadAttention(AttentionConfig(width=D, heads=3, inputs=(D, 11, 11)))
    assert_compiles(cross, m, torch.randn(B, T, D), torch.randn(B, S, 11), torch.tensor([S, 0]))


@pytest.mark.parametrize("kind", ["rotary", "relative"])
def test_positions_compile(kind: str):
    assert_compiles(lambda m, x: m(x), Positioned(kind), torch.randn(B, T, D))


def test_cached_decoding_compiles():
    m, x = MultiHeadAttention(AttentionConfig(width=D, heads=3)).double(), torch.randn(B, T, D).double()
    compiled = torch.compile(cached, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(m, x), cached(m, x), rtol=0, atol=1e-12)


def test_other_lengths_and_batches_need_no_new_graph_each():
    """Once a size has changed, it is a symbol: at most the first graph and one for any size."""
    m = MultiHeadAttention(AttentionConfig(width=D, heads=3))
    graphs = []

    def count(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(causal_and_padding, fullgraph=True, backend=count)
    for rows, length in ((2, 5), (3, 7), (5, 11), (7, 13)):
        x, keep = torch.randn(rows, length, D), torch.rand(rows, length) < 0.7
        torch.testing.assert_close(compiled(m, x, keep), causal_and_padding(m, x, keep))
    assert len(graphs) <= 2
