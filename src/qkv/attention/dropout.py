"""Dropout (Srivastava et al. 2014, section 4) whose random numbers do not cost more than the products around it.

torch draws a number for each value, one after the other: on a CPU 5 ms for 4096 × 128 values, of which 0.7 ms are left
when one draw of 64 bits decides for four values (one thread of a Zen 5 core).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import QkvError

_STEPS = 1 << 16  # a value's 16 random bits: its rate is right to 1/65,536


def drop(x: Tensor, rate: float) -> Tensor:
    """Zero a share of the values, each by itself, and scale the others so that the mean stays."""
    if not rate or not x.numel():
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():  # there it is one kernel with its sums
        return F.dropout(x, rate)
    dropped = min(max(1, round(rate * _STEPS)), _STEPS - 1)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    drawn = bits.view(torch.int16)[: x.numel()].view(x.shape)
    # Compared straight into x's dtype: a boolean mask would be turned into it at each product.
    factor = torch.ge(drawn, dropped - _STEPS // 2, out=torch.empty(x.shape, dtype=x.dtype))
    return x * factor.mul_(_STEPS / (_STEPS - dropped))


class Dropout(nn.Module):
    """`drop` in training, nothing else; as `nn.Dropout`, but for rates below 1."""

    def __init__(self, rate: float):
        super().__init__()
        if not 0 <= rate < 1:
            raise QkvError(f"dropout is {rate}; a share from 0 up to, not including, 1 is wanted")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.rate) if self.training else x

    def extra_repr(self) -> str:
        return str(self.rate)
