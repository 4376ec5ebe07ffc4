"""Text in, text out: a model with its vocabularies, searching for translations.

Axes: B sentences, T target tokens, S source tokens.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from qkv.data.batches import in_input_order, source_batches
from qkv.data.tokens import END, Tokens
from qkv.decode.align import links, weights_by_path, word_links
from qkv.decode.config import SearchConfig
from qkv.decode.paths import Hypothesis
from qkv.decode.search import search
from qkv.errors import QkvError
from qkv.models.interface import Generator

BUDGET = 4096
"""Source positions of a batch, padding included."""
WINDOW = 2000
"""Lines of a stream that are read before any is translated: enough to sort them by length, little in memory."""
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])[\"'”’»)]*\s+")


@dataclass(frozen=True)
class Translation:
    """A translation of one sentence."""

    text: str
    score: float
    """What it was chosen by: log probability, divided as the search's config says."""
    finished: bool
    """False: cut at the maximum number of tokens."""
    tokens: list[int]

    @classmethod
    def blank(cls) -> "Translation":
        """Of a blank sentence."""
        return cls("", 0.0, True, [])


@dataclass(frozen=True)
class Line:
    """A line of a stream, translated; with several languages, into each of them in turn."""

    number: int
    source: str
    best: list[list[Translation]]
    """For each language the best translations, best first."""
    flagged: str | None = None
    """What a user should know of this line."""


class Translator:
    """A model with its vocabularies, ready to translate; what `qkv.load` returns for a translation model."""

    def __init__(
        self,
        model: Generator,
        source: Tokens,
        target: Tokens,
        config: SearchConfig = SearchConfig(),
        longest: int = 256,
    ):
        self.model, self.source, self.target = model.eval(), source, target
        self.config, self.longest = config, longest

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that it can be asked for; none if it knows only one."""
        return self.target.tags

    def translate(
        self, sentences: Sequence[str], to: str | None = None, *, config: SearchConfig | None = None
    ) -> list[str]:
        """The best translation of each sentence, in order; a blank one stays blank, an over-long one goes in pieces."""
        if isinstance(sentences, str):
            raise QkvError(f"sentences is the text {sentences!r:.40}: give a list of sentences")
        return [line.best[0][0].text for line in self.stream(sentences, (to,), config=config)]

    def translate_into(
        self, sentences: Sequence[str], languages: Sequence[str], *, config: SearchConfig | None = None
    ) -> dict[str, list[str]]:
        """The best translation of each sentence into each language; the sentences are read by the encoder once."""
        lines = list(self.stream(sentences, languages, config=config))
        return {
            language: [line.best[number][0].text for line in lines]
            for number, language in enumerate(languages)
        }

    def stream(
        self,
        lines: Iterable[str],
        to: Sequence[str | None] = (None,),
        *,
        config: SearchConfig | None = None,
        window: int = WINDOW,
    ) -> Iterator[Line]:
        """Each line translated, in order, in bounded memory; `window` lines are read ahead."""
        config = config or self.config
        if not to:
            raise QkvError("to is empty: name at least one language")
        for tag in to:
            self.target.tag(tag)  # a language that it does not know is named before anything is read
        rest, number, before = iter(lines), 0, 0
        fault: QkvError | None = None
        while fault is None:
            chunk, fault = _read_ahead(rest, window)
            if not chunk:
                break
            parts = [self._parts(line) for line in chunk]
            sentences = [sentence for some, _ in parts for sentence in some]
            numbers = torch.arange(
                before, before + len(sentences)
            )  # samples depend on the place in the stream
            before += len(sentences)
            found = iter(zip(*self.search(sentences, to, config, numbers), strict=True))
            for line, (some, flagged) in zip(chunk, parts, strict=True):
                number += 1
                best = self._joined([next(found) for _ in some], len(to))
                yield Line(number, line, best, flagged or _cut(best))
        if fault:
            raise fault  # once what came before it is translated

    @torch.inference_mode()
    def search(
        self,
        sentences: Sequence[str],
        to: Sequence[str | None] = (None,),
        config: SearchConfig | None = None,
        numbers_B: Tensor | None = None,
    ) -> list[list[list[Translation]]]:
        """For each language and each sentence (none of them blank) the best translations, encoding once for all."""
        config = config or self.config
        rows, found = [], [[] for _ in to]
        for batch in source_batches(self.source.encode_all(sentences), BUDGET):
            state = self.model.encode(batch.source_BS, batch.keep_BS)
            for tag, outputs in zip(to, found, strict=True):
                best = search(
                    self.model,
                    state,
                    batch.keep_BS,
                    start=torch.full((len(batch.rows),), self.target.tag(tag)),
                    end=END,
                    config=config,
                    numbers_B=None if numbers_B is None else numbers_B[batch.rows],
                )
                outputs.append(self._written(best))
            rows.append(batch.rows)
        return [in_input_order(rows, outputs) for outputs in found]

    @torch.inference_mode()
    def maps(self, source: str, translation: Translation, to: str | None = None) -> Tensor:
        """How much each source token (and its end) was looked at when each token (and the end) was written, map_TS."""
        maps = self.weights(source, translation, to, pattern=self.config.coverage_from)
        return torch.stack([map_HTS.mean(0) for map_HTS in maps.values()]).mean(0)

    @torch.inference_mode()
    def weights(
        self, source: str, translation: Translation, to: str | None = None, *, pattern: str | None = None
    ) -> dict[str, Tensor]:
        """The same for each head, weights_HTS by the path of the attention; `pattern` as in `weights_by_path`."""
        source_BS = torch.tensor([[*self.source.encode(source).tolist(), END]])
        start_B = torch.tensor([self.target.tag(to)])
        keep_BS = torch.ones_like(source_BS, dtype=torch.bool)
        targets = [[*translation.tokens, END]]
        return weights_by_path(
            self.model, source_BS, keep_BS, start=start_B, targets=targets, pattern=pattern
        )[0]

    def alignment(
        self, source: str, translation: Translation, to: str | None = None
    ) -> list[tuple[int, int]]:
        """Which source word (counted from 0, by spaces) each target word came from, as (source, target) pairs."""
        source_words = self.source.words(self.source.encode(source).tolist())
        target_words = self.target.words(translation.tokens)
        map_TS = self.maps(source, translation, to)[: len(target_words), : len(source_words)]
        return word_links(links(map_TS), source_words, target_words)

    def _written(self, best: list[list[Hypothesis]]) -> list[list[Translation]]:
        texts = iter(self.target.decode_all(one.tokens for hypotheses in best for one in hypotheses))
        return [
            [Translation(next(texts), one.score, one.finished, one.tokens) for one in hypotheses]
            for hypotheses in best
        ]

    def _parts(self, line: str) -> tuple[list[str], str | None]:
        """The sentences to translate one by one: none if it is blank, several if it is over-long."""
        if not line.strip():
            return [], None
        # No token is shorter than a byte, but a word may get a space, and a small letter have more bytes than its capital.
        if 2 * len(line.encode()) < self.longest:
            return [line], None
        if len(self.source.encode(line)) < self.longest:
            return [line], None
        parts = [""]
        for sentence in _sentences(line):
            together = f"{parts[-1]} {sentence}".strip()
            if len(self.source.encode(together)) < self.longest:
                parts[-1] = together
            else:
                parts = [part for part in parts if part] + [sentence]
        longest = max(len(self.source.encode(part)) + 1 for part in parts)
        if longest <= self.longest:
            return parts, None
        return parts, (
            f"has {longest:,} tokens without a sentence end, the model learnt from up to {self.longest}: "
            "check its translation, or split it"
        )

    def _joined(self, parts: list[tuple[list[Translation], ...]], languages: int) -> list[list[Translation]]:
        """The translations of a line from those of its parts; of several parts, only the best."""
        if not parts:
            return [[Translation.blank()] for _ in range(languages)]
        if len(parts) == 1:
            return list(parts[0])
        joined = []
        for language in range(languages):
            best = [part[language][0] for part in parts]
            joined.append(
                [
                    replace(
                        best[0],
                        text=" ".join(one.text for one in best),
                        score=sum(one.score for one in best),
                        finished=all(one.finished for one in best),
                        tokens=[token for one in best for token in one.tokens],
                    )
                ]
            )
        return joined


def _read_ahead(lines: Iterator[str], count: int) -> tuple[list[str], QkvError | None]:
    """So many lines, or those before the end, or before one that cannot be read."""
    chunk: list[str] = []
    try:
        for line in islice(lines, count):
            chunk.append(line)  # noqa: PERF402 - extend promises nothing about the lines before a fault
    except QkvError as fault:
        return chunk, fault
    return chunk, None


def _sentences(line: str) -> list[str]:
    """The sentences of a line, by what ends them; a space at its end begins no other one."""
    line = line.strip()
    ends = [match.end() for match in _SENTENCE_END.finditer(line)]
    return [line[start:stop].strip() for start, stop in zip([0, *ends], [*ends, len(line)], strict=True)]


def _cut(best: list[list[Translation]]) -> str | None:
    if all(translations[0].finished for translations in best):
        return None
    return "was cut at the maximum number of tokens: raise search.maximum or maximum_ratio"
