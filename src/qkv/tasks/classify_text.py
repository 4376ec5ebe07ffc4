"""Text classification: texts with labels to batches, their loss, accuracy and F1, and a classifier.

Axes: B texts of a batch, N texts, T tokens, C labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from qkv.config import config
from qkv.data.labelled import Example, LabelledCorpus
from qkv.data.report import Report
from qkv.data.sequences import SequencesConfig, encode_texts, expect_places, plan, real_share
from qkv.data.tokens import Tokens, TokensConfig
from qkv.decode.reader import Classifier, run
from qkv.errors import QkvError
from qkv.models import bert, textcnn
from qkv.models.bert import BertClassifier, BertClassifierConfig
from qkv.models.interface import TextClassifier
from qkv.models.textcnn import TextCnn, TextCnnConfig
from qkv.recipe.config import from_tree
from qkv.recipe.training import TrainConfig
from qkv.store.bundle import TOKENIZERS, Bundle, Savable
from qkv.store.transfer import transfer
from qkv.tasks.shared.labelled import (
    LabelledDataConfig,
    LabelledSet,
    baselines,
    read_all,
    read_data,
    truth_of,
)
from qkv.tasks.shared.labels import (
    ClassWeights,
    LabelMetricsConfig,
    Labels,
    evaluation,
    loss_of,
    output_rows,
    scores,
)
from qkv.tasks.task import Asked, Epoch, Evaluation, Kind, Scores, Task

ModelConfig = Annotated[BertClassifierConfig | TextCnnConfig, Field(discriminator="kind")]
Share = Annotated[float, Field(ge=0, lt=1)]


@config
class ClassifyTextConfig:
    """A recipe: everything that decides a text classifier and its training."""

    task: Literal["classify_text"] = "classify_text"
    """What is trained."""
    data: LabelledDataConfig
    """What to learn from."""
    labels: tuple[str, ...] = ()
    """The labels in the order of the model's scores; none: those of the training data, sorted."""
    multiple: bool = False
    """Whether a text may have several labels, or none."""
    class_weights: ClassWeights = "equal"
    """How much the texts of each label count: equal, balanced (each label the same in sum), or numbers by label."""
    smoothing: Share = 0.0
    """Label smoothing (Szegedy et al. 2016, section 7)."""
    token_dropout: Share = 0.0
    """Share of tokens that are unknown ones in training, each time others."""
    agreement: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """How much two passes over each batch, with other dropout, are to agree (R-Drop: Liang et al. 2021, equation 4's α):
    they take twice the time."""
    tokens: TokensConfig = TokensConfig()
    """How text becomes ids."""
    batches: SequencesConfig = SequencesConfig()
    """How texts become batches."""
    model: ModelConfig = BertClassifierConfig()
    """The model, a kind with a preset and changes to it."""
    metrics: LabelMetricsConfig = LabelMetricsConfig()
    """How labels are scored."""
    train: TrainConfig = TrainConfig()
    """How to train."""

    def __post_init__(self) -> None:
        if self.smoothing and self.multiple:
            raise QkvError(
                f"smoothing is {self.smoothing}, for texts with one label, and multiple is true: leave one of them out"
            )
        if isinstance(self.model, BertClassifierConfig):
            expect_places(self.batches.longest, self.model.positions, self.model.length)


@dataclass(frozen=True)
class TextBatch:
    """Texts as ids, and which labels each has."""

    token_BT: Tensor
    keep_BT: Tensor
    truth_BC: Tensor
    rows: np.ndarray
    """Which texts these are."""


class ClassifyText(Task[TextBatch]):
    """Training a text classifier."""

    def __init__(self, config: ClassifyTextConfig, start: Bundle | None = None):
        train, valid, self.reports = read_data(config.data)
        # What is held out is of the training data, too: a rare label may have fallen to it.
        self.labels = _labels(config, train + valid if config.data.hold_out else train)
        self.tokens = Tokens.load(start.tokenizers[TOKENIZERS[0]]) if start else _learn(train, config.tokens)
        sizes = {"vocabulary": self.tokens.size, "labels": len(self.labels.names)}
        self.config = config = replace(config, labels=self.labels.names, model=replace(config.model, **sizes))
        self.train_set, self.valid_set = self._encoded(train), self._encoded(valid)
        weights = self.labels.weights(self.train_set.truth_NC, config.class_weights)
        self.weight_C = torch.from_numpy(weights).float()
        torch.manual_seed(config.train.seed)
        self._model = build(config.model)
        found = [*map(str, self.reports), *self._about_data()]
        if start:
            rows = output_rows(self.labels.names, start.recipe.get("labels", ()))
            found.append(transfer(self._model, start, rows))
        if valid and config.metrics.baselines:
            found.append(self._baselines())
        self.notices = [notice for notice in found if notice]

    @property
    def model(self) -> TextClassifier:
        return self._model

    def epoch(self, number: int) -> Epoch[TextBatch]:
        return _Epoch(
            self, plan(self.train_set.texts.lengths, self.config.batches, self.training.seed, number)
        )

    def targets(self, batch: TextBatch) -> int:
        return len(batch.rows)

    def loss(self, batch: TextBatch) -> Tensor:
        c = self.config
        logits_BC = self._logits(batch)
        loss = loss_of(logits_BC, batch.truth_BC, self.labels, self.weight_C, c.smoothing)
        if not c.agreement or not self.model.training:
            return loss
        other_BC = self._logits(batch)
        loss = (loss + loss_of(other_BC, batch.truth_BC, self.labels, self.weight_C, c.smoothing)) / 2
        return loss + c.agreement * disagreement(logits_BC, other_BC, self.labels)

    def _logits(self, batch: TextBatch) -> Tensor:
        token_BT = batch.token_BT
        if self.model.training and self.config.token_dropout:
            lost_BT = (torch.rand(token_BT.shape) < self.config.token_dropout) & batch.keep_BT
            lost_BT &= (token_BT != self.tokens.start) & (token_BT != self.tokens.end)
            token_BT = token_BT.masked_fill(lost_BT, self.tokens.unk)
        return self.model(token_BT, batch.keep_BT).float()

    def validate(self) -> Scores | None:
        valid = self.valid_set
        if not valid.examples:
            return None
        logits_NC = run(self.model, valid.texts, self.tokens)
        return scores(logits_NC, valid.truth_NC, self.labels, self.config.metrics.best_by)

    def describe(self, batch: TextBatch, rows: Sequence[int] = ()) -> str:
        chosen = [batch.rows[row] for row in rows] or batch.rows
        return ", ".join(self.train_set.examples[row].where for row in chosen[:3])

    def digest(self) -> str:
        ids, found = self.train_set.texts.ids, blake2b(digest_size=32)
        found.update(ids.flat.tobytes() + ids.lengths.tobytes() + self.train_set.truth_NC.tobytes())
        return found.hexdigest()

    def look(self, batch: TextBatch) -> Sequence[str]:
        rows, length = batch.token_BT.shape
        found = [f"{rows} texts of up to {length} tokens"]
        for row in range(min(rows, 2)):
            pieces = self.tokens.pieces(batch.token_BT[row][batch.keep_BT[row]].tolist())
            labels = self.labels.text(batch.truth_BC[row].numpy())
            found.append(f"{'·'.join(pieces)} → {labels}  ({self.train_set.examples[batch.rows[row]].where})")
        return found

    def real_share(self, epoch: Epoch[TextBatch]) -> float | None:
        assert isinstance(epoch, _Epoch)
        return real_share(self.train_set.texts.lengths, epoch.batches)

    def vocabulary(self) -> Mapping[str, int]:
        return {"text": self.tokens.size}

    def tokenizers(self) -> Mapping[str, Savable]:
        return {TOKENIZERS[0]: self.tokens}

    def card(self, facts: Mapping[str, str]) -> str:
        data = "\n".join(f"- {line}" for notice in self.notices for line in notice.splitlines())
        kept = "\n".join(f"- {name}: {value}" for name, value in facts.items())
        return (
            f"# A text classifier for {', '.join(self.labels.names)}\n\nTrained by qkv. `qkv classify DIR FILE` labels the "
            "lines of a file, `qkv embed DIR FILE` gives their vectors, `qkv info DIR` describes the model, and in Python "
            f"`qkv.load(DIR).classify([...])`.\n\n## Data\n\n{data}\n\n## Training\n\n{kept}\n"
        )

    def batch(self, rows: np.ndarray) -> TextBatch:
        """The tensors of these training texts."""
        token_BT, keep_BT = self.train_set.texts.batch(rows, self.tokens)
        return TextBatch(token_BT, keep_BT, torch.from_numpy(self.train_set.truth_NC[rows]), rows)

    def _encoded(self, examples: list[Example]) -> LabelledSet:
        texts = encode_texts((one.text for one in examples), self.tokens, self.config.batches.longest)
        return LabelledSet(examples, texts, truth_of(self.labels, examples))

    def _about_data(self) -> list[str | None]:
        """What a user should know of texts and labels."""
        train = self.train_set
        alone = [column for column, count in enumerate(train.truth_NC.sum(0)) if count == 1]
        lonely = (
            f"{self.labels.names[c]!r} ({train.examples[train.truth_NC[:, c].argmax()].where})" for c in alone
        )
        counts = sorted(zip(train.truth_NC.sum(0).tolist(), self.labels.names, strict=True), reverse=True)
        shown = ", ".join(f"{name} {count:,}" for count, name in counts[:20])
        more = f" and {len(counts) - 20} more" if len(counts) > 20 else ""
        return [
            f"labels: {shown}{more}; {len(train.examples):,} texts to train on, "
            f"{len(self.valid_set.examples):,} to validate on",
            f"labels with one text only: {', '.join([*lonely][:5])}" if alone else None,
            self.tokens.notice,
            train.texts.notice(self.config.batches.longest, [one.where for one in train.examples]),
        ]

    def _baselines(self) -> str:
        found = baselines(self.train_set, self.valid_set, self.labels)
        told = "; ".join(
            f"{name} accuracy {v['accuracy']:.2f}, macro-F1 {v['macro_f1']:.2f}" for name, v in found.items()
        )
        return f"to beat on the validation data: {told}"


@dataclass(frozen=True)
class _Epoch:
    """The batches of an epoch, made when they are asked for."""

    task: ClassifyText
    batches: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> TextBatch:
        return self.task.batch(self.batches[index])


def build(config: BertClassifierConfig | TextCnnConfig) -> TextClassifier:
    """The model of a config whose vocabulary and labels are known."""
    return TextCnn(config) if isinstance(config, TextCnnConfig) else BertClassifier(config)


def disagreement(one_BC: Tensor, other_BC: Tensor, labels: Labels) -> Tensor:
    """Half the sum of both Kullback-Leibler divergences between what two passes say (equation 2), summed over texts."""
    if labels.multiple:  # each label is a choice of two, with logits x and 0
        one_BC, other_BC = (torch.stack((x_BC, torch.zeros_like(x_BC)), -1) for x_BC in (one_BC, other_BC))
    one_BC, other_BC = one_BC.log_softmax(-1), other_BC.log_softmax(-1)
    return ((one_BC.exp() - other_BC.exp()) * (one_BC - other_BC)).sum() / 2


def evaluate(classifier: Classifier, config: ClassifyTextConfig, asked: Asked) -> Evaluation:
    """Classify some texts and compare with their labels; beside it what simple classifiers reach."""
    labels, reports = Labels(classifier.labels, classifier.multiple), []
    test = _asked_for(config.data, asked, reports)
    truth_NC, best_by = truth_of(labels, test), config.metrics.best_by
    logits_NC = classifier.logits([one.text for one in test])
    found = evaluation(logits_NC, truth_NC, labels, best_by=best_by, unit="texts", reports=reports)
    if not config.metrics.baselines:
        return found
    train, _, _ = read_data(replace(config.data, valid=()))
    learnt = LabelledSet(train, classifier.encode([]), truth_of(labels, train))
    simple = baselines(learnt, LabelledSet(test, learnt.texts, truth_NC), labels)
    beside = {name: Scores(values, best_by) for name, values in simple.items()}
    counts = dict.fromkeys(["all", *beside], len(test))
    return replace(found, counts=counts, scores={**found.scores, **beside})


def _asked_for(data: LabelledDataConfig, asked: Asked, reports: list[Report]) -> list[Example]:
    """The texts to be scored on, by default those of the recipe's validation."""
    if len(asked.data) > 1:
        raise QkvError(f"{len(asked.data)} files of data are given; one with texts and labels is wanted")
    data = replace(data, rules=replace(data.rules, strict=asked.strict or data.rules.strict))
    corpora = data.valid
    if asked.data:
        # As the recipe reads its data, but for what is said here.
        like = (*data.valid, *data.train)[0]
        kept = {name: getattr(like, name) for name in ("separator", "encoding")}
        corpora = (LabelledCorpus(source=asked.data[0], **kept | dict(asked.reading)),)
    elif data.hold_out:
        _, held, found = read_data(data)
        reports += found
        return held
    found = read_all(corpora, replace(data.rules, duplicates="keep"), data.names, reports)
    if not found:
        raise QkvError("\n".join([*map(str, reports), "there is no text to score on: see what was skipped"]))
    return found


def load(bundle: Bundle) -> Classifier:
    """The classifier of a finished model."""
    config = from_tree(ClassifyTextConfig, bundle.recipe, str(bundle.path))
    model = build(config.model)
    model.load_state_dict(bundle.tensors)
    tokens = Tokens.load(bundle.tokenizers[TOKENIZERS[0]])
    return Classifier(model, tokens, config.labels, multiple=config.multiple, longest=config.batches.longest)


def _labels(config: ClassifyTextConfig, train: list[Example]) -> Labels:
    if config.labels:
        return Labels(config.labels, config.multiple)
    where = ", ".join(corpus.name for corpus in config.data.train)
    return Labels.of([one.labels for one in train], config.multiple, where)


def _learn(train: list[Example], c: TokensConfig) -> Tokens:
    return Tokens.train(
        (one.text for one in train), kind=c.kind, size=c.size, minimum=c.minimum, lowercase=c.lowercase
    )


KIND = Kind(
    config=ClassifyTextConfig,
    presets={"bert": bert.PRESETS, "textcnn": textcnn.PRESETS},
    files=lambda config: [
        path for corpus in (*config.data.train, *config.data.valid) for path in corpus.files
    ],
    build=ClassifyText,
    load=load,
    evaluate=evaluate,
    settable=("metrics",),
    kept=("tokens",),
)
