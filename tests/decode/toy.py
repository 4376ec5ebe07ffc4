"""A model small enough to enumerate, whose every answer depends on the whole prefix; and searches written plainly.

Axes: B sentences, S source length, R rows, T tokens, D width, L vocabulary.
"""

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from qkv.attention.watch import watch
from qkv.decode import SearchConfig
from qkv.models.interface import Generator, State
from qkv.models.luong import Luong, LuongConfig
from qkv.models.transformer import Transformer, TransformerConfig

END, START = 0, 1
Model = TypeVar("Model", bound=Generator)


@dataclass
class ToyState(State):
    """What was read, for R rows of which `width` belong to each sentence."""

    source_BD: Tensor
    hidden_RD: Tensor
    width: int = 1
    consumed: bool = False

    def pick(self, rows_R: Tensor, width: int = 1) -> "ToyState":
        assert not self.consumed
        self.consumed = True
        sentences = (rows_R // self.width).view(-1, width)
        assert (sentences == sentences[:, :1]).all(), "rows of different sentences in one group"
        return ToyState(self.source_BD[sentences[:, 0]], self.hidden_RD[rows_R], width)


class Toy(Generator):
    """A random recurrent network in float64; counts the rows of each step."""

    def __init__(self, vocabulary: int = 4, sharpness: float = 2.0, seed: int = 0, width: int = 6):
        super().__init__()
        random = torch.Generator().manual_seed(seed)

        def table(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=random)

        self.source, self.target = table(50, width), table(vocabulary, width)
        self.turn, self.out = table(width, width), sharpness * table(width, vocabulary)
        self.rows: list[int] = []
        self.eval()

    def encode(self, source_BS: Tensor, keep_BS: Tensor) -> ToyState:
        source_BD = (self.source[source_BS] * keep_BS.unsqueeze(-1)).sum(1).tanh()
        return ToyState(source_BD, torch.zeros_like(source_BD))

    def step(self, tokens_RT: Tensor, state: State) -> tuple[Tensor, ToyState]:
        assert isinstance(state, ToyState)
        assert not state.consumed
        state.consumed = True
        self.rows.append(len(tokens_RT))
        hidden_RD, source_RD = state.hidden_RD, state.source_BD.repeat_interleave(state.width, 0)
        for tokens_R in tokens_RT.T:
            hidden_RD = self._read(tokens_R, hidden_RD, source_RD)
        return self.logits(hidden_RD), ToyState(state.source_BD, hidden_RD, state.width)

    def forward(self, source_BS: Tensor, keep_BS: Tensor, target_BT: Tensor) -> Tensor:
        state = self.encode(source_BS, keep_BS)
        hidden_BD, all_BTD = state.hidden_RD, []
        for tokens_B in target_BT.T:
            hidden_BD = self._read(tokens_B, hidden_BD, state.source_BD)
            all_BTD.append(hidden_BD)
        return torch.stack(all_BTD, dim=1)

    @property
    def output_table(self) -> Tensor:
        return self.out.mT

    def logits(self, x_BTD: Tensor) -> Tensor:
        return x_BTD @ self.out

    def _read(self, tokens_R: Tensor, hidden_RD: Tensor, source_RD: Tensor) -> Tensor:
        # Row by row, so that no sum depends on how many rows there are.
        turned_RD = (hidden_RD.unsqueeze(-1) * self.turn).sum(-2)
        return (turned_RD + self.target[tokens_R] + source_RD).tanh()


class Scripted(Toy):
    """After any prefix of n tokens, the probabilities in row n of a table."""

    def __init__(self, *rows: list[float]):
        super().__init__(len(rows[0]))
        self.table = torch.tensor(rows, dtype=torch.float64).log()

    def step(self, tokens_RT: Tensor, state: State) -> tuple[Tensor, ToyState]:
        assert isinstance(state, ToyState)
        seen = state.hidden_RD[:, 0].long()  # counts tokens, in place of a hidden state
        _, after = super().step(tokens_RT, state)
        after.hidden_RD = state.hidden_RD + tokens_RT.shape[1]
        return self.table[seen], after


def transformer(vocabulary: int = 7, seed: int = 0) -> Transformer:
    """A tiny real one, in float64, with weights large enough to have opinions."""
    torch.manual_seed(seed)
    sizes = TransformerConfig(
        source_vocabulary=50,
        target_vocabulary=vocabulary,
        width=12,
        hidden=20,
        heads=3,
        encoder_layers=1,
        decoder_layers=2,
        tied="none",
    )
    return opinionated(Transformer(sizes))


def luong(vocabulary: int = 7, seed: int = 0) -> Luong:
    """The same of the recurrent kind, where each step reads what the one before it decided."""
    torch.manual_seed(seed)
    sizes = LuongConfig(
        source_vocabulary=50,
        target_vocabulary=vocabulary,
        width=12,
        encoder_layers=1,
        decoder_layers=2,
        input_feeding=True,
        tied="none",
    )
    return opinionated(Luong(sizes))


def opinionated(model: Model) -> Model:
    with torch.no_grad():
        for parameter in model.double().eval().parameters():
            parameter.mul_(2)
    return model


def sources(*lengths: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random sentences of these lengths: source_BS and keep_BS."""
    random = torch.Generator().manual_seed(seed)
    keep_BS = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(-1)
    return torch.randint(2, 50, keep_BS.shape, generator=random), keep_BS


Found = tuple[list[int], float, bool]  # tokens, score, finished


def divisor(config: SearchConfig, length: int) -> float:
    """The length penalty by hand."""
    kinds = {"none": 1.0, "length": length**config.alpha, "gnmt": ((5 + length) / 6) ** config.alpha}
    return kinds[config.normalize]


class Plain:
    """Everything about one sentence by lists and loops, with the whole prefix read again for each token."""

    def __init__(self, model: Generator, source_S: Tensor, start: list[int], config: SearchConfig):
        self.model, self.source_1S, self.start, self.config = model, source_S.unsqueeze(0), start, config

    @torch.no_grad()
    def read(self, prefix: list[int]) -> Tensor:
        """The logits after each token."""
        keep_1S = torch.ones_like(self.source_1S, dtype=torch.bool)
        return self.model.logits(self.model(self.source_1S, keep_1S, torch.tensor([self.start + prefix])))[0]

    def next(self, prefix: list[int]) -> list[float]:
        """The log probability of each token after a prefix."""
        return self.read(prefix)[-1].log_softmax(-1).tolist()

    def score(self, prefix: list[int], total: float, length: int) -> float:
        """What a hypothesis of this length is chosen by; the prefix has what was read before the last token."""
        return total / divisor(self.config, length) + (self.coverage(prefix) if self.config.coverage else 0.0)

    def coverage(self, prefix: list[int]) -> float:
        """The coverage penalty of this prefix and one token more, from the maps of one pass over it."""
        with watch(self.model, self.config.coverage_from or self.model.source_attention) as seen:
            self.read(prefix)
        weights_TS = torch.stack([seen[path][0] for path in seen]).mean((0, 1))[len(self.start) - 1 :]
        return self.config.coverage * sum(math.log(min(sum(row), 1)) for row in weights_TS.T.tolist())

    def ranked(self, found: list[Found]) -> list[Found]:
        """Best first; what has not ended comes last."""
        return sorted(found, key=lambda one: (not one[2], -one[1]))[: self.config.n_best]

    def all(self) -> list[Found]:
        """Of every sequence up to the maximum, the best."""
        c, found, alive = self.config, [], {(): 0.0}
        for length in range(1, c.maximum + 1):
            longer = {}
            for prefix, total in alive.items():
                for token, gain in enumerate(self.next(list(prefix))):
                    if token != END:
                        longer[(*prefix, token)] = total + gain
                    elif len(prefix) >= c.minimum:
                        found.append((list(prefix), self.score(list(prefix), total + gain, length), True))
            alive = longer
        found += [
            (list(prefix), self.score(list(prefix[:-1]), total, c.maximum), False)
            for prefix, total in alive.items()
        ]
        return self.ranked(found)

    def greedy(self) -> list[Found]:
        """The likeliest token at each step."""
        prefix, total = [], 0.0
        for length in range(1, self.config.maximum + 1):
            gains = self.next(prefix)
            if len(prefix) < self.config.minimum:
                gains[END] = -torch.inf
            token = max(range(len(gains)), key=gains.__getitem__)
            total += gains[token]
            if token == END:
                return [(prefix, total / divisor(self.config, length), True)]
            prefix = [*prefix, token]
        return [(prefix, total / divisor(self.config, self.config.maximum), False)]

    def beam(self) -> list[Found]:
        """Beam search to the maximum, or with stop="quick" until `beam` ends were among the `beam` best."""
        c, found, alive = self.config, [], [([], 0.0)]
        for length in range(1, c.maximum + 1):
            candidates = [
                (prefix, token, total + gain)
                for prefix, total in alive
                for token, gain in enumerate(self.next(prefix))
                if token != END or len(prefix) >= c.minimum
            ]
            candidates.sort(key=lambda candidate: -candidate[2])
            ends = candidates[: c.beam] if c.stop == "quick" else candidates
            found += [(p, self.score(p, total, length), True) for p, token, total in ends if token == END]
            if c.stop == "quick" and len(found) >= c.beam:
                return self.ranked(found)
            alive = [([*p, token], total) for p, token, total in candidates if token != END][: c.beam]
        return self.ranked(found + [(p, self.score(p[:-1], total, c.maximum), False) for p, total in alive])
