"""Positions against closed forms, transformers, and what must hold for every kind in the registry."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from qkv.attention.positions import POSITIONS, ALiBi, Grid, Learned, Position, Relative, Rotary, Sinusoidal
from qkv.errors import QkvError

CPU = torch.device("cpu")
WIDTH, HEADS, KEY_WIDTH, LENGTH, ROWS, COLUMNS = 11, 3, 14, 35, 5, 7


def build(kind: str) -> Position:
    torch.manual_seed(0)
    return POSITIONS[kind].sized(
        width=WIDTH, heads=HEADS, key_width=KEY_WIDTH, length=LENGTH, grid=(ROWS, COLUMNS)
    )


def bias(position: Position, T: int, S: int, dtype: torch.dtype = torch.float32) -> Tensor:
    out = position.bias(T, S, device=CPU, dtype=dtype)
    assert out is not None
    return out


class Everything(nn.Module):
    """All that a position does, in one call."""

    def __init__(self, position: Position):
        super().__init__()
        self.position = position

    def forward(self, x_BTD: Tensor, q_BHTK: Tensor, offset: int) -> tuple[Tensor, Tensor, Tensor | None]:
        T = x_BTD.shape[1]
        bias = self.position.bias(T, offset + T, device=x_BTD.device, dtype=x_BTD.dtype)
        return self.position.embed(x_BTD, offset), self.position.rotate(q_BHTK, offset), bias


def inputs(T: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(2, T, WIDTH, dtype=dtype), torch.randn(2, HEADS, T, KEY_WIDTH, dtype=dtype)


# Every kind in the registry


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", POSITIONS)
def test_shapes_and_dtype_are_kept(kind: str, dtype: torch.dtype):
    x, q = inputs(5, dtype)
    embedded, rotated, added = Everything(build(kind))(x, q, 2)
    assert embedded.shape == x.shape
    assert embedded.dtype == dtype
    assert rotated.shape == q.shape
    assert rotated.dtype == dtype
    assert added is None or (added.shape == (HEADS, 5, 7) and added.dtype == dtype)


@pytest.mark.parametrize("kind", POSITIONS)
def test_each_kind_but_none_does_something(kind: str):
    x, q = inputs(5)
    embedded, rotated, added = Everything(build(kind))(x, q, 2)
    acts = not torch.equal(embedded, x) or not torch.equal(rotated, q) or added is not None
    assert acts == (kind != "none")


@pytest.mark.parametrize("kind", POSITIONS)
def test_one_token_at_a_time_equals_all_at_once(kind: str):
    x, q = inputs(7, torch.float64)
    position = build(kind).double()
    embedded, rotated, added = Everything(position)(x, q, 0)
    for t in range(7):
        one = Everything(position)(x[:, t : t + 1], q[:, :, t : t + 1], t)
        torch.testing.assert_close(one[0], embedded[:, t : t + 1], rtol=0, atol=1e-12)
        torch.testing.assert_close(one[1], rotated[:, :, t : t + 1], rtol=0, atol=1e-12)
        if added is not None:
            torch.testing.assert_close(one[2], added[:, t : t + 1, : t + 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", POSITIONS)
@given(T=st.integers(1, 9), past=st.integers(0, 9))
def test_an_offset_is_a_slice_of_the_whole(kind: str, T: int, past: int):
    x, q = inputs(past + T, torch.float64)
    position = build(kind).double()
    whole, part = Everything(position)(x, q, 0), Everything(position)(x[:, past:], q[:, :, past:], past)
    torch.testing.assert_close(part[0], whole[0][:, past:], rtol=0, atol=1e-12)
    torch.testing.assert_close(part[1], whole[1][:, :, past:], rtol=0, atol=1e-12)
    if whole[2] is not None:
        torch.testing.assert_close(part[2], whole[2][:, past:], rtol=0, atol=0)


@pytest.mark.parametrize("kind", POSITIONS)
def test_gradients_reach_inputs_and_parameters(kind: str):
    x, q = inputs(LENGTH)
    for tensor in (x, q):
        tensor.requires_grad_()
    position = build(kind)
    outputs = Everything(position)(x, q, 0)
    torch.stack([(out**2).sum() for out in outputs if out is not None]).sum().backward()
    for tensor in (x, q, *position.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", POSITIONS)
def test_compiles_whole_and_agrees(kind: str):
    torch.compiler.reset()  # the kinds share one forward, and torch counts its versions
    x, q = inputs(5)
    model = Everything(build(kind))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for offset in (0, 2):
        for got, wanted in zip(compiled(x, q, offset), model(x, q, offset), strict=True):
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("kind", POSITIONS)
def test_state_holds_the_parameters_and_nothing_else(kind: str):
    position, other = build(kind), build(kind)
    assert set(position.state_dict()) == {name for name, _ in position.named_parameters()}
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    other.load_state_dict(position.state_dict())
    x, q = inputs(5)
    for got, wanted in zip(Everything(other)(x, q, 0), Everything(position)(x, q, 0), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["alibi", "relative"])
def test_a_bias_depends_on_the_distance_alone(kind: str):
    bias_HTS = bias(build(kind), 11, 11)
    for step in range(-10, 11):
        diagonal = bias_HTS.diagonal(step, dim1=1, dim2=2)
        assert torch.equal(diagonal, diagonal[:, :1].expand_as(diagonal))


@pytest.mark.parametrize("kind", ["alibi", "relative"])
@pytest.mark.parametrize("size", [(0, 0), (0, 3), (1, 1)])
def test_a_bias_of_nothing_is_empty(kind: str, size: tuple[int, int]):
    assert bias(build(kind), *size).shape == (HEADS, *size)


@pytest.mark.parametrize("kind", ["alibi", "relative"])
def test_more_queries_than_keys_are_refused(kind: str):
    with pytest.raises(QkvError, match="5 queries are not the last of 3 keys"):
        bias(build(kind), 5, 3)


# Sinusoidal


def test_sinusoidal_by_hand():
    # Width 5: frequencies 1, 10000^(-2/5) and 10000^(-4/5); the fifth column is a sine without its cosine.
    out = Sinusoidal().embed(torch.zeros(1, 3, 5, dtype=torch.float64))[0]
    assert out[0].tolist() == [0, 1, 0, 1, 0]
    slow, slower = 2 * 10000**-0.4, 2 * 10000**-0.8
    wanted = [math.sin(2), math.cos(2), math.sin(slow), math.cos(slow), math.sin(slower)]
    assert out[2].tolist() == pytest.approx(wanted, abs=1e-12)


def test_sinusoidal_bf16_still_counts_past_256():
    out = Sinusoidal().embed(torch.zeros(1, 2, 4, dtype=torch.bfloat16), offset=257)[0]
    assert out[0, 0].item() == pytest.approx(math.sin(257), abs=4e-3)
    assert out[1, 0].item() == pytest.approx(math.sin(258), abs=4e-3)


# Learned and grid


def test_learned_adds_its_rows():
    position = Learned(length=5, width=3)
    x = torch.randn(2, 3, 3)
    torch.testing.assert_close(position.embed(x, offset=2) - x, position.table[2:5].expand(2, 3, 3))


def test_learned_refuses_what_it_has_no_row_for():
    with pytest.raises(QkvError, match="reaches position 6; the table holds 5"):
        Learned(length=5, width=3).embed(torch.zeros(1, 1, 3), offset=5)
    with pytest.raises(QkvError, match="x has width 1; the positions have width 3"):
        Learned(length=5, width=3).embed(torch.zeros(1, 1, 1))


def test_grid_runs_row_by_row():
    grid = Grid(3, 5, 7)
    added = grid.embed(torch.zeros(1, 15, 7))[0]
    for row in range(3):
        for column in range(5):
            assert torch.equal(added[row * 5 + column], grid.table[row, column])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_grid_of_the_same_size_is_the_same_and_new(dtype: torch.dtype):
    grid = Grid(3, 5, 7).to(dtype)
    same = grid.resized(3, 5)
    assert torch.equal(same.table, grid.table)
    assert same.table.data_ptr() != grid.table.data_ptr()


@pytest.mark.parametrize("size", [(7, 11), (2, 3), (7, 3)])
def test_grid_resized_equals_the_image_resized(size: tuple[int, int]):
    grid = Grid(3, 5, 7).double()
    shrinks = size[0] < 3 or size[1] < 5
    resized = grid.resized(*size)
    assert resized.table.shape == (*size, 7)
    assert resized.table.dtype == torch.float64
    for channel in range(7):
        image = grid.table[None, None, :, :, channel]
        wanted = nn.functional.interpolate(image, size, mode="bicubic", antialias=shrinks)[0, 0]
        torch.testing.assert_close(resized.table[..., channel], wanted)


def test_grid_resized_keeps_what_is_constant_along_an_axis():
    grid = Grid(3, 5, 2)
    with torch.no_grad():
        grid.table[..., 0] = torch.tensor([1.0, 2.0, 4.0])[:, None]  # depends on the row only
        grid.table[..., 1] = 3.0
    table = grid.resized(7, 11).table
    torch.testing.assert_close(table[..., 1], torch.full((7, 11), 3.0))
    torch.testing.assert_close(table[..., 0], table[:, :1, 0].expand(7, 11))
    assert table[0, 0, 0] < table[3, 0, 0] < table[6, 0, 0]


@pytest.mark.parametrize("size", [(0, 5), (3, -1)])
def test_grid_is_not_resized_to_nothing(size: tuple[int, int]):
    with pytest.raises(QkvError, match=rf"^a grid of {size[0]} x {size[1]} has no cells; 1 or more"):
        Grid(3, 5, 2).resized(*size)


def test_grid_needs_a_grid():
    with pytest.raises(QkvError, match="give grid="):
        Grid.sized(width=3, heads=1, key_width=3, length=15)


# Rotary


def test_rotary_by_hand():
    # Key width 4: channels (0, 2) turn by t, channels (1, 3) by t / 100.
    x = torch.tensor([[1.0, 0.0, 0.0, 2.0]], dtype=torch.float64).expand(4, 4)
    out = Rotary(key_width=4).rotate(x)[3]
    wanted = [math.cos(3), -2 * math.sin(0.03), math.sin(3), 2 * math.cos(0.03)]
    assert out.tolist() == pytest.approx(wanted, abs=1e-12)


@given(i=st.integers(0, 40), j=st.integers(0, 40), shift=st.integers(0, 1000), seed=st.integers(0, 99))
def test_rotary_products_depend_on_the_distance_alone(i: int, j: int, shift: int, seed: int):
    torch.manual_seed(seed)
    q, k = torch.randn(2, 3, 1, 14, dtype=torch.float64)
    rotate = Rotary(key_width=14).rotate
    here = (rotate(q, i) * rotate(k, j)).sum()
    there = (rotate(q, i + shift) * rotate(k, j + shift)).sum()
    torch.testing.assert_close(here, there, rtol=0, atol=1e-9)


def test_rotary_products_differ_with_the_distance():
    q, k = torch.randn(2, 3, 1, 14, dtype=torch.float64)
    rotate = Rotary(key_width=14).rotate
    assert not torch.allclose((rotate(q, 3) * rotate(k, 1)).sum(-1), (rotate(q, 4) * rotate(k, 1)).sum(-1))


def test_rotary_equals_llama():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(hidden_size=42, num_attention_heads=3, rope_theta=10000.0)
    q, k = torch.randn(2, 2, 3, 11, 14)
    cosine, sine = llama.LlamaRotaryEmbedding(config)(q, torch.arange(5, 16)[None])
    wanted = llama.apply_rotary_pos_emb(q, k, cosine, sine)
    rotary = Rotary(key_width=14)
    torch.testing.assert_close(rotary.rotate(q, 5), wanted[0])
    torch.testing.assert_close(rotary.rotate(k, 5), wanted[1])


def test_rotary_refuses_odd_and_foreign_key_widths():
    with pytest.raises(QkvError, match="key width 7 is odd"):
        Rotary(key_width=7)
    with pytest.raises(QkvError, match="key width 6; rotary positions have 4"):
        Rotary(key_width=4).rotate(torch.zeros(1, 1, 1, 6))


# ALiBi


def test_alibi_by_hand():
    # Two heads: slopes 2^-4 and 2^-8.
    wanted = -torch.tensor([[[1, 0, 1], [2, 1, 0]]]) * torch.tensor([1 / 16, 1 / 256])[:, None, None]
    assert torch.equal(bias(ALiBi(heads=2), 2, 3), wanted)
    assert ALiBi.slopes(8) == [2.0**-n for n in range(1, 9)]
    assert ALiBi.slopes(3) == [2**-4, 2**-8, 2**-2]
    assert ALiBi.slopes(1) == [2**-8]


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 7, 8, 11, 12, 16, 20])
def test_alibi_equals_bloom_up_to_a_constant_per_query(heads: int):
    bloom: Any = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    bloom_H1S = bloom.build_alibi_tensor(torch.ones(1, 7, dtype=torch.long), heads, torch.float32)
    wanted_HTS = (bloom_H1S - bloom_H1S.transpose(1, 2)).tril()
    torch.testing.assert_close(bias(ALiBi(heads), 7, 7).tril(), wanted_HTS)


# Relative


def test_relative_buckets_by_hand():
    # 8 buckets, two-sided: 0, 1, 2-3 and the rest on each side, as sqrt(2 · 8) = 4 starts the last one.
    position = Relative(heads=1, buckets=8, max_distance=8)
    ahead = torch.tensor([0, -1, -2, -3, -4, -99, 1, 2, 3, 4, 99])
    assert position.bucket(ahead).tolist() == [0, 1, 2, 2, 3, 3, 5, 6, 6, 7, 7]
    # 4 buckets, one-sided, and all that is ahead in bucket 0.
    position = Relative(heads=1, buckets=4, max_distance=8, bidirectional=False)
    assert position.bucket(ahead).tolist() == [0, 1, 2, 2, 3, 3, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("buckets", "reach"), [(32, 128), (32, 256), (8, 20), (14, 77), (64, 1000), (320, 800)]
)
def test_relative_buckets_equal_t5(bidirectional: bool, buckets: int, reach: int):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    ahead = torch.arange(-1100, 1101)
    ours = Relative(1, buckets=buckets, max_distance=reach, bidirectional=bidirectional).bucket(ahead)
    assert torch.equal(ours, t5.T5Attention._relative_position_bucket(ahead, bidirectional, buckets, reach))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_bias_equals_t5(bidirectional: bool):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = t5.T5Config(d_model=21, d_kv=7, num_heads=3, is_decoder=not bidirectional)
    theirs = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = Relative(3, bidirectional=bidirectional)
    with torch.no_grad():
        ours.table.copy_(theirs.relative_attention_bias.weight.T)
    torch.testing.assert_close(bias(ours, 150, 150), theirs.compute_bias(150, 150)[0], rtol=0, atol=0)


@pytest.mark.parametrize(("buckets", "reach"), [(2, 128), (0, 128), (32, 8)])
def test_relative_refuses_too_few_buckets(buckets: int, reach: int):
    with pytest.raises(QkvError, match=f"buckets={buckets} and max_distance={reach}"):
        Relative(heads=1, buckets=buckets, max_distance=reach)
