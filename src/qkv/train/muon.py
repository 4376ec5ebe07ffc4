"""Muon (Jordan et al. 2024): momentum whose matrices are made nearly orthogonal, so that no direction dominates.

The update is that of `torch.optim.Muon`, which takes one matrix after another. Here matrices of one shape go together,
which on a CPU takes half the time on small models.

Axes: N matrices of one shape, R rows, C columns.
"""

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

# The coefficients of the quintic a·x + b·x³ + c·x⁵ and the number of its applications, as published; they send every
# singular value near 1 (0.7 to 1.2), faster than ones that would converge.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """For matrices between hidden vectors only: tables, vectors and the output are AdamW's."""

    def __init__(self, matrices: Iterable[nn.Parameter], *, lr: float, momentum: float, weight_decay: float):
        shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            shapes[matrix.shape].append(matrix)
        super().__init__(
            [{"params": same} for same in shapes.values()],
            {"lr": lr, "momentum": momentum, "weight_decay": weight_decay},
        )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            share = group["momentum"]
            updates: list[Tensor] = []
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight]["momentum"] = torch.zeros_like(weight)
                momentum = self.state[weight]["momentum"].lerp_(weight.grad, 1 - share)
                updates.append(weight.grad.lerp(momentum, share))  # Nesterov's
            rows, columns = weights[0].shape
            rate = group["lr"] * math.sqrt(max(1, rows / columns))
            for weight, update in zip(weights, orthogonal(torch.stack(updates)), strict=True):
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)


def orthogonal(x_NRC: Tensor) -> Tensor:
    """(N,R,C) -> (N,R,C) in bf16: U·Vᵀ of x = U·S·Vᵀ, with singular values only near 1 (Newton-Schulz)."""
    tall = x_NRC.size(1) > x_NRC.size(2)
    x_NRC = x_NRC.bfloat16()
    if tall:  # the smaller of the two Gram matrices
        x_NRC = x_NRC.mT
    x_NRC = x_NRC / x_NRC.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram_NRR = x_NRC @ x_NRC.mT
        polynomial_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=_B, alpha=_C)
        x_NRC = torch.baddbmm(x_NRC, polynomial_NRR, x_NRC, beta=_A)
    return x_NRC.mT if tall else x_NRC
