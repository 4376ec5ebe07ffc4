"""The same small network applied to every token by itself.

Axes: B batch, T length, D width, F hidden width.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.attention.dropout import Dropout
from qkv.config import config
from qkv.errors import QkvError


class Activation(NamedTuple):
    """A curve, and whether it bends the hidden layer itself or a gate that multiplies it."""

    curve: Callable[[Tensor], Tensor]
    gated: bool


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(F.relu, gated=False),
    "gelu": Activation(F.gelu, gated=False),
    # x · Φ(x) nearly: a tanh in Φ's place (Hendrycks and Gimpel 2016, section 2), as GPT-2 has it
    "gelu_tanh": Activation(partial(F.gelu, approximate="tanh"), gated=False),
    "swiglu": Activation(F.silu, gated=True),
}


@config
class FeedForwardConfig:
    """Sizes and activation of a feed-forward block."""

    width: PositiveInt
    """Width of a token's vector, in and out."""
    hidden: PositiveInt
    """Width in between; SwiGLU has a third matrix, so that 2/3 of the usual 4 · width costs the same."""
    activation: Literal["relu", "gelu", "gelu_tanh", "swiglu"] = "relu"
    """The non-linearity in between."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of hidden values dropped in training."""
    bias: bool = True
    """Whether the linear maps have a bias."""


class FeedForward(nn.Module):
    """max(0, x·U + b)·W + c (Vaswani et al. 2017, equation 2), or another activation than max(0, ·).

    With a gate: (swish(x·G) ⊙ x·U)·W (SwiGLU: Shazeer 2020, equation 6).
    """

    def __init__(self, config: FeedForwardConfig):
        super().__init__()
        self.config = config
        self.activation = ACTIVATIONS[config.activation]
        self.gate = (
            nn.Linear(config.width, config.hidden, bias=config.bias) if self.activation.gated else None
        )
        self.up = nn.Linear(config.width, config.hidden, bias=config.bias)
        self.down = nn.Linear(config.hidden, config.width, bias=config.bias)
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B,T,D) -> (B,T,D)."""
        if x_BTD.shape[-1] != self.config.width:
            raise QkvError(
                f"x has shape {tuple(x_BTD.shape)}; a last axis of {self.config.width} is wanted, as the config's width says"
            )
        curve = self.activation.curve
        hidden_BTF = curve(self.up(x_BTD)) if self.gate is None else curve(self.gate(x_BTD)) * self.up(x_BTD)
        return self.down(self.dropout(hidden_BTF))
