"""A translator whose search runs in CTranslate2; text, windows, pieces of long lines and alignments stay ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.data.tokens import START
from qkv.decode.config import SearchConfig
from qkv.decode.translator import Translation, Translator
from qkv.errors import QkvError
from qkv.store.ctranslate2 import library

BATCH = 64
"""Sentences that the engine decodes at a time, sorted by length."""


class Engine(Translator):
    """A translator as `native` is, searching with the converted model in `path`.

    The engine knows one maximum for all sentences: `maximum_ratio` and `maximum_extra` do not cut here.
    """

    def __init__(self, native: Translator, path: Path, *, int8: bool = False, threads: int | None = None):
        super().__init__(native.model, native.source, native.target, native.config, native.longest)
        # Workers of one thread each translate other batches at the same time, and never wait for one another.
        self._engine = library().Translator(
            str(path),
            compute_type="int8" if int8 else "float32",
            inter_threads=threads or torch.get_num_threads(),
            intra_threads=1,
        )
        self._source_entries = native.source.entries()
        self._target_entries = native.target.entries()
        self._id_of = {entry: number for number, entry in enumerate(self._target_entries)}

    def search(
        self,
        sentences: Sequence[str],
        to: Sequence[str | None] = (None,),
        config: SearchConfig | None = None,
        numbers_B: Tensor | None = None,
        prefix: str = "",
    ) -> list[list[list[Translation]]]:
        config = config or self.config
        if prefix:
            raise QkvError(
                f"the prefix is {prefix!r:.40}: CTranslate2 cannot begin with one as we do; use the native engine"
            )
        options = engine_options(config)
        entries = self._source_entries
        pieces = [[entries[index] for index in ids] for ids in self.source.encode_all(sentences)]
        found = []
        for tag in to:
            first = self.target.tag(tag)
            # The tag is the start itself: the engine neither returns it nor counts it.
            start = None if first == START else [[self._target_entries[first]]] * len(pieces)
            results = self._engine.translate_batch(pieces, start, max_batch_size=BATCH, **options)
            found.append(self._read(results, config.maximum))
        return found

    def _read(self, results: Sequence[Any], maximum: int) -> list[list[Translation]]:
        """The engine's hypotheses as ours."""
        ids = [[[self._id_of[entry] for entry in one] for one in each.hypotheses] for each in results]
        texts = iter(self.target.decode_all(one for hypotheses in ids for one in hypotheses))
        return [
            [
                Translation(next(texts), score, len(one) < maximum, one)
                for one, score in zip(hypotheses, each.scores, strict=True)
            ]
            for hypotheses, each in zip(ids, results, strict=True)
        ]


def engine_options(config: SearchConfig) -> dict[str, Any]:
    """A search in the engine's words; what it has none for is named."""
    unknown = {
        "temperature": config.temperature != 0,
        "coverage": config.coverage != 0,
        "normalize": config.normalize == "gnmt",
        "stop": config.stop != "quick",
    }
    for name, is_so in unknown.items():
        if is_so:
            raise QkvError(
                f"CTranslate2 cannot search with search.{name} {getattr(config, name)!r} as we do: {_FIX[name]}"
            )
    return {
        "beam_size": config.beam,
        "num_hypotheses": config.n_best,
        "length_penalty": config.alpha if config.normalize == "length" else 0.0,
        "max_input_length": 0,
        "max_decoding_length": config.maximum,
        "min_decoding_length": config.minimum,
        "return_scores": True,
    }


_FIX = {
    "temperature": "leave sampling to the native engine",
    "coverage": "set search.coverage=0, or use the native engine",
    "normalize": "set search.normalize=length or none, or use the native engine",
    "stop": "set search.stop=quick, or use the native engine",
}
