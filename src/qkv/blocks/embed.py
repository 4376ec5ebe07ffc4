"""Tokens to vectors, by a table that an output may share.

Axes: B batch, T length, D width.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import QkvError


class Embedding(nn.Module):
    """A learned vector per token, times √D; a model may compare with its table too (Vaswani et al. 2017, sec. 3.4)."""

    def __init__(self, vocabulary: int, width: int, scale: bool = True):
        super().__init__()
        if vocabulary < 1 or width < 1:
            raise QkvError(
                f"the vocabulary has {vocabulary} tokens, their vectors width {width}; 1 or more of both are wanted: "
                "give the tokenizer's size and the model's width"
            )
        self.scale = math.sqrt(width) if scale else 1.0
        self.dtype: torch.dtype | None = None
        """Of the vectors given out, where it is not the table's."""
        self.table = nn.Parameter(torch.empty(vocabulary, width))
        # Unit variance once scaled, and logits of unit variance from a normalised x.
        nn.init.normal_(self.table, std=width**-0.5)

    def forward(self, token_BT: Tensor) -> Tensor:
        """(B,T) of integers -> (B,T,D)."""
        self._expect_ids(token_BT)
        return (F.embedding(token_BT, self.table) * self.scale).to(self.dtype or self.table.dtype)

    def _expect_ids(self, token_BT: Tensor) -> None:
        if token_BT.dtype not in (torch.int64, torch.int32):
            raise QkvError(
                f"the tokens are {token_BT.dtype}; ids are wanted: tokens.long(), if they are whole"
            )
        # To ask a GPU would stop its queue, and a compiled graph would break: there torch's own check has to do.
        if token_BT.device.type == "cpu" and not torch.compiler.is_compiling() and token_BT.numel():
            low, high = token_BT.aminmax()
            if low < 0 or high >= len(self.table):
                raise QkvError(
                    f"token ids run from {int(low)} to {int(high)}; the vocabulary has {len(self.table)}: "
                    "give ids from 0 up to its size, made by the tokenizer of this model"
                )
