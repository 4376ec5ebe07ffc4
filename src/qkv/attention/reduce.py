"""What to keep of attention weights that are never held whole: reducers over blocks of query rows.

Axes: B batch, H heads, T query length (a block's rows here), S key length (a block's keys here).

A reducer sees one block of rows at a time, so its memory is O(rows · block) unless it keeps full maps.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.attention.attend import hide, logits, normalised, zero_blocked
from qkv.attention.call import Call
from qkv.attention.masks.values import Block
from qkv.attention.normalize import softmax
from qkv.attention.scores import repeat_heads
from qkv.errors import QkvError

BLOCK = 1 << 20
"""Scores in a block: 4 MiB in fp32, so that the passes over it stay in the processor's cache."""
ROWS = 256
"""Most rows in a block: enough for fast products, few enough to skip what a causal mask hides from all."""


@dataclass(frozen=True)
class Rows:
    """Some rows of the weights of some heads, in fp32, at the keys that a mask leaves them.

    Both tensors are buffers that the next block fills again: a reducer may overwrite them, not keep them.
    """

    logits_BHTS: Tensor
    weights_BHTS: Tensor
    block: Block
    is_softmax: bool


class Reducer(ABC):
    """Turns rows of weights into what is kept; pieces are laid side by side, or merged by `merge`."""

    by_row = True  # False: a piece says nothing of single rows, and `merge` joins two of them
    keys_first = False  # True: blocks lie transposed, which makes products faster and sorting keys slower

    @abstractmethod
    def reduce(self, rows: Rows) -> Tensor:
        """The piece for these rows: (B, H, T, …) if `by_row`."""

    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        """Join two pieces; needed only where `by_row` is False."""
        raise NotImplementedError(f"{type(self).__name__} keeps rows, which are laid side by side")


class Full(Reducer):
    """The whole map, weights_BHTS: as large as it sounds."""

    def reduce(self, rows: Rows) -> Tensor:
        return _all_keys(rows)


class Entropy(Reducer):
    """How widely each query looks, in nats (B, H, T): 0 is one key, log S is all alike."""

    keys_first = True

    def reduce(self, rows: Rows) -> Tensor:
        weights_BHTS, logits_BHTS = rows.weights_BHTS, rows.logits_BHTS
        if not rows.is_softmax or weights_BHTS.shape[-1] == 0:
            return torch.special.entr(weights_BHTS).sum(-1)
        # For softmax, log p = s - max s + log max p: no logarithm for each key.
        top_weight_BHT, top_BHT1 = weights_BHTS.amax(-1), logits_BHTS.amax(-1, keepdim=True)
        below_BHT = weights_BHTS.mul_(logits_BHTS.sub_(top_BHT1)).sum(-1)
        entropy_BHT = (-top_weight_BHT.log() - below_BHT).clamp(min=0)
        return entropy_BHT.masked_fill(top_weight_BHT == 0, 0)  # 0: a row with nothing allowed


class TopK(Reducer):
    """The k largest weights of each query and their keys, (B, H, T, k, 2): weight first, then key number."""

    def __init__(self, k: int = 5):
        if k < 1:
            raise QkvError(f"top_k keeps {k} keys; 1 or more are wanted")
        self.k = k

    def reduce(self, rows: Rows) -> Tensor:
        weights_BHTk, keys_BHTk = _all_keys(rows).topk(min(self.k, rows.block.shape[-1]), dim=-1)
        return torch.stack([weights_BHTk, keys_BHTk.to(weights_BHTk.dtype)], dim=-1)


class Distance(Reducer):
    """How far each query looks on average, Σ weight · |i - j| (B, H, T); the last query stands beside the last key."""

    keys_first = True

    def reduce(self, rows: Rows) -> Tensor:
        i, j = rows.block.positions()
        return rows.weights_BHTS.mul_((i - j).abs()).sum(-1)


class ColumnMass(Reducer):
    """How much each key is looked at, the sum of its weights over all queries (B, H, S)."""

    by_row, keys_first = False, True

    def reduce(self, rows: Rows) -> Tensor:
        return _all_keys(rows).sum(-2)

    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        return one + other


class MaxLogit(Reducer):
    """The largest allowed logit of each head (B, H): the first thing to grow when training runs away."""

    by_row, keys_first = False, True

    def reduce(self, rows: Rows) -> Tensor:
        if 0 in rows.logits_BHTS.shape[-2:]:  # a mask hides every key from these rows
            return rows.logits_BHTS.new_full(rows.logits_BHTS.shape[:2], -torch.inf)
        lowest = torch.finfo(rows.logits_BHTS.dtype).min
        logits_BHTS = rows.logits_BHTS.masked_fill(rows.logits_BHTS == lowest, -torch.inf)
        return logits_BHTS.flatten(-2).amax(-1)

    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        return torch.maximum(one, other)


@torch.no_grad()
def reduce_weights(call: Call, reducer: Reducer) -> Tensor:
    """Recompute a call's weights block by block and keep what the reducer keeps."""
    B, H, T, _ = call.four
    call, blocks = _in_fp32(call), list(_blocks(call))
    buffers = Buffers(reducer.keys_first)
    if len(blocks) == 1:
        return _outwards(call, reducer.reduce(buffers.rows(call, 0, T)))
    kept: Tensor | None = None
    for batch, heads, start, stop in blocks:
        piece = reducer.reduce(buffers.rows(call.heads(batch, heads), start, stop))
        if kept is None:
            kept = piece.new_empty(
                (B, H, T, *piece.shape[3:]) if reducer.by_row else (B, H, *piece.shape[2:])
            )
        if reducer.by_row:
            kept[batch, heads, start:stop] = piece
        else:
            kept[batch, heads] = piece if start == 0 else reducer.merge(kept[batch, heads], piece)
    assert kept is not None, "there is always one block"
    return _outwards(call, kept)


def _outwards(call: Call, kept_BHX: Tensor) -> Tensor:
    """What was kept, with the leading axes of the caller."""
    kept_BHX = kept_BHX.expand((*call.four[:2], *kept_BHX.shape[2:]))
    return kept_BHX.reshape((*call.shape[:-2], *kept_BHX.shape[2:]))


def _in_fp32(call: Call) -> Call:
    """Queries and keys to compute with, at least in fp32; those of a score with weights of its own stay in their dtype."""
    if call.score is not None:
        return call
    B, H, T, _ = call.four
    wide = torch.promote_types(call.q_BHTK.dtype, torch.float32)
    k_BHSK, no_v_BHSV = (repeat_heads(x, H) for x in (call.k_BGSK, call.v_BGSV[..., :0]))
    return replace(
        call,
        q_BHTK=(call.q_BHTK.to(wide) * call.beta).to(wide).expand(B, H, T, -1),
        k_BGSK=k_BHSK.to(wide).contiguous(),
        v_BGSV=no_v_BHSV,
        beta=1.0,
    )


def _blocks(call: Call) -> Iterator[tuple[slice, slice, int, int]]:
    """Batch entries, heads and rows: many rows of one head rather than few of all, which products are slow on."""
    B, H, T, S = (max(size, 1) for size in call.four)  # no queries: one empty block
    row = S * (1 if call.score is None else call.score.depth * H)
    rows = min(T, ROWS, max(1, BLOCK // row))
    heads = H if call.score is not None else min(H, max(1, BLOCK // (rows * row)))
    batch = min(B, max(1, BLOCK // (rows * row * heads))) if heads == H else 1
    for b, h, t in product(range(0, B, batch), range(0, H, heads), range(0, T, rows)):
        yield slice(b, b + batch), slice(h, h + heads), t, min(t + rows, call.four[2])


class Buffers:
    """Logits and weights of one block after another in the same memory: fresh memory costs more than the sums."""

    def __init__(self, keys_first: bool) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._keys_first = keys_first

    def rows(self, call: Call, start: int, stop: int) -> Rows:
        """Some query rows of a call."""
        part, block = call.rows(start, stop)
        allow_BHTS = call.allow(block)
        # autocast would take a dot product back to bf16, but a score with weights of its own may need it
        device = part.q_BHTK.device.type
        with torch.autocast(device, enabled=part.score is not None and torch.is_autocast_enabled(device)):
            logits_BHTS = self._products(part) if part.score is None else _at_least_fp32(logits(part, None))
        # masked only now: the lowest finite number of another dtype is not that of fp32
        if allow_BHTS is not None:
            logits_BHTS = hide(logits_BHTS, allow_BHTS)
        is_softmax = call.normalize is softmax
        if is_softmax:
            weights_BHTS = self._buffer("weights", logits_BHTS.shape, logits_BHTS)
            if self._keys_first:
                torch.softmax(logits_BHTS.mT, -2, out=weights_BHTS.mT)
            else:
                torch.softmax(logits_BHTS, -1, out=weights_BHTS)
        else:
            weights_BHTS = normalised(part, logits_BHTS)
        return Rows(logits_BHTS, zero_blocked(weights_BHTS, allow_BHTS), block, is_softmax)

    def _products(self, call: Call) -> Tensor:
        """q · k + bias, as `attend.logits` has it, but in a buffer; `_in_fp32` has put β into q."""
        out_BHTS = self._buffer("logits", (*call.q_BHTK.shape[:3], call.k_BGSK.shape[2]), call.q_BHTK)
        if self._keys_first:
            torch.matmul(call.k_BGSK, call.q_BHTK.mT, out=out_BHTS.mT)
        else:
            torch.matmul(call.q_BHTK, call.k_BGSK.mT, out=out_BHTS)
        return out_BHTS if call.bias is None else out_BHTS.add_(call.bias)

    def _buffer(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        size = math.prod(shape)
        if name not in self._buffers or self._buffers[name].numel() < size:
            self._buffers[name] = like.new_empty(size)
        flat = self._buffers[name][:size]
        if not self._keys_first:
            return flat.view(shape)
        *lead, T, S = shape
        return flat.view(*lead, S, T).mT


def _at_least_fp32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _all_keys(rows: Rows) -> Tensor:
    """The weights at all keys, 0 at those that the mask hid from the whole block."""
    (start, stop), S = rows.block.keys, rows.block.shape[-1]
    return rows.weights_BHTS if stop - start == S else F.pad(rows.weights_BHTS, (start, S - stop))


REDUCERS: dict[str, type[Reducer]] = {
    "full": Full,
    "entropy": Entropy,
    "top_k": TopK,
    "distance": Distance,
    "column_mass": ColumnMass,
    "max_logit": MaxLogit,
}
