"""What decoding and classifying need of a model, and all that they may know of one.

Axes: B sentences, texts or pictures, R rows (B · width: each sentence has `width` rows side by side), S source length,
T tokens, D width of the model, L vocabulary or classes of pictures, C labels of texts; of a picture C channels, Y and X height
and width.

A search runs `encode` once for a batch of sentences, then `step` again and again. What belongs to a sentence
(the encoder's keys and values) is held once, however many rows search for its translation.

A language model has no source. It is called as the others are, with a source of no tokens: `no_source(B)`.
"""

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks.pool import GlobalAverage


class State(ABC):
    """What a model remembers of R rows after the tokens that it has seen."""

    @abstractmethod
    def pick(self, rows_R: Tensor, width: int = 1) -> Self:
        """The state of these rows in this order, `width` of them for each sentence.

        Rows of one sentence stand side by side, before and after: `rows_R` repeats, reorders and drops rows, and
        drops or reorders whole sentences, but never mixes rows of different sentences in one group. The picked
        state replaces this one, whose buffers it may take over.
        """


class Generator(nn.Module, ABC):
    """A model that writes one token after another, with or without a source."""

    reads_source: ClassVar[bool] = True
    """False: what it writes goes on from its first tokens alone, and its sources have no tokens."""
    source_attention: ClassVar[str] = "*"
    """The attentions that look at the source: a pattern as for `qkv.watch`."""

    @abstractmethod
    def encode(self, source_BS: Tensor, keep_BS: Tensor) -> State:
        """Read the sources (True in keep = real token); the state of one row for each, before any token."""

    @abstractmethod
    def step(self, tokens_RT: Tensor, state: State) -> tuple[Tensor, State]:
        """Read the next T tokens of every row; return logits_RL of the token after them, and the new state.

        The given state is consumed: its buffers may be reused in place, and using it again raises.
        """

    @abstractmethod
    def forward(self, source_BS: Tensor, keep_BS: Tensor, target_BT: Tensor) -> Tensor:
        """Teacher forcing: read whole targets at once; return the hidden states x_BTD that `logits` reads."""

    @property
    @abstractmethod
    def output_table(self) -> Tensor:
        """A vector for each token, table_LD: what hidden states are compared with."""

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Scores of the token after each hidden state, logits_BTL."""
        return F.linear(x_BTD, self.output_table)


def no_source(sentences: int) -> tuple[Tensor, Tensor]:
    """The source (B,0) of so many texts that have none, and its keep."""
    source_BS = torch.zeros(sentences, 0, dtype=torch.long)
    return source_BS, source_BS.bool()


class TextReader(nn.Module, ABC):
    """A model that reads whole texts, each beginning with start and ending in end."""

    @abstractmethod
    def read(self, token_BT: Tensor, keep_BT: Tensor, segment_BT: Tensor | None = None) -> Tensor:
        """A vector for each token, x_BTD (True in keep = real token); segments tell the parts of a text apart."""

    def pooled(self, x_BTD: Tensor, keep_BT: Tensor) -> Tensor:
        """One vector for each text, x_BD: that by which it is judged, or the mean."""
        return GlobalAverage()(x_BTD, keep_BT)


class TextClassifier(TextReader):
    """One that says which labels a text has."""

    output: nn.Linear
    """From the pooled vector to a score for each label."""

    @abstractmethod
    def forward(self, token_BT: Tensor, keep_BT: Tensor, segment_BT: Tensor | None = None) -> Tensor:
        """Scores before softmax or sigmoid, logits_BC."""


class ImageClassifier(nn.Module, ABC):
    """A model that reads pictures of `size`, (height, width), and sorts them into classes."""

    size: tuple[int, int]

    @abstractmethod
    def encode(self, image_BCYX: Tensor) -> Tensor:
        """What it makes of each place of a picture, x_BTD; `pool` makes one vector of them."""

    @abstractmethod
    def forward(self, image_BCYX: Tensor) -> Tensor:
        """Scores of each class before softmax, logits_BL."""


@lru_cache(maxsize=1024)
def counting(count: int, device: torch.device) -> Tensor:
    """0, 1, … count - 1, made once: every step of a search asks for it, to be read only."""
    with torch.inference_mode(False):
        return torch.arange(count, device=device)


def is_observed(model: nn.Module) -> bool:
    """Whether somebody looks on: `qkv.watch`, or hooks of their own."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
