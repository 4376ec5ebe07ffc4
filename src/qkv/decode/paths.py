"""What a search has written: every step's tokens once, and hypotheses as pointers into them.

Axes: B sentences, N kept hypotheses or new prefixes of each, W more of them, X all hypotheses, T steps.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.decode.choices import Step


@dataclass(frozen=True)
class Hypothesis:
    """One continuation that a search found."""

    tokens: list[int]
    """Without the first tokens that the search was given, and without the end."""
    score: float
    """Log probability divided as the config says (plus the coverage penalty): what the best was chosen by."""
    log_probabilities: list[float]
    """Of each token, and of the end if it `finished`."""
    finished: bool
    """False: cut at the maximum."""

    @property
    def log_probability(self) -> float:
        """Of the whole hypothesis given its source."""
        return sum(self.log_probabilities)


class Kept(NamedTuple):
    """The best hypotheses so far of each sentence, best first; where there is none yet, the score is -inf."""

    score_BN: Tensor
    count_BN: Tensor  # tokens, without the end
    slot_BN: Tensor  # which of the prefixes of that many tokens
    end_gain_BN: Tensor  # log probability of the end
    ended_BN: Tensor  # False: cut

    @classmethod
    def none(cls, sentences: int, n_best: int, like: Tensor) -> "Kept":
        """Room for hypotheses."""
        zeros_BN = like.new_zeros(sentences, n_best)
        whole_BN = zeros_BN.long()
        return cls(zeros_BN - torch.inf, whole_BN, whole_BN, zeros_BN, whole_BN.bool())

    def with_ended(self, score_BW: Tensor, end_gain_BW: Tensor, count: int) -> "Kept":
        """Take in those of the W prefixes of `count` tokens whose score with the end is among the best."""
        if not (score_BW > self.score_BN[:, -1:]).any():  # as in most steps
            return self
        all_BX = torch.cat([self.score_BN, score_BW], dim=-1)
        order_BX = all_BX.argsort(dim=-1, descending=True, stable=True)  # of equals, the earlier stays
        return self._merged(score_BW, end_gain_BW, count, ended=True, order_BX=order_BX)

    def with_cut(self, score_BW: Tensor, count: int) -> "Kept":
        """Fill what room is left with unfinished prefixes of `count` tokens: whatever has ended comes first."""
        rank_BX = torch.cat(
            [torch.where(self.score_BN > -torch.inf, torch.inf, -torch.inf), score_BW], dim=-1
        )
        order_BX = rank_BX.argsort(dim=-1, descending=True, stable=True)
        return self._merged(score_BW, torch.zeros_like(score_BW), count, ended=False, order_BX=order_BX)

    def _merged(
        self, score_BW: Tensor, end_gain_BW: Tensor, count: int, ended: bool, order_BX: Tensor
    ) -> "Kept":
        slot_BW = torch.arange(score_BW.shape[-1], device=score_BW.device).expand_as(score_BW)
        count_BW, ended_BW = (
            torch.full_like(slot_BW, count),
            torch.full_like(slot_BW, ended, dtype=torch.bool),
        )
        others = (score_BW, count_BW, slot_BW, end_gain_BW, ended_BW)
        order_BN = order_BX[:, : self.score_BN.shape[-1]]
        return Kept(*(torch.cat(pair, -1).gather(-1, order_BN) for pair in zip(self, others, strict=True)))


class Paths:
    """Every step of a search: parents, tokens and gains of the prefixes that were alive after it."""

    def __init__(self, sentences: int):
        self._sentences = sentences
        self._steps: list[tuple[Tensor, Step]] = []

    def append(self, step: Step, sentence_B: Tensor) -> None:
        """One more step, of these sentences; the others have left."""
        if self._steps and self._steps[-1][1].tokens_BN.shape[0] == len(sentence_B):
            place_B = self._steps[-1][0]  # nobody has left since
        else:
            place_B = sentence_B.new_zeros(self._sentences)
            place_B[sentence_B] = torch.arange(len(sentence_B), device=sentence_B.device)
        self._steps.append((place_B, step))

    def trace(self, kept: Kept, sentence_B: Tensor) -> list[list[Hypothesis]]:
        """Read the kept hypotheses of these sentences back to front, all at once."""
        count_BN, slot_BN = kept.count_BN, kept.slot_BN
        tokens_TBN, gains_TBN = [], []
        for number in reversed(range(int(count_BN.max()))):
            place_B, step = self._steps[number]
            row_B1 = place_B[sentence_B].unsqueeze(-1)
            # A hypothesis shorter than this reads anything here, and keeps the slot of its own last token.
            tokens_TBN.append(step.tokens_BN[row_B1, slot_BN])
            gains_TBN.append(step.gains_BN[row_B1, slot_BN])
            slot_BN = torch.where(count_BN > number, step.parents_BN[row_B1, slot_BN], slot_BN)
        tokens_BNT, gains_BNT = _forwards(tokens_TBN, count_BN), _forwards(gains_TBN, kept.score_BN)
        columns = (tokens_BNT, gains_BNT, *kept)
        return [
            _hypotheses(*sentence) for sentence in zip(*(column.tolist() for column in columns), strict=True)
        ]


def _forwards(backwards_TBN: list[Tensor], like_BN: Tensor) -> Tensor:
    """Stack steps that were read back to front; x_BNT."""
    if not backwards_TBN:
        return like_BN.new_zeros(*like_BN.shape, 0)
    return torch.stack(backwards_TBN[::-1], dim=-1)


def _hypotheses(
    tokens_NT: list[list[int]],
    gains_NT: list[list[float]],
    score_N: list[float],
    count_N: list[int],
    _: list[int],
    end_gain_N: list[float],
    ended_N: list[bool],
) -> list[Hypothesis]:
    """The kept hypotheses of one sentence."""
    return [
        Hypothesis(tokens[:count], score, gains[:count] + [end_gain] * ended, ended)
        for tokens, gains, score, count, end_gain, ended in zip(
            tokens_NT, gains_NT, score_N, count_N, end_gain_N, ended_N, strict=True
        )
        if score > -math.inf
    ]
