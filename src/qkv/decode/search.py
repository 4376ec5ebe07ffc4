"""Search for the best continuations of a batch of sentences: greedy, beam and sampling are one loop.

Axes: B sentences still in the batch, S source length, P first tokens that are given, W prefixes of each sentence
before a step, N after it (and hypotheses kept), R rows (B · W), T steps, L vocabulary.
"""

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.attention.watch import watch
from qkv.decode.choices import Beam, Choice, Draw, Step, random_numbers
from qkv.decode.config import SearchConfig
from qkv.decode.coverage import Coverage
from qkv.decode.given import expect_numbers, first_tokens, log_probabilities
from qkv.decode.paths import Hypothesis, Kept, Paths
from qkv.errors import QkvError
from qkv.models.interface import Generator, State, counting


@torch.no_grad()
def search(
    model: Generator,
    source: Tensor | State,
    keep_BS: Tensor,
    *,
    start: Tensor,
    end: int,
    config: SearchConfig = SearchConfig(),
    numbers_B: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence, best first.

    `source` is source_BS, or what `model.encode` made of it (then keep_BS only says how long the sources are).
    `start` is the first token of each sentence (B,), or several (B,P): they are given, so neither scored nor returned.
    `end` is the token that ends a hypothesis. A sample depends on its sentence, the seed and the sentence's number
    (default: its place in the batch) alone: number the lines of a file, and samples do not depend on its batches.
    """
    start_BP = first_tokens(model, keep_BS, start)
    if not len(start_BP):
        return []
    state = source if isinstance(source, State) else model.encode(source, keep_BS)
    looked_at = config.coverage_from or model.source_attention
    with watch(model, looked_at) if config.coverage else nullcontext() as seen:
        logits_BL, state = model.step(start_BP, state)
        if not 0 <= end < logits_BL.shape[-1]:
            raise QkvError(
                f"end is {end}; one of the model's tokens, 0 to {logits_BL.shape[-1] - 1}, is wanted"
            )
        coverage = None if seen is None else Coverage(seen, keep_BS, config.coverage)
        limit_B = config.limits(keep_BS.sum(-1))
        return _Search(config, end, limit_B, logits_BL, numbers_B, coverage).run(model, state)


class _Live(NamedTuple):
    """The sentences that are still in the batch."""

    sentence_B: Tensor  # which of those given
    limit_B: Tensor  # most tokens, the end among them
    divisor_B: Tensor  # of a hypothesis of so many
    total_BN: Tensor  # log probability of each live prefix; -inf: dead
    kept: Kept  # the best hypotheses so far

    def pick(self, chosen_B: Tensor) -> "_Live":
        kept = Kept(*(field[chosen_B] for field in self.kept))
        return _Live(
            self.sentence_B[chosen_B],
            self.limit_B[chosen_B],
            self.divisor_B[chosen_B],
            self.total_BN[chosen_B],
            kept,
        )


class _Search:
    """One batch on its way."""

    def __init__(
        self,
        config: SearchConfig,
        end: int,
        limit_B: Tensor,
        logits_BL: Tensor,
        numbers_B: Tensor | None,
        coverage: Coverage | None,
    ):
        self.config, self.end, self.coverage, self.longest = config, end, coverage, int(limit_B.max())
        self.choice: Choice = Beam(config.beam, end, ranked=config.stop == "quick")
        if config.samples or config.beam == 1:
            self.choice = Draw(config.n_best, end, config.temperature, config.top_k, config.top_p)
        self.gains_RL = log_probabilities(logits_BL).repeat_interleave(self.choice.rows, 0)
        divisor_T = config.divisors(self.longest)
        self.divisors, self.limits = divisor_T.tolist(), set(limit_B.tolist())
        sentence_B = torch.arange(len(limit_B), device=limit_B.device)
        total_BN = self.gains_RL.new_zeros(len(limit_B), self.choice.rows)
        # With a quick stop, `beam` ends are awaited, whatever number of them is wanted in the end.
        awaited = config.beam if config.stop == "quick" and not config.samples else config.n_best
        divisor_B = divisor_T.to(self.gains_RL)[limit_B]
        kept = Kept.none(len(limit_B), awaited, like=total_BN)
        self.live = _Live(sentence_B, limit_B, divisor_B, total_BN, kept)
        self.left: list[_Live] = []
        self.paths = Paths(len(limit_B))
        self.drawn_BTW = None
        if config.samples:
            numbers_B = sentence_B if numbers_B is None else numbers_B
            self.drawn_BTW = random_numbers(config.seed, numbers_B, limit_B, self.choice.rows)

    def run(self, model: Generator, state: State) -> list[list[Hypothesis]]:
        """Step after step, until every sentence has left the batch."""
        rows = self.choice.rows
        if rows > 1:
            state = state.pick(self.live.sentence_B.repeat_interleave(rows), rows)
        for length in range(1, self.longest + 1):
            B, W = self.live.total_BN.shape
            step = self._extend(length)
            self._keep(step, length)
            stays_B = self._leave(length)
            parents_BN, tokens_BN = step.parents_BN, step.tokens_BN
            first_B = counting(B, parents_BN.device)
            if stays_B is not None:
                if not len(stays_B):
                    break
                parents_BN, tokens_BN, first_B = parents_BN[stays_B], tokens_BN[stays_B], stays_B
            rows_R = parents_BN.add(first_B.unsqueeze(-1), alpha=W).flatten()
            if len(rows_R) != B * W or not torch.equal(rows_R, counting(B * W, rows_R.device)):
                state = state.pick(rows_R, parents_BN.shape[1])
            logits_RL, state = model.step(tokens_BN.view(-1, 1), state)
            self.gains_RL = log_probabilities(logits_RL)
            if self.coverage:
                self.coverage.pick(first_B, parents_BN)
                self.coverage.look()
        return self._found()

    def _extend(self, length: int) -> Step:
        """Choose the token at this length of every prefix."""
        live = self.live
        expect_numbers(self.gains_RL, live.sentence_B, length)
        if length <= self.config.minimum:  # no end yet; the probabilities of all else stay as they are
            self.gains_RL[:, self.end] = -torch.inf
        drawn_BW = None if self.drawn_BTW is None else self.drawn_BTW[live.sentence_B, length - 1]
        step = self.choice(self.gains_RL, live.total_BN, drawn_BW)
        self.paths.append(step, live.sentence_B)
        return step

    def _keep(self, step: Step, length: int) -> None:
        """Keep the best of what has ended, and at a sentence's limit of what has not."""
        live, divisor = self.live, self.divisors[length]
        end_score_BW = step.end_BW / divisor
        penalty_BW = None if self.coverage is None else self.coverage.penalty()
        if penalty_BW is not None:
            end_score_BW = end_score_BW + penalty_BW
        kept = live.kept.with_ended(end_score_BW, step.end_gain_BW, count=length - 1)
        if length in self.limits:
            score_BN = step.total_BN / divisor
            if penalty_BW is not None:
                score_BN = score_BN + penalty_BW.gather(-1, step.parents_BN)
            cut_B1 = (live.limit_B == length).unsqueeze(-1)
            kept = kept.with_cut(score_BN.masked_fill(~cut_B1, -torch.inf), count=length)
        self.live = live._replace(kept=kept, total_BN=step.total_BN)

    def _leave(self, length: int) -> Tensor | None:
        """Let the sentences go that are done; returns the places of the others, stays_B, or None if all stay.

        Those from the end fill the gaps, so that as few as possible change their place.
        """
        live = self.live
        best_B, worst_B = live.total_BN.amax(-1), live.kept.score_BN[:, -1]
        done_B = best_B == -torch.inf
        if length in self.limits:
            done_B |= live.limit_B == length
        if self.config.stop == "quick":
            done_B |= worst_B > -torch.inf
        elif self.config.stop == "exact":
            # Each token can only lower the log probability, and no length divides it by more than the limit does.
            done_B |= worst_B >= best_B / live.divisor_B
        if not done_B.any():
            return None
        staying_B = done_B.logical_not().nonzero()[:, 0]
        stays_B = counting(len(staying_B), staying_B.device).clone()
        gaps_X = done_B[: len(stays_B)].nonzero()[:, 0]
        stays_B[gaps_X] = staying_B[len(stays_B) - len(gaps_X) :]
        self.left.append(live.pick(done_B))
        self.live = live.pick(stays_B)
        return stays_B

    def _found(self) -> list[list[Hypothesis]]:
        """The hypotheses of all sentences, in the order of the sentences."""
        sentence_B = torch.cat([left.sentence_B for left in self.left])
        order_B = sentence_B.argsort()
        columns = zip(*(left.kept for left in self.left), strict=True)
        kept = Kept(*(torch.cat(column)[order_B] for column in columns))
        return [found[: self.config.n_best] for found in self.paths.trace(kept, sentence_B[order_B])]
