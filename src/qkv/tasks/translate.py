"""Translation: pairs of sentences to batches, their loss, BLEU and chrF, and a translator.

Axes: B sentences, S source length, T target length, N real positions of a batch, D width, L vocabulary.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks.crossentropy import cross_entropy
from qkv.config import config
from qkv.data.batches import Batch, Batches, BatchesConfig, in_order
from qkv.data.batches import Epoch as PairEpoch
from qkv.data.pairs import Pairs, encode_pairs
from qkv.data.split import splitting
from qkv.data.text import NUMBERS, Corpus, Pair, ParallelText, Rules
from qkv.data.tokens import Tokens, TokensConfig
from qkv.decode.config import SearchConfig
from qkv.decode.translator import BUDGET, Translator
from qkv.errors import QkvError
from qkv.models import luong, transformer
from qkv.models.interface import Generator
from qkv.models.luong import Luong, LuongConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.recipe.config import from_tree
from qkv.recipe.training import TrainConfig
from qkv.store.bundle import TOKENIZERS, Bundle, Savable
from qkv.store.transfer import transfer
from qkv.tasks.shared.bleu import MetricsConfig, bleu_of, compare
from qkv.tasks.task import Asked, Epoch, Evaluation, Kind, Scores, Task

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

    def __post_init__(self) -> None:
        if self.model.tied == "all" and not self.tokens.joint:
            raise QkvError(
                "tokens.joint is false and model.tied 'all', so that two vocabularies would share one table: "
                "set model.tied=target, or tokens.joint=true"
            )
        for name, most in self._places_needed().items():
            if most > self.model.length:
                raise QkvError(
                    f"{name} is {most}, but this model can tell {self.model.length} places apart: "
                    f"set model.length={most}, or lower {name}"
                )

    def _places_needed(self) -> dict[str, int]:
        """What a model needs a place for in each sentence, where it has a vector or a score for each place."""
        read = {"batches.longest": self.batches.longest}
        if isinstance(self.model, TransformerConfig):
            return read | {"search.maximum": self.search.maximum} if self.model.positions == "learned" else {}
        return read if self.model.attention != "none" and self.model.score == "location" else {}


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
        if config.data.valid:
            bleu_of(config.metrics)  # while nothing is lost
        text = ParallelText(config.data.train, config.data.rules)
        self.vocabularies = (
            Vocabularies.load(start.tokenizers) if start else Vocabularies.learn(text, config.tokens)
        )
        source, target = self.vocabularies.source, self.vocabularies.target
        sizes = {"source_vocabulary": source.size, "target_vocabulary": target.size}
        self.config = config = replace(config, model=replace(config.model, **sizes))
        pairs = encode_pairs(text, source, target)
        self.batches = Batches(
            pairs,
            config.batches,
            seed=config.train.seed,
            strict=config.data.rules.strict,
            vary=splitting(source, target, config.tokens.split, config.train.seed, config.batches.longest),
        )
        # What is longer than all that a model learnt from, it would shorten: it is told to split such lines.
        self.config = config = replace(config, batches=replace(config.batches, longest=self.batches.longest))
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
            self.notices.append(transfer(self._model, start))
        if self.valid:  # what the search cannot do shall not show after an epoch
            translator = self._translator()
            quick = replace(translator.config, maximum=translator.config.minimum + 1)
            translator.search([self.valid[0].source], (self.valid[0].tag,), quick)

    @property
    def model(self) -> Generator:
        return self._model

    def epoch(self, number: int) -> Epoch[Batch]:
        return self.batches.epoch(number)

    def targets(self, batch: Batch) -> int:
        return int(batch.keep_BT.sum())

    def loss(self, batch: Batch) -> Tensor:
        x_BTD = self.model(batch.source_BS, batch.keep_BS, batch.target_BT)
        real_N = batch.keep_BT.flatten().nonzero()[:, 0]  # padding costs no logits
        x_ND, labels_N = x_BTD.flatten(0, 1)[real_N], batch.label_BT.flatten()[real_N]
        return cross_entropy(x_ND, self.model.output_table, labels_N, self.config.smoothing)

    def validate(self) -> Scores | None:
        if not self.valid:
            return None
        scores = score(self._translator(), self.valid, self.config.metrics)
        return replace(scores, values={"loss": self.valid_loss(), **scores.values})

    def _translator(self) -> Translator:
        """As validations search."""
        c, beam = self.config, self.config.metrics.beam
        search = replace(c.search, beam=beam, n_best=1, coverage=c.search.coverage if beam > 1 else 0.0)
        return Translator(
            self.model, self.vocabularies.source, self.vocabularies.target, search, c.batches.longest
        )

    def describe(self, batch: Batch, rows: Sequence[int] = ()) -> str:
        chosen = [batch.rows[row] for row in rows] or batch.rows
        return ", ".join(self.batches.pairs.where(int(row)) for row in chosen[:3])

    def digest(self) -> str:
        return self.batches.pairs.digest()

    def look(self, batch: Batch) -> Sequence[str]:
        (rows, source), (_, target) = batch.source_BS.shape, batch.target_BT.shape
        found = [f"{rows} pairs of up to {source} and {target} tokens, {self.targets(batch):,} targets"]
        for row in range(min(rows, 2)):
            read = batch.source_BS[row][batch.keep_BS[row]].tolist()
            start, write = batch.target_BT[row, :1].tolist(), batch.label_BT[row][batch.keep_BT[row]].tolist()
            pieces = (
                self.vocabularies.source.pieces(read),
                self.vocabularies.target.pieces([*start, *write]),
            )
            found.append(
                " → ".join("·".join(side) for side in pieces)
                + f"  ({self.batches.pairs.where(int(batch.rows[row]))})"
            )
        return found

    def real_share(self, epoch: Epoch[Batch]) -> float | None:
        assert isinstance(epoch, PairEpoch)
        return epoch.real_share()

    def vocabulary(self) -> Mapping[str, int]:
        v = self.vocabularies
        if v.source is v.target:
            return {"source and target": v.source.size}
        return {"source": v.source.size, "target": v.target.size}

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

    def valid_loss(self) -> float:
        """Nats a token of the validation data, without smoothing."""
        losses_P, targets_P = losses(self.model, self.valid_pairs, self.config.batches.budget)
        return float(losses_P.sum() / targets_P.sum())


def build(config: TransformerConfig | LuongConfig) -> Generator:
    """The model of a config whose vocabularies are known."""
    return Luong(config) if isinstance(config, LuongConfig) else Transformer(config)


def score(translator: Translator, pairs: Sequence[Pair], metrics: MetricsConfig) -> Scores:
    """Translate the sources of these pairs and compare with their targets."""
    return compare(translations(translator, pairs), [pair.target for pair in pairs], metrics)


def translations(
    translator: Translator, pairs: Sequence[Pair], config: SearchConfig | None = None
) -> list[str]:
    """The sources of these pairs, each in the language of its target."""
    found = [""] * len(pairs)
    for tag in dict.fromkeys(pair.tag for pair in pairs):
        chosen = [number for number, pair in enumerate(pairs) if pair.tag == tag]
        texts = translator.translate([pairs[number].source for number in chosen], to=tag, config=config)
        for number, text in zip(chosen, texts, strict=True):
            found[number] = text
    return found


@torch.no_grad()
def losses(model: Generator, pairs: Pairs, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """For each pair the nats of its target without smoothing, and how many tokens, its end among them."""
    nats_P, tokens_P = np.zeros(len(pairs)), np.zeros(len(pairs), dtype=np.int64)
    for batch in in_order(pairs, budget):
        x_BTD = model(batch.source_BS, batch.keep_BS, batch.target_BT)
        logits_NL = model.logits(x_BTD[batch.keep_BT])
        loss_N = F.cross_entropy(logits_NL.float(), batch.label_BT[batch.keep_BT], reduction="none")
        loss_BT = torch.zeros(batch.keep_BT.shape).masked_scatter_(batch.keep_BT, loss_N)
        nats_P[batch.rows] = loss_BT.sum(1, dtype=torch.float64).numpy()
        tokens_P[batch.rows] = batch.keep_BT.sum(1).numpy()
    return nats_P, tokens_P


def evaluate(translator: Translator, config: TranslateConfig, asked: Asked) -> Evaluation:
    """Translate the sources of some data with the recipe's search, and compare with its targets.

    Several languages are scored one by one and all together; the loss is in nats a token, without smoothing.
    """
    rules = Rules() if asked.data else config.data.rules
    # Scores are comparable only over all of a set, so duplicates stay.
    rules = replace(rules, duplicates="keep", strict=asked.strict or rules.strict)
    text = ParallelText(asked_for(asked, translator.languages) or config.data.valid, rules)
    pairs, search = list(text), replace(config.search, n_best=1)
    encoded = encode_pairs(text, translator.source, translator.target)
    nats_P, tokens_P = losses(translator.model, encoded, BUDGET)
    found = translations(translator, pairs, search)
    languages = list(dict.fromkeys(pair.tag for pair in pairs))
    groups = {"all": list(range(len(pairs)))}
    if len(languages) > 1:
        groups |= {str(tag): [row for row in groups["all"] if pairs[row].tag == tag] for tag in languages}
    scores = {}
    for name, rows in groups.items():
        compared = compare([found[row] for row in rows], [pairs[row].target for row in rows], config.metrics)
        loss = float(nats_P[rows].sum() / tokens_P[rows].sum())
        values = {**compared.values, "loss": loss, "perplexity": math.exp(loss)}
        scores[name] = replace(compared, values=values)
    return Evaluation(
        counts={name: len(rows) for name, rows in groups.items()},
        scores=scores,
        unit="sentences",
        outputs=found,
        reports=text.reports,
        facts={"beam": search.beam},
    )


def asked_for(asked: Asked, languages: Sequence[str]) -> tuple[Corpus, ...]:
    """The corpus that is asked for, in one of the languages that the model knows."""
    if not asked.data:
        return ()
    if len(asked.data) > 2:
        raise QkvError(f"{len(asked.data)} files of data are given: one with both sides, or two, are wanted")
    tags = [name for name in asked.reading if name.startswith("tag")]
    if tags and not languages:
        option = "--" + tags[0].replace("_", "-")
        raise QkvError(f"the model knows one language only: leave {option} out")
    source, target = [*asked.data, None][:2]
    assert source is not None
    corpus = Corpus(source=source, target=target, **asked.reading)
    if languages and not tags and corpus.kind != NUMBERS:  # numbers come with their languages
        raise QkvError(
            f"the model writes {', '.join(languages)}: say with --tag which of them {asked.data[-1]} has"
        )
    return (corpus,)


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
    evaluate=evaluate,
    settable=("search", "metrics"),
    kept=("tokens",),
)
