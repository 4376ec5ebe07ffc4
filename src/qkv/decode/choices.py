"""How the next tokens are chosen: by a beam over all prefixes of a sentence, or for each row by itself.

Axes: B sentences, W prefixes of each before the step, N after it, R rows (B · W), L vocabulary, K tokens that are
looked at, X whatever is laid side by side.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

LANES = 64
LANES_FROM = 2048
"""Lanes of `best`, and from how many columns on it looks at lanes; both measured."""


class Step(NamedTuple):
    """What one step makes of each sentence's prefixes: some end, some live on."""

    end_BW: Tensor  # log probability of each prefix with its end; -inf: that does not count
    end_gain_BW: Tensor  # of the end alone
    parents_BN: Tensor  # which prefix each new one continues
    tokens_BN: Tensor  # by which token
    gains_BN: Tensor  # of log probability
    total_BN: Tensor  # log probability of each new prefix; -inf: it has ended or never lived


class Choice(ABC):
    """Chooses after prefixes of log probability total_BW from the log probabilities gains_RL of all next tokens.

    What it is given it may write to.
    """

    rows: int
    """Prefixes to begin with."""

    @abstractmethod
    def __call__(self, gains_RL: Tensor, total_BW: Tensor, drawn_BW: Tensor | None) -> Step:
        """One step; drawn_BW are its random numbers, evenly from 0 up to 1, if anything is drawn."""


@dataclass(frozen=True)
class Beam(Choice):
    """Keep the `width` best of all continuations of a sentence.

    Every prefix may end at every step, or, if `ranked`, only where its end is among those best.
    """

    width: int
    end: int
    ranked: bool = False
    rows = 1

    def __call__(self, gains_RL: Tensor, total_BW: Tensor, drawn_BW: Tensor | None) -> Step:
        B, W = total_BW.shape
        end_gain_BW = gains_RL[:, self.end].clone().view(B, W)
        gains_RL[:, self.end] = -torch.inf  # it goes no further
        # The best of a sentence are among the best of its rows.
        gains_RK, tokens_RK = best(gains_RL, self.width)
        gains_BX, tokens_BX = gains_RK.view(B, -1), tokens_RK.view(B, -1)
        K = gains_RK.shape[-1]
        total_BX = (total_BW.unsqueeze(-1) + gains_RK.view(B, W, K)).view(B, W * K)
        total_BN, best_BN = total_BX.topk(min(self.width, W * K))
        end_BW = total_BW + end_gain_BW
        if self.ranked:
            all_BX = torch.cat([end_BW, total_BN], dim=-1)
            last_B1 = all_BX.topk(min(self.width, all_BX.shape[-1])).values[:, -1:]
            end_BW = end_BW.masked_fill(end_BW < last_B1, -torch.inf)
        return Step(
            end_BW=end_BW,
            end_gain_BW=end_gain_BW,
            parents_BN=best_BN.div(K, rounding_mode="floor"),
            tokens_BN=tokens_BX.gather(-1, best_BN),
            gains_BN=gains_BX.gather(-1, best_BN),
            total_BN=total_BN,
        )


@dataclass(frozen=True)
class Draw(Choice):
    """Continue each row by itself: by its likeliest token, or by one drawn at a temperature above 0."""

    rows: int
    end: int
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0

    def __call__(self, gains_RL: Tensor, total_BW: Tensor, drawn_BW: Tensor | None) -> Step:
        tokens_R1 = self._tokens(gains_RL, drawn_BW)
        gains_BW = gains_RL.gather(-1, tokens_R1).view_as(total_BW)
        tokens_BW = tokens_R1.view_as(total_BW)
        ended_BW, after_BW = tokens_BW == self.end, total_BW + gains_BW
        return Step(
            end_BW=after_BW.masked_fill(~ended_BW, -torch.inf),
            end_gain_BW=gains_BW,
            parents_BN=torch.arange(self.rows, device=tokens_BW.device).expand_as(tokens_BW),
            tokens_BN=tokens_BW,
            gains_BN=gains_BW,
            total_BN=after_BW.masked_fill(ended_BW, -torch.inf),
        )

    def _tokens(self, gains_RL: Tensor, drawn_BW: Tensor | None) -> Tensor:
        if drawn_BW is None:
            return best(gains_RL, 1)[1]
        probability_RK, tokens_RK = filtered(gains_RL, self.temperature, self.top_k, self.top_p)
        mass_RK = probability_RK.cumsum(-1)
        mass_RK = mass_RK / mass_RK[:, -1:]  # exactly 1 from the last token with any probability on
        return tokens_RK.gather(-1, torch.searchsorted(mass_RK, drawn_BW.reshape(-1, 1), right=True))


def best(x_RL: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and their places: `topk`, which may choose otherwise among equals, only faster.

    Column c is in lane c % LANES: the k largest stand in the k lanes with the largest maxima (or in what no lane fills),
    and these are cheap: 61 for 297 µs with k = 1 on 64 rows of 8,000, 129 for 337 with k = 5 (one Zen 5 core).
    """
    L = x_RL.shape[-1]
    full = L - L % LANES
    if full < LANES_FROM or k > LANES:
        return x_RL.topk(min(k, L))
    maxima_RX = x_RL[:, :full].unflatten(-1, (-1, LANES)).amax(1)
    lane_RK1 = maxima_RX.topk(k).indices.unsqueeze(-1)
    places_RX = (lane_RK1 + torch.arange(0, full, LANES, device=x_RL.device)).flatten(1)
    if full < L:
        rest_X = torch.arange(full, L, device=x_RL.device)
        places_RX = torch.cat([places_RX, rest_X.expand(x_RL.shape[0], -1)], dim=-1)
    x_RK, chosen_RK = x_RL.gather(-1, places_RX).topk(k)
    return x_RK, places_RX.gather(-1, chosen_RK)


def filtered(
    logits_RL: Tensor, temperature: float, top_k: int | None = None, top_p: float = 1.0
) -> tuple[Tensor, Tensor]:
    """What is sampled from: (probability_RK, tokens_RK); what is left out has 0, and the rest is not rescaled.

    top_p keeps the smallest set of tokens that holds at least this share of what top_k left (Holtzman et al.
    2020, equation 2).
    """
    if top_k is None and top_p == 1:  # any order will do
        tokens_RL = torch.arange(logits_RL.shape[-1], device=logits_RL.device).expand_as(logits_RL)
        return ((logits_RL - logits_RL.amax(-1, keepdim=True)).double() / temperature).softmax(-1), tokens_RL
    logits_RK, tokens_RK = logits_RL.double().topk(min(top_k or logits_RL.shape[-1], logits_RL.shape[-1]))
    probability_RK = ((logits_RK - logits_RK[:, :1]) / temperature).softmax(-1)
    if top_p < 1:
        before_RK = F.pad(probability_RK.cumsum(-1)[:, :-1], (1, 0))
        probability_RK = probability_RK.masked_fill(before_RK >= top_p, 0)
    return probability_RK, tokens_RK


def random_numbers(seed: int, numbers_B: Tensor, limit_B: Tensor, width: int) -> Tensor:
    """Evenly from 0 up to 1 for each step, drawn_BTW: those of a sentence depend on its number and limit alone."""
    generator, drawn = torch.Generator(), []
    for number, limit in zip(numbers_B.tolist(), limit_B.tolist(), strict=True):
        # The generator takes 32 bits: an odd multiplier keeps the lines of one seed apart, and those of near seeds.
        generator.manual_seed((seed * 0x9E3779B1 + number) % 2**32)
        drawn.append(torch.rand(limit, width, dtype=torch.float64, generator=generator))
    return pad_sequence(drawn, batch_first=True).to(limit_B.device)
