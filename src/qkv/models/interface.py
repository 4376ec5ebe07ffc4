"""What decoding and classifying need of a model, and all that they may know of one.

Axes: B sentences or pictures, R rows (B · width: each sentence has `width` rows side by side), S source length,
T tokens, D width of the model, L vocabulary or classes; C channels, Y and X height and width of a picture.

A search runs `encode` once for a batch of sentences, then `step` again and again. What belongs to a sentence
(the encoder's keys and values) is held once, however many rows search for its translation.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor, nn
from torch.nn import functional as F


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


class ImageClassifier(nn.Module, ABC):
    """A model that reads pictures of `size`, (height, width), and sorts them into classes."""

    size: tuple[int, int]

    @abstractmethod
    def encode(self, image_BCYX: Tensor) -> Tensor:
        """What it makes of each place of a picture, x_BTD; `pool` makes one vector of them."""

    @abstractmethod
    def forward(self, image_BCYX: Tensor) -> Tensor:
        """Scores of each class, logits_BL."""
