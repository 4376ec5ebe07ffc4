"""What several libraries leave to their users."""

import torch
from torch.nn import functional as F


def smoothed_loss(logits, label, keep_target, smoothing):
    """Cross-entropy with label smoothing, summed over real positions."""
    label = label.masked_fill(~keep_target, -100).flatten()
    return F.cross_entropy(logits.flatten(0, 1).float(), label, label_smoothing=smoothing, reduction="sum")


def sinusoids(length, width):
    """The table of Vaswani et al. 2017, section 3.5, sines and cosines in turn."""
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)
