"""Positions: where a token stands, added to its embedding, turned into query and key, or added to scores.

Axes: B batch, T query length, S key length, D width, H heads, K key width per head, N distances,
R rows and C columns of a picture.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import QkvError


class Position(nn.Module):
    """Three places where a position can enter, each a no-op until a subclass fills it in."""

    takes: ClassVar[tuple[str, ...]] = ()

    def embed(self, x_BTD: Tensor, offset: int = 0) -> Tensor:
        """(B,T,D) -> (B,T,D): what is added to the embeddings of tokens offset ... offset + T - 1."""
        return x_BTD

    def rotate(self, x_BHTK: Tensor, offset: int = 0) -> Tensor:
        """(B,H,T,K) -> (B,H,T,K): queries or keys of tokens offset ... offset + T - 1, turned."""
        return x_BHTK

    def bias(self, T: int, S: int, *, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """(H,T,S), added to the scores; the queries are the last T of the S positions."""
        return None

    def fit(self, table: Tensor) -> Tensor | None:
        """The table of such a position of other sizes, made to fit this one; None: it cannot be."""
        return None

    @classmethod
    def sized(
        cls,
        *,
        width: int,
        heads: int,
        key_width: int,
        length: int,
        grid: tuple[int, int] | None = None,
        causal: bool = False,
    ) -> "Position":
        """One that fits a model of these sizes; of them the kind gets those that it names in `takes`."""
        sizes = {
            "width": width,
            "heads": heads,
            "key_width": key_width,
            "length": length,
            "bidirectional": not causal,
        }
        return cls(**{name: sizes[name] for name in cls.takes})


class NoPosition(Position):
    """No position at all: attention sees a bag of tokens (a causal mask alone still betrays some order)."""


class Sinusoidal(Position):
    """Waves of geometric wavelengths, for any length (Vaswani et al. 2017, section 3.5)."""

    def embed(self, x_BTD: Tensor, offset: int = 0) -> Tensor:
        """x + PE, where PE(t, 2i) = sin(t / 10000^(2i/D)) and PE(t, 2i+1) = cos(the same)."""
        T, D = x_BTD.shape[-2:]
        angle = _angles(T, D, offset, theta=10000.0, like=x_BTD)
        wave_TD = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
        return x_BTD + wave_TD[:, :D].to(x_BTD.dtype)  # an odd width ends on a sine


class Learned(Position):
    """One learned vector per position (Gehring et al. 2017, section 3.1; BERT), up to a fixed length."""

    takes = ("length", "width")

    def __init__(self, length: int, width: int):
        super().__init__()
        if length < 1 or width < 1:
            raise QkvError(f"learned positions got length={length}, width={width}: both must be 1 or more")
        self.table = nn.Parameter(torch.empty(length, width))
        nn.init.normal_(self.table, std=0.02)

    def embed(self, x_BTD: Tensor, offset: int = 0) -> Tensor:
        return x_BTD + _rows(self.table, x_BTD, offset, fix="build it with a greater length or cut x")

    def fit(self, table: Tensor) -> Tensor | None:
        """Each position keeps its vector; those beyond the old table stay as they were made."""
        if table.shape[1] != self.table.shape[1]:
            return None
        return torch.cat((table, self.table.detach()[len(table) :]))[: len(self.table)]


class Grid(Position):
    """One learned vector per cell of a picture, row by row (ViT: Dosovitskiy et al. 2021, equation 1)."""

    def __init__(self, rows: int, columns: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(rows, columns, width))
        nn.init.normal_(self.table, std=0.02)

    def embed(self, x_BTD: Tensor, offset: int = 0) -> Tensor:
        table_TD = self.table.flatten(0, 1)
        return x_BTD + _rows(table_TD, x_BTD, offset, fix="fit it to the picture with resized(rows, columns)")

    def fit(self, table: Tensor) -> Tensor | None:
        if table.dim() != 3 or table.shape[-1] != self.table.shape[-1]:
            return None
        other = Grid(*table.shape)
        other.table = nn.Parameter(table)
        return other.resized(*self.table.shape[:2]).table.detach()

    def resized(self, rows: int, columns: int) -> "Grid":
        """A new grid, interpolated from this one for pictures of another resolution (their section 3.2)."""
        if rows < 1 or columns < 1:
            raise QkvError(
                f"a grid of {rows} x {columns} has no cells; 1 or more rows and columns are wanted"
            )
        grid = Grid(rows, columns, self.table.shape[-1]).to(self.table)
        with torch.no_grad():
            grid.table.copy_(interpolated(self.table, rows, columns))
        return grid

    @classmethod
    def sized(
        cls,
        *,
        width: int,
        heads: int,
        key_width: int,
        length: int,
        grid: tuple[int, int] | None = None,
        causal: bool = False,
    ) -> "Position":
        if grid is None:
            raise QkvError("grid positions got grid=None; they are for pictures: give grid=(rows, columns)")
        return cls(*grid, width)


class Rotary(Position):
    """Queries and keys turned by an angle that grows with position (RoPE: Su et al. 2021, equation 34).

    Channel i is paired with channel i + K/2, as in Llama; the paper pairs neighbours: the same but for
    the order of the channels.
    """

    takes = ("key_width",)

    def __init__(self, key_width: int, theta: float = 10000.0):
        super().__init__()
        if key_width % 2:
            raise QkvError(
                f"rotary positions turn channels in pairs; key width {key_width} is odd: make it even"
            )
        self.key_width, self.theta = key_width, theta

    def rotate(self, x_BHTK: Tensor, offset: int = 0) -> Tensor:
        T, K = x_BHTK.shape[-2:]
        if self.key_width != K:
            raise QkvError(f"x has key width {K}; rotary positions have {self.key_width}: give both the same")
        angle = _angles(T, K, offset, theta=self.theta, like=x_BHTK)
        cosine, sine = angle.cos(), angle.sin()
        first, second = x_BHTK.to(angle.dtype).chunk(2, dim=-1)
        turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
        return turned.to(x_BHTK.dtype)


class ALiBi(Position):
    """A penalty that grows with distance, at another pace in each head (Press et al. 2022, section 3).

    It is symmetric, -slope · |i - j|; under a causal mask that is the paper's.
    """

    takes = ("heads",)

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads

    def bias(self, T: int, S: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
        _check_lengths(T, S)
        key_S = torch.arange(S, device=device)
        distance_TS = (key_S[S - T :, None] - key_S).abs()
        slope_H = torch.tensor(self.slopes(self.heads), device=device)
        return (-slope_H[:, None, None] * distance_TS).to(dtype)

    @staticmethod
    def slopes(heads: int) -> list[float]:
        """2^(-8h/H) for h = 1 ... H, if H is a power of two.

        Otherwise those of the power below, and every other one of the power above until there are H.
        """
        power = 2 ** (heads.bit_length() - 1)  # the greatest that is at most H
        main = [2 ** (-8 * h / power) for h in range(1, power + 1)]
        between = [2 ** (-4 * h / power) for h in range(1, 2 * power, 2)]
        return main + between[: heads - power]


class Relative(Position):
    """A learned bias per head and bucket of distances (T5: Raffel et al. 2020, section 2.1).

    Half of the buckets hold one distance each; the others widen logarithmically up to `max_distance`, and
    the last holds everything beyond. Keys ahead of the query have buckets of their own if `bidirectional`,
    else they share that of distance 0.
    """

    takes = ("heads", "bidirectional")

    def __init__(self, heads: int, *, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True):
        super().__init__()
        self.bidirectional = bidirectional
        self.side = buckets // 2 if bidirectional else buckets
        exact = self.side // 2
        if exact < 1 or max_distance <= exact:
            raise QkvError(
                f"relative positions got buckets={buckets} and max_distance={max_distance}; "
                f"at least {4 if bidirectional else 2} and {exact + 1} are wanted: raise what is too small"
            )
        # Where each bucket but the first begins. Whole numbers, found once: a logarithm at run time may put
        # 16 into the bucket below on another device or when compiled. round keeps ceil(16.0000000001) at 16.
        wide = self.side - exact
        growth = max_distance / exact
        self.starts = [
            *range(1, exact + 1),
            *(math.ceil(round(exact * growth ** (n / wide), 6)) for n in range(1, wide)),
        ]
        self.table = nn.Parameter(torch.empty(heads, buckets))
        nn.init.normal_(self.table, std=0.02)

    def bucket(self, ahead: Tensor) -> Tensor:
        """Key position minus query position (any shape) -> the number of its bucket."""
        distance = ahead.abs() if self.bidirectional else (-ahead).clamp(min=0)
        bucket = torch.bucketize(distance, torch.tensor(self.starts, device=ahead.device), right=True)
        return bucket + self.side * (ahead > 0) if self.bidirectional else bucket

    def bias(self, T: int, S: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
        _check_lengths(T, S)
        # Few distances occur, 1 - S ... T - 1, and each row of the bias is a window on them, one step left of
        # the row above: far cheaper than T·S lookups. (The distance T is there for T = 0 alone.)
        bias_HN = self.table[:, self.bucket(torch.arange(1 - S, T + 1, device=device))]
        return bias_HN.unfold(1, S, 1)[:, :T].flip(1).to(dtype)


POSITIONS: dict[str, type[Position]] = {
    "none": NoPosition,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "grid": Grid,
    "rotary": Rotary,
    "alibi": ALiBi,
    "relative": Relative,
}


def interpolated(table_RCD: Tensor, rows: int, columns: int) -> Tensor:
    """A vector for each cell of a grid of R rows and C columns -> for those of another; in fp32 at least."""
    shrinks = rows < table_RCD.shape[0] or columns < table_RCD.shape[1]
    image_1DRC = table_RCD.to(_exact(table_RCD.dtype)).permute(2, 0, 1)[None]
    image_1DRC = F.interpolate(
        image_1DRC, (rows, columns), mode="bicubic", align_corners=False, antialias=shrinks
    )
    return image_1DRC[0].permute(1, 2, 0)


def _angles(T: int, D: int, offset: int, *, theta: float, like: Tensor) -> Tensor:
    """(T, D/2 rounded up): position t times frequency theta^(-2i/D)."""
    dtype = _exact(like.dtype)
    position_T = torch.arange(offset, offset + T, device=like.device, dtype=dtype)
    frequency = theta ** (-torch.arange(0, D, 2, device=like.device, dtype=dtype) / D)
    return position_T[:, None] * frequency


def _exact(dtype: torch.dtype) -> torch.dtype:
    """At least fp32: bf16 cannot count past 256."""
    return torch.promote_types(dtype, torch.float32)


def _rows(table_SD: Tensor, x_BTD: Tensor, offset: int, *, fix: str) -> Tensor:
    """(S,D) -> (T,D): the rows offset ... offset + T - 1, in x's dtype."""
    (S, width), (T, D) = table_SD.shape, x_BTD.shape[-2:]
    if width != D:
        raise QkvError(f"x has width {D}; the positions have width {width}: build both with the same")
    if offset < 0:
        raise QkvError(f"offset is {offset}; the position of the first token, 0 or more, is wanted")
    if offset + T > S:
        raise QkvError(f"x reaches position {offset + T}; the table holds {S}: {fix}")
    return table_SD[offset : offset + T].to(x_BTD.dtype)


def _check_lengths(T: int, S: int) -> None:
    if T > S:
        raise QkvError(
            f"{T} queries are not the last of {S} keys; relative positions need T <= S: use self-attention"
        )
