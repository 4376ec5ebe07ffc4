"""Which path a call takes, and that each path costs what it promises."""

import math
from typing import Any

import pytest
import torch
from tests.attention.paths import PATHS, Watching, attend_on, gradients, path_of
from torch import Tensor

from qkv import attend, masks
from qkv.attention.attend import Path
from qkv.attention.masks.values import Causal, Mask
from qkv.attention.normalize import NORMALIZERS
from qkv.attention.scores import Concat, Cosine, Gaussian, General, Location

PRODUCTS, PRODUCTS_IN_BLOCKS, FUSED, FUSED_IN_BLOCKS, SHORT = PATHS
B, H, T, S, K, V = 2, 3, 5, 7, 11, 13


def shaped(
    *, T: int, S: int | None = None, V: int = 8, H: int = 2, B: int = 1, **options: Any
) -> list[Tensor]:
    S = T if S is None else S
    return [torch.empty(B, H, length, width, **options) for length, width in [(T, 8), (S, 8), (S, V)]]


LONG, HUGE = 256, 1 << 12  # rows: from the first on fused pays; HUGE² scores are the most held whole


@pytest.mark.parametrize(
    ("arguments", "choices", "wanted"),
    [
        (shaped(T=LONG - 1), {}, SHORT),
        (shaped(T=LONG), {}, FUSED),
        (shaped(T=2, S=LONG**2 // 2), {}, FUSED),
        (shaped(T=1, S=LONG**2 - 1), {}, SHORT),
        (shaped(T=LONG - 1), {"allow": masks.causal(), "bias": torch.zeros(LONG - 1)}, SHORT),
        (shaped(T=LONG - 1), {"bias": torch.zeros(LONG - 1, requires_grad=True)}, PRODUCTS),
        (shaped(T=LONG - 1), {"dropout": 0.1}, PRODUCTS),
        (shaped(T=LONG - 1), {"beta": torch.ones(2)}, PRODUCTS),
        (shaped(T=LONG - 1, dtype=torch.float16), {}, PRODUCTS),
        (shaped(T=LONG - 1, S=0), {}, PRODUCTS),
        ([torch.empty(1, heads, 5, 8) for heads in (4, 2, 2)], {}, PRODUCTS),
        ([torch.empty(batch, 2, 5, 8) for batch in (3, 1, 1)], {}, PRODUCTS),
        (shaped(T=LONG - 1, B=1 << 8, H=2), {}, PRODUCTS_IN_BLOCKS),
        (shaped(T=1, S=LONG**2), {}, FUSED),
        (shaped(T=LONG, V=3), {}, FUSED),
        (shaped(T=LONG), {"dropout": 0.1}, PRODUCTS),
        (shaped(T=LONG), {"bias": torch.zeros(LONG, LONG)}, FUSED),
        (shaped(T=LONG), {"bias": torch.zeros(LONG, LONG, requires_grad=True)}, PRODUCTS),
        (shaped(T=LONG), {"allow": masks.causal()}, FUSED),
        (shaped(T=LONG), {"allow": masks.padding(torch.tensor([3]))}, FUSED),
        (shaped(T=LONG), {"allow": torch.ones(LONG, LONG, dtype=torch.bool)}, FUSED),
        (shaped(T=LONG), {"beta": 0.0}, FUSED),
        (shaped(T=LONG), {"beta": torch.ones(2)}, FUSED),
        (shaped(T=LONG), {"beta": math.inf}, PRODUCTS),
        (shaped(T=LONG), {"score": General(8, 2)}, FUSED),
        (shaped(T=LONG), {"score": Gaussian()}, FUSED),
        (shaped(T=LONG), {"score": Cosine()}, FUSED),
        (shaped(T=LONG), {"score": Location(8, 2, LONG)}, FUSED),
        (shaped(T=LONG), {"score": Concat(8, 2)}, PRODUCTS),
        (shaped(T=LONG), {"normalize": "softmax"}, FUSED),
        *[(shaped(T=LONG), {"normalize": name}, PRODUCTS) for name in NORMALIZERS if name != "softmax"],
        # Long: the fused kernel needs blocks only for a mask that differs from query to query
        (shaped(T=HUGE + 1), {}, FUSED),
        (shaped(T=HUGE + 1), {"allow": masks.causal()}, FUSED),
        (shaped(T=HUGE, S=HUGE + 1), {"allow": masks.causal()}, FUSED_IN_BLOCKS),
        (shaped(T=HUGE, S=HUGE + 1), {"allow": masks.causal(offset=0)}, FUSED),
        (shaped(T=HUGE + 1), {"allow": masks.causal(offset=1)}, FUSED_IN_BLOCKS),
        (shaped(T=HUGE + 1), {"allow": masks.causal(), "bias": torch.zeros(1, HUGE + 1)}, FUSED_IN_BLOCKS),
        (shaped(T=HUGE + 1), {"allow": masks.causal() & masks.padding(torch.tensor([3]))}, FUSED_IN_BLOCKS),
        (shaped(T=HUGE + 1), {"allow": masks.padding(torch.tensor([3]))}, FUSED),
        (shaped(T=HUGE + 1), {"allow": ~masks.padding(torch.tensor([3]))}, FUSED),
        (shaped(T=HUGE + 1), {"allow": masks.window(7)}, FUSED_IN_BLOCKS),
        (
            shaped(T=HUGE + 1),
            {"allow": masks.documents(torch.zeros(1, HUGE + 1, dtype=torch.long))},
            FUSED_IN_BLOCKS,
        ),
        (shaped(T=HUGE + 1), {"allow": torch.ones(HUGE + 1, 1, dtype=torch.bool)}, FUSED_IN_BLOCKS),
        (shaped(T=HUGE + 1), {"allow": torch.ones(1, HUGE + 1, dtype=torch.bool)}, FUSED),
        (shaped(T=1, S=HUGE**2 + 1, H=1), {"allow": masks.causal()}, FUSED),
        # Products hold the scores of every head
        (shaped(T=HUGE, H=1), {"normalize": "hard"}, PRODUCTS),
        (shaped(T=HUGE, H=2), {"normalize": "hard"}, PRODUCTS_IN_BLOCKS),
        (shaped(T=HUGE, H=1, B=2), {"normalize": "hard"}, PRODUCTS_IN_BLOCKS),
        (shaped(T=HUGE, H=2), {"dropout": 0.5}, PRODUCTS_IN_BLOCKS),
        (shaped(T=1, S=HUGE**2, H=2), {"normalize": "hard"}, PRODUCTS),
    ],
)
def test_the_path_of_a_call(arguments: list[Tensor], choices: dict[str, Any], wanted: Path):
    assert path_of(*arguments, **choices) == wanted


def test_a_bias_that_trains_takes_products_only_while_it_trains():
    qkv, bias = shaped(T=LONG), torch.zeros(1, LONG, requires_grad=True)
    assert path_of(*qkv, bias=bias) == PRODUCTS
    with torch.no_grad():
        assert path_of(*qkv, bias=bias) == FUSED


def test_a_device_that_is_no_cpu_always_takes_the_kernel():
    qkv = shaped(T=5, device="meta")
    assert path_of(*qkv) == FUSED
    assert path_of(*qkv, dropout=0.1) == FUSED
    assert path_of(*qkv, normalize="hard") == PRODUCTS


FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"


@pytest.mark.parametrize(
    ("shapes", "choices"),
    [
        ([(B, H, T, K), (B, H, S, K), (B, H, S, K)], {}),
        ([(B, H, T, K), (B, H, S, K), (B, H, S, V)], {}),
        ([(B, H, T, V), (B, H, S, V), (B, H, S, K)], {}),
        ([(B, 6, T, K), (B, 2, S, K), (B, 2, S, K)], {}),
        ([(B, 6, T, K), (B, 1, S, K), (B, 1, S, V)], {}),
        ([(B, H, T, K), (1, H, S, K), (1, H, S, K)], {}),
        ([(1, H, T, K), (B, H, S, K), (B, H, S, K)], {}),
        ([(T, K), (S, K), (S, V)], {}),
        ([(H, T, K), (H, S, K), (H, S, V)], {"allow": torch.ones(H, T, S, dtype=torch.bool)}),
        (
            [(3, B, H, T, K), (3, B, H, S, K), (3, B, H, S, V)],
            {"allow": torch.ones(3, 1, 1, T, S, dtype=torch.bool)},
        ),
        ([(B, H, T, K), (B, H, S, K), (B, H, S, K)], {"bias": torch.zeros(H, T, S)}),
        ([(B, H, T, K), (B, H, S, K), (B, H, S, K)], {"bias": torch.zeros(S), "allow": masks.window(2)}),
        ([(B, H, T, K), (B, H, S, K), (B, H, S, K)], {"beta": torch.ones(H)}),
        ([(B, H, T, K), (B, H, S, K), (B, H, S, K)], {"beta": 0.0}),
        ([(B, H, T, K), (B, H, S, K), (B, H, S, K)], {"allow": masks.padding(torch.tensor([3, 7]))}),
        ([(B, H, S, K), (B, H, S, K), (B, H, S, K)], {"allow": masks.causal()}),
        ([(B, H, T, K), (B, H, S, K), (B, H, S, K)], {"score": Gaussian()}),
    ],
)
def test_fused_reaches_torchs_fast_kernel_and_not_its_slow_fallback(shapes: list, choices: dict):
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    with Watching() as watching:
        attend_on(FUSED, q, k, v, **choices)
    assert watching.operations.count(FLASH) == 1


def test_a_plain_causal_mask_builds_nothing_of_size_t_times_s(monkeypatch: pytest.MonkeyPatch):
    def build(self: Mask, block: object) -> Tensor:
        raise AssertionError("the mask was built")

    monkeypatch.setattr(Causal, "block", build)
    n, width = 512, 4
    q, k, v = (torch.randn(1, 2, n, width, requires_grad=True) for _ in range(3))
    with Watching() as watching:
        gradients(attend(q, k, v, allow=masks.causal()), [q, k, v])
    assert watching.operations.count(FLASH) == 1
    assert 2 * n * width <= watching.largest < n * n / 4


@pytest.mark.parametrize("kernel", ["products", "fused"])
def test_blocks_hold_no_t_times_s_matrix_forward_or_backward(kernel: str):
    n, width, block = 256, 4, 2048
    q, k, v = (torch.randn(1, 2, n, width, requires_grad=True) for _ in range(3))
    with Watching() as watching:
        out = attend_on(Path(kernel, True), q, k, v, block=block, allow=masks.window(5))
        gradients(out, [q, k, v])
    assert watching.largest <= max(2 * block, 2 * n * width)


def test_blocks_skip_the_keys_that_a_window_hides():
    """NaN spreads through a product even at weight 0: keys outside of each block's span were never touched."""
    n = 32
    q, k, v = torch.randn(1, 1, n, 3), torch.randn(1, 1, n, 3), torch.randn(1, 1, n, 3)
    want = attend(q, k, v, allow=masks.window(2))
    k[..., 20:, :] = math.nan
    for on in [PRODUCTS_IN_BLOCKS, FUSED_IN_BLOCKS]:
        got = attend_on(on, q, k, v, block=4 * n, allow=masks.window(2))
        torch.testing.assert_close(got[..., :14, :], want[..., :14, :])
