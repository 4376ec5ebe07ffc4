"""BLEU, chrF and exact matches of translations, with the signatures that make them comparable."""

from collections.abc import Sequence
from typing import Literal

import sacrebleu
from pydantic import PositiveInt

from qkv.config import config
from qkv.errors import QkvError
from qkv.tasks.task import Scores


@config
class MetricsConfig:
    """How translations are scored."""

    tokenize: Literal["13a", "none", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores200"] = "13a"
    """sacreBLEU's tokenizer; none for text that is tokenized already."""
    lowercase: bool = False
    """Whether case is ignored."""
    best_by: Literal["bleu", "chrf", "exact", "loss"] = "bleu"
    """By which score the best weights are chosen; exact is the share of sentences that are right to the letter."""
    beam: PositiveInt = 1
    """Beam of the validations during training, which only compare; `search.beam` is that of the finished model."""


def compare(found: Sequence[str], references: Sequence[str], metrics: MetricsConfig) -> Scores:
    """BLEU, chrF and the share of exact matches, in percent."""
    bleu = bleu_of(metrics)
    chrf = sacrebleu.CHRF(lowercase=metrics.lowercase)
    values = {
        "bleu": bleu.corpus_score(found, [references]).score,
        "chrf": chrf.corpus_score(found, [references]).score,
        "exact": 100 * sum(map(str.__eq__, found, references)) / len(references),
    }
    signatures = {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())}
    return Scores(values, metrics.best_by, metrics.best_by != "loss", signatures)


def bleu_of(metrics: MetricsConfig) -> sacrebleu.BLEU:
    """sacreBLEU's BLEU; a tokenizer that it lacks, or cannot fetch, is said here and not after an epoch."""
    try:
        # With tokenize none the text is known to have its tokens: no warning that it has.
        bleu = sacrebleu.BLEU(
            tokenize=metrics.tokenize, lowercase=metrics.lowercase, force=metrics.tokenize == "none"
        )
        bleu.corpus_score([""], [[""]])
    except (RuntimeError, OSError) as error:
        raise QkvError(
            f"metrics.tokenize is {metrics.tokenize!r}, for which sacreBLEU says: {' '.join(str(error).split())} "
            "(or choose another, such as 13a or char)"
        ) from None
    return bleu
