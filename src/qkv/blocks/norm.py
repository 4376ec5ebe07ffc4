"""Rescale each token's vector so that depth neither blows it up nor fades it out.

Axes: B batch, T length, D width.
"""

from torch import nn

from qkv.errors import choose

NORMS: dict[str, type[nn.LayerNorm] | type[nn.RMSNorm]] = {
    # (x - mean(x)) / sqrt(variance(x) + epsilon) · weight + bias (Ba et al. 2016, equation 4)
    "layer": nn.LayerNorm,
    # x / sqrt(mean(x²) + epsilon) · weight (Zhang and Sennrich 2019, equation 4)
    "rms": nn.RMSNorm,
}


def norm(kind: str, width: int, epsilon: float = 1e-5) -> nn.LayerNorm | nn.RMSNorm:
    """A norm over the last axis, (B,T,D) -> (B,T,D)."""
    return choose("norm", kind, NORMS)(width, eps=epsilon)
