"""What hypothesis draws: masks of every kind and their compositions, each beside its dense meaning."""

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from tests.attention import reference

from qkv import masks
from qkv.attention.masks.values import Mask


@st.composite
def leaves(draw: Any, B: int, H: int, T: int, S: int) -> tuple[Mask, np.ndarray]:
    """A mask of one kind, and its allow_BHTS from loops over positions."""
    kinds = ["causal", "offset", "window", "lengths", "keep", "dense", *(["documents"] if T <= S else [])]
    kind = draw(st.sampled_from(kinds))
    whole = (B, H, T, S)
    if kind == "causal":
        return masks.causal(), np.broadcast_to(reference.causal(T, S), whole)
    if kind == "offset":
        offset = draw(st.integers(-T, S))
        return masks.causal(offset), np.broadcast_to(reference.causal(T, S, offset), whole)
    if kind == "window":
        distance = draw(st.integers(0, S))
        return masks.window(distance), np.broadcast_to(reference.window(T, S, distance), whole)
    if kind == "lengths":
        counts = draw(st.lists(st.integers(0, S), min_size=B, max_size=B))
        return masks.padding(torch.tensor(counts, dtype=torch.long)), np.broadcast_to(
            reference.lengths(counts, S), whole
        )
    if kind == "keep":
        keep = np.array(draw(st.lists(st.booleans(), min_size=B * S, max_size=B * S)), dtype=bool).reshape(
            B, S
        )
        return masks.padding(torch.from_numpy(keep)), np.broadcast_to(keep[:, None, None], whole)
    if kind == "documents":
        ids = [draw(st.lists(st.integers(0, 2), min_size=S, max_size=S)) for _ in range(B)]
        return masks.documents(torch.tensor(ids)), np.broadcast_to(reference.documents(ids, T), whole)
    shape = tuple(draw(st.sampled_from([1, size])) for size in whole)
    cut = draw(st.integers(0, 3))
    shape = shape[cut:]
    count = int(np.prod(shape))
    allow = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=bool).reshape(shape)
    return masks.from_sdpa(torch.from_numpy(allow)), np.broadcast_to(allow, whole)


@st.composite
def composed(draw: Any, B: int, H: int, T: int, S: int, depth: int = 2) -> tuple[Mask, np.ndarray]:
    """A mask of masks, and its allow_BHTS."""
    kind = draw(st.sampled_from(["leaf", "and", "or", "not"])) if depth else "leaf"
    if kind == "leaf":
        return draw(leaves(B, H, T, S))
    one, one_BHTS = draw(composed(B, H, T, S, depth - 1))
    if kind == "not":
        return ~one, ~one_BHTS
    other, other_BHTS = draw(composed(B, H, T, S, depth - 1))
    return (one & other, one_BHTS & other_BHTS) if kind == "and" else (one | other, one_BHTS | other_BHTS)
