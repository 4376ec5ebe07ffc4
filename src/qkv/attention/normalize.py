"""Normalisers: how a row of scores becomes a row of weights.

Axes: B batch, H heads, T query length, S key length.

A normaliser maps scores_BHTS to weights_BHTS along the last axis. Keys that may not be attended
arrive as the lowest finite score, and every normaliser gives them exactly zero weight as long as
one key of the row is allowed. `attend` itself zeroes rows in which nothing is.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Normalizer = Callable[[Tensor], Tensor]


def softmax(scores_BHTS: Tensor) -> Tensor:
    """exp(s) / sum exp(s): every allowed key keeps some weight."""
    return torch.softmax(scores_BHTS, dim=-1)


# exp stays within the range of every dtype (but half) for scores up to this.
_SAFE = 60.0


def exponentials(scores: Tensor, allow: Tensor | None = None) -> tuple[Tensor, Tensor | float]:
    """exp(s - shift) in place of the scores, 0 where not allowed, and the shift: what a softmax is before its division.

    torch's softmax pays for each row that it enters, and for dividing all of it. This is one pass over the whole tensor.
    A row's shift is 0 where its largest score lies within ±60, and else that score. `allow` broadcasts.
    """
    if not scores.numel():
        return scores, 0.0
    if allow is not None:
        scores *= allow  # what is forbidden shall not decide about the shift
    low, high = torch.aminmax(scores)
    shift: Tensor | float = 0.0
    if not (float(low) >= -_SAFE and float(high) <= _SAFE):
        if allow is not None:
            scores.masked_fill_(~allow, torch.finfo(scores.dtype).min)
        shift = scores.amax(-1, keepdim=True)
        shift.masked_fill_(shift.abs() <= _SAFE, 0.0)
        scores -= shift
    scores.exp_()
    if allow is not None:
        scores *= allow
    return scores, shift


def hard(scores_BHTS: Tensor) -> Tensor:
    """All weight on the highest score, the first of equals; the limit of softmax(β s) as β → ∞."""
    best_BHT1 = scores_BHTS.argmax(dim=-1, keepdim=True)
    return torch.zeros_like(scores_BHTS).scatter(-1, best_BHT1, 1.0)


def sigmoid(scores_BHTS: Tensor) -> Tensor:
    """1 / (1 + exp(-s)) for each key on its own: weights need not sum to one (Ramapuram et al. 2024, eq. 2)."""
    return torch.sigmoid(scores_BHTS)


def sparsemax(scores_BHTS: Tensor) -> Tensor:
    """The point of the simplex nearest to s (Martins & Astudillo 2016, algorithm 1): exact zeros."""
    z_BHTS = _below_top(scores_BHTS)
    sorted_BHTS = z_BHTS.sort(dim=-1, descending=True).values
    excess_BHTS = sorted_BHTS.cumsum(-1) - 1
    counts_S = _counts(z_BHTS)
    support_BHT1 = _at_least_one((counts_S * sorted_BHTS > excess_BHTS).sum(-1, keepdim=True))
    threshold_BHT1 = excess_BHTS.gather(-1, support_BHT1 - 1) / support_BHT1
    return (z_BHTS - threshold_BHT1).clamp(min=0).to(scores_BHTS.dtype)


def entmax15(scores_BHTS: Tensor) -> Tensor:
    """α-entmax with α = 1.5 (Peters et al. 2019, algorithm 2): between softmax and sparsemax."""
    z_BHTS = _below_top(scores_BHTS / 2)  # weights are (z - τ)² with z = s / 2
    sorted_BHTS = z_BHTS.sort(dim=-1, descending=True).values
    counts_S = _counts(z_BHTS)
    mean_BHTS = sorted_BHTS.cumsum(-1) / counts_S
    variance_BHTS = sorted_BHTS.square().cumsum(-1) / counts_S - mean_BHTS.square()
    # The floor keeps the square root differentiable where the variance leaves no room at all.
    room_BHTS = (1 / counts_S - variance_BHTS).clamp(min=torch.finfo(z_BHTS.dtype).tiny)
    threshold_BHTS = mean_BHTS - room_BHTS.sqrt()
    support_BHT1 = _at_least_one((threshold_BHTS <= sorted_BHTS).sum(-1, keepdim=True))
    weights_BHTS = (z_BHTS - threshold_BHTS.gather(-1, support_BHT1 - 1)).clamp(min=0).square()
    return weights_BHTS.to(scores_BHTS.dtype)


def _below_top(scores_BHTS: Tensor) -> Tensor:
    """Scores measured down from the row's highest, at least in fp32 (the sums below count to S).

    Only scores within 1 of the highest can get weight: the clamp keeps masked ones finite in the sums.
    """
    scores_BHTS = scores_BHTS.to(torch.promote_types(scores_BHTS.dtype, torch.float32))
    return (scores_BHTS - scores_BHTS.amax(-1, keepdim=True)).clamp(min=-2.0)


def _at_least_one(support_BHT1: Tensor) -> Tensor:
    """The highest score is always in the support, only NaN is not: it shall come out as NaN, as from softmax."""
    return support_BHT1.clamp(min=1)


def _counts(scores_BHTS: Tensor) -> Tensor:
    """1, 2, …, S: how many keys each prefix of the sorted row holds."""
    return torch.arange(1, scores_BHTS.shape[-1] + 1, device=scores_BHTS.device, dtype=scores_BHTS.dtype)


NORMALIZERS: dict[str, Normalizer] = {
    "softmax": softmax,
    "hard": hard,
    "sigmoid": sigmoid,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
}
