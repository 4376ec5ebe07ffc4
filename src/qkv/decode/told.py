"""A model that tells what it writes while it is written, and ends a text where it should stop.

A search hands every token that it has chosen to `step`: whoever stands in the model's place sees all of them, and no
search needs to know of it.

Axes: B texts, R rows, S source length (0), T tokens, L vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.data.prose import Prose
from qkv.data.tokens import END
from qkv.models.interface import Generator, State


@dataclass
class ToldState(State):
    """The model's own state, and what each row has written since the first tokens."""

    inner: State
    written: list[list[int]] | None = None

    def pick(self, rows_R: Tensor, width: int = 1) -> "ToldState":
        written = self.written and [self.written[row] for row in rows_R.tolist()]
        return ToldState(self.inner.pick(rows_R, width), written)


class Told(Generator):
    """`model`, after whose `stop` the end is certain; with `tell`, which wants a single row, it tells what it writes."""

    def __init__(
        self,
        model: Generator,
        prose: Prose,
        stop: str | None = None,
        tell: Callable[[str], None] | None = None,
    ):
        super().__init__()
        self.model, self.prose, self.stop, self._tell = model, prose, stop, tell
        self.told = 0
        """Characters told so far."""
        self._line, self._seen, self._held = 0, 0, ""
        self.train(model.training)

    def encode(self, source_BS: Tensor, keep_BS: Tensor) -> ToldState:
        return ToldState(self.model.encode(source_BS, keep_BS))

    def step(self, tokens_RT: Tensor, state: State) -> tuple[Tensor, ToldState]:
        assert isinstance(state, ToldState)
        logits_RL, inner = self.model.step(tokens_RT, state.inner)
        if state.written is None:  # these were the first tokens
            return logits_RL, ToldState(inner, [[] for _ in tokens_RT])
        written = [[*row, *new] for row, new in zip(state.written, tokens_RT.tolist(), strict=True)]
        if self._tell:
            (row,) = written
            self._say(self._news(row))
        stopped_R = torch.tensor([self._stops(row) for row in written])
        if stopped_R.any():
            logits_RL = logits_RL.masked_fill(stopped_R.unsqueeze(-1), -torch.inf)
            logits_RL[stopped_R, self.prose.end] = 0
        return logits_RL, ToldState(inner, written)

    def forward(self, source_BS: Tensor, keep_BS: Tensor, target_BT: Tensor) -> Tensor:
        return self.model(source_BS, keep_BS, target_BT)

    @property
    def output_table(self) -> Tensor:
        return self.model.output_table

    def text(self, tokens: Sequence[int]) -> str:
        """What these tokens say before `stop`."""
        text = self.prose.decode(tokens)
        return text if self.stop is None else text.partition(self.stop)[0]

    def _stops(self, row: list[int]) -> bool:
        """Whether `stop` stands at the end of a row, whose last token may have brought more than its last letter."""
        if self.stop is None:
            return False
        return self.stop in self.prose.decode(
            row[-4 * len(self.stop) - 4 :]
        )  # of four bytes at most is a letter

    def _news(self, row: list[int]) -> str:
        """The letters that the last token has made certain; what is decoded is the last line alone."""
        certain = self.prose.certain(row[self._line :])
        new, self._seen = certain[self._seen :], len(certain)
        if row[-1] == END:
            self._line, self._seen = len(row), 0
        return new

    def _say(self, new: str) -> None:
        """Tell them, but for what may become `stop`."""
        assert self._tell
        self._held += new
        stop = self.stop or ""
        if stop and stop in self._held:
            ready = self._held.partition(stop)[0]
            self._held = self._held[len(ready) :]
        else:
            kept = next(size for size in range(len(stop), -1, -1) if self._held.endswith(stop[:size]))
            ready, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        if ready:
            self.told += len(ready)
            self._tell(ready)
