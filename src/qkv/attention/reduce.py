"""What to keep of attention weights that are never held whole: reducers over blocks of query rows.

Axes: B batch, H heads, T query length (a block's rows here), S key length (a block's keys here).

A reducer sees one block of rows at a time, so its memory is O(rows · block) unless it keeps full maps.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.attention.attend import logits, mask_logits, normalised, zero_blocked
from qkv.attention.call import Call
from qkv.attention.masks.values import Block
from qkv.attention.normalize import softmax
from qkv.errors import QkvError

BLOCK = 1 << 20
"""Scores in a block: 4 MiB in fp32, so that the passes over it stay in the processor's cache."""


@dataclass(frozen=True)
class Rows:
    """Some rows of the weights of one call, in fp32, at the keys that a mask leaves them."""

    logits_BHTS: Tensor
    weights_BHTS: Tensor
    block: Block
    is_softmax: bool


class Reducer(ABC):
    """Turns rows of weights into what is kept; pieces are laid side by side, or merged by `merge`."""

    by_row = True  # False: a piece says nothing of single rows, and `merge` joins two of them

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

    def reduce(self, rows: Rows) -> Tensor:
        weights_BHTS, logits_BHTS = rows.weights_BHTS, rows.logits_BHTS
        if not rows.is_softmax or weights_BHTS.shape[-1] == 0:
            return torch.special.entr(weights_BHTS).sum(-1)
        # For softmax, -Σ p log p = log Σ exp(s) - Σ p s: no logarithm for each key. At the likeliest key,
        # log Σ exp(s) is s - log p.
        top_BHT1 = weights_BHTS.argmax(-1, keepdim=True)
        top_weight_BHT1 = weights_BHTS.gather(-1, top_BHT1)
        log_sum_BHT1 = logits_BHTS.gather(-1, top_BHT1) - top_weight_BHT1.log()
        mean_BHT1 = (weights_BHTS.unsqueeze(-2) @ logits_BHTS.unsqueeze(-1)).squeeze(-1)
        entropy_BHT1 = (log_sum_BHT1 - mean_BHT1).clamp(min=0)
        return entropy_BHT1.masked_fill(top_weight_BHT1 == 0, 0).squeeze(-1)  # 0: a row with nothing allowed


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

    def reduce(self, rows: Rows) -> Tensor:
        i, j = rows.block.positions()
        return (rows.weights_BHTS * (i - j).abs()).sum(-1)


class ColumnMass(Reducer):
    """How much each key is looked at, the sum of its weights over all queries (B, H, S)."""

    by_row = False

    def reduce(self, rows: Rows) -> Tensor:
        return _all_keys(rows).sum(-2)

    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        return one + other


class MaxLogit(Reducer):
    """The largest allowed logit of each head (B, H): the first thing to grow when training runs away."""

    by_row = False

    def reduce(self, rows: Rows) -> Tensor:
        if 0 in rows.logits_BHTS.shape[-2:]:  # a mask hides every key from these rows
            return rows.logits_BHTS.new_full(rows.logits_BHTS.shape[:2], -torch.inf)
        lowest = torch.finfo(rows.logits_BHTS.dtype).min
        logits_BHTS = rows.logits_BHTS.masked_fill(rows.logits_BHTS == lowest, -torch.inf)
        return logits_BHTS.flatten(-2).amax(-1)

    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        return torch.maximum(one, other)


def reduce_weights(call: Call, reducer: Reducer) -> Tensor:
    """Recompute a call's weights block by block and keep what the reducer keeps."""
    B, H, T, S = call.four
    step = max(1, BLOCK // max(1, B * H * S))
    kept: Tensor | None = None
    for start in range(0, max(T, 1), step):  # no queries: one empty block
        stop = min(start + step, T)
        piece = reducer.reduce(_rows(call, start, stop))
        if not reducer.by_row:
            kept = piece if kept is None else reducer.merge(kept, piece)
        elif stop - start == T:
            kept = piece
        else:
            kept = piece.new_empty(B, H, T, *piece.shape[3:]) if kept is None else kept
            kept[:, :, start:stop] = piece
    assert kept is not None, "there is always one block"
    lead = call.shape[:-2]
    return kept.reshape((*lead, *kept.shape[2:]))


def _rows(call: Call, start: int, stop: int) -> Rows:
    part, block = call.rows(start, stop)
    if part.score is None:  # a score with weights of its own stays in their dtype
        part = replace(part, q_BHTK=part.q_BHTK.float(), k_BGSK=part.k_BGSK.float())
    allow_BHTS, device = call.allow(block), call.q_BHTK.device.type
    # autocast would take a dot product back to bf16, but a score with weights of its own may need it
    with torch.autocast(device, enabled=part.score is not None and torch.is_autocast_enabled(device)):
        logits_BHTS = logits(part, None).float()
    # masked only now: the lowest finite number of another dtype is not that of fp32
    logits_BHTS = mask_logits(logits_BHTS, allow_BHTS).expand(*call.four[:2], -1, -1)
    weights_BHTS = zero_blocked(normalised(part, logits_BHTS), allow_BHTS)
    return Rows(logits_BHTS, weights_BHTS, block, call.normalize is softmax)


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
