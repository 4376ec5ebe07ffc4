"""What several libraries leave to their users."""

import torch
from torch.nn import functional as F

PAD, START, END, UNK = range(4)
"""As in qkv."""


def smoothed_loss(logits, label, keep_target, smoothing):
    """Cross-entropy with label smoothing, summed over real positions."""
    label = label.masked_fill(~keep_target, -100).flatten()
    return F.cross_entropy(logits.flatten(0, 1).float(), label, label_smoothing=smoothing, reduction="sum")


def sinusoids(length, width):
    """The table of Vaswani et al. 2017, section 3.5, sines and cosines in turn."""
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)


def in_batches(sentences, batch):
    """Sentences of ids sorted by length, longest first, as padded tensors: rows, ids, and which are real."""
    order = sorted(range(len(sentences)), key=lambda row: -len(sentences[row]))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        source = torch.full((len(rows), len(sentences[rows[0]])), PAD)
        for place, row in enumerate(rows):
            source[place, : len(sentences[row])] = torch.tensor(sentences[row])
        yield rows, source, source != PAD
