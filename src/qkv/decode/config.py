"""How to look for the best continuation: the choices of a search.

Axes: B sentences.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from qkv.config import config
from qkv.errors import QkvError

Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@config
class SearchConfig:
    """Beam search by default; greedy with `beam=1`; sampling with `beam=1` and a temperature above 0."""

    beam: PositiveInt = 5
    """Prefixes kept alive for each sentence; 1 is greedy: the likeliest token at each step."""
    n_best: PositiveInt = 1
    """Hypotheses returned for each sentence, best first; when sampling, how many are drawn."""
    normalize: Literal["length", "gnmt", "none"] = "length"
    """What divides a log probability so that long hypotheses may win: length^alpha, ((5 + length) / 6)^alpha, or 1."""
    alpha: Finite = 1.0
    """The power in it; GNMT took 0.6 to 0.7."""
    coverage: Finite = 0.0
    """Weight of the penalty for source tokens that were hardly looked at; GNMT took 0.2."""
    coverage_from: str | None = None
    """The attentions that tell what was looked at, a pattern as for `qkv.watch`; none: all that look at the source."""
    stop: Literal["exact", "quick", "never"] = "exact"
    """exact: once no live prefix can beat what is kept. quick, as in fairseq and CTranslate2: an end counts only among
    the `beam` best continuations, and `beam` ends are enough. never: at the maximum."""
    minimum: NonNegativeInt = 0
    """Tokens before the end may come."""
    maximum: PositiveInt = 256
    """Most tokens, the end among them; what has not ended by then is cut, and says so."""
    maximum_ratio: Finite | None = 2.0
    """A sentence's own maximum: this many tokens for each source token, and `maximum_extra` more; none: no such limit."""
    maximum_extra: NonNegativeInt = 20
    """See maximum_ratio."""
    temperature: Finite = 0.0
    """Logits are divided by it before sampling; 0 takes the likeliest."""
    top_k: PositiveInt | None = None
    """Sample from this many likeliest tokens only."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the fewest likeliest tokens that hold this probability (Holtzman et al. 2020, section 3.1)."""
    seed: int = 0
    """Of the samples."""

    def __post_init__(self) -> None:
        if self.samples and self.beam > 1:
            raise QkvError(
                f"temperature is {self.temperature} with beam {self.beam}: samples are drawn one by one, "
                "so set beam=1, and n_best to how many you want"
            )
        if not self.samples and (self.top_k is not None or self.top_p < 1):
            raise QkvError(
                f"top_k is {self.top_k}, top_p {self.top_p}, but nothing is sampled: set a temperature above 0"
            )
        if not self.samples and self.n_best > self.beam:
            raise QkvError(
                f"n_best is {self.n_best}, but a beam of {self.beam} finds no more: widen the beam"
            )
        if self.coverage and self.beam == 1:
            raise QkvError(
                f"coverage is {self.coverage} with beam 1, which has nothing to choose from: widen the beam"
            )
        if self.minimum >= self.maximum:
            raise QkvError(
                f"minimum is {self.minimum}, maximum {self.maximum}: the end needs its place too, so raise the maximum"
            )

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn by chance."""
        return self.temperature > 0

    def limits(self, source_lengths_B: Tensor) -> Tensor:
        """Most tokens of a hypothesis for sources of these lengths; limit_B."""
        limit_B = torch.full_like(source_lengths_B, self.maximum)
        if self.maximum_ratio is not None:
            own_B = (self.maximum_ratio * source_lengths_B + self.maximum_extra).to(limit_B.dtype)
            limit_B = torch.minimum(limit_B, own_B)
        return limit_B.clamp(min=self.minimum + 1)

    def divisors(self, longest: int) -> Tensor:
        """What divides the log probability of a hypothesis of 0, 1, … `longest` tokens; never falls with the length.

        gnmt is the length penalty of Wu et al. 2016, equation 14.
        """
        length = torch.arange(longest + 1, dtype=torch.float64)
        if self.normalize == "none":
            return torch.ones_like(length)
        return (length if self.normalize == "length" else (5 + length) / 6) ** self.alpha
