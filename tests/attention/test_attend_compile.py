"""torch.compile with fullgraph: one graph, forward and backward, and the same numbers as without."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.attention.paths import PATHS, forced, gradients, path_of
from torch import Tensor

from qkv import attend, masks
from qkv.attention.attend import Path

B, H, T, S, K, V = 2, 3, 5, 7, 11, 13
PRODUCTS, PRODUCTS_IN_BLOCKS, FUSED, FUSED_IN_BLOCKS, SHORT = PATHS
KEEP_BS = torch.tensor([[True] * 4 + [False] * 3, [True] * 7])
BLOCKED_TS = torch.ones(T, S).tril(2).bool()
BLOCKED_TS[[0, 3]] = False


@pytest.fixture(autouse=True)
def _no_graphs_of_other_tests() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def inputs(T: int = T, S: int = S, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = [(B, H, T, K), (B, H, S, K), (B, H, S, V)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def expect_the_same(
    function: Callable[..., Tensor], compiled: Callable[..., Tensor], tensors: list[Tensor]
) -> Tensor:
    tolerance = 1e-5 if tensors[0].dtype == torch.float32 else 5e-2
    out, want = compiled(*tensors), function(*tensors)
    torch.testing.assert_close(out, want, atol=tolerance, rtol=tolerance)
    for got, grad in zip(gradients(out, tensors), gradients(want, tensors), strict=True):
        torch.testing.assert_close(got, grad, atol=5 * tolerance, rtol=5 * tolerance)
    return out


# Inductor, which takes seconds, once; the graph alone, which is what can break, for the rest.
@pytest.mark.parametrize(
    ("on", "choices", "backend"),
    [
        (PRODUCTS, {"allow": masks.padding(KEEP_BS) & masks.causal()}, "inductor"),
        (FUSED, {"allow": BLOCKED_TS}, "aot_eager"),
        (PRODUCTS, {"allow": masks.causal(), "beta": torch.ones(H)}, "aot_eager"),
        (PRODUCTS, {"allow": masks.padding(torch.tensor([3, 7])), "normalize": "entmax15"}, "aot_eager"),
        (PRODUCTS, {"allow": BLOCKED_TS, "bias": torch.ones(T, S)}, "aot_eager"),
        (FUSED, {"allow": masks.causal()}, "aot_eager"),
        (FUSED, {"allow": masks.causal(0), "beta": -0.5}, "aot_eager"),
        (FUSED, {"allow": masks.padding(KEEP_BS) & masks.causal()}, "aot_eager"),
        (PRODUCTS_IN_BLOCKS, {"allow": masks.causal() & masks.window(2)}, "aot_eager"),
        (FUSED_IN_BLOCKS, {"allow": BLOCKED_TS}, "aot_eager"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_graph_with_the_same_numbers(on: Path, choices: dict[str, Any], backend: str):
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, **choices)

    tensors = inputs()
    with forced(on):
        assert path_of(*tensors, **choices) == on
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        out = expect_the_same(function, compiled, tensors)
    if choices["allow"] is BLOCKED_TS:
        assert (out[:, :, [0, 3]] == 0).all()
        assert (gradients(compiled(*tensors), tensors)[0][:, :, [0, 3]] == 0).all()


@pytest.mark.parametrize("on", [PRODUCTS, FUSED], ids=["products", "fused"])
def test_blocked_rows_in_bf16(on: Path):
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, allow=BLOCKED_TS)

    tensors = inputs(dtype=torch.bfloat16)
    with forced(on):
        out = expect_the_same(function, torch.compile(function, fullgraph=True, backend="aot_eager"), tensors)
    assert (out[:, :, [0, 3]] == 0).all()


@pytest.mark.parametrize("on", [PRODUCTS, FUSED], ids=["products", "fused"])
def test_one_graph_for_all_lengths(on: Path):
    graphs = []

    def backend(graph: torch.fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    def function(q: Tensor, k: Tensor, v: Tensor, keep_BS: Tensor) -> Tensor:
        return attend(q, k, v, allow=masks.padding(keep_BS) & masks.causal())

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
    with forced(on):
        for T, S in [(5, 7), (6, 11), (13, 17), (3, 19)]:
            tensors, keep_BS = inputs(T, S), torch.rand(B, S) < 0.7
            torch.testing.assert_close(compiled(*tensors, keep_BS), function(*tensors, keep_BS))
    assert len(graphs) == 1


def test_the_lengths_of_padding_do_not_break_the_graph():
    """In eager, lengths are checked by their values; values would end the graph."""

    def function(q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor) -> Tensor:
        return attend(q, k, v, allow=masks.padding(lengths_B))

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    tensors = inputs()
    for lengths in ([3, 7], [0, 5]):
        torch.testing.assert_close(
            compiled(*tensors, torch.tensor(lengths)), function(*tensors, torch.tensor(lengths))
        )
