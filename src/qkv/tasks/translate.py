"""Translation: pairs of sentences to batches, their loss, BLEU and chrF, and a translator.

Axes: B sentences, S source length, T target length, N real positions of a batch, D width, L vocabulary.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import sacrebleu
import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from qkv.config import config
from qkv.data.batches import Batch, Batches, BatchesConfig, in_order
from qkv.data.pairs import encode_pairs
from qkv.data.text import Corpus, Pair, ParallelText, Rules
from qkv.data.tokens import Tokens, TokensConfig
from qkv.decode.config import SearchConfig
from qkv.decode.translator import Translator
from qkv.models import luong, transformer
from qkv.models.interface import Generator
from qkv.models.luong import Luong, LuongConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.recipe.config import from_tree
from qkv.recipe.training import TrainConfig
from qkv.store.bundle import TOKENIZERS, Bundle, Savable
from qkv.tasks.task import Epoch, Kind, Scores, Task

ModelConfig = Annotated[TransformerConfig | LuongConfig, Field(discriminator="kind")]


@config
class DataConfig:
    """What to learn from, and what to validate on."""

    train: tuple[Corpus, ...]
    """Corpora to train on."""
    valid: tuple[Corpus, ...] = ()
    """Corpora to validate on; without any, the last weights are the best."""
    rules: Rules = Rules()
    """What happens to faulty lines."""


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


@config
class TranslateConfig:
    """A recipe: everything that decides a translation model and its training."""

    task: Literal["translate"] = "translate"
    """What is trained."""
    data: DataConfig
    """What to learn from."""
    tokens: TokensConfig = TokensConfig()
    """How text becomes ids."""
    batches: BatchesConfig = BatchesConfig()
    """How pairs become batches."""
    model: ModelConfig = TransformerConfig()
    """The model, a kind with a preset and changes to it."""
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Label smoothing (Szegedy et al. 2016, section 7)."""
    metrics: MetricsConfig = MetricsConfig()
    """How translations are scored."""
    search: SearchConfig = SearchConfig()
    """How translations are searched."""
    train: TrainConfig = TrainConfig()
    """How to train."""


@dataclass(frozen=True)
class Vocabularies:
    """The tokens of both sides; one object where they are joint."""

    source: Tokens
    target: Tokens

    @classmethod
    def learn(cls, text: ParallelText, config: TokensConfig) -> "Vocabularies":
        """Learn them from the training text."""
        tags = text.tags()

        def tokens(lines: Iterable[str], tags: Sequence[str] = ()) -> Tokens:
            return Tokens.train(
                lines,
                kind=config.kind,
                size=config.size,
                minimum=config.minimum,
                tags=tags,
                lowercase=config.lowercase,
            )

        if config.joint:
            both = tokens((line for pair in text for line in (pair.source, pair.target)), tags)
            return cls(both, both)
        return cls(tokens(pair.source for pair in text), tokens((pair.target for pair in text), tags))

    @classmethod
    def load(cls, paths: Mapping[str, Path]) -> "Vocabularies":
        """Read them from the files of a model."""
        if TOKENIZERS[0] in paths:
            both = Tokens.load(paths[TOKENIZERS[0]])
            return cls(both, both)
        return cls(*(Tokens.load(paths[name]) for name in TOKENIZERS[1:]))

    def files(self) -> dict[str, Tokens]:
        """What is saved with a model, by file name."""
        if self.source is self.target:
            return {TOKENIZERS[0]: self.source}
        return dict(zip(TOKENIZERS[1:], (self.source, self.target), strict=True))


class Translation(Task[Batch]):
    """Training a translator."""

    def __init__(self, config: TranslateConfig, start: Bundle | None = None):
        text = ParallelText(config.data.train, config.data.rules)
        self.vocabularies = (
            Vocabularies.load(start.tokenizers) if start else Vocabularies.learn(text, config.tokens)
        )
        source, target = self.vocabularies.source, self.vocabularies.target
        sizes = {"source_vocabulary": source.size, "target_vocabulary": target.size}
        self.config = config = replace(config, model=replace(config.model, **sizes))
        pairs = encode_pairs(text, source, target)
        self.batches = Batches(pairs, config.batches, seed=config.train.seed, strict=config.data.rules.strict)
        self.valid: list[Pair] = []
        if config.data.valid:  # with its duplicates: scores are comparable only over all of a set
            valid = ParallelText(config.data.valid, replace(config.data.rules, duplicates="keep"))
            self.valid, self.valid_pairs = list(valid), encode_pairs(valid, source, target)
        self.reports = text.reports
        found = (*map(str, text.reports), source.notice, target.notice, self.batches.notice)
        self.notices = list(dict.fromkeys(notice for notice in found if notice))
        torch.manual_seed(config.train.seed)
        self._model = build(config.model)
        if start:
            self._model.load_state_dict(start.tensors)

    @property
    def model(self) -> Generator:
        return self._model

    def epoch(self, number: int) -> Epoch[Batch]:
        return self.batches.epoch(number)

    def targets(self, batch: Batch) -> int:
        return int(batch.keep_BT.sum())

    def loss(self, batch: Batch) -> Tensor:
        return self._loss(batch, self.config.smoothing)

    def validate(self) -> Scores | None:
        if not self.valid:
            return None
        c = self.config
        translator = Translator(
            self.model,
            self.vocabularies.source,
            self.vocabularies.target,
            replace(
                c.search,
                beam=c.metrics.beam,
                n_best=1,
                coverage=c.search.coverage if c.metrics.beam > 1 else 0.0,
            ),
            c.batches.longest,
        )
        scores = score(translator, self.valid, c.metrics)
        return replace(scores, values={"loss": self.valid_loss(), **scores.values})

    def describe(self, batch: Batch) -> str:
        return ", ".join(self.batches.pairs.where(int(row)) for row in batch.rows[:3])

    def tokenizers(self) -> Mapping[str, Savable]:
        return self.vocabularies.files()

    def card(self, facts: Mapping[str, str]) -> str:
        data = "\n".join(f"- {report}" for report in map(str, self.reports))
        languages = self.vocabularies.target.tags
        into = f" into {', '.join(languages)} (`--to`)" if languages else ""
        kept = "\n".join(f"- {name}: {value}" for name, value in facts.items())
        return (
            f"# A translation model{into}\n\nTrained by qkv. `qkv translate DIR FILE` translates with it, `qkv info DIR` "
            f"describes it, and in Python `qkv.load(DIR).translate([...])`.\n\n## Data\n\n{data}\n\n## Training\n\n{kept}\n"
        )

    @torch.no_grad()
    def valid_loss(self) -> float:
        """Nats a token of the validation data, without smoothing."""
        losses, targets = [], 0
        for batch in in_order(self.valid_pairs, self.config.batches.budget):
            losses.append(float(self._loss(batch, smoothing=0.0)))
            targets += self.targets(batch)
        return sum(losses) / targets

    def _loss(self, batch: Batch, smoothing: float) -> Tensor:
        """Cross-entropy at the real positions only: padding costs no logits."""
        x_BTD = self.model(batch.source_BS, batch.keep_BS, batch.target_BT)
        logits_NL = self.model.logits(x_BTD[batch.keep_BT])
        labels_N = batch.label_BT[batch.keep_BT]
        return F.cross_entropy(logits_NL.float(), labels_N, label_smoothing=smoothing, reduction="sum")


def build(config: TransformerConfig | LuongConfig) -> Generator:
    """The model of a config whose vocabularies are known."""
    return Luong(config) if isinstance(config, LuongConfig) else Transformer(config)


def score(translator: Translator, pairs: Sequence[Pair], metrics: MetricsConfig) -> Scores:
    """Translate the sources of these pairs and compare with their targets."""
    found = [""] * len(pairs)
    for tag in dict.fromkeys(pair.tag for pair in pairs):
        chosen = [number for number, pair in enumerate(pairs) if pair.tag == tag]
        texts = translator.translate([pairs[number].source for number in chosen], to=tag)
        for number, text in zip(chosen, texts, strict=True):
            found[number] = text
    return compare(found, [pair.target for pair in pairs], metrics)


def compare(found: Sequence[str], references: Sequence[str], metrics: MetricsConfig) -> Scores:
    """BLEU, chrF and the share of exact matches, in percent."""
    bleu = sacrebleu.BLEU(tokenize=metrics.tokenize, lowercase=metrics.lowercase)
    chrf = sacrebleu.CHRF(lowercase=metrics.lowercase)
    values = {
        "bleu": bleu.corpus_score(found, [references]).score,
        "chrf": chrf.corpus_score(found, [references]).score,
        "exact": 100 * sum(map(str.__eq__, found, references)) / len(references),
    }
    signatures = {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())}
    return Scores(values, metrics.best_by, metrics.best_by != "loss", signatures)


def load(bundle: Bundle) -> Translator:
    """The translator of a finished model."""
    config = from_tree(TranslateConfig, bundle.recipe, str(bundle.path))
    vocabularies = Vocabularies.load(bundle.tokenizers)
    model = build(config.model)
    model.load_state_dict(bundle.tensors)
    return Translator(model, vocabularies.source, vocabularies.target, config.search, config.batches.longest)


KIND = Kind(
    config=TranslateConfig,
    presets={"transformer": transformer.PRESETS, "luong": luong.PRESETS},
    files=lambda config: [
        path for corpus in (*config.data.train, *config.data.valid) for path in corpus.files
    ],
    build=Translation,
    load=load,
)
