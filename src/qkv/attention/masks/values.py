"""Masks: who may attend to what, as small values that compose with &, | and ~.

Axes: B batch, H heads, T query length, S key length.

`True` means *may attend*, everywhere. A mask knows its meaning, not its size: nothing of size T×S is
built until a row block asks for it, so a plain causal mask never costs one. The last query stands
beside the last key: with T queries and S keys, query i has position S - T + i, which is what cached
decoding needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from qkv.errors import QkvError


@dataclass(frozen=True)
class Block:
    """A rectangle of the scores: their whole shape (…, T, S), the query rows and key columns asked for."""

    shape: tuple[int, ...]
    rows: tuple[int, int]
    keys: tuple[int, int]
    device: torch.device

    @classmethod
    def whole(cls, shape: tuple[int, ...], device: torch.device) -> Self:
        return cls(shape, (0, shape[-2]), (0, shape[-1]), device)

    def positions(self, first: int | None = None) -> tuple[Tensor, Tensor]:
        """Query positions (rows, 1) and key positions (keys,); `first` is that of query 0, by default S - T."""
        start = self.shape[-1] - self.shape[-2] if first is None else first
        i = torch.arange(start + self.rows[0], start + self.rows[1], device=self.device)
        return i[:, None], torch.arange(*self.keys, device=self.device)


class Mask:
    """Which query may attend to which key; a new kind overrides `block`, and `span` if it can skip keys."""

    per_query = True  # False: every query sees the same keys, so a row of the mask is all there is

    def block(self, block: Block) -> Tensor | None:
        """The mask in that rectangle, broadcastable to the scores there; None if all is allowed."""
        raise NotImplementedError

    def span(self, block: Block) -> tuple[int, int]:
        """The smallest known range of keys outside which these rows see nothing."""
        return block.keys

    def dense(self, shape: tuple[int, ...], device: torch.device | str = "cpu") -> Tensor:
        """The whole mask for scores of that shape, for looking at and for other libraries."""
        allow = self.block(Block.whole(shape, torch.device(device)))
        if allow is None:
            allow = torch.ones(1, dtype=torch.bool, device=device)
        return allow.expand(shape)

    def __and__(self, other: "Mask | Tensor") -> "Mask":
        return Both(self, as_mask(other))

    def __or__(self, other: "Mask | Tensor") -> "Mask":
        return Either(self, as_mask(other))

    def __invert__(self) -> "Mask":
        return Not(self)

    __rand__, __ror__ = __and__, __or__

    def __bool__(self) -> bool:
        # `causal() and padding(keep)` would be the padding alone: the future would be seen, silently.
        raise QkvError(f"{self!r} is neither true nor false; write &, | and ~ for and, or and not")

    def __repr__(self) -> str:
        """As it is written, tensors by their shapes."""
        parts = {name: value for name, value in vars(self).items() if name != "per_query"}
        texts = (f"{name}={tuple(x.shape) if isinstance(x, Tensor) else x}" for name, x in parts.items())
        return f"{type(self).__name__}({', '.join(texts)})"


class Positional(Mask):
    """A mask that compares positions; `offset` is that of query 0, None puts the last query beside the last key."""

    def __init__(self, offset: int | None = None):
        self.offset = offset

    def first(self, shape: tuple[int, ...]) -> int:
        """The position of query 0 among the keys."""
        return shape[-1] - shape[-2] if self.offset is None else self.offset


class Causal(Positional):
    """Keys up to the query's own position."""

    def block(self, block: Block) -> Tensor | None:
        first = self.first(block.shape)
        if first + block.rows[0] >= block.keys[1] - 1:
            return None
        i, j = block.positions(first)
        return j <= i

    def span(self, block: Block) -> tuple[int, int]:
        stop = self.first(block.shape) + block.rows[1]
        return block.keys[0], max(block.keys[0], min(block.keys[1], stop))


class Window(Positional):
    """Keys at most `distance` positions from the query, on either side."""

    def __init__(self, distance: int, offset: int | None = None):
        super().__init__(offset)
        self.distance = distance

    def block(self, block: Block) -> Tensor:
        i, j = block.positions(self.first(block.shape))
        return (i - j).abs() <= self.distance

    def span(self, block: Block) -> tuple[int, int]:
        first = self.first(block.shape)
        start = max(block.keys[0], first + block.rows[0] - self.distance)
        stop = min(block.keys[1], first + block.rows[1] + self.distance)
        return (start, stop) if start < stop else (block.keys[0], block.keys[0])


class Padding(Mask):
    """The same keys for every query: keep_BS, its batch axes aligned with the first axes of the scores."""

    per_query = False

    def __init__(self, keep_BS: Tensor):
        self.keep_BS = keep_BS

    def block(self, block: Block) -> Tensor:
        _expect_keys("padding", self.keep_BS, block)
        keep = self.keep_BS[..., slice(*block.keys)]
        return _align(keep.unsqueeze(-2), block)


class Lengths(Mask):
    """Padding given as the number of real keys of each sentence, lengths_B."""

    per_query = False

    def __init__(self, lengths_B: Tensor):
        self.lengths_B = lengths_B

    def block(self, block: Block) -> Tensor:
        length = block.shape[-1]
        # Reading values would break a compiled graph; the check is for the people who debug in eager.
        if not torch.compiler.is_compiling() and self.lengths_B.numel():
            low, high = int(self.lengths_B.min()), int(self.lengths_B.max())
            if low < 0 or high > length:
                raise QkvError(
                    f"lengths run from {low} to {high}, but there are {length} keys: lengths of 0 to {length} are wanted"
                )
        _, j = block.positions()
        return _align((j < self.lengths_B.unsqueeze(-1)).unsqueeze(-2), block)


class Documents(Positional):
    """Queries and keys of the same document, for several documents packed into one row."""

    def __init__(self, ids_BS: Tensor, offset: int | None = None):
        super().__init__(offset)
        self.ids_BS = ids_BS

    def block(self, block: Block) -> Tensor:
        _expect_keys("documents", self.ids_BS, block)
        first, queries, keys = self.first(block.shape), *block.shape[-2:]
        if self.offset is not None and first < 0:
            raise QkvError(
                f"documents has offset={first}, before the first of its ids: an offset of 0 or more is wanted"
            )
        if first < 0:
            raise QkvError(
                f"documents has ids for {keys} keys, but there are {queries} queries: give as many keys"
            )
        if first + queries > keys:
            raise QkvError(
                f"documents has ids for {keys} keys, but queries reach position {first + queries}: give more ids"
            )
        ids_BT = self.ids_BS[..., first + block.rows[0] : first + block.rows[1]]
        ids_BS = self.ids_BS[..., slice(*block.keys)]
        return _align(ids_BT.unsqueeze(-1) == ids_BS.unsqueeze(-2), block)


class Dense(Mask):
    """A boolean tensor as it is, broadcastable to the scores (…, T, S) from the right."""

    def __init__(self, allow: Tensor):
        self.allow = allow
        self.per_query = allow.dim() >= 2 and allow.shape[-2] > 1

    def block(self, block: Block) -> Tensor:
        allow = self.allow if self.allow.dim() >= 2 else self.allow.expand(1, *self.allow.shape[-1:])
        fits = len(allow.shape) <= len(block.shape) and all(
            have in (1, want)
            for have, want in zip(reversed(allow.shape), reversed(block.shape), strict=False)
        )
        if not fits:
            hint = _dense_hint(tuple(self.allow.shape), block.shape)
            raise QkvError(f"allow has shape {tuple(self.allow.shape)}; scores are {block.shape}: {hint}")
        return cut(allow, block.rows, block.keys)


class Pair(Mask):
    """Two masks that speak of the same positions."""

    def __init__(self, one: Mask, other: Mask):
        self.one, self.other = one, other
        offsets = list(dict.fromkeys([*_offsets(one), *_offsets(other)]))
        if len(offsets) > 1:
            raise QkvError(
                f"{one!r} and {other!r} have offsets {offsets[0]} and {offsets[1]}; "
                "one position for the first query is wanted: give both the same offset"
            )
        self.per_query = one.per_query or other.per_query


class Both(Pair):
    """What two masks allow together."""

    def block(self, block: Block) -> Tensor | None:
        one, other = self.one.block(block), self.other.block(block)
        if one is None or other is None:
            return other if one is None else one
        return one & other

    def span(self, block: Block) -> tuple[int, int]:
        (a, b), (c, d) = self.one.span(block), self.other.span(block)
        return max(a, c), max(max(a, c), min(b, d))


class Either(Pair):
    """What at least one of two masks allows."""

    def block(self, block: Block) -> Tensor | None:
        one, other = self.one.block(block), self.other.block(block)
        return None if one is None or other is None else one | other

    def span(self, block: Block) -> tuple[int, int]:
        (a, b), (c, d) = self.one.span(block), self.other.span(block)
        return min(a, c), max(b, d)


class Not(Mask):
    """What a mask forbids."""

    def __init__(self, mask: Mask):
        self.mask, self.per_query = mask, mask.per_query

    def block(self, block: Block) -> Tensor:
        allow = self.mask.block(block)
        return torch.zeros(1, 1, dtype=torch.bool, device=block.device) if allow is None else ~allow


def causal(offset: int | None = None) -> Mask:
    """No query sees a later key. `offset` is the position of the first query; by default the last query
    stands beside the last key, which is right for T = S and for any cached decoding.
    """
    return Causal(_checked(offset))


def window(distance: int, offset: int | None = None) -> Mask:
    """Keys at most `distance` positions away, on either side; `causal() & window(k)` for the past alone.
    `offset` as in `causal`.
    """
    if isinstance(distance, bool) or not isinstance(distance, int) or not 0 <= distance < 2**62:
        raise QkvError(
            f"window is {distance!r}; a distance, an int of 0 or more, is wanted (0 sees only itself)"
        )
    return Window(distance, _checked(offset))


def padding(keep: Tensor) -> Mask:
    """The real keys: booleans (…, S) with True for a real token, or integer lengths, one a sentence (B,)."""
    expect_tensor("padding", keep)
    if keep.dtype == torch.bool and keep.dim() > 0:
        return Padding(keep)
    if keep.is_floating_point() or keep.dtype == torch.bool:
        raise QkvError(
            f"padding got {keep.dtype} of shape {tuple(keep.shape)}; booleans (…, S) or integer lengths (B,) are wanted"
        )
    if keep.dim() != 1:
        raise QkvError(
            f"padding got integers of shape {tuple(keep.shape)}; lengths have one axis (B,): "
            "if they are a 0/1 mask with 1 for a real token, pass keep.bool()"
        )
    return Lengths(keep)


def documents(ids: Tensor, offset: int | None = None) -> Mask:
    """Attention within a document only: `ids` (…, S) numbers the document of each position; `offset` as in `causal`."""
    expect_tensor("documents", ids)
    if ids.is_floating_point() or ids.dim() == 0:
        raise QkvError(
            f"documents got {ids.dtype} of shape {tuple(ids.shape)}; integer ids (…, S) are wanted, one a position"
        )
    return Documents(ids, _checked(offset))


def as_mask(allow: Mask | Tensor) -> Mask:
    """Take a mask as it is and a boolean tensor as `Dense`; anything else is named."""
    if isinstance(allow, Mask):
        return allow
    if not isinstance(allow, Tensor):
        raise QkvError(
            f"allow is {type(allow).__name__}; a boolean tensor or a mask is wanted: e.g. masks.causal()"
        )
    if allow.dtype != torch.bool:
        if allow.is_floating_point():
            raise QkvError(
                f"allow is {allow.dtype}; True = may attend is wanted: part an additive mask with "
                "allow, bias = masks.split_additive(mask)"
            )
        raise QkvError(
            f"allow is {allow.dtype}; a boolean tensor is wanted: allow.bool() if 1 means may attend"
        )
    if allow.dim() == 0:
        raise QkvError(
            "allow is a single value; a mask over keys (…, T, S) is wanted: leave allow out to allow all"
        )
    return Dense(allow)


def _checked(offset: int | None) -> int | None:
    if offset is not None and (isinstance(offset, bool) or not isinstance(offset, int)):
        raise QkvError(
            f"offset is {offset!r}; a whole number or None is wanted: the position of the first query"
        )
    return offset


def expect_tensor(kind: str, x: object) -> None:
    """Raise one sentence unless x is a tensor."""
    if not isinstance(x, Tensor):
        raise QkvError(f"{kind} got {type(x).__name__}; a tensor is wanted: torch.tensor({x!r:.40})")


def _offsets(mask: Mask) -> Iterator[int | None]:
    """The offsets of all masks of positions in a composition."""
    if isinstance(mask, Positional):
        yield mask.offset
    for part in vars(mask).values():
        if isinstance(part, Mask):
            yield from _offsets(part)


def cut(x: Tensor, rows: tuple[int, int], keys: tuple[int, int]) -> Tensor:
    """Rows and keys of something broadcastable to the scores (…, T, S), its axes of size 1 left alone."""
    if x.shape[-2] > 1:
        x = x[..., slice(*rows), :]
    return x[..., slice(*keys)] if x.shape[-1] > 1 else x


def _align(allow: Tensor, block: Block) -> Tensor:
    """Put the mask's batch axes (before its last two) at the front of the scores' axes."""
    own, lead = allow.shape[:-2], block.shape[:-2]
    if len(own) > len(lead) or any(have not in (1, want) for have, want in zip(own, lead, strict=False)):
        raise QkvError(
            f"the mask has batch axes {tuple(own)}; scores are {block.shape}: its first axes must be theirs (or 1)"
        )
    return allow.reshape(*own, *[1] * (len(lead) - len(own)), *allow.shape[-2:])


def _expect_keys(kind: str, keep: Tensor, block: Block) -> None:
    if keep.shape[-1] != block.shape[-1]:
        raise QkvError(
            f"{kind} covers {keep.shape[-1]} keys; scores are {block.shape}, {block.shape[-1]} keys: pad or cut it to the keys"
        )


def _dense_hint(have: tuple[int, ...], want: tuple[int, ...]) -> str:
    if len(have) == 2 and len(want) > 2 and have == (want[0], want[-1]):
        return "add a query axis, e.g. masks.padding(keep)"
    if len(have) == 3 and len(want) == 4 and have == (want[0], *want[-2:]):
        return "add a head axis, e.g. allow.unsqueeze(1)"
    return "each axis must be theirs or 1, counted from the right"
