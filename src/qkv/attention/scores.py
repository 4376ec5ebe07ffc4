"""Scores: how well a query and a key fit.

Axes: B batch, H heads of the queries, G heads of the keys, T query length, S key length,
K key width per head, A hidden width of the concat score.

Nearly every score of the literature is a dot product in disguise. Such a score only says how it
*lowers*: `lower(q, k)` returns q' and k' with score(q, k) = q' · k', and the fused kernel does the
rest. A score that is no dot product returns None there and computes itself in `forward`.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from qkv.errors import QkvError


class Score(nn.Module):
    """A score; a new one overrides `lower` or `forward`, and `sized` if it has parameters.

    `forward` may be given a part of the queries and of the keys: a score may not count on their numbers.
    """

    depth = 1
    """How many numbers `forward` holds for each pair of a query and a key."""

    @classmethod
    def sized(cls, *, width: int, heads: int, length: int) -> Self:
        """Build the score for heads of key width `width` and at most `length` keys."""
        return cls()

    def lower(self, q_BHTK: Tensor, k_BGSK: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return q' and k' whose dot product is this score, or None if there are none."""
        return None

    def forward(self, q_BHTK: Tensor, k_BGSK: Tensor) -> Tensor:
        """Return scores_BHTS."""
        lowered = self.lower(q_BHTK, k_BGSK)
        if lowered is None:
            raise TypeError(f"{type(self).__name__} overrides neither lower nor forward")
        q_BHTK, k_BGSK = lowered
        return grouped_product(q_BHTK, k_BGSK.mT)


class Dot(Score):
    """q · k (Luong et al. 2015, section 3.1; Vaswani et al. 2017, eq. 1)."""

    def lower(self, q_BHTK: Tensor, k_BGSK: Tensor) -> tuple[Tensor, Tensor]:
        return q_BHTK, k_BGSK


class General(Score):
    """qᵀ W k, a learned bilinear form for each head (Luong et al. 2015, section 3.1)."""

    def __init__(self, width: int, heads: int = 1, query_width: int | None = None):
        super().__init__()
        self.weight_HKK = nn.Parameter(torch.empty(heads, query_width or width, width))
        nn.init.xavier_uniform_(self.weight_HKK)

    @classmethod
    def sized(cls, *, width: int, heads: int, length: int) -> Self:
        return cls(width, heads)

    def lower(self, q_BHTK: Tensor, k_BGSK: Tensor) -> tuple[Tensor, Tensor]:
        _expect("general", self.weight_HKK.shape[:2], _heads(q_BHTK, k_BGSK), q_BHTK, self.weight_HKK.dtype)
        return q_BHTK @ self.weight_HKK, k_BGSK


class Gaussian(Score):
    """-|q - k|² / 2: kernel regression with β = 1 / bandwidth² (Nadaraya 1964, Watson 1964)."""

    def lower(self, q_BHTK: Tensor, k_BGSK: Tensor) -> tuple[Tensor, Tensor]:
        # -|q-k|²/2 = q·k - |k|²/2 - |q|²/2: two more columns on each side make that one dot product.
        # A norm is stored as a rounded part and a rest, so that bf16 keeps twice its digits of it.
        q_rounded, q_rest = _half_square_norm(q_BHTK)
        k_rounded, k_rest = _half_square_norm(k_BGSK)
        q_ones, k_ones = torch.ones_like(q_rounded), torch.ones_like(k_rounded)
        return (
            torch.cat([q_BHTK, q_ones, q_ones, -q_rounded, -q_rest], dim=-1),
            torch.cat([k_BGSK, -k_rounded, -k_rest, k_ones, k_ones], dim=-1),
        )


class Cosine(Score):
    """q · k / (|q| |k|): the angle alone (Luo et al. 2018); β is its temperature."""

    def lower(self, q_BHTK: Tensor, k_BGSK: Tensor) -> tuple[Tensor, Tensor]:
        return _unit(q_BHTK), _unit(k_BGSK)


class Location(Score):
    """(W q)_s: the query alone says where to look (Luong et al. 2015, eq. 8)."""

    def __init__(self, width: int, heads: int = 1, length: int = 512):
        super().__init__()
        self.places_HSK = nn.Parameter(torch.empty(heads, length, width))
        nn.init.xavier_uniform_(self.places_HSK)

    @classmethod
    def sized(cls, *, width: int, heads: int, length: int) -> Self:
        return cls(width, heads, length)

    def lower(self, q_BHTK: Tensor, k_BGSK: Tensor) -> tuple[Tensor, Tensor]:
        length, known = k_BGSK.shape[-2], self.places_HSK.shape[-2]
        if length > known:
            raise QkvError(
                f"{length} keys, but this location score knows {known} places: build it with length={length}"
            )
        _expect("location", self.places_HSK.shape[::2], _heads(q_BHTK, k_BGSK), q_BHTK, self.places_HSK.dtype)
        return q_BHTK, self.places_HSK[:, :length].expand(k_BGSK.shape[0], -1, -1, -1)


class Concat(Score):
    """vᵀ tanh(W [q; k]), the additive score (Bahdanau et al. 2015, A.1.2; Luong et al. 2015, section 3.1)."""

    def __init__(self, width: int, heads: int = 1, hidden: int | None = None, query_width: int | None = None):
        super().__init__()
        self.depth = hidden = hidden or width
        # W [q; k] = W_q q + W_k k: the long product once for each query and key, not once for each pair.
        self.query_HKA = nn.Parameter(torch.empty(heads, query_width or width, hidden))
        self.key_HKA = nn.Parameter(torch.empty(heads, width, hidden))
        self.v_HA1 = nn.Parameter(torch.empty(heads, hidden, 1))
        for parameter in self.parameters():
            nn.init.xavier_uniform_(parameter)

    @classmethod
    def sized(cls, *, width: int, heads: int, length: int) -> Self:
        return cls(width, heads)

    def forward(self, q_BHTK: Tensor, k_BGSK: Tensor) -> Tensor:
        for parameter_HKA, x in ((self.query_HKA, q_BHTK), (self.key_HKA, k_BGSK)):
            _expect("concat", parameter_HKA.shape[:2], _heads(q_BHTK, k_BGSK), x, parameter_HKA.dtype)
        k_BHSK = repeat_heads(k_BGSK, q_BHTK.shape[-3])
        q_BHT1A = (q_BHTK @ self.query_HKA).unsqueeze(-2)
        k_BH1SA = (k_BHSK @ self.key_HKA).unsqueeze(-3)
        return (torch.tanh(q_BHT1A + k_BH1SA) @ self.v_HA1.unsqueeze(-3)).squeeze(-1)


def grouped_product(a_BHTX: Tensor, b_BGXY: Tensor) -> Tensor:
    """a @ b, where each of b's G heads serves H / G heads of a without being copied; returns ab_BHTY."""
    heads, groups = a_BHTX.shape[-3], b_BGXY.shape[-3]
    if heads in (1, groups):
        return a_BHTX @ b_BGXY
    B, _, T, X = a_BHTX.shape
    folded = a_BHTX.reshape(B, groups, heads // groups * T, X) @ b_BGXY
    return folded.reshape(folded.shape[0], heads, T, b_BGXY.shape[-1])


def repeat_heads(k_BGSK: Tensor, heads: int) -> Tensor:
    """Give each of `heads` query heads the key head that it shares, k_BHSK; a copy only where it must be."""
    B, groups, S, K = k_BGSK.shape
    return (
        k_BGSK.expand(B, heads, S, K)
        if groups in (1, heads)
        else k_BGSK.repeat_interleave(heads // groups, dim=1)
    )


def _heads(q_BHTK: Tensor, k_BGSK: Tensor) -> int:
    return max(q_BHTK.shape[-3], k_BGSK.shape[-3])


def _expect(score: str, built: Sequence[int], heads: int, x: Tensor, dtype: torch.dtype) -> None:
    """Name the heads, width and dtype that a score was built for, if it is called with others."""
    width = x.shape[-1]
    if built[0] not in (1, heads) or built[1] != width:
        raise QkvError(
            f"this {score} score was built for {built[0]} heads of width {built[1]}, "
            f"but is given {heads} heads of width {width}: build it for those"
        )
    if x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
        raise QkvError(
            f"this {score} score has weights of {dtype}, queries and keys are {x.dtype}: "
            "move one with .to(), or use autocast"
        )


def _unit(x: Tensor) -> Tensor:
    """x / |x|, computed at least in fp32; a zero vector stays zero."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return nn.functional.normalize(wide, dim=-1).to(x.dtype)


def _half_square_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """|x|² / 2 over the last axis, as its value in x's precision and what that rounding lost."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    exact = wide.square().sum(-1, keepdim=True) / 2
    rounded = exact.to(x.dtype)
    return rounded, (exact - rounded).to(x.dtype)


SCORES: dict[str, type[Score]] = {
    "dot": Dot,
    "general": General,
    "concat": Concat,
    "location": Location,
    "gaussian": Gaussian,
    "cosine": Cosine,
}
