"""Tokens taken apart at random in training, so that a model meets words by their parts and many spellings of a sentence.

BPE-dropout (Provilkov et al. 2020) refuses merges at random while text is encoded. Here merges are undone in ids that
are there already: whole arrays at a time, 50 ms for an epoch of Multi30k, and the same for the same draws.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qkv.data.pairs import Pairs
from qkv.data.ragged import Ragged
from qkv.data.tokens import Tokens


def splitting(
    source: Tokens, target: Tokens, share: float, seed: int, longest: int
) -> Callable[[Pairs, int], Pairs] | None:
    """How the pairs of an epoch are spelt, a function of the seed and the epoch; None where nothing is taken apart."""
    if not share:
        return None
    source_L2, target_L2 = source.merged(), target.merged()

    def spelt(pairs: Pairs, epoch: int) -> Pairs:
        bits = np.random.PCG64(np.random.SeedSequence([seed, epoch, 1]))
        sources = split(pairs.sources, source_L2, share, bits, longest)
        return replace(pairs, sources=sources, targets=split(pairs.targets, target_L2, share, bits, longest))

    return spelt


def split(ids: Ragged, merged_L2: np.ndarray, share: float, bits: np.random.PCG64, longest: int) -> Ragged:
    """Each merged token becomes its two with probability `share`, and each of these again.

    A row that would have `longest` tokens or more (one place is for its end) stays whole.
    """
    flat, row = ids.flat, np.repeat(np.arange(len(ids)), ids.lengths)
    fresh = np.ones(len(flat), dtype=bool)
    while True:
        drawn = (bits.random_raw(len(flat)) >> np.uint64(11)) * 2.0**-53
        undone = fresh & (merged_L2[flat, 0] >= 0) & (drawn < share)
        if not undone.any():
            break
        times = 1 + undone
        first = (np.cumsum(times) - times)[undone]
        parts_N2 = merged_L2[flat[undone]]
        flat, row = np.repeat(flat, times), np.repeat(row, times)
        fresh = np.zeros(len(flat), dtype=bool)
        for place in (0, 1):
            flat[first + place], fresh[first + place] = parts_N2[:, place], True
    lengths = np.bincount(row, minlength=len(ids))
    whole = (lengths >= longest) & (lengths > ids.lengths)
    if not whole.any():
        return Ragged(flat, lengths)
    varied = Ragged(flat, lengths)
    kept = (ids if stays else varied for stays in whole)
    return Ragged.of([source[number].tolist() for number, source in enumerate(kept)])
