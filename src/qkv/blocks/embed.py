"""Tokens to vectors and, with the same table, vectors back to scores over the vocabulary.

Axes: B batch, T length, D width, L vocabulary.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import QkvError


class Embedding(nn.Module):
    """A learned vector per token, times √D; its table also gives logits (Vaswani et al. 2017, sec. 3.4)."""

    def __init__(self, vocabulary: int, width: int, scale: bool = True):
        super().__init__()
        if vocabulary < 1:
            raise QkvError(
                f"the vocabulary has {vocabulary} tokens; 1 or more are wanted: give the tokenizer's size"
            )
        self.scale = math.sqrt(width) if scale else 1.0
        self.dtype: torch.dtype | None = None
        """Of the vectors given out, where it is not the table's."""
        self.table = nn.Parameter(torch.empty(vocabulary, width))
        # Unit variance once scaled, and logits of unit variance from a normalised x.
        nn.init.normal_(self.table, std=width**-0.5)

    def forward(self, token_BT: Tensor) -> Tensor:
        """(B,T) of integers -> (B,T,D)."""
        return (F.embedding(token_BT, self.table) * self.scale).to(self.dtype or self.table.dtype)

    def logits(self, x_BTD: Tensor) -> Tensor:
        """(B,T,D) -> (B,T,L): how well x fits each token's vector."""
        return F.linear(x_BTD, self.table)
