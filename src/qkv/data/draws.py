"""Random draws that stay the same: numpy promises it of raw 64-bit draws, and of no others, for all its versions."""

import numpy as np


def source(*numbers: int) -> np.random.PCG64:
    """Where draws come from, decided by these numbers alone."""
    return np.random.PCG64(np.random.SeedSequence(numbers))


def uniform(bits: np.random.PCG64, count: int) -> np.ndarray:
    """Numbers in [0, 1)."""
    return (bits.random_raw(count) >> np.uint64(11)) * 2.0**-53
