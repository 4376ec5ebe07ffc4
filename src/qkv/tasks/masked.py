"""Pretraining on plain text: tokens are hidden, and the model says what stood there (Devlin et al. 2019, section 3.1).

Axes: B texts of a batch, T tokens, N hidden positions, L vocabulary.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from qkv.config import config
from qkv.data import draws
from qkv.data.labelled import Example, LabelledCorpus
from qkv.data.report import Report
from qkv.data.sequences import (
    Sequences,
    SequencesConfig,
    encode_texts,
    expect_places,
    in_order,
    plan,
    real_share,
)
from qkv.data.text import Rules
from qkv.data.tokens import SPECIALS, Tokens, TokensConfig
from qkv.decode.reader import BUDGET, Reader
from qkv.errors import QkvError
from qkv.models import bert
from qkv.models.bert import BertConfig, BertMasked
from qkv.recipe.config import from_tree
from qkv.recipe.training import TrainConfig
from qkv.store.bundle import TOKENIZERS, Bundle, Savable
from qkv.store.transfer import transfer
from qkv.tasks.shared.labelled import held_out, read_all
from qkv.tasks.task import Asked, Epoch, Evaluation, Kind, Scores, Task

MASK = "mask"
_HIDDEN, _RANDOM = 0.8, 0.1  # of the tokens that are asked for; the rest stay as they are
_VALID = 1 << 32  # where an epoch's number would stand


@config
class MaskedDataConfig:
    """Texts to learn from, and to validate on."""

    train: tuple[LabelledCorpus, ...]
    """Corpora to train on: a text a line, or as their formats say."""
    valid: tuple[LabelledCorpus, ...] = ()
    """Corpora to validate on; without any, and without hold_out, the last weights are the best."""
    hold_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of the training texts that is validated on instead, chosen by a hash of the text."""
    labelled: bool = False
    """Whether each line begins with a label, which is passed over."""
    rules: Rules = Rules(longest=100_000)
    """What happens to faulty texts."""

    def __post_init__(self) -> None:
        if self.valid and self.hold_out:
            raise QkvError(
                f"hold_out is {self.hold_out} though valid names data to validate on: leave one of them out"
            )


@config
class MaskedConfig:
    """A recipe: everything that decides a pretrained encoder and its training."""

    task: Literal["masked"] = "masked"
    """What is trained."""
    data: MaskedDataConfig
    """What to learn from."""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens of each text that are asked for: 80 % of them hidden, 10 % replaced by others, 10 % shown."""
    tokens: TokensConfig = TokensConfig()
    """How text becomes ids."""
    batches: SequencesConfig = SequencesConfig()
    """How texts become batches."""
    model: BertConfig = BertConfig()
    """The encoder."""
    train: TrainConfig = TrainConfig()
    """How to train."""

    def __post_init__(self) -> None:
        expect_places(self.batches.longest, self.model.positions, self.model.length)


@dataclass(frozen=True)
class MaskedBatch:
    """Texts with some of their tokens changed, where, and what stood there."""

    token_BT: Tensor
    keep_BT: Tensor
    asked_BT: Tensor
    answer_N: Tensor
    rows: np.ndarray


class Masked(Task[MaskedBatch]):
    """Pretraining an encoder."""

    def __init__(self, config: MaskedConfig, start: Bundle | None = None):
        train, valid, reports = _read(config.data)
        self.tokens = Tokens.load(start.tokenizers[TOKENIZERS[0]]) if start else _learn(train, config.tokens)
        self.mask = self.tokens.tag(MASK)
        self.config = config = replace(config, model=replace(config.model, vocabulary=self.tokens.size))
        self.where = [example.where for example in train]
        self.texts, self.valid_texts = (
            encode_texts((one.text for one in examples), self.tokens, config.batches.longest)
            for examples in (train, valid)
        )
        torch.manual_seed(config.train.seed)
        self._model = build(config.model)
        begun = transfer(self._model, start) if start else None
        cut = self.texts.notice(config.batches.longest, self.where)
        size = f"{int(self.texts.ids.lengths.sum()):,} tokens in {len(train):,} texts to train on, {len(valid):,} to validate on"
        found = [*map(str, reports), size, self.tokens.notice, cut, begun]
        self.notices = [notice for notice in found if notice]

    @property
    def model(self) -> BertMasked:
        return self._model

    def epoch(self, number: int) -> Epoch[MaskedBatch]:
        return _Epoch(self, number, plan(self.texts.lengths, self.config.batches, self.training.seed, number))

    def targets(self, batch: MaskedBatch) -> int:
        return len(batch.answer_N)

    def loss(self, batch: MaskedBatch) -> Tensor:
        logits_NL = self.model(batch.token_BT, batch.keep_BT, batch.asked_BT)
        return F.cross_entropy(logits_NL.float(), batch.answer_N, reduction="sum")

    def validate(self) -> Scores | None:
        if not len(self.valid_texts):
            return None
        return score(self.model, self.valid_texts, self.tokens, self.config)

    def describe(self, batch: MaskedBatch, rows: Sequence[int] = ()) -> str:
        return ", ".join(self.where[row] for row in ([batch.rows[row] for row in rows] or batch.rows)[:3])

    def digest(self) -> str:
        ids = self.texts.ids
        return hashlib.sha256(ids.flat.tobytes() + ids.lengths.tobytes()).hexdigest()

    def look(self, batch: MaskedBatch) -> Sequence[str]:
        rows, length = batch.token_BT.shape
        found = [f"{rows} texts of up to {length} tokens, {self.targets(batch):,} targets"]
        for row in range(min(rows, 2)):
            read = self.tokens.pieces(batch.token_BT[row][batch.keep_BT[row]].tolist())
            found.append(f"{'·'.join(read)}  ({self.where[batch.rows[row]]})")
        return found

    def real_share(self, epoch: Epoch[MaskedBatch]) -> float | None:
        assert isinstance(epoch, _Epoch)
        return real_share(self.texts.lengths, epoch.batches)

    def vocabulary(self) -> Mapping[str, int]:
        return {"text": self.tokens.size}

    def tokenizers(self) -> Mapping[str, Savable]:
        return {TOKENIZERS[0]: self.tokens}

    def card(self, facts: Mapping[str, str]) -> str:
        data = "\n".join(f"- {line}" for notice in self.notices for line in notice.splitlines())
        kept = "\n".join(f"- {name}: {value}" for name, value in facts.items())
        return (
            "# A pretrained encoder\n\nTrained by qkv to say which tokens were hidden. `qkv train RECIPE --from DIR` makes a "
            "classifier of it, `qkv embed DIR FILE` gives a vector for each line of a file, `qkv info DIR` describes it.\n\n"
            f"## Data\n\n{data}\n\n## Training\n\n{kept}\n"
        )


@dataclass(frozen=True)
class _Epoch:
    """The batches of an epoch, made when they are asked for; which tokens are hidden is new each time."""

    task: Masked
    number: int
    batches: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> MaskedBatch:
        c, task = self.task.config, self.task
        return hide(task.texts, self.batches[index], task.tokens, c.share, (c.train.seed, self.number, index))


def hide(
    texts: Sequences, rows: np.ndarray, tokens: Tokens, share: float, seed: tuple[int, int, int]
) -> MaskedBatch:
    """These texts with a share of their tokens asked for, at least one in each; a function of the seed alone."""
    token_BT, keep_BT = texts.batch(rows, tokens)
    bits, shape = draws.source(*seed), tuple(token_BT.shape)

    def drawn() -> np.ndarray:
        return draws.uniform(bits, shape[0] * shape[1]).reshape(shape)

    inner_BT = keep_BT.numpy() & ~np.isin(token_BT.numpy(), (tokens.start, tokens.end))
    count_B = inner_BT.sum(1)
    wanted_B = np.minimum(np.maximum(1, np.rint(share * count_B)), count_B)
    order_BT = np.where(inner_BT, drawn(), 2.0).argsort(1, kind="stable").argsort(1, kind="stable")
    asked_BT = order_BT < wanted_B[:, None]
    kind_BT, first = drawn(), len(SPECIALS) + len(tokens.tags)
    other_BT = first + (drawn() * (tokens.size - first)).astype(np.int64)
    changed_BT = np.where(kind_BT < _HIDDEN, tokens.tag(MASK), other_BT)
    seen_BT = np.where(asked_BT & (kind_BT < _HIDDEN + _RANDOM), changed_BT, token_BT.numpy())
    asked = torch.from_numpy(asked_BT)
    return MaskedBatch(torch.from_numpy(seen_BT), keep_BT, asked, token_BT[asked], rows)


@torch.no_grad()
def score(model: BertMasked, texts: Sequences, tokens: Tokens, config: MaskedConfig) -> Scores:
    """Loss in nats a hidden token, perplexity, and how many are named right; which are hidden is always the same."""
    lost, right, count = 0.0, 0, 0
    for index, rows in enumerate(in_order(texts.lengths, BUDGET)):
        batch = hide(texts, rows, tokens, config.share, (0, _VALID, index))
        logits_NL = model(batch.token_BT, batch.keep_BT, batch.asked_BT).float()
        lost += F.cross_entropy(logits_NL, batch.answer_N, reduction="sum").item()
        right += int((logits_NL.argmax(-1) == batch.answer_N).sum())
        count += len(batch.answer_N)
    loss = lost / count
    values = {"loss": loss, "perplexity": math.exp(loss), "accuracy": 100 * right / count}
    return Scores(values, "loss", more_is_better=False)


def build(config: BertConfig) -> BertMasked:
    """The model of a config whose vocabulary is known."""
    return BertMasked(config)


class MaskedReader(Reader):
    """A pretrained encoder; what `qkv.load` returns for one."""

    model: BertMasked


def evaluate(reader: MaskedReader, config: MaskedConfig, asked: Asked) -> Evaluation:
    """Hide tokens of some texts, and count how well the model knows them."""
    if len(asked.data) > 1:
        raise QkvError(f"{len(asked.data)} files of data are given; one with texts is wanted")
    reports: list[Report] = []
    if asked.data:
        corpora = (LabelledCorpus(source=asked.data[0], **asked.reading),)
        rules = replace(config.data.rules, duplicates="keep", strict=asked.strict or config.data.rules.strict)
        texts = read_all(corpora, rules, {}, reports, labelled=config.data.labelled)
    else:
        _, texts, reports = _read(config.data)
    if not texts:
        raise QkvError("\n".join([*map(str, reports), "there is no text to score on: see what was skipped"]))
    encoded = reader.encode([one.text for one in texts])
    found = {"all": score(reader.model, encoded, reader.tokens, config)}
    return Evaluation({"all": len(texts)}, found, "texts", reports=reports)


def load(bundle: Bundle) -> MaskedReader:
    """The encoder of a finished model."""
    config = from_tree(MaskedConfig, bundle.recipe, str(bundle.path))
    model = build(config.model)
    model.load_state_dict(bundle.tensors)
    return MaskedReader(model, Tokens.load(bundle.tokenizers[TOKENIZERS[0]]), config.batches.longest)


def _read(data: MaskedDataConfig) -> tuple[list[Example], list[Example], list[Report]]:
    reports: list[Report] = []
    train = read_all(data.train, data.rules, {}, reports, labelled=data.labelled)
    valid = read_all(data.valid, replace(data.rules, duplicates="keep"), {}, reports, labelled=data.labelled)
    return held_out(train, valid, data.hold_out, bool(data.valid), reports)


def _learn(train: list[Example], c: TokensConfig) -> Tokens:
    lines = (one.text for one in train)
    return Tokens.train(
        lines, kind=c.kind, size=c.size, minimum=c.minimum, tags=(MASK,), lowercase=c.lowercase
    )


KIND = Kind(
    config=MaskedConfig,
    presets={"bert": bert.PRESETS},
    files=lambda config: [
        path for corpus in (*config.data.train, *config.data.valid) for path in corpus.files
    ],
    build=Masked,
    load=load,
    evaluate=evaluate,
    kept=("tokens",),
)
