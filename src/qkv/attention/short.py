"""Attention over short rows, forward and backward in as few passes over the T×S scores as there can be.

Axes: B batch, H heads, T query length, S key length, K key width per head, V value width per head, N = B · H.

torch's softmax pays for each row it enters, which on a CPU is most of the time of rows of a sentence's length. Here
the whole tensor is exponentiated at once, and what a row sums to divides its T×V outputs instead of its T×S weights:
2.5 times as fast as autograd's way at T = S = 14, forward and backward together (two Zen 5 cores, bf16).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.attention.normalize import exponentials


def short(
    q_BHTK: Tensor,
    k_BHSK: Tensor,
    v_BHSV: Tensor,
    beta: float,
    allow_BHTS: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """softmax(β · QKᵀ + bias) · V over the allowed keys, zero where there are none; the bias gets no gradient."""
    return _Short.apply(q_BHTK, k_BHSK, v_BHSV, beta, allow_BHTS, bias)  # pyright: ignore[reportReturnType]


class _Short(torch.autograd.Function):
    """O = (E · V) / s with E = exp(scores) and s the sums of its rows; nothing else of size T×S is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BHTK: Tensor,
        k_BHSK: Tensor,
        v_BHSV: Tensor,
        beta: float,
        allow_BHTS: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        (B, H, T, _), S = q_BHTK.shape, k_BHSK.shape[2]
        q_NTK, k_NSK, v_NSV = (x.reshape(B * H, *x.shape[2:]) for x in (q_BHTK, k_BHSK, v_BHSV))
        e_NTS = _scaled(q_NTK, k_NSK.mT, beta)
        e_BHTS = e_NTS.view(B, H, T, S)
        if bias is not None:
            e_BHTS += bias
        exponentials(e_BHTS, allow_BHTS)
        # A row with nothing allowed sums to 0 and looks up 0; the smallest other sum is exp(-60).
        exact = torch.promote_types(e_NTS.dtype, torch.float32)
        sum_NT1 = e_NTS.sum(-1, keepdim=True, dtype=exact).clamp_(min=1e-30)
        share_NT1 = sum_NT1.reciprocal_().to(e_NTS.dtype)  # a product of two dtypes costs three times as much
        out_NTV = torch.bmm(e_NTS, v_NSV).mul_(share_NT1)
        ctx.save_for_backward(q_NTK, k_NSK, v_NSV, e_NTS, share_NT1, out_NTV)
        ctx.beta, ctx.lead = beta, (B, H)
        return out_NTV.view(B, H, T, out_NTV.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """With P = E / s: dV = Pᵀ·dO, dS = P ⊙ (dO·Vᵀ - rowsum(dO ⊙ O)), dQ = β·dS·K, dK = β·dSᵀ·Q."""
        q_NTK, k_NSK, v_NSV, e_NTS, share_NT1, out_NTV = ctx.saved_tensors
        g_NTV = gradients[0].reshape(out_NTV.shape) * share_NT1
        mean_NT1 = torch.linalg.vecdot(g_NTV, out_NTV).unsqueeze(-1)
        dv_NSV = torch.bmm(e_NTS.mT, g_NTV)
        ds_NTS = torch.baddbmm(mean_NT1, g_NTV, v_NSV.mT, beta=-1).mul_(e_NTS)
        dq_NTK, dk_NSK = _scaled(ds_NTS, k_NSK, ctx.beta), _scaled(ds_NTS.mT, q_NTK, ctx.beta)
        return *(x.view(*ctx.lead, *x.shape[1:]) for x in (dq_NTK, dk_NSK, dv_NSV)), None, None, None


def _scaled(a: Tensor, b: Tensor, beta: float) -> Tensor:
    """β · A·B in one call."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=beta)
