"""From one vector per token to one vector per example.

Axes: B batch, T length, D width; keep is True at real tokens, False at padding.
"""

import torch
from torch import Tensor, nn

from qkv.attention import masks
from qkv.attention.heads import AttentionConfig, MultiHeadAttention
from qkv.blocks.feedforward import FeedForward, FeedForwardConfig
from qkv.blocks.norm import norm
from qkv.errors import QkvError


class Pool(nn.Module):
    """Prepares the tokens before the encoder (`prepend`) and pools what comes out of it (`forward`)."""

    def prepend(self, x_BTD: Tensor, keep_BT: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The tokens, and which to keep, as the encoder is to see them; most pools change nothing."""
        return x_BTD, keep_BT

    def forward(self, x_BTD: Tensor, keep_BT: Tensor | None = None) -> Tensor:
        """(B,T,D) -> (B,D)."""
        raise NotImplementedError

    @classmethod
    def sized(cls, *, width: int, heads: int, hidden: int) -> "Pool":
        """One that fits a model of these sizes; each kind takes what it needs."""
        return cls()


class FirstToken(Pool):
    """The first token's output stands for all, where the text itself begins with a class token (BERT, section 3)."""

    def forward(self, x_BTD: Tensor, keep_BT: Tensor | None = None) -> Tensor:
        _checked(x_BTD, keep_BT)
        if not x_BTD.shape[1]:
            raise QkvError(
                f"x has shape {tuple(x_BTD.shape)}: there is no first token, so pass it through `prepend` before the encoder"
            )
        return x_BTD[:, 0]


class ClassToken(FirstToken):
    """A learned token in front whose output stands for all (ViT: Dosovitskiy et al. 2021, equations 1, 4)."""

    def __init__(self, width: int):
        super().__init__()
        self.token = nn.Parameter(torch.empty(width))
        nn.init.normal_(self.token, std=0.02)

    def prepend(self, x_BTD: Tensor, keep_BT: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(B,T,D) -> (B,1+T,D)."""
        _checked(x_BTD, keep_BT)
        if x_BTD.shape[-1] != len(self.token):
            raise QkvError(
                f"x has shape {tuple(x_BTD.shape)}, the class token width {len(self.token)}: give both the same width"
            )
        token_B1D = self.token.to(x_BTD.dtype).expand(x_BTD.shape[0], 1, -1)
        if keep_BT is not None:
            keep_BT = torch.cat((keep_BT.new_ones(keep_BT.shape[0], 1), keep_BT), dim=1)
        return torch.cat((token_B1D, x_BTD), dim=1), keep_BT

    @classmethod
    def sized(cls, *, width: int, heads: int, hidden: int) -> "Pool":
        return cls(width)


class GlobalAverage(Pool):
    """The mean of the real tokens (GAP: Lin et al. 2014, section 3.2); zeros if there are none."""

    def forward(self, x_BTD: Tensor, keep_BT: Tensor | None = None) -> Tensor:
        keep_BT1 = _checked(x_BTD, keep_BT).unsqueeze(-1)
        # where, not a product: whatever stands at padding, NaN included, must not count.
        total_BD = x_BTD.where(keep_BT1, 0).sum(1, dtype=torch.promote_types(x_BTD.dtype, torch.float32))
        return (total_BD / keep_BT1.sum(1).clamp(min=1)).to(x_BTD.dtype)


class GlobalMax(Pool):
    """The greatest value of each feature among the real tokens (max over time: Collobert et al. 2011); zeros if none."""

    def forward(self, x_BTD: Tensor, keep_BT: Tensor | None = None) -> Tensor:
        keep_BT1 = _checked(x_BTD, keep_BT).unsqueeze(-1)
        greatest_BD = x_BTD.masked_fill(~keep_BT1, -torch.inf).amax(1)
        return greatest_BD.where(keep_BT1.any(1), 0)


class AttentionPool(Pool):
    """A learned probe attends to the tokens (PMA with one seed: Lee et al. 2019, equation 11).

    With `hidden`, a residual feed-forward block of that width follows: the MAP head of Zhai et al. 2022.
    """

    def __init__(self, config: AttentionConfig, hidden: int | None = None):
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        nn.init.xavier_uniform_(self.probe)
        self.attention = MultiHeadAttention(config)
        self.mlp = None
        if hidden is not None:
            feedforward = FeedForward(FeedForwardConfig(width=config.width, hidden=hidden, activation="gelu"))
            self.mlp = nn.Sequential(norm("layer", config.width), feedforward)

    def forward(self, x_BTD: Tensor, keep_BT: Tensor | None = None) -> Tensor:
        real_BT = _checked(x_BTD, keep_BT)
        allow = None if keep_BT is None else masks.padding(real_BT)
        probe_B1D = self.probe.to(x_BTD.dtype).expand(x_BTD.shape[0], -1, -1)
        pooled_BD = self.attention(probe_B1D, x_BTD, allow=allow).squeeze(1)
        return pooled_BD if self.mlp is None else pooled_BD + self.mlp(pooled_BD)

    @classmethod
    def sized(cls, *, width: int, heads: int, hidden: int) -> "Pool":
        return cls(AttentionConfig(width=width, heads=heads), hidden)


POOLS: dict[str, type[Pool]] = {
    "class": ClassToken,
    "average": GlobalAverage,
    "max": GlobalMax,
    "attention": AttentionPool,
}
# For texts that begin with a class token of their own.
TEXT_POOLS = POOLS | {"class": FirstToken}


def _checked(x_BTD: Tensor, keep_BT: Tensor | None) -> Tensor:
    """keep, or all True; a mask of another kind is refused, as its ones may mean the opposite."""
    if x_BTD.dim() != 3:
        raise QkvError(
            f"x has shape {tuple(x_BTD.shape)}; (batch, length, width) is wanted: "
            "a single example needs a batch axis, x.unsqueeze(0)"
        )
    if keep_BT is None:
        return torch.ones(x_BTD.shape[:2], dtype=torch.bool, device=x_BTD.device)
    if keep_BT.dtype != torch.bool or keep_BT.shape != x_BTD.shape[:2]:
        raise QkvError(
            f"keep is {keep_BT.dtype} of shape {tuple(keep_BT.shape)}; torch.bool of shape "
            f"{tuple(x_BTD.shape[:2])} is wanted, True at real tokens: compare, e.g. tokens != padding"
        )
    return keep_BT
