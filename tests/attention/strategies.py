"""What hypothesis draws: masks of every kind and their compositions, each beside its dense meaning."""

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from tests.attention import reference

from qkv import masks
from qkv.attention.masks.values import Mask


@st.composite
def leaves(draw: Any, B: int, H: int, T: int, S: int, offset: int | None) -> tuple[Mask, np.ndarray]:
    """A mask of one kind, and its allow_BHTS from loops over positions."""
    first = S - T if offset is None else offset
    kinds = ["causal", "window", "lengths", "keep", "dense", *(["documents"] if 0 <= first <= S - T else [])]
    kind = draw(st.sampled_from(kinds))
    whole = (B, H, T, S)
    if kind == "causal":
        return masks.causal(offset), np.broadcast_to(reference.causal(T, S, offset), whole)
    if kind == "window":
        distance = draw(st.integers(0, S))
        return masks.window(distance, offset), np.broadcast_to(
            reference.window(T, S, distance, offset), whole
        )
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
        return masks.documents(torch.tensor(ids), offset), np.broadcast_to(
            reference.documents(ids, T, offset), whole
        )
    shape = tuple(draw(st.sampled_from([1, size])) for size in whole)
    cut = draw(st.integers(0, 3))
    shape = shape[cut:]
    count = int(np.prod(shape))
    allow = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=bool).reshape(shape)
    return masks.from_sdpa(torch.from_numpy(allow)), np.broadcast_to(allow, whole)


@st.composite
def composed(draw: Any, B: int, H: int, T: int, S: int) -> tuple[Mask, np.ndarray]:
    """A mask of masks that agree on where the first query stands, and its allow_BHTS."""
    return draw(composed_at(B, H, T, S, draw(offsets(T, S))))


def offsets(T: int, S: int) -> st.SearchStrategy[int | None]:
    """Where the first query stands."""
    return st.one_of(st.none(), st.integers(-T, S))


@st.composite
def composed_at(
    draw: Any, B: int, H: int, T: int, S: int, offset: int | None, depth: int = 2
) -> tuple[Mask, np.ndarray]:
    kind = draw(st.sampled_from(["leaf", "and", "or", "not"])) if depth else "leaf"
    if kind == "leaf":
        return draw(leaves(B, H, T, S, offset))
    one, one_BHTS = draw(composed_at(B, H, T, S, offset, depth - 1))
    if kind == "not":
        return ~one, ~one_BHTS
    other, other_BHTS = draw(composed_at(B, H, T, S, offset, depth - 1))
    return (one & other, one_BHTS & other_BHTS) if kind == "and" else (one | other, one_BHTS | other_BHTS)
