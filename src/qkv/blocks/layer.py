"""One Transformer layer: attention and feed-forward, each in a residual branch.

Axes: B batch, N memories (as many, one for all, or one for each B / N neighbours in the batch), T query length,
S key length, D width, E width of a memory, H heads.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from qkv.attention.dropout import Dropout
from qkv.attention.heads import AttentionConfig, MultiHeadAttention
from qkv.attention.masks import Mask
from qkv.attention.masks.values import as_mask
from qkv.attention.memory import Memory
from qkv.attention.positions import Position
from qkv.blocks.feedforward import FeedForward, FeedForwardConfig
from qkv.blocks.norm import norm
from qkv.config import config
from qkv.errors import QkvError


@config
class LayerConfig:
    """One layer of an encoder, or with `cross` of a decoder."""

    attention: AttentionConfig
    """Self-attention and, if there is any, cross-attention."""
    feedforward: FeedForwardConfig
    """The feed-forward block."""
    norm: Literal["layer", "rms"] = "layer"
    """Kind of norm."""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-5
    """Added under the norm's square root: BERT has 1e-12, ViT 1e-6."""
    order: Literal["pre", "post"] = "pre"
    """Norm before each branch (steadier to train) or after each sum (the original)."""
    cross: bool = False
    """Whether the layer also attends to a memory, as a translation decoder does."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each branch's output dropped in training."""
    depth_drop: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Chance that an example skips a branch in training."""

    def __post_init__(self) -> None:
        if self.feedforward.width != self.attention.width:
            raise QkvError(
                f"feedforward.width is {self.feedforward.width}, attention.width {self.attention.width}: "
                "give both the same, as they add to one stream"
            )


class Layer(nn.Module):
    """Self-attention (`own`), cross-attention (`cross`, if configured) and `feedforward`, in this order.

    Post-norm is x ← norm(x + f(x)) (Vaswani et al. 2017, section 3.1), pre-norm x ← x + f(norm(x))
    (Xiong et al. 2020, table 1); a stack of pre-norm layers wants one more norm at its end.
    """

    def __init__(self, config: LayerConfig):
        super().__init__()
        self.config, width = config, config.attention.width
        # `inputs` lets a memory have another width than the layer; self-attention reads the layer alone.
        self.own = MultiHeadAttention(replace(config.attention, inputs=None))
        self.own_norm = norm(config.norm, width, config.epsilon)
        if config.cross:
            self.cross = MultiHeadAttention(config.attention)
            self.cross_norm = norm(config.norm, width, config.epsilon)
        self.feedforward = FeedForward(config.feedforward)
        self.feedforward_norm = norm(config.norm, width, config.epsilon)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x_BTD: Tensor,
        memory_NSE: Tensor | None = None,
        *,
        allow: Tensor | Mask | None = None,
        cross_allow: Tensor | Mask | None = None,
        positions: Position | None = None,
    ) -> Tensor:
        """(B,T,D), and (N,S,D) to attend to if the layer has cross-attention -> (B,T,D)."""
        cross = None if memory_NSE is None else self.remember(memory_NSE)
        return self.step(x_BTD, None, cross, allow=allow, cross_allow=cross_allow, positions=positions)[0]

    def remember(self, memory_NSE: Tensor) -> Memory:
        """(N,S,E) -> its keys and values for cross-attention, projected once for all steps."""
        if not self.config.cross:
            raise QkvError(
                "the layer got a memory but has cross=False: set cross=True, or leave the memory out"
            )
        return self.cross.remember(memory_NSE)

    def step(
        self,
        x_BTD: Tensor,
        own: Memory | None,
        cross: Memory | None,
        *,
        allow: Tensor | Mask | None = None,
        cross_allow: Tensor | Mask | None = None,
        positions: Position | None = None,
    ) -> tuple[Tensor, Memory]:
        """The next T tokens (B,T,D), after those in `own` -> (B,T,D), and `own` with them appended."""
        if x_BTD.dim() != 3 or x_BTD.shape[-1] != self.config.attention.width:
            raise QkvError(
                f"x has shape {tuple(x_BTD.shape)}; (batch, length, {self.config.attention.width}) is wanted, "
                "as the config's width says"
            )
        h_BTD = self._enter(self.own_norm, x_BTD)
        own = self.own.remember(h_BTD, memory=own, positions=positions)
        h_BTD = self.own.recall(h_BTD, own, allow=allow, positions=positions)
        x_BTD = self._leave(self.own_norm, x_BTD, h_BTD)

        if self.config.cross:
            if cross is None:
                raise QkvError("the layer has cross=True but got no memory: pass the encoder's output")
            h_BTD = self._enter(self.cross_norm, x_BTD)
            h_BTD = self._look_across(h_BTD, cross, cross_allow)
            x_BTD = self._leave(self.cross_norm, x_BTD, h_BTD)

        h_BTD = self.feedforward(self._enter(self.feedforward_norm, x_BTD))
        return self._leave(self.feedforward_norm, x_BTD, h_BTD), own

    def _look_across(self, h_BTD: Tensor, cross: Memory, allow: Tensor | Mask | None) -> Tensor:
        """Cross-attention; when B rows share fewer sentences, side by side, a sentence's memory serves its rows uncopied."""
        rows, sentences = h_BTD.shape[0], cross.keys.shape[0]
        if sentences in (0, 1, rows):
            return self.cross.recall(h_BTD, cross, allow=allow)
        if rows % sentences:
            raise QkvError(
                f"{rows} rows look at a memory of {sentences} sentences: one sentence for all, "
                "or the same number of rows for each, is wanted"
            )
        if allow is not None and as_mask(allow).per_query:
            raise QkvError(
                f"cross_allow tells queries apart, but {rows} rows share {sentences} memories: "
                "give every row its own memory, cross.pick(rows), or a mask of keys alone"
            )
        folded_BTD = h_BTD.reshape(sentences, rows // sentences * h_BTD.shape[1], h_BTD.shape[2])
        return self.cross.recall(folded_BTD, cross, allow=allow).reshape(h_BTD.shape)

    def _enter(self, norm: nn.Module, x_BTD: Tensor) -> Tensor:
        """What a branch reads."""
        return norm(x_BTD) if self.config.order == "pre" else x_BTD

    def _leave(self, norm: nn.Module, x_BTD: Tensor, h_BTD: Tensor) -> Tensor:
        """The branch's output h added to its input x."""
        sum_BTD = x_BTD + self._skip(self.dropout(h_BTD))
        return sum_BTD if self.config.order == "pre" else norm(sum_BTD)

    def _skip(self, h_BTD: Tensor) -> Tensor:
        """Stochastic depth, drawn per example and scaled to keep the mean (Huang et al. 2016, equation 2)."""
        rate = self.config.depth_drop
        if not rate or not self.training:
            return h_BTD
        kept_B11 = torch.rand(h_BTD.shape[0], 1, 1, device=h_BTD.device) >= rate
        return h_BTD * kept_B11 / (1 - rate)


class Layers(nn.ModuleList):
    """A stack of layers, for those who run it one by one."""

    def __iter__(self) -> Iterator[Layer]:
        return super().__iter__()  # pyright: ignore[reportReturnType] - it holds nothing else
