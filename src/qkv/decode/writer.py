"""A language model with its vocabulary: it goes on with texts, and says how likely it finds others.

Axes: B windows, R rows (texts that are written side by side), T tokens, L vocabulary.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch.nn import functional as F

from qkv.config import config
from qkv.data.prose import Prose
from qkv.data.windows import Evaluated, evaluated
from qkv.decode.config import Finite, SearchConfig
from qkv.decode.search import search
from qkv.decode.told import Told
from qkv.errors import QkvError
from qkv.models.interface import Generator, no_source

_LOGITS = 1 << 23  # of a batch in evaluation: 32 MB


@config
class WritingConfig:
    """How a text goes on: by chance, with a temperature of 0 by the likeliest token, or with a beam by the likeliest text."""

    temperature: Finite = 0.8
    """Logits are divided by it before a token is drawn: below 1 it plays safe; 0 takes the likeliest."""
    top_k: PositiveInt | None = None
    """Draw from this many likeliest tokens only."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draw from the fewest likeliest tokens that hold this probability (Holtzman et al. 2020, section 3.1)."""
    beam: PositiveInt = 1
    """Prefixes kept alive; above 1 nothing is drawn, so set temperature=0."""
    count: PositiveInt = 1
    """Texts to write; of a beam, the best ones."""
    maximum: PositiveInt = 500
    """Most tokens."""
    stop: str | None = None
    """The text ends before this one comes; none: where the model ends it, or at the maximum."""
    seed: int = 0
    """Of what is drawn."""

    def __post_init__(self) -> None:
        if self.stop == "":
            raise QkvError("stop is empty, and so everywhere: give a text, or none")
        if self.temperature and self.beam > 1:
            raise QkvError(
                f"temperature is {self.temperature} with beam {self.beam}, but texts are drawn one by one: "
                "set temperature=0, or beam=1 and count to how many you want"
            )
        _ = self.search

    @property
    def search(self) -> SearchConfig:
        """The search for one text, or for the best of a beam."""
        samples = self.temperature > 0
        return SearchConfig(
            beam=self.beam,
            n_best=1 if samples else self.count,
            maximum=self.maximum,
            maximum_ratio=None,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
        )


@dataclass(frozen=True)
class Written:
    """What followed a prompt."""

    text: str
    """Without the prompt."""
    score: float
    """Log probability a token."""
    finished: bool
    """False: cut at the maximum."""
    tokens: list[int]


@dataclass(frozen=True)
class Surprise:
    """How unlikely a model finds a text."""

    nats: float
    """Minus the logarithm of its probability."""
    tokens: int
    characters: int

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """As many equally likely tokens would be as surprising."""
        return math.exp(self.loss)

    @property
    def bits(self) -> float:
        """Bits a character: what a text takes that is compressed with the model, whatever its tokens."""
        return self.nats / math.log(2) / self.characters


class Writer:
    """A language model, ready to write; what `qkv.load` returns for one."""

    def __init__(
        self,
        model: Generator,
        prose: Prose,
        length: int,
        stride: int | None = None,
        config: WritingConfig = WritingConfig(),
    ):
        self.model, self.prose, self.config = model.eval(), prose, config
        self.length, self.stride = length, stride

    @torch.inference_mode()
    def generate(
        self,
        prompt: str = "",
        *,
        config: WritingConfig | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> list[Written]:
        """`config.count` texts that go on from a prompt; each of those drawn depends on the seed and its place alone.

        `tell` gets each piece of the first text as soon as it is certain: where a beam searches, all of it at the end.
        """
        config = config or self.config
        rows = config.count if config.search.samples else 1
        streams = tell and rows == config.beam == 1
        told = Told(self.model, self.prose, config.stop, tell if streams else None)
        given = [self.prose.first, *self.prose.encode(prompt).tolist()]
        found = search(
            told if streams or config.stop else self.model,
            *no_source(rows),
            start=torch.tensor([given]).expand(rows, -1),
            end=self.prose.end,
            config=config.search,
        )
        best = [one for each in found for one in each]
        written = [Written(told.text(one.tokens), one.score, one.finished, one.tokens) for one in best]
        if tell:
            tell(written[0].text[told.told :])
        return written

    def perplexity(self, text: str) -> float:
        """exp of the nats a token, read in windows as long as those of training."""
        return self.surprise(text).perplexity

    def surprise(self, text: str) -> Surprise:
        """How unlikely the model finds a text that follows on what stands before every text."""
        stream = self.prose.stream([text])
        if len(stream) < 2:
            raise QkvError(f"the text is {text!r:.40}: give one with something to read")
        return self.surprise_of(stream, len(text))

    def surprise_of(self, stream: np.ndarray, characters: int) -> Surprise:
        """How unlikely it finds a stream of ids, which stands for so many characters, but for the first one."""
        return Surprise(float(self.nats(stream).sum()), len(stream) - 1, characters)

    @torch.inference_mode()
    def nats(self, stream: np.ndarray) -> np.ndarray:
        """Minus the log probability of each id but the first, given those before it in its window."""
        nats = np.zeros(len(stream) - 1)
        for windows in self._batches(len(nats)):
            places_BT = np.array([range(start, stop) for start, stop, _ in windows])
            tokens_BT = torch.from_numpy(stream[places_BT].astype(np.int64))
            label_BT = torch.from_numpy(stream[places_BT + 1].astype(np.int64))
            x_BTD = self.model(*no_source(len(windows)), tokens_BT)
            logits_BTL = self.model.logits(x_BTD).float()
            nats_BT = F.cross_entropy(logits_BTL.flatten(0, 1), label_BT.flatten(), reduction="none")
            for (start, stop, skipped), nats_T in zip(
                windows, nats_BT.view(places_BT.shape).numpy(), strict=True
            ):
                nats[start + skipped : stop] = nats_T[skipped:]
        return nats

    def _batches(self, tokens: int) -> Iterator[list[Evaluated]]:
        """Windows of one length side by side, as many as their logits have room."""
        rows = max(1, _LOGITS // (self.length * len(self.model.output_table)))
        for _, some in groupby(evaluated(tokens, self.length, self.stride), lambda one: one.stop - one.start):
            same = list(some)
            yield from (same[first : first + rows] for first in range(0, len(same), rows))
