"""Columns: keys and values of a search, appended to and never reordered.

Axes: B sentences, W prefixes of each, R rows (B · W, those of a sentence side by side), C columns, Y layers, Z keys and
values (2), G key heads, X sentences times key heads (B · G), N queries that share a key head (W · H / G), H heads, K width of a head.

A beam that reorders its prefixes would have to copy all their keys and values at every step. Here all prefixes of a
sentence look at the columns of all, and a mask says which of them are a prefix's own past: to reorder, the mask alone
is picked. What no prefix descends from any more is dropped when room runs out, so that a long text costs little more
than its length.
"""

import torch
from torch import Tensor

LANES = 16
"""Columns are looked at in multiples of this: torch's softmax of rows that are shorter is ten times slower."""
FIRST = 8
"""Steps that there is room for at first."""


def in_lanes(columns: int) -> int:
    """So many columns or more, in whole lanes."""
    return -(-columns // LANES) * LANES


def for_heads(hidden_BWC: Tensor, heads: int, groups: int) -> Tensor:
    """The same for every head, as `look` wants it: hidden_XNC, or hidden_X1C where it is the same for all prefixes."""
    B, W, C = hidden_BWC.shape
    if W == 1:
        return hidden_BWC.expand(B, groups, C).reshape(B * groups, 1, C)
    return hidden_BWC.unsqueeze(1).expand(B, heads, W, C).reshape(B * groups, -1, C)


def look(q_RHK: Tensor, keys_XCK: Tensor, values_XCK: Tensor, hidden: Tensor, sentences: int) -> Tensor:
    """softmax(q·kᵀ + hidden)·v for all prefixes of a sentence in two batched products; found_RD, heads side by side.

    `hidden` (see `for_heads`) is 0 where a prefix may look and the lowest number elsewhere; queries come scaled.
    """
    (R, _, K), B, X = q_RHK.shape, sentences, keys_XCK.shape[0]
    W, G = R // B, X // B
    # Heads that share their keys are further queries to them.
    q = q_RHK.reshape(B, W, G, -1, K).permute(0, 2, 3, 1, 4).reshape(X, -1, K)
    scores = torch.baddbmm(hidden, q, keys_XCK.mT)
    found = torch.bmm(scores.softmax(-1), values_XCK)
    return found.view(B, G, -1, W, K).permute(0, 3, 1, 2, 4).reshape(R, -1)


class Columns:
    """Keys and values of every layer, and what each prefix does not see of them."""

    def __init__(self, shape: tuple[int, int, int], sentences: int, width: int, like: Tensor):
        """Room for (layers, key heads, key width) of so many sentences with `width` prefixes each."""
        Y, G, K = shape
        # Zeros, as what is masked is still multiplied, by a weight of 0.
        self.held = like.new_zeros(Y, 2, sentences, G, in_lanes(FIRST), K)
        self.lowest = torch.finfo(like.dtype).min
        self.hidden_BWC = like.new_full((sentences, width, in_lanes(FIRST)), self.lowest)
        self.used = 0

    def append(self) -> tuple[Tensor, list[tuple[Tensor, Tensor]], Tensor]:
        """One more column for each prefix.

        Returns where to write to, new_YZBGWK; each layer's keys and values, of all columns so far; and hidden_BWC.
        """
        W = self.hidden_BWC.shape[1]
        self._make_room(W)
        start, self.used = self.used, self.used + W
        self.hidden_BWC[..., start : self.used].diagonal(dim1=1, dim2=2).zero_()
        seen = in_lanes(self.used)
        keys_XCK, values_XCK = (held.unbind() for held in self.held.flatten(2, 3)[..., :seen, :].unbind(1))
        pairs = list(zip(keys_XCK, values_XCK, strict=True))
        return self.held[..., start : self.used, :], pairs, self.hidden_BWC[..., :seen]

    def pick(self, rows_R: Tensor, width: int, stays_B: Tensor | None) -> "Columns":
        """The same for these rows, `width` of each sentence; `stays_B` are the sentences, if not all as they were."""
        B, W, C = self.hidden_BWC.shape
        picked = Columns.__new__(Columns)
        picked.held = self.held if stays_B is None else moved(self.held, stays_B, in_place=True)
        picked.lowest, picked.used = self.lowest, self.used
        picked.hidden_BWC = self.hidden_BWC.view(B * W, C).index_select(0, rows_R).view(-1, width, C)
        return picked

    def of_rows(self) -> list[tuple[Tensor, Tensor]]:
        """Each layer's keys and values with every row's own past alone, (R,G,T,K)."""
        B, W, C = self.hidden_BWC.shape
        R, (G, _, K) = B * W, self.held.shape[-3:]
        own = (self.hidden_BWC == 0).view(R, C).nonzero()[:, 1].view(R, 1, -1, 1).expand(R, G, -1, K)
        held = self.held.repeat_interleave(W, 2)
        return [(keys.gather(2, own), values.gather(2, own)) for keys, values in held]

    def _make_room(self, wanted: int) -> None:
        capacity = self.held.shape[-2]
        self.held, self.hidden_BWC = thawed(self.held), thawed(self.hidden_BWC)
        if self.used + wanted <= capacity:
            return
        self._drop_dead()
        if self.used + wanted > capacity // 2:  # else there is as much again before the next time
            more = in_lanes(max(capacity, FIRST * wanted))
            self.held = torch.nn.functional.pad(self.held, (0, 0, 0, more))
            self.hidden_BWC = torch.nn.functional.pad(self.hidden_BWC, (0, more), value=self.lowest)

    def _drop_dead(self) -> None:
        """Keep the columns that some prefix of their sentence descends from, in their order."""
        lives_BC = (self.hidden_BWC == 0).any(1)
        used = int(lives_BC.sum(-1).max())
        if used == self.used:
            return
        order_BC = lives_BC.byte().argsort(dim=-1, descending=True, stable=True)
        Y, Z, _, G, _, K = self.held.shape
        self.held = self.held.gather(4, order_BC[:, None, :, None].expand(Y, Z, -1, G, -1, K))
        self.hidden_BWC = self.hidden_BWC.gather(2, order_BC.unsqueeze(1).expand_as(self.hidden_BWC))
        self.used = used


def moved(held_YZBGCK: Tensor, stays_B: Tensor, *, in_place: bool) -> Tensor:
    """The columns of these sentences in this order; in place, only those that change their place are copied."""
    if in_place and len(stays_B) <= held_YZBGCK.shape[2]:
        moving = (stays_B != torch.arange(len(stays_B), device=stays_B.device)).nonzero()[:, 0]
        if 2 * len(moving) < len(stays_B):
            held_YZBGCK = thawed(held_YZBGCK)
            if len(moving):
                held_YZBGCK[:, :, moving] = held_YZBGCK.index_select(2, stays_B[moving])
            return held_YZBGCK[:, :, : len(stays_B)]
    return held_YZBGCK.index_select(2, stays_B)


def thawed(buffer: Tensor) -> Tensor:
    """What can be written to: a copy of what was made in inference mode, which we have left."""
    return buffer.clone() if buffer.is_inference() and not torch.is_inference_mode_enabled() else buffer
