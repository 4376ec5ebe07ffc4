"""The loss over a vocabulary, without ever holding all its logits.

Axes: N positions, C positions of a chunk, D width, L vocabulary.

The logits of a batch would be the largest tensor of a training step by far. Here a chunk of positions goes through
product, softmax and both gradients while its logits are in the cache; nothing of them is kept for the backward pass.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.attention.normalize import exponentials
from qkv.errors import QkvError

_CHUNK = 1 << 21  # logits of a chunk: 256 positions of 8,000 tokens


def cross_entropy(x_ND: Tensor, table_LD: Tensor, label_N: Tensor, smoothing: float = 0.0) -> Tensor:
    """-Σ_n Σ_l q(l) log softmax(x·tableᵀ)(l), q = (1-ε) one-hot(label) + ε/L (Szegedy et al. 2016, section 7).

    A table of another dtype than x takes part in x's, and its gradient returns in its own. Products and probabilities
    are in x's dtype, sums over positions in fp32 at least.
    """
    _expect_fit(x_ND, table_LD, label_N)
    with torch.autocast(x_ND.device.type, enabled=False):  # x has a dtype already
        return _CrossEntropy.apply(x_ND, table_LD, label_N, smoothing)  # pyright: ignore[reportReturnType]


def _expect_fit(x_ND: Tensor, table_LD: Tensor, label_N: Tensor) -> None:
    if x_ND.dim() != 2 or table_LD.dim() != 2 or x_ND.shape[1] != table_LD.shape[1]:
        raise QkvError(
            f"x has shape {tuple(x_ND.shape)}, the table {tuple(table_LD.shape)}; (positions, width) and "
            "(vocabulary, width) of one width are wanted: take the real positions first, x_BTD[keep_BT]"
        )
    if label_N.shape != x_ND.shape[:1] or label_N.dtype != torch.int64:
        raise QkvError(
            f"the labels are {label_N.dtype} of shape {tuple(label_N.shape)}; torch.int64 of shape {tuple(x_ND.shape[:1])} "
            "is wanted, one for each position"
        )
    if label_N.device.type == "cpu" and label_N.numel():  # to ask a GPU would stop its queue
        low, high = label_N.aminmax()
        if low < 0 or high >= len(table_LD):
            raise QkvError(
                f"labels run from {int(low)} to {int(high)}; the vocabulary has {len(table_LD)} tokens: "
                "leave positions without a label out, there is no index to ignore"
            )


class _CrossEntropy(torch.autograd.Function):
    """Both gradients are ready before the backward pass, which only scales them."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, table_LD: Tensor, label_N: Tensor, smoothing: float) -> Tensor:
        weight_LD, exact = table_LD.to(x_ND.dtype), torch.promote_types(x_ND.dtype, torch.float32)
        # Smoothing gives every token the same small share, so its gradients are those of two means.
        mean_D = weight_LD.mean(0, dtype=exact)
        sum_D = x_ND.sum(0, dtype=exact)
        loss = -smoothing * (sum_D @ mean_D)
        dx_ND = torch.empty_like(x_ND)
        dtable_LD = torch.zeros_like(weight_LD, dtype=exact)
        step = max(1, _CHUNK // len(table_LD))
        for start in range(0, len(x_ND), step):
            x_CD, label_C = x_ND[start : start + step], label_N[start : start + step]
            logits_CL = F.linear(x_CD, weight_LD)
            logit_C1 = logits_CL.gather(-1, label_C.unsqueeze(-1)).to(exact)
            e_CL, shift = exponentials(logits_CL)
            sum_C1 = e_CL.sum(-1, keepdim=True, dtype=exact)
            loss += (sum_C1.log() + shift - (1 - smoothing) * logit_C1).sum()
            # p = e / sum: the division is done where there are D columns, not L.
            share_C1 = sum_C1.reciprocal().to(x_ND.dtype)
            torch.mm(e_CL, weight_LD, out=dx_ND[start : start + step]).mul_(share_C1)
            dtable_LD += e_CL.mT @ (x_CD * share_C1)
        dx_ND.sub_(weight_LD[label_N], alpha=1 - smoothing)
        dtable_LD.index_add_(0, label_N, x_ND.to(exact), alpha=smoothing - 1)
        if smoothing:
            dx_ND -= (smoothing * mean_D).to(dx_ND.dtype)
            dtable_LD -= smoothing / len(table_LD) * sum_D
        ctx.save_for_backward(dx_ND, dtable_LD.to(table_LD.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dx_ND, dtable_LD = ctx.saved_tensors
        return (
            (gradients[0] * dx_ND).to(dx_ND.dtype),
            (gradients[0] * dtable_LD).to(dtable_LD.dtype),
            None,
            None,
        )
