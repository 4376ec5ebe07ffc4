"""Other libraries' masks, each way, against the libraries themselves or their documented words."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.attention.strategies import composed
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel
from transformers.models.bert.modeling_bert import eager_attention_forward

from qkv import MultiHeadAttention, QkvError, attend, masks
from qkv.attention.masks.values import Mask

B, H, T, S, K = 2, 3, 5, 7, 4
SHAPE = (B, H, T, S)
KEEP_BS = torch.tensor([[1, 1, 1, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1, 0]]).bool()
# No row is empty: where libraries differ (NaN, or an average) is a test of its own.
ALLOW_TS = torch.ones(T, S).tril(2).bool()
ALLOW_BHTS = (torch.rand(SHAPE, generator=torch.Generator().manual_seed(4)) < 0.6) | (torch.arange(S) == 2)
ADD_TS = torch.zeros(T, S).masked_fill(~ALLOW_TS, -math.inf)
BIAS_TS = torch.linspace(-2, 3, T * S).reshape(T, S)


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(B, H, T, K), torch.randn(B, H, S, K), torch.randn(B, H, S, K)


def same(mask: Mask, want: Tensor) -> bool:
    return torch.equal(mask.dense(SHAPE), want.expand(SHAPE))


# nn.MultiheadAttention


@pytest.mark.parametrize(
    ("attn_mask", "key_padding_mask"),
    [
        (~ALLOW_TS, None),
        (ADD_TS, None),
        (None, ~KEEP_BS),
        (None, torch.zeros(B, S).masked_fill(~KEEP_BS, -math.inf)),
        (~ALLOW_TS, ~KEEP_BS),
        (~ALLOW_BHTS.flatten(0, 1), None),
        (~ALLOW_BHTS.flatten(0, 1), ~KEEP_BS),
        (torch.zeros(B * H, T, S).masked_fill(~ALLOW_BHTS.flatten(0, 1), -math.inf), None),
    ],
)
def test_from_torch_mha(attn_mask: Tensor | None, key_padding_mask: Tensor | None):
    theirs = nn.MultiheadAttention(12, H, kdim=12, vdim=12, batch_first=True)
    ours = MultiHeadAttention.from_torch(theirs)
    query, key = torch.randn(B, T, 12), torch.randn(B, S, 12)
    want, _ = theirs(query, key, key, attn_mask=attn_mask, key_padding_mask=key_padding_mask)
    allow = masks.from_torch_mha(attn_mask, key_padding_mask, heads=H)
    blocked_BT = ~allow.dense(SHAPE).any(-1).all(1)
    assert (want.isnan().any(-1) == blocked_BT).all()  # torch's answer to a row with nothing allowed
    torch.testing.assert_close(ours(query, key, allow=allow)[~blocked_BT], want[~blocked_BT])


def test_to_torch_mha():
    theirs = nn.MultiheadAttention(12, H, batch_first=True)
    ours = MultiHeadAttention.from_torch(theirs)
    x = torch.randn(B, S, 12)
    for allow in [
        masks.causal(),
        masks.padding(KEEP_BS),
        masks.causal() & masks.padding(torch.tensor([3, 7])),
    ]:
        want, _ = theirs(x, x, x, attn_mask=masks.to_torch_mha(allow, (B, H, S, S)))
        got = ours(x, allow=allow)
        some_BT = allow.dense((B, H, S, S)).any(-1)[:, 0]
        torch.testing.assert_close(got[some_BT], want[some_BT])


def test_torch_mha_masks_without_a_batch():
    theirs = nn.MultiheadAttention(12, H)
    ours = MultiHeadAttention.from_torch(theirs)
    x, keep_S = torch.randn(S, 12), KEEP_BS[0]
    for padding_S in [~keep_S, torch.zeros(S).masked_fill(~keep_S, -math.inf)]:
        want, _ = theirs(x, x, x, key_padding_mask=padding_S)
        torch.testing.assert_close(ours(x, allow=masks.from_torch_mha(key_padding_mask=padding_S)), want)


def test_torch_mha_misfits():
    with pytest.raises(
        QkvError,
        match=r"^attn_mask has shape \(6, 5, 7\); its first axis is batch · heads: 4 heads do not divide it$",
    ):
        masks.from_torch_mha(~ALLOW_BHTS.flatten(0, 1), heads=4)
    with pytest.raises(
        QkvError,
        match=r"^from_torch_mha got neither attn_mask nor key_padding_mask: give one, or leave allow out$",
    ):
        masks.from_torch_mha()


# F.scaled_dot_product_attention


@pytest.mark.parametrize(
    "mask",
    [ALLOW_TS, ALLOW_BHTS, ADD_TS, KEEP_BS[:, None, None], ADD_TS.clamp(min=torch.finfo(torch.float32).min)],
)
def test_from_sdpa(mask: Tensor):
    q, k, v = qkv()
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(attend(q, k, v, allow=masks.from_sdpa(mask)), want)


@pytest.mark.parametrize("allow", [masks.causal(), masks.padding(KEEP_BS), masks.window(2), ALLOW_BHTS])
def test_to_sdpa(allow: Mask | Tensor):
    q, k, v = qkv()
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=masks.to_sdpa(allow, SHAPE))
    torch.testing.assert_close(attend(q, k, v, allow=allow), want)


# Hugging Face


def bert(implementation: str) -> BertModel:
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=17,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=H,
        intermediate_size=11,
        max_position_embeddings=16,
        attn_implementation=implementation,
    )
    return BertModel(config).eval()


class Eager(nn.Module):
    """What Hugging Face's function wants of the module that calls it."""

    training = False


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_to_hf_gives_bert_the_mask_that_it_makes_itself(implementation: str):
    model, ids_BS = bert(implementation), torch.randint(0, 17, (B, S))
    shape = (B, H, S, S)
    want = model(ids_BS, attention_mask=KEEP_BS.long()).last_hidden_state
    padding = masks.to_hf(masks.padding(KEEP_BS), shape)
    assert torch.equal(padding, KEEP_BS.long())
    assert torch.equal(model(ids_BS, attention_mask=padding).last_hidden_state, want)
    # As a mask with four axes, to be added: one row differs, so that it cannot be padding
    all_but_one = masks.padding(KEEP_BS) & (torch.arange(S)[:, None] >= 0)
    added = masks.to_hf(all_but_one, shape)
    assert added.shape == (B, 1, S, S)
    assert added.is_floating_point()
    torch.testing.assert_close(model(ids_BS, attention_mask=added).last_hidden_state, want)
    # and it does forbid: what is hidden changes nothing, what is not does
    other_BS = torch.where(KEEP_BS, ids_BS, (ids_BS + 1) % 17)
    torch.testing.assert_close(
        model(other_BS, attention_mask=added).last_hidden_state[KEEP_BS], want[KEEP_BS]
    )
    assert not torch.allclose(model(other_BS).last_hidden_state[KEEP_BS], want[KEEP_BS], atol=1e-3)


@torch.no_grad()
def test_to_hf_causal_is_bert_as_a_decoder():
    model, ids_BS = bert("eager"), torch.randint(0, 17, (B, S))
    got = model(ids_BS, attention_mask=masks.to_hf(masks.causal(), (B, H, S, S))).last_hidden_state
    model.config.is_decoder = True
    want = model(ids_BS, use_cache=False).last_hidden_state
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "mask",
    [
        torch.zeros(B, 1, T, S).masked_fill(~ALLOW_TS, torch.finfo(torch.float32).min),
        torch.zeros(SHAPE).masked_fill(~ALLOW_BHTS, -math.inf),
        torch.zeros(B, 1, 1, S).masked_fill(~KEEP_BS[:, None, None], torch.finfo(torch.float32).min),
    ],
)
def test_from_hf_makes_attend_hugging_faces_eager_attention(mask: Tensor):
    q, k, v = qkv()
    want, _ = eager_attention_forward(Eager(), q, k, v, mask)
    torch.testing.assert_close(attend(q, k, v, allow=masks.from_hf(mask)).transpose(1, 2), want)


def test_from_hf_reads_a_padding_mask_of_either_type():
    q, k, v = qkv()
    added = torch.zeros(B, 1, 1, S).masked_fill(~KEEP_BS[:, None, None], torch.finfo(torch.float32).min)
    want, _ = eager_attention_forward(Eager(), q, k, v, added)
    for mask in [KEEP_BS, KEEP_BS.long(), KEEP_BS.float(), KEEP_BS[:, None, None].long()]:
        torch.testing.assert_close(attend(q, k, v, allow=masks.from_hf(mask)).transpose(1, 2), want)


def test_from_hf_puts_a_mask_of_three_axes_under_all_heads():
    """(B, T, S) with B = H would fit the heads as well: 'we provide a self-attention mask of dimensions
    [batch_size, from_seq_length, to_seq_length]' (get_extended_attention_mask, transformers 4) is per sentence."""
    allow_BTS = torch.rand(H, T, S) < 0.5
    got = masks.from_hf(allow_BTS.long()).dense((H, H, T, S))
    assert torch.equal(got, allow_BTS[:, None].expand(H, H, T, S))


def test_to_hf_keeps_heads_apart():
    keep_BH1S = torch.rand(B, H, 1, S) < 0.5
    keep_BH1S[:, 0] = ~keep_BH1S[:, 1]
    mask = masks.to_hf(keep_BH1S, SHAPE)
    assert mask.shape == SHAPE
    assert torch.equal(mask == 0, keep_BH1S.expand(SHAPE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_to_hf_in_the_models_precision(dtype: torch.dtype):
    mask = masks.to_hf(masks.causal(), SHAPE, dtype)
    assert mask.dtype == dtype
    assert mask.min() == torch.finfo(dtype).min
    assert same(masks.from_hf(mask), masks.causal().dense(SHAPE))


@pytest.mark.parametrize("mask", [ADD_TS, KEEP_BS.long() * 2, torch.full((B, S), -1e9)])
def test_from_hf_refuses_two_axes_that_are_no_padding_mask(mask: Tensor):
    with pytest.raises(
        QkvError, match=r"has other values than 0 and 1; a mask to be added has the axes \(B, 1 or H, T, S\)$"
    ):
        masks.from_hf(mask)


# Keras, by its documentation: "attention_mask: a boolean mask of shape (B, T, S), that prevents attention to
# certain positions. The boolean mask specifies which query elements can attend to which key elements, 1
# indicates attention and 0 indicates no attention. Broadcasting can happen for the missing batch dimensions and
# the head dimension." (keras.layers.MultiHeadAttention). Its padding masks (Masking, Embedding) are (B, S) with
# False for a step to skip.


def test_keras_means_true_may_attend_for_all_heads():
    allow_BTS = ALLOW_BHTS[:, 0]
    for mask in [allow_BTS, allow_BTS.int()]:
        assert same(masks.from_keras(mask), allow_BTS[:, None])
    assert same(masks.from_keras(KEEP_BS), KEEP_BS[:, None, None])
    assert torch.equal(masks.to_keras(masks.causal(), SHAPE), masks.causal().dense((B, T, S)))
    assert torch.equal(masks.to_keras(allow_BTS[:, None], SHAPE), allow_BTS)


@pytest.mark.parametrize("mask", [torch.tensor([[0.0, -torch.inf]]), torch.tensor([[0, 2]])])
def test_from_keras_refuses_what_is_no_yes_and_no(mask: Tensor):
    with pytest.raises(
        QkvError, match=r"^attention_mask of shape \(1, 2\) has other values than 0 and 1; Keras"
    ):
        masks.from_keras(mask)


def test_keras_has_no_masks_per_head():
    with pytest.raises(
        QkvError,
        match=r"^this mask of shape \(2, 3, 5, 7\) differs from head to head; Keras has one mask for all heads$",
    ):
        masks.to_keras(ALLOW_BHTS, SHAPE)


# fairseq, by its documentation (modules/multihead_attention.py): "key_padding_mask (ByteTensor, optional): mask
# to exclude keys that are pads, of shape `(batch, src_len)`, where padding elements are indicated by 1s." and
# attn_mask is added: `attn_weights += attn_mask`, with -inf above the diagonal in TransformerDecoder's
# `buffered_future_mask`.


def fairseq_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None
) -> Tensor:
    """Those two sentences, done."""
    scores_BHTS = q @ k.mT / math.sqrt(K)
    if attn_mask is not None:
        scores_BHTS = scores_BHTS + (attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (B, H)))
    if key_padding_mask is not None:
        scores_BHTS = scores_BHTS.masked_fill(key_padding_mask[:, None, None].bool(), -math.inf)
    return scores_BHTS.softmax(-1) @ v


@pytest.mark.parametrize("padding", [None, ~KEEP_BS, (~KEEP_BS).byte()])
@pytest.mark.parametrize(
    "added", [None, torch.zeros(T, S).masked_fill(torch.ones(T, S).triu(3).bool(), -math.inf)]
)
def test_from_fairseq(added: Tensor | None, padding: Tensor | None):
    if added is None and padding is None:
        return
    q, k, v = qkv()
    want = fairseq_attention(q, k, v, added, padding)
    torch.testing.assert_close(attend(q, k, v, allow=masks.from_fairseq(added, padding)), want)


@pytest.mark.parametrize("allow", [masks.causal(), masks.padding(KEEP_BS), ALLOW_BHTS])
def test_to_fairseq(allow: Mask | Tensor):
    q, k, v = qkv()
    want = fairseq_attention(q, k, v, masks.to_fairseq(allow, SHAPE), None)
    torch.testing.assert_close(attend(q, k, v, allow=allow), want)


# There and back


@given(st.data(), st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_round_trips(data: st.DataObject, size: tuple[int, int]):
    shape = (B, H, *size)
    mask, allow = data.draw(composed(*shape))
    want = torch.from_numpy(allow.copy())
    there_and_back = [
        masks.from_sdpa(masks.to_sdpa(mask, shape)),
        masks.from_torch_mha(masks.to_torch_mha(mask, shape), heads=H),
        masks.from_fairseq(masks.to_fairseq(mask, shape), heads=H),
        masks.from_hf(masks.to_hf(mask, shape)),
    ]
    if (want == want[:, :1]).all():
        there_and_back.append(masks.from_keras(masks.to_keras(mask, shape)))
    for back in there_and_back:
        assert torch.equal(back.dense(shape), want)


# Masks that add


@pytest.mark.parametrize("forbidding", [-math.inf, torch.finfo(torch.float32).min])
def test_split_additive(forbidding: float):
    mask_TS = BIAS_TS.masked_fill(~ALLOW_TS, forbidding)
    allow, bias_TS = masks.split_additive(mask_TS)
    assert bias_TS is not None
    assert same(allow, ALLOW_TS)
    assert torch.equal(bias_TS, BIAS_TS.masked_fill(~ALLOW_TS, 0))
    q, k, v = qkv()
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_TS)
    torch.testing.assert_close(attend(q, k, v, allow=allow, bias=bias_TS), want)


def test_split_additive_without_anything_to_add():
    allow, bias = masks.split_additive(ADD_TS)
    assert bias is None
    assert same(allow, ALLOW_TS)


@pytest.mark.parametrize("dtype", [torch.bool, torch.long], ids=str)
def test_split_additive_wants_numbers_to_add(dtype: torch.dtype):
    with pytest.raises(
        QkvError, match=f"^split_additive got {dtype}; a float mask that is added to scores is wanted"
    ):
        masks.split_additive(torch.ones(T, S, dtype=dtype))


@pytest.mark.parametrize(
    "adapter",
    [
        masks.from_sdpa,
        masks.from_torch_mha,
        masks.from_fairseq,
        lambda mask: masks.from_hf(mask[None, None]),
        lambda mask: masks.from_torch_mha(key_padding_mask=mask),
    ],
)
@pytest.mark.parametrize("value", [-1e9, 0.5, math.inf])
def test_a_mask_that_adds_is_no_mask_of_yes_and_no(adapter: Any, value: float):
    mask = ADD_TS.clone()
    mask[0, 0] = value
    with pytest.raises(QkvError) as caught:
        adapter(mask)
    assert str(caught.value) == (
        f"this float mask also adds {value:g} to scores: use allow, bias = masks.split_additive(mask)"
    )
