"""Random draws that stay the same: numpy promises it of raw 64-bit draws, and of no others, for all its versions.

Axes: N examples.
"""

from hashlib import blake2b

import numpy as np

from qkv.errors import QkvError


def source(*numbers: int) -> np.random.PCG64:
    """Where draws come from, decided by these numbers alone."""
    return np.random.PCG64(np.random.SeedSequence(numbers))


def uniform(bits: np.random.PCG64, count: int) -> np.ndarray:
    """Numbers in [0, 1)."""
    return (bits.random_raw(count) >> np.uint64(11)) * 2.0**-53


def hashes(pixels_N: np.ndarray) -> np.ndarray:
    """64 bits of a hash of each picture's pixels."""
    found = (blake2b(pixels.tobytes(), digest_size=8).digest() for pixels in pixels_N)
    return np.array([int.from_bytes(digest, "big") for digest in found], dtype=np.uint64)


def held_out(pixels_N: np.ndarray, labels_N: np.ndarray, count: int) -> np.ndarray:
    """Which `count` of the pictures are held out: of each class its share, those that a hash of their pixels puts first."""
    if not 0 <= count < len(labels_N):
        raise QkvError(
            f"{count:,} of {len(labels_N):,} pictures are to be held out: some must be left to learn from, so take fewer"
        )
    order_N = hashes(pixels_N)
    held_N = np.zeros(len(labels_N), dtype=bool)
    shares = {
        label: count * int((labels_N == label).sum()) / len(labels_N)
        for label in np.unique(labels_N).tolist()
    }
    # What rounding down leaves goes to those who lost most by it.
    short = count - sum(int(share) for share in shares.values())
    lucky = sorted(shares, key=lambda label: (int(shares[label]) - shares[label], label))[:short]
    for label, share in shares.items():
        rows = np.flatnonzero(labels_N == label)
        held_N[rows[np.argsort(order_N[rows], kind="stable")][: int(share) + (label in lucky)]] = True
    return held_N
