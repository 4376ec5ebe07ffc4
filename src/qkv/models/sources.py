"""What a packed decoder keeps of its source, in the form that suits how many sentences there are.

Axes: B sentences, W prefixes of each, R rows (B · W), S source length, C columns, Y decoder layers, Z keys and values (2),
D width, H heads of the queries, G key heads, X sentences times key heads (B · G) or columns times heads (H · C), K width
of a head.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.attention.columns import for_heads, in_lanes, look, moved
from qkv.blocks.layer import Layer

if TYPE_CHECKING:
    from qkv.models.packed import PackedLayer

FOLD_UP_TO = 256
"""Columns × heads × sentences up to which folding pays."""


class ByHead:
    """Every layer's keys and values, head by head."""

    def __init__(self, held_YZBGCK: Tensor, hidden_B1C: Tensor, heads: int):
        self.held, self.hidden_B1C, self.heads = held_YZBGCK, hidden_B1C, heads
        self._layers = [layer.unbind() for layer in held_YZBGCK.flatten(2, 3).unbind()]
        self._hidden_X1C = for_heads(hidden_B1C, heads, held_YZBGCK.shape[3])

    def read(self, number: int, layer: "PackedLayer", x_RD: Tensor) -> Tensor:
        """Cross-attention of a layer, with its norm and residual sum."""
        keys_XCK, values_XCK = self._layers[number]
        found_RD = look(
            layer.ask_source(x_RD), keys_XCK, values_XCK, self._hidden_X1C, self.hidden_B1C.shape[0]
        )
        return layer.take_source(x_RD, layer.cross_out(found_RD))

    def pick(self, stays_B: Tensor, *, in_place: bool) -> "ByHead":
        """For these sentences in this order."""
        return ByHead(moved(self.held, stays_B, in_place=in_place), self.hidden_B1C[stays_B], self.heads)


class Folded:
    """Every layer's keys as they meet a prefix's hidden state itself, and its values as they are added to it.

    (A·h + a)·k is h·(Aᵀ·k) + a·k, and U·Σ p·v is Σ p·(U·v). For a few sentences, whose products are too small to keep a
    core busy, this spares each step two of them and half the calls of cross-attention.
    """

    def __init__(self, held_YZBHCD: Tensor, hidden_YB1X: Tensor):
        self.held, self.hidden_YB1X = held_YZBHCD, hidden_YB1X
        self._layers = [layer.unbind() for layer in held_YZBHCD.flatten(3, 4).unbind()]
        self._hidden = hidden_YB1X.unbind()

    def read(self, number: int, layer: "PackedLayer", x_RD: Tensor) -> Tensor:
        """Cross-attention of a layer, with its norm and residual sum."""
        keys_BXD, values_BXD = self._layers[number]
        B, X, D = keys_BXD.shape
        h_BWD = layer.enter(layer.cross_norm, x_RD).view(B, -1, D)
        scores_BWX = torch.baddbmm(self._hidden[number], h_BWD, keys_BXD.mT)
        weights = scores_BWX.view(B, -1, layer.heads, X // layer.heads).softmax(-1).view(B, -1, X)
        return layer.take_source(x_RD, torch.bmm(weights, values_BXD).view(-1, D))

    def pick(self, stays_B: Tensor, *, in_place: bool) -> "Folded":
        """For these sentences in this order."""
        return Folded(moved(self.held, stays_B, in_place=in_place), self.hidden_YB1X[:, stays_B])


class Folds:
    """The matrices that fold keys and values, of every decoder layer."""

    def __init__(self, layers: Sequence[Layer]):
        crosses = [layer.cross for layer in layers]
        self.heads, scale = crosses[0].config.heads, crosses[0].config.query_head_width ** -0.5
        by_head = (self.heads, -1)
        asks = torch.stack([cross.query.weight.unflatten(0, by_head) for cross in crosses]) * scale
        answers = torch.stack([cross.out.weight.T.unflatten(0, by_head) for cross in crosses])
        self.both_YZHKD = torch.stack([asks, answers], 1)
        self.biases_YHK1 = (
            torch.stack([cross.query.bias.view(self.heads, -1, 1) for cross in crosses]) * scale
        )
        # The weights of a head add up to 1, so each column can carry the head's share of the bias.
        self.shares_YD = torch.stack([cross.out.bias for cross in crosses]) / self.heads

    def __call__(self, offered_YZBGSK: Tensor, blank_B: Tensor, hidden_B1C: Tensor) -> Folded:
        """Fold what the layers offer."""
        Y, _, B, G, S, _ = offered_YZBGSK.shape
        H, C = self.heads, hidden_B1C.shape[-1]
        if G < H:
            offered_YZBGSK = offered_YZBGSK.repeat_interleave(H // G, 3)
        offered_YZHXK = offered_YZBGSK.transpose(2, 3).flatten(3, 4)
        folded = (offered_YZHXK @ self.both_YZHKD).unflatten(3, (B, S))
        held_YZBHCD = in_columns(folded.transpose(2, 3), blank_B)
        held_YZBHCD[:, 1] += self.shares_YD[:, None, None, None]
        hidden_YBHC = hidden_B1C.expand(Y, B, H, C).clone()
        hidden_YBHC[..., :S] += (offered_YZHXK[:, 0] @ self.biases_YHK1).view(Y, H, B, S).transpose(1, 2)
        return Folded(held_YZBHCD, hidden_YBHC.view(Y, B, 1, H * C))


def in_columns(offered_YZBGSK: Tensor, blank_B: Tensor) -> Tensor:
    """Keys and values in whole lanes, held_YZBGCK; zeros are found where there is nothing to look at."""
    *lead, S, K = offered_YZBGSK.shape
    held_YZBGCK = offered_YZBGSK.new_empty(*lead, in_lanes(S), K)
    held_YZBGCK[..., :S, :].copy_(offered_YZBGSK)
    held_YZBGCK[..., S:, :] = 0  # masked, they are still multiplied, by a weight of 0
    if blank_B.any():
        held_YZBGCK[:, 1, blank_B] = 0
    return held_YZBGCK


def hidden_of(keep_BS: Tensor, dtype: torch.dtype) -> Tensor:
    """The lowest number where there is no real token, and in the lanes that stay empty; hidden_B1C."""
    B, S = keep_BS.shape
    hidden_B1C = torch.full((B, 1, in_lanes(S)), torch.finfo(dtype).min, dtype=dtype, device=keep_BS.device)
    hidden_B1C[:, 0, :S].masked_fill_(keep_BS, 0)
    return hidden_B1C
