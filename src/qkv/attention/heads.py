"""Multi-head attention: project, split into heads, attend, merge (Vaswani et al. 2017, section 3.2.2).

Axes: B batch, T query length, S key length, D width, H heads of the queries, G heads of the keys and
values, K key width per head, V value width per head; E and F widths of what keys and values are made of.
"""

import math
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from qkv.attention.attend import Attend
from qkv.attention.masks.values import Mask
from qkv.attention.memory import Memory
from qkv.attention.normalize import NORMALIZERS
from qkv.attention.positions import Position
from qkv.attention.scores import SCORES
from qkv.config import config, one_of
from qkv.errors import QkvError, choose


@config
class AttentionConfig:
    """The sizes and choices of one multi-head attention."""

    width: int
    """Width of what goes in and comes out."""
    heads: int
    """Heads of the queries."""
    groups: int | None = None
    """Heads of the keys and values, a divisor of heads (1: multi-query); None: as many as heads."""
    key_width: int | None = None
    """Width of a query and a key in one head; None: width / heads."""
    value_width: int | None = None
    """Width of a value in one head; None: the key width."""
    inputs: tuple[int, int, int] | None = None
    """Widths of the inputs of queries, keys and values, where they differ from width."""
    score: Annotated[str, one_of(SCORES)] = "dot"
    """How queries and keys are compared."""
    beta: float | Literal["learned"] | None = None
    """Scale of the scores; None: 1 / sqrt(key width); inf: hard attention; learned: one for each head."""
    normalize: Annotated[str, one_of(NORMALIZERS)] = "softmax"
    """How scores become weights."""
    bias: bool = True
    """Whether the four projections add a bias."""
    qk_norm: bool = False
    """Whether queries and keys are RMS-normalised in each head (Henry et al. 2020)."""
    dropout: float = 0.0
    """Share of the weights dropped in training."""
    length: int = 512
    """Most keys that a location score can tell apart; other scores know no limit."""

    def __post_init__(self) -> None:
        if self.width < 1 or self.heads < 1:
            raise QkvError(f"width={self.width}, heads={self.heads}: both must be 1 or more")
        if self.key_width is None and self.width % self.heads:
            raise QkvError(
                f"width={self.width} does not divide into heads={self.heads}: choose a divisor, or give key_width"
            )
        if self.key_heads < 1 or self.heads % self.key_heads:
            raise QkvError(f"groups={self.groups} does not divide heads={self.heads}: choose a divisor")
        if self.query_head_width < 1 or self.value_head_width < 1:
            raise QkvError(
                f"key_width={self.key_width}, value_width={self.value_width}: both must be 1 or more"
            )
        if min(self.input_widths) < 1:
            raise QkvError(f"inputs={self.inputs}: the widths of queries, keys and values must be 1 or more")
        if isinstance(self.beta, float) and not -math.inf < self.beta:  # NaN compares as False
            raise QkvError(
                f"beta={self.beta}: a finite number, inf for hard attention, learned, or none is wanted"
            )
        if not 0 <= self.dropout < 1:
            raise QkvError(
                f"dropout={self.dropout}: a share of the weights from 0 up to, not including, 1 is wanted"
            )
        if self.length < 1:
            raise QkvError(f"length={self.length}: a location score needs 1 key or more")
        choose("score", self.score, SCORES)
        choose("normaliser", self.normalize, NORMALIZERS)

    @property
    def key_heads(self) -> int:
        """G, the heads of keys and values."""
        return self.heads if self.groups is None else self.groups

    @property
    def query_head_width(self) -> int:
        """K, the width of a query or a key in one head."""
        return self.width // self.heads if self.key_width is None else self.key_width

    @property
    def value_head_width(self) -> int:
        """V, the width of a value in one head."""
        return self.query_head_width if self.value_width is None else self.value_width

    @property
    def input_widths(self) -> tuple[int, int, int]:
        """The widths of the inputs of queries, keys and values."""
        return self.inputs or (self.width, self.width, self.width)


class HeadNorm(nn.RMSNorm):
    """RMS norm over the width of a head, in its weight's precision: autocast leaves the two apart."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class MultiHeadAttention(nn.Module):
    """Self-, cross-, grouped and multi-query attention; the choices stand in its config.

    `forward` is `recall(query, remember(key, value))`: cross-attention remembers a sentence once and
    recalls at each step; cached self-attention remembers one more token at each step.
    """

    def __init__(self, config: AttentionConfig):
        super().__init__()
        self.config = config
        H, G, K, V = config.heads, config.key_heads, config.query_head_width, config.value_head_width
        query_input, key_input, value_input = config.input_widths
        self.query = nn.Linear(query_input, H * K, bias=config.bias)
        self.key = nn.Linear(key_input, G * K, bias=config.bias)
        self.value = nn.Linear(value_input, G * V, bias=config.bias)
        self.out = nn.Linear(H * V, config.width, bias=config.bias)
        self.query_norm = HeadNorm(K) if config.qk_norm else nn.Identity()
        self.key_norm = HeadNorm(K) if config.qk_norm else nn.Identity()
        beta = nn.Parameter(torch.full((H,), 1 / math.sqrt(K))) if config.beta == "learned" else config.beta
        self.attend = Attend(
            score=SCORES[config.score].sized(width=K, heads=H, length=config.length),
            beta=beta,
            normalize=config.normalize,
            dropout=config.dropout,
        )
        for projection in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(projection.weight)
            if config.bias:
                nn.init.zeros_(projection.bias)

    def forward(
        self,
        query_BTD: Tensor,
        key_BSE: Tensor | None = None,
        value_BSF: Tensor | None = None,
        *,
        allow: Mask | Tensor | None = None,
        positions: Position | None = None,
    ) -> Tensor:
        """Self-attention, or cross-attention over `key` (and `value`, if it is another); returns out_BTD."""
        memory = self.remember(query_BTD if key_BSE is None else key_BSE, value_BSF, positions=positions)
        return self.recall(query_BTD, memory, allow=allow, positions=positions)

    def remember(
        self,
        key_BSE: Tensor,
        value_BSF: Tensor | None = None,
        *,
        memory: Memory | None = None,
        positions: Position | None = None,
    ) -> Memory:
        """Project keys and values once; appended to `memory` if one is given."""
        k_BGSK = self.key_norm(self._split(self.key, key_BSE, "key"))
        v_BGSV = self._split(self.value, key_BSE if value_BSF is None else value_BSF, "value")
        if positions is not None:
            k_BGSK = positions.rotate(k_BGSK, offset=memory.length if memory else 0)
        return memory.append(k_BGSK, v_BGSV) if memory else Memory(k_BGSK, v_BGSV)

    def recall(
        self,
        query_BTD: Tensor,
        memory: Memory,
        *,
        allow: Mask | Tensor | None = None,
        positions: Position | None = None,
    ) -> Tensor:
        """Look the queries up in a memory; with `positions`, they are its last T. Returns out_BTD."""
        q_BHTK, bias = self.query_norm(self._split(self.query, query_BTD, "query")), None
        if positions is not None:
            T, S = query_BTD.shape[-2], memory.length
            q_BHTK = positions.rotate(q_BHTK, offset=S - T)
            bias = positions.bias(T, S, device=q_BHTK.device, dtype=q_BHTK.dtype)
        out_BHTV = self.attend(q_BHTK, memory.keys, memory.values, allow=allow, bias=bias)
        return self.out(out_BHTV.transpose(-3, -2).flatten(-2))

    def _split(self, projection: nn.Linear, x_BTD: Tensor, name: str) -> Tensor:
        """Project and split into heads: x_BTD to x_BHTK."""
        if x_BTD.dim() < 2 or x_BTD.shape[-1] != projection.in_features:
            raise QkvError(
                f"{name} has shape {tuple(x_BTD.shape)}; (batch, length, {projection.in_features}) is wanted, "
                "as the config's width or inputs say"
            )
        width = self.config.value_head_width if name == "value" else self.config.query_head_width
        if x_BTD.dtype != projection.weight.dtype and not torch.is_autocast_enabled(x_BTD.device.type):
            raise QkvError(
                f"{name} is {x_BTD.dtype}, the weights are {projection.weight.dtype}: move one with .to(), or use autocast"
            )
        if x_BTD.device != projection.weight.device:
            raise QkvError(
                f"{name} is on {x_BTD.device}, the weights are on {projection.weight.device}: move one with .to()"
            )
        return projection(x_BTD).unflatten(-1, (-1, width)).transpose(-3, -2)

    @classmethod
    def from_torch(cls, other: nn.MultiheadAttention) -> "MultiHeadAttention":
        """The same attention with copied weights, for inputs in (batch, length, width) order."""
        if other.bias_k is not None or other.add_zero_attn:
            raise QkvError(
                "this nn.MultiheadAttention has add_bias_kv or add_zero_attn, which have no place here: build it without"
            )
        inputs = (other.embed_dim, other.kdim or other.embed_dim, other.vdim or other.embed_dim)
        has_bias = other.in_proj_bias is not None
        ours = cls(
            AttentionConfig(
                width=other.embed_dim,
                heads=other.num_heads,
                inputs=inputs,
                bias=has_bias,
                dropout=other.dropout,
            )
        ).to(other.out_proj.weight)
        ours.train(other.training)
        with torch.no_grad():
            for mine, theirs in ours._pairs(other):
                mine.copy_(theirs)
        return ours

    def to_torch(self) -> nn.MultiheadAttention:
        """The same attention as torch's module (batch_first), with copied weights."""
        c = self.config
        if c.width % c.heads:
            raise QkvError(
                f"nn.MultiheadAttention has no place for width={c.width} with heads={c.heads}: only a divisor converts"
            )
        plain = AttentionConfig(width=c.width, heads=c.heads)
        same = ("key_heads", "query_head_width", "value_head_width", "score", "beta", "normalize", "qk_norm")
        other = [name for name in same if getattr(c, name) != getattr(plain, name)]
        if other or c.input_widths[0] != c.width:
            raise QkvError(
                f"nn.MultiheadAttention has no place for {', '.join(other) or 'another query width'}: only plain dot-product heads convert"
            )
        theirs = nn.MultiheadAttention(
            c.width,
            c.heads,
            c.dropout,
            c.bias,
            kdim=c.input_widths[1],
            vdim=c.input_widths[2],
            batch_first=True,
        ).to(self.out.weight)
        theirs.train(self.training)
        with torch.no_grad():
            for mine, other_weight in self._pairs(theirs):
                other_weight.copy_(mine)
        return theirs

    def _pairs(self, other: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor]]:
        """Our parameters beside (views of) torch's, which packs three projections into one where it can."""
        ours = (self.query, self.key, self.value)
        packed = other.in_proj_weight
        weights = (
            (other.q_proj_weight, other.k_proj_weight, other.v_proj_weight)
            if packed is None
            else packed.chunk(3)
        )
        pairs = [
            (mine.weight, theirs)
            for mine, theirs in zip((*ours, self.out), (*weights, other.out_proj.weight), strict=True)
        ]
        if other.in_proj_bias is not None:
            biases = (*other.in_proj_bias.chunk(3), other.out_proj.bias)
            pairs += [(mine.bias, theirs) for mine, theirs in zip((*ours, self.out), biases, strict=True)]
        return pairs
