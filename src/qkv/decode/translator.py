"""Text in, text out: a model with its vocabularies, searching for translations.

Axes: B sentences, T target tokens, S source tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from qkv.data.batches import SourceBatch, in_input_order, source_batches
from qkv.data.ragged import Ragged
from qkv.data.tokens import END, Tokens
from qkv.decode.align import links, weights_by_path, word_links
from qkv.decode.config import SearchConfig
from qkv.decode.paths import Hypothesis
from qkv.decode.pieces import pieces
from qkv.decode.search import search
from qkv.decode.workers import in_workers
from qkv.errors import QkvError
from qkv.models.interface import Generator, is_observed

BUDGET = 4096
"""Source positions of a batch, padding included."""
SEARCHED, LEAST = 16384, 4096
"""Source positions of a batch times prefixes of each sentence: more would leave the cache, and fewer cost more calls than
what several workers save."""
WINDOW = 2000
"""Lines of a stream that are read before any is translated: enough to sort them by length, little in memory."""


@dataclass(frozen=True)
class Translation:
    """A translation of one sentence."""

    text: str
    score: float
    """What it was chosen by: log probability, divided as the search's config says; of several pieces, their mean."""
    finished: bool
    """False: cut at the maximum number of tokens."""
    tokens: list[int]
    parts: tuple[tuple[str, "Translation"], ...] = ()
    """Of a line that was too long to be read at once: its pieces, each with its translation."""

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
        self.workers = 1
        """Processes that search at a time; more are for a program of one thread, as the command line is."""

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that it can be asked for; none if it knows only one."""
        return self.target.tags

    def translate(
        self,
        sentences: Sequence[str],
        to: str | None = None,
        *,
        config: SearchConfig | None = None,
        prefix: str = "",
    ) -> list[str]:
        """The best translation of each sentence, in order; a blank one stays blank, an over-long one goes in pieces.

        With a prefix, the best of those that begin with it.
        """
        if isinstance(sentences, str):
            raise QkvError(f"sentences is the text {sentences!r:.40}: give a list of sentences")
        lines = self.stream(sentences, (to,), config=config, prefix=prefix)
        return [line.best[0][0].text for line in lines]

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
        prefix: str = "",
    ) -> Iterator[Line]:
        """Each line translated, in order, in bounded memory; `window` lines are read ahead.

        Every translation begins with the prefix, which the model continues.
        """
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
            first = [place == 0 for some, _ in parts for place in range(len(some))]
            found = iter(self._searched(sentences, first, to, config, numbers, prefix))
            for line, (some, flagged) in zip(chunk, parts, strict=True):
                number += 1
                best = _joined(some, [next(found) for _ in some], len(to))
                yield Line(number, line, best, flagged or _noted(best, config.n_best))
        if fault:
            raise fault  # once what came before it is translated

    @torch.inference_mode()
    def search(
        self,
        sentences: Sequence[str],
        to: Sequence[str | None] = (None,),
        config: SearchConfig | None = None,
        numbers_B: Tensor | None = None,
        prefix: str = "",
    ) -> list[list[list[Translation]]]:
        """For each language and each sentence (none of them blank) the best translations, encoding once for all."""
        config, given = config or self.config, self.target.encode(prefix).tolist() if prefix else []

        def searched(batch: SourceBatch) -> list[list[list[Hypothesis]]]:
            state = self.model.encode(batch.source_BS, batch.keep_BS)
            return [
                search(
                    self.model,
                    state,
                    batch.keep_BS,
                    start=torch.tensor([[self.target.tag(tag), *given]]).expand(len(batch.rows), -1),
                    end=END,
                    config=config,
                    numbers_B=None if numbers_B is None else numbers_B[batch.rows],
                )
                for tag in to
            ]

        sources = self.source.encode_all(sentences)
        # An observer is in this process, and would see nothing of others.
        workers = 1 if config.coverage or is_observed(self.model) else self.workers
        batches = list(source_batches(sources, _budget(sources, config, workers)))
        if min(workers, len(batches)) > 1:  # what a model prepares for its first batch is shared then
            self.model.encode(batches[-1].source_BS[:1], batches[-1].keep_BS[:1])
        found = in_workers(searched, batches, workers)
        rows = [batch.rows for batch in batches]
        return [
            self._written(in_input_order(rows, outputs), given)
            for outputs in (zip(*found, strict=True) if found else [[]] * len(to))
        ]

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
        links, sources, targets = [], 0, 0
        for part, written in translation.parts or [(source, translation)]:
            links += [(one + sources, other + targets) for one, other in self._links(part, written, to)]
            sources, targets = sources + len(part.split()), targets + len(written.text.split())
        return links

    def _links(self, source: str, translation: Translation, to: str | None) -> list[tuple[int, int]]:
        """Of one piece."""
        if not translation.tokens:
            return []
        source_words = self.source.words(self.source.encode(source).tolist())
        target_words = self.target.words(translation.tokens)
        map_TS = self.maps(source, translation, to)[: len(target_words), : len(source_words)]
        return word_links(links(map_TS), source_words, target_words)

    def _searched(
        self,
        sentences: Sequence[str],
        first: Sequence[bool],
        to: Sequence[str | None],
        config: SearchConfig,
        numbers: Tensor,
        prefix: str,
    ) -> list[tuple[list[Translation], ...]]:
        """For each sentence its translations into each language; the first piece of a line begins with the prefix."""
        if not prefix:
            return list(zip(*self.search(sentences, to, config, numbers), strict=True))
        found: list[Any] = [None] * len(sentences)
        for is_first, given in ((True, prefix), (False, "")):
            rows = [row for row, begins in enumerate(first) if begins == is_first]
            some = self.search([sentences[row] for row in rows], to, config, numbers[rows], given)
            for row, each in zip(rows, zip(*some, strict=True), strict=True):
                found[row] = each
        return found

    def _written(self, best: list[list[Hypothesis]], given: list[int]) -> list[list[Translation]]:
        written = [[given + one.tokens for one in hypotheses] for hypotheses in best]
        texts = iter(self.target.decode_all(one for each in written for one in each))
        return [
            [
                Translation(next(texts), one.score, one.finished, tokens)
                for one, tokens in zip(hypotheses, each, strict=True)
            ]
            for hypotheses, each in zip(best, written, strict=True)
        ]

    def _parts(self, line: str) -> tuple[list[str], str | None]:
        """The sentences to translate one by one: none if it is blank, several if it is over-long."""
        return pieces(line, self.source, self.longest)


def _budget(sources: Ragged, config: SearchConfig, workers: int) -> int:
    """Source positions of a batch: few enough that every worker has several, unless they are small."""
    positions, prefixes = int(sources.lengths.sum()) + len(sources), max(config.beam, config.n_best)
    share = positions if workers < 2 else max(LEAST // prefixes, positions // (4 * workers))
    return max(1, min(SEARCHED // prefixes, share))


def _joined(
    parts: Sequence[str], found: list[tuple[list[Translation], ...]], languages: int
) -> list[list[Translation]]:
    """The translations of a line from those of its parts; of several parts, only the best."""
    if not found:
        return [[Translation.blank()] for _ in range(languages)]
    if len(found) == 1:
        return list(found[0])
    joined = []
    for language in range(languages):
        best = [each[language][0] for each in found]
        whole = Translation(
            text=" ".join(one.text for one in best),
            score=sum(one.score for one in best) / len(best),
            finished=all(one.finished for one in best),
            tokens=[token for one in best for token in one.tokens],
            parts=tuple(zip(parts, best, strict=True)),
        )
        joined.append([whole])
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


def _noted(best: list[list[Translation]], wanted: int) -> str | None:
    """What a user should know of a line's translations."""
    if not all(translations[0].finished for translations in best):
        return "was cut at the maximum number of tokens: raise search.maximum or maximum_ratio"
    if wanted > 1 and best[0][0].parts:
        return "was translated sentence by sentence, so it has one translation only"
    return None
