"""One call of the equation: its arguments checked, its choices resolved, its axes brought to one shape.

Axes: B batch, H heads of the queries, G heads of the keys and values, T query length, S key length,
K key width per head, V value width per head.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.attention.masks.values import Block, Mask, as_mask, cut
from qkv.attention.normalize import NORMALIZERS, Normalizer, hard
from qkv.attention.scores import Score, repeat_heads
from qkv.errors import QkvError, choose

Beta = float | Tensor | None


@dataclass(frozen=True)
class Call:
    """A checked call; `score` is None once it has been lowered to the dot product of q and k."""

    q_BHTK: Tensor
    k_BGSK: Tensor
    v_BGSV: Tensor
    score: Score | None
    beta: float | Tensor
    mask: Mask | None
    bias: Tensor | None
    normalize: Normalizer
    dropout: float
    shape: tuple[int, ...]  # of the scores, as the caller sees them: (…, T, S)
    place: tuple[slice, slice] = (slice(None), slice(None))  # which batch entries and heads of them

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        score: Score,
        beta: Beta,
        allow: Mask | Tensor | None,
        bias: Tensor | None,
        normalize: str | Normalizer,
        dropout: float,
    ) -> "Call":
        """Check the arguments of `attend`; every misfit is one sentence with the shapes in it."""
        shape = _shape_of_scores(q, k, v)
        if not isinstance(score, Score):
            raise QkvError(
                f"score is {score!r}; a score is wanted: e.g. score=Cosine(), from qkv.attention.scores"
            )
        lead, heads = shape[:-3], shape[-3] if len(shape) > 2 else 1
        normalize = normalizer(normalize)
        if not 0.0 <= dropout < 1.0:
            raise QkvError(
                f"dropout is {dropout}; a share of the weights from 0 up to, not including, 1 is wanted"
            )
        if isinstance(beta, float) and beta == math.inf:
            beta, normalize = 1.0, hard
        beta = _resolve_beta(beta, heads, q)
        q, k, v = _to_four(q, lead), _to_four(k, lead), _to_four(v, lead)
        lowered = score.lower(q, k)
        if lowered is not None:
            q, k = lowered
            if q.shape[-1] != k.shape[-1]:
                raise QkvError(
                    f"queries have key width {q.shape[-1]}, keys {k.shape[-1]}: make them equal, "
                    "or use a score with a matrix between them, e.g. score=General(key_width, query_width=query_width)"
                )
        if k.shape[-3] != v.shape[-3]:  # as with a score that brings its own keys, one set a head
            k, v = repeat_heads(k, heads), repeat_heads(v, heads)
        return cls(
            q_BHTK=q,
            k_BGSK=k,
            v_BGSV=v,
            score=score if lowered is None else None,
            beta=beta,
            mask=None if allow is None else as_mask(allow),
            bias=None if bias is None else _checked_bias(bias, shape, q.device).to(q.dtype),
            normalize=normalize,
            dropout=dropout,
            shape=shape,
        )

    @property
    def four(self) -> tuple[int, int, int, int]:
        """B, H, T, S: the shape of the scores with all leading axes as one."""
        *lead, heads, T, S = (1, *self.shape)
        return math.prod(lead), heads, T, S

    def allow(self, block: Block | None = None) -> Tensor | None:
        """The mask in a block of the scores (all of them by default), broadcastable to (B, H, rows, keys)."""
        block = block or Block.whole(self.shape, self.q_BHTK.device)
        if self.mask is None:
            return None
        allow = self.mask.block(block)
        if allow is not None and allow.device != self.q_BHTK.device:
            raise QkvError(
                f"allow is on {allow.device}, the queries on {self.q_BHTK.device}: move the mask with .to()"
            )
        return None if allow is None else _of_heads(_lead_to_one(allow, self.shape[:-3]), *self.place)

    def heads(self, batch: slice, heads: slice) -> "Call":
        """The part of this call that belongs to some batch entries and heads."""
        q, k, v = (_of_heads(x, batch, heads) for x in (self.q_BHTK, self.k_BGSK, self.v_BGSV))
        beta = _of_heads(self.beta, batch, heads) if isinstance(self.beta, Tensor) else self.beta
        bias = None if self.bias is None else _of_heads(self.bias, batch, heads)
        return replace(self, q_BHTK=q, k_BGSK=k, v_BGSV=v, beta=beta, bias=bias, place=(batch, heads))

    def rows(self, start: int, stop: int) -> tuple["Call", Block]:
        """The part of this call that belongs to some query rows, without the keys that its mask hides from all."""
        T, S = self.shape[-2:]
        block = Block(self.shape, (start, min(stop, T)), (0, S), self.q_BHTK.device)
        if self.mask is not None:
            block = replace(block, keys=self.mask.span(block))
        keys = slice(*block.keys)
        part = replace(
            self,
            q_BHTK=self.q_BHTK[:, :, start:stop],
            k_BGSK=self.k_BGSK[:, :, keys],
            v_BGSV=self.v_BGSV[:, :, keys],
            bias=None if self.bias is None else cut(self.bias, block.rows, block.keys),
        )
        return part, block


def normalizer(choice: str | Normalizer) -> Normalizer:
    """The normaliser of that name, or the function itself."""
    if isinstance(choice, str):
        return choose("normaliser", choice, NORMALIZERS)
    if not callable(choice):
        raise QkvError(f"normalize is {choice!r}; a name or a function of the scores is wanted: 'softmax'")
    return choice


def _shape_of_scores(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """The shape (…, H, T, S) of the scores, once all shapes, dtypes and devices fit."""
    shapes = f"q is {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if min(q.dim(), k.dim(), v.dim()) < 2:
        raise QkvError(f"{shapes}: each needs at least a length and a width, (…, T, K)")
    if not q.is_floating_point() or len({q.dtype, k.dtype, v.dtype}) > 1:
        raise QkvError(
            f"q is {q.dtype}, k {k.dtype}, v {v.dtype}: one floating dtype for all three is wanted"
        )
    if len({q.device, k.device, v.device}) > 1:
        raise QkvError(
            f"q is on {q.device}, k on {k.device}, v on {v.device}: one device for all three is wanted"
        )
    if q.shape[-1] == 0 or k.shape[-1] == 0:
        raise QkvError(f"{shapes}: a key width of 0 leaves nothing to compare; 1 or more is wanted")
    if k.shape[-2] != v.shape[-2]:
        raise QkvError(
            f"{shapes}: {k.shape[-2]} keys for {v.shape[-2]} values; one value for each key is wanted"
        )
    heads = q.shape[-3] if q.dim() > 2 else 1
    for groups in (x.shape[-3] for x in (k, v) if x.dim() > 2):
        # Only with a batch axis before it is the third axis from the right surely one of heads.
        shared = q.dim() > 3 and groups and heads % groups == 0
        if groups not in (1, heads) and heads != 1 and not shared:
            raise QkvError(
                f"{shapes}: {heads} heads of queries cannot share {groups} heads of keys; "
                "a divisor is wanted, and a batch axis before the heads"
            )
        heads = max(heads, groups) if heads == 1 else heads
    if len({x.shape[-3] for x in (k, v) if x.dim() > 2} - {1}) > 1:
        raise QkvError(f"{shapes}: keys and values must have the same number of heads, or one of them 1")
    try:
        lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    except RuntimeError:
        raise QkvError(f"{shapes}: the axes before the heads must be equal or 1") from None
    has_heads = max(q.dim(), k.dim(), v.dim()) > 2
    return (*lead, *([heads] if has_heads else []), q.shape[-2], k.shape[-2])


def _resolve_beta(beta: Beta, heads: int, q: Tensor) -> float | Tensor:
    if beta is None:
        return 1 / math.sqrt(q.shape[-1])
    if isinstance(beta, Tensor):
        if beta.numel() not in (1, heads) or beta.numel() != max(beta.shape, default=1):
            raise QkvError(
                f"beta has shape {tuple(beta.shape)} for {heads} heads: give one value, or one a head"
            )
        if beta.device != q.device:
            raise QkvError(f"beta is on {beta.device}, the queries on {q.device}: move it with .to()")
        # Reading it would break a compiled graph, and stop a GPU's queue.
        if beta.device.type == "cpu" and not torch.compiler.is_compiling() and not beta.isfinite().all():
            raise QkvError(
                f"beta is {beta.tolist()}; finite numbers are wanted: hard attention takes the number math.inf"
            )
        return beta.reshape(-1, 1, 1)
    if not torch.compiler.is_compiling() and not isinstance(beta, int | float):
        raise QkvError(
            f"beta is {beta!r} of type {type(beta).__name__}; a number is wanted, or a tensor with one a head"
        )
    if not math.isfinite(beta):
        raise QkvError(f"beta is {beta}; a finite number, or inf for hard attention, is wanted")
    return float(beta)


def _checked_bias(bias: Tensor, shape: tuple[int, ...], device: torch.device) -> Tensor:
    if not isinstance(bias, Tensor):
        raise QkvError(f"bias is {type(bias).__name__}; a tensor to add to the scores is wanted")
    if not bias.is_floating_point():
        raise QkvError(
            f"bias is {bias.dtype}; numbers to add to the scores are wanted: a boolean mask goes to allow"
        )
    if bias.device != device:
        raise QkvError(f"bias is on {bias.device}, the queries on {device}: move it with .to()")
    fits = bias.dim() <= len(shape) and all(
        have in (1, want) for have, want in zip(reversed(bias.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise QkvError(
            f"bias has shape {tuple(bias.shape)}; scores are {shape}: each axis must be theirs or 1"
        )
    # A row of nothing but -inf is NaN on one path and zeros on another. Reading breaks graphs, as above.
    if bias.device.type == "cpu" and not torch.compiler.is_compiling() and bias.numel():
        low, high = bias.detach().aminmax()
        if not (low.isfinite() and high.isfinite()):
            raise QkvError(
                f"bias runs from {float(low)} to {float(high)}; finite numbers are wanted: part an additive mask with "
                "allow, bias = masks.split_additive(mask)"
            )
    bias = bias.reshape(*[1] * (2 - bias.dim()), *bias.shape)
    return _lead_to_one(bias, shape[:-3])


def _to_four(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """View x (…, heads, T, K) as (B, heads, T, K); a batch axis of 1 stays 1 where one batch axis is all."""
    if x.dim() == 4 and len(lead) == 1:
        return x
    heads = x.shape[-3] if x.dim() > 2 else 1
    if len(lead) > 1:
        x = x.expand(*lead, heads, *x.shape[-2:])
    return x.reshape(math.prod(x.shape[:-3]), heads, *x.shape[-2:])


def _of_heads(x: Tensor, batch: slice, heads: slice) -> Tensor:
    """Some batch entries and heads of something broadcastable to (B, H, T, S), its axes of size 1 left alone."""
    if x.dim() > 3 and x.shape[0] > 1:
        x = x[batch]
    return x[..., heads, :, :] if x.dim() > 2 and x.shape[-3] > 1 else x


def _lead_to_one(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """View a mask or bias, broadcastable to (*lead, H, T, S), as one broadcastable to (B, H, T, S)."""
    if x.dim() <= 3 or len(lead) <= 1:
        return x
    return x.expand(*lead, *x.shape[-3:]).reshape(math.prod(lead), *x.shape[-3:])
