"""Other libraries' masks, translated at the edge: each says yes and no in its own way.

Axes: B batch, H heads, T query length, S key length.

| library | boolean or 0/1 | float |
| --- | --- | --- |
| qkv, `F.scaled_dot_product_attention` | True = may attend | added to the scores |
| `nn.MultiheadAttention`, fairseq | True = may *not* attend | added to the scores |
| Hugging Face | 1 = real token | added to the scores |
| Keras | True = may attend, no head axis | - |
"""

import torch
from torch import Tensor

from qkv.attention.masks.values import Mask, as_mask, expect_tensor, padding
from qkv.errors import QkvError

Shape = tuple[int, int, int, int]


def from_sdpa(attn_mask: Tensor) -> Mask:
    """The `attn_mask` of `F.scaled_dot_product_attention`."""
    expect_tensor("from_sdpa", attn_mask)
    return as_mask(_allowed(attn_mask) if attn_mask.is_floating_point() else attn_mask)


def to_sdpa(allow: Mask | Tensor, shape: Shape) -> Tensor:
    """A boolean `attn_mask` for `F.scaled_dot_product_attention` and scores of shape (B, H, T, S)."""
    return _dense(allow, shape)


def from_torch_mha(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, heads: int = 1
) -> Mask:
    """The masks of `nn.MultiheadAttention`: True = may not attend; (B·heads, T, S) is unpacked with `heads`."""
    parts: list[Mask] = []
    if heads < 1:
        raise QkvError(f"heads is {heads}; the module's number of heads, 1 or more, is wanted")
    if attn_mask is not None:
        expect_tensor("attn_mask", attn_mask)
        allow = _allowed(attn_mask) if attn_mask.is_floating_point() else ~attn_mask.bool()
        if allow.dim() == 3:
            if allow.shape[0] % heads:
                raise QkvError(
                    f"attn_mask has shape {tuple(attn_mask.shape)}; "
                    f"its first axis is batch · heads: {heads} heads do not divide it"
                )
            allow = allow.unflatten(0, (-1, heads))
        parts.append(as_mask(allow))
    if key_padding_mask is not None:
        pad = key_padding_mask
        expect_tensor("key_padding_mask", pad)
        parts.append(padding(_allowed(pad) if pad.is_floating_point() else ~pad.bool()))
    if not parts:
        raise QkvError(
            "from_torch_mha got neither attn_mask nor key_padding_mask: give one, or leave allow out"
        )
    return parts[0] if len(parts) == 1 else parts[0] & parts[1]


def to_torch_mha(allow: Mask | Tensor, shape: Shape) -> Tensor:
    """An `attn_mask` (B·H, T, S) for `nn.MultiheadAttention`, True = may not attend."""
    return ~_dense(allow, shape).flatten(0, 1)


def from_fairseq(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, heads: int = 1
) -> Mask:
    """The masks of fairseq's attention: a float `attn_mask` (T, S) or (B·heads, T, S) to add, and padding with 1 = pad."""
    return from_torch_mha(attn_mask, key_padding_mask, heads)


def to_fairseq(allow: Mask | Tensor, shape: Shape) -> Tensor:
    """A float `attn_mask` (B·H, T, S) for fairseq: 0 = may attend, -inf = may not."""
    blocked = to_torch_mha(allow, shape)
    return torch.zeros(blocked.shape, device=blocked.device).masked_fill(blocked, -torch.inf)


def from_hf(attention_mask: Tensor) -> Mask:
    """A Hugging Face `attention_mask`: (B, S) with 1 = real token, or (B, 1 or H, T, S), boolean or to be added.

    (B, T, S) is taken for (B, 1, T, S), as the library did before version 5.
    """
    expect_tensor("from_hf", attention_mask)
    adds = attention_mask.is_floating_point() and attention_mask.dim() > 2
    if not adds and not ((attention_mask == 0) | (attention_mask == 1)).all():
        shape = tuple(attention_mask.shape)
        raise QkvError(
            f"attention_mask of shape {shape} has other values than 0 and 1; a mask to be added has the axes (B, 1 or H, T, S)"
        )
    allow = _allowed(attention_mask) if adds else attention_mask.bool()
    if allow.dim() <= 2:
        return padding(allow)
    return as_mask(allow.unsqueeze(1) if allow.dim() == 3 else allow)


def to_hf(allow: Mask | Tensor, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
    """An `attention_mask` for Hugging Face models: (B, S) of 0 and 1 for padding, else (B, 1 or H, T, S) to add."""
    mask = as_mask(allow)
    dense = _dense(mask, shape)
    for_all_heads = bool((dense == dense[:, :1]).all())
    if for_all_heads and not mask.per_query:
        return dense[:, 0, 0].long()
    blocked = ~(dense[:, :1] if for_all_heads else dense)
    return (
        torch.zeros((), dtype=dtype, device=dense.device)
        .expand(blocked.shape)
        .masked_fill(blocked, torch.finfo(dtype).min)
    )


def from_keras(attention_mask: Tensor) -> Mask:
    """A Keras `attention_mask` (B, T, S), True = may attend, or a padding mask (B, S)."""
    expect_tensor("from_keras", attention_mask)
    if not ((attention_mask == 0) | (attention_mask == 1)).all():
        raise QkvError(
            f"attention_mask of shape {tuple(attention_mask.shape)} has other values than 0 and 1; "
            "Keras adds no masks to scores, 1 = may attend is wanted"
        )
    allow = attention_mask.bool()
    if allow.dim() not in (2, 3):
        raise QkvError(
            f"attention_mask has shape {tuple(allow.shape)}; Keras masks are (B, T, S), or (B, S) for padding"
        )
    return as_mask(allow.unsqueeze(1)) if allow.dim() == 3 else padding(allow)


def to_keras(allow: Mask | Tensor, shape: Shape) -> Tensor:
    """A Keras `attention_mask` (B, T, S), True = may attend; all heads must share it."""
    dense = _dense(allow, shape)
    if not (dense == dense[:, :1]).all():
        raise QkvError(
            f"this mask of shape {shape} differs from head to head; Keras has one mask for all heads"
        )
    return dense[:, 0]


def split_additive(mask: Tensor) -> tuple[Mask, Tensor | None]:
    """Part a float mask that is added to scores into what it forbids and what it adds, (allow, bias).

    -inf and the lowest finite numbers, which libraries use in its place, forbid.
    """
    expect_tensor("split_additive", mask)
    if not mask.is_floating_point():
        raise QkvError(
            f"split_additive got {mask.dtype}; a float mask that is added to scores is wanted: a boolean one is allow already"
        )
    blocked, bias = _split(mask)
    return as_mask(~blocked), bias


def _split(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    blocked = mask <= torch.finfo(mask.dtype).min / 2
    bias = mask.masked_fill(blocked, 0)
    return blocked, bias if bool(bias.any()) else None


def _allowed(mask: Tensor) -> Tensor:
    """What an additive mask allows, if forbidding is all that it does."""
    blocked, bias = _split(mask)
    if bias is not None:
        worst = float(bias.flatten()[bias.abs().argmax()])
        raise QkvError(
            f"this float mask also adds {worst:g} to scores: use allow, bias = masks.split_additive(mask)"
        )
    return ~blocked


def _dense(allow: Mask | Tensor, shape: Shape) -> Tensor:
    device = allow.device if isinstance(allow, Tensor) else _device(allow)
    return as_mask(allow).dense(shape, device)


def _device(mask: Mask) -> torch.device:
    """The device of the tensors in a mask, the CPU if it has none."""
    for part in vars(mask).values():
        if isinstance(part, Tensor):
            return part.device
        if isinstance(part, Mask):
            return _device(part)
    return torch.device("cpu")
