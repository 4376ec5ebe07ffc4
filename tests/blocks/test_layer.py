"""Residual layers: the formulas written out, cached decoding, padding, and what is dropped in training."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from qkv.attention import masks
from qkv.attention.heads import AttentionConfig
from qkv.attention.memory import Memory
from qkv.attention.positions import POSITIONS
from qkv.blocks.feedforward import FeedForwardConfig
from qkv.blocks.layer import Layer, LayerConfig
from qkv.errors import QkvError

B, T, S, D, H = 3, 5, 7, 22, 11
Order = Literal["pre", "post"]
ORDERS: list[Order] = ["pre", "post"]


def build(
    order: Order = "pre",
    cross: bool = False,
    norm: Literal["layer", "rms"] = "layer",
    dropout: float = 0.0,
    depth_drop: float = 0.0,
) -> Layer:
    torch.manual_seed(0)
    config = LayerConfig(
        attention=AttentionConfig(width=D, heads=H),
        feedforward=FeedForwardConfig(width=D, hidden=13, activation="gelu"),
        norm=norm,
        order=order,
        cross=cross,
        dropout=dropout,
        depth_drop=depth_drop,
    )
    layer = Layer(config).double()
    for parameter in layer.parameters():  # a norm starts as ones and zeros, and could be taken for another
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def tokens(length: int = T, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(B, length, D, dtype=torch.float64)


def close(got: Tensor, wanted: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_pre_norm_is_the_formula(norm: Literal["layer", "rms"]):
    layer, x, memory = build("pre", cross=True, norm=norm), tokens(), tokens(S, seed=2)
    y = x + layer.own(layer.own_norm(x), allow=masks.causal())
    y = y + layer.cross(layer.cross_norm(y), memory)
    y = y + layer.feedforward(layer.feedforward_norm(y))
    close(layer(x, memory, allow=masks.causal()), y)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_post_norm_is_the_formula(norm: Literal["layer", "rms"]):
    layer, x, memory = build("post", cross=True, norm=norm), tokens(), tokens(S, seed=2)
    y = layer.own_norm(x + layer.own(x, allow=masks.causal()))
    y = layer.cross_norm(y + layer.cross(y, memory))
    y = layer.feedforward_norm(y + layer.feedforward(y))
    close(layer(x, memory, allow=masks.causal()), y)


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("training", [False, True])  # without gradients a memory reuses its buffers
def test_step_by_step_equals_all_at_once(training: bool, order: Order, kind: str):
    layer, x, memory = build(order, cross=True), tokens(), tokens(S, seed=2)
    positions = POSITIONS[kind].sized(width=D, heads=H, key_width=D // H, length=T, grid=(1, T)).double()
    with torch.set_grad_enabled(training):
        whole = layer(x, memory, allow=masks.causal(), positions=positions)
        own: Memory | None = None
        cross = layer.remember(memory)
        parts = []
        for t in range(T):
            part, own = layer.step(x[:, t : t + 1], own, cross, allow=masks.causal(), positions=positions)
            parts.append(part)
    close(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("order", ORDERS)
def test_several_tokens_a_step_equal_all_at_once(order: Order):
    layer, x = build(order), tokens()
    first, own = layer.step(x[:, :2], None, None, allow=masks.causal())
    second, own = layer.step(x[:, 2:], own, None, allow=masks.causal())
    assert own.length == T
    close(torch.cat((first, second), dim=1), layer(x, allow=masks.causal()))


def test_a_causal_layer_does_not_see_the_future_and_a_plain_one_does():
    layer, x = build(), tokens()
    moved = x.clone()
    moved[:, 3:] = torch.randn_like(moved[:, 3:])
    close(layer(moved, allow=masks.causal())[:, :3], layer(x, allow=masks.causal())[:, :3], atol=0)
    assert (layer(moved) - layer(x))[:, :3].abs().amax(dim=-1).min() > 1e-6


@pytest.mark.parametrize("order", ORDERS)
def test_padding_does_not_change_what_is_real(order: Order):
    layer, x, memory = build(order, cross=True), tokens(), tokens(S, seed=2)
    keep = torch.arange(T) < torch.tensor([5, 3, 1])[:, None]
    memory_keep = torch.arange(S) < torch.tensor([2, 7, 4])[:, None]
    out = layer(x, memory, allow=masks.padding(keep), cross_allow=masks.padding(memory_keep))
    for row in range(B):
        length, memory_length = int(keep[row].sum()), int(memory_keep[row].sum())
        alone = layer(x[row : row + 1, :length], memory[row : row + 1, :memory_length])
        close(out[row : row + 1, :length], alone)


def test_everything_learned_gets_a_gradient():
    layer = build(cross=True)
    (layer(tokens(), tokens(S, seed=2)) ** 2).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # Softmax does not see what is added to all its scores, as a bias of the keys is.
        assert parameter.grad.abs().sum() > 0 or name.endswith("key.bias"), name


def test_dropout_acts_in_training_only():
    layer, x = build(dropout=0.5), tokens()
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    close(layer(x), build()(x), atol=0)


def test_depth_drop_skips_whole_examples_and_scales_the_others():
    # All is zero but the feed-forward branch, which gives 1: skipped it is 0, kept it is 1 / (1 - 0.25).
    layer = build("pre", depth_drop=0.25)
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.ones_(layer.feedforward.down.bias)
    x = torch.zeros(4000, 1, D, dtype=torch.float64)
    out = layer(x)
    kept = out[:, 0, 0] != 0
    close(out[kept], torch.full_like(out[kept], 1 / 0.75))
    assert kept.double().mean().item() == pytest.approx(0.75, abs=0.03)
    assert torch.equal(out, out[..., :1].expand_as(out))  # an example is skipped whole
    close(layer.eval()(x), torch.ones_like(x))


def test_submodules_have_the_names_that_patterns_use():
    children = {name for name, _ in build(cross=True).named_children()}
    assert {"own", "cross", "feedforward"} <= children
    assert "cross" not in {name for name, _ in build().named_children()}


def test_a_memory_too_many_or_too_few_is_refused():
    with pytest.raises(QkvError, match="cross=False"):
        build()(tokens(), tokens(S))
    with pytest.raises(QkvError, match="got no memory"):
        build(cross=True)(tokens())


def test_a_memory_may_have_another_width():
    attention = AttentionConfig(width=D, heads=H, inputs=(D, 13, 13))
    layer = Layer(
        LayerConfig(attention=attention, feedforward=FeedForwardConfig(width=D, hidden=5), cross=True)
    )
    assert layer(torch.randn(B, T, D), torch.randn(B, S, 13)).shape == (B, T, D)


def test_widths_that_differ_are_refused():
    with pytest.raises(QkvError, match=r"feedforward\.width is 13, attention\.width 22"):
        Layer(
            LayerConfig(
                attention=AttentionConfig(width=D, heads=H), feedforward=FeedForwardConfig(width=13, hidden=5)
            )
        )


@pytest.mark.parametrize("cross", [False, True])
def test_compiles_whole_and_agrees(cross: bool):
    torch.compiler.reset()
    layer, x, memory = build(cross=cross), tokens(), tokens(S, seed=2) if cross else None
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    close(compiled(x, memory, allow=masks.causal()), layer(x, memory, allow=masks.causal()))


def test_rows_share_the_memory_of_their_sentence():
    """Four rows, two for each sentence, look as if each had a memory of its own; other numbers are refused."""
    attention = AttentionConfig(width=6, heads=2)
    layer = Layer(
        LayerConfig(attention=attention, feedforward=FeedForwardConfig(width=6, hidden=5), cross=True)
    ).double()
    x_BTD, memory_BSE = torch.randn(4, 3, 6).double(), torch.randn(2, 5, 6).double()
    keep_BS = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    shared = layer(x_BTD, memory_BSE, cross_allow=masks.padding(keep_BS))
    each = memory_BSE.repeat_interleave(2, 0), masks.padding(keep_BS.repeat_interleave(2, 0))
    torch.testing.assert_close(shared, layer(x_BTD, each[0], cross_allow=each[1]))
    torch.testing.assert_close(layer(x_BTD, memory_BSE[:1]), layer(x_BTD, memory_BSE[:1].expand(4, -1, -1)))
    with pytest.raises(QkvError, match=r"^3 rows look at a memory of 2 sentences: "):
        layer(x_BTD[:3], memory_BSE)
    assert layer(x_BTD[:0], memory_BSE[:0]).shape == (0, 3, 6)


@pytest.mark.parametrize("allow", [masks.causal(), masks.window(1), torch.ones(3, 5, dtype=torch.bool)])
def test_rows_that_share_a_memory_take_no_mask_that_tells_queries_apart(allow: masks.Mask | Tensor):
    """They are laid side by side, where the second row's first query is not the first."""
    layer = build(cross=True)
    with pytest.raises(QkvError, match=r"^cross_allow tells queries apart, but 4 rows share 2 memories"):
        layer(torch.randn(4, 3, D).double(), torch.randn(2, 5, D).double(), cross_allow=allow)


def test_another_width_is_named():
    with pytest.raises(QkvError, match=r"^x has shape \(3, 5, 21\); \(batch, length, 22\) is wanted"):
        build()(torch.randn(B, T, 21).double())
