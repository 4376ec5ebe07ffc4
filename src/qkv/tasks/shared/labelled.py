"""Labelled texts as tasks need them: read, held out, encoded, and what simple classifiers make of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Annotated

import numpy as np
from pydantic import Field

from qkv.config import config
from qkv.data.labelled import Example, LabelledCorpus, read_examples
from qkv.data.report import Report
from qkv.data.sequences import Sequences
from qkv.data.text import Rules
from qkv.errors import QkvError
from qkv.tasks.shared.baselines import WordWeights, majority
from qkv.tasks.shared.labels import Labels, compare

Share = Annotated[float, Field(ge=0, lt=1)]


@config
class LabelledDataConfig:
    """Texts with labels to learn from, and to validate on."""

    train: tuple[LabelledCorpus, ...]
    """Corpora to train on."""
    valid: tuple[LabelledCorpus, ...] = ()
    """Corpora to validate on; without any, and without hold_out, the last weights are the best."""
    hold_out: Share = 0.0
    """The share of the training texts that is validated on instead, chosen by a hash of the text: none is on both sides."""
    names: dict[str, str] = Field(default_factory=dict)
    """What labels are called, where the files call them otherwise: {"0" = "negative", "1" = "positive"}."""
    rules: Rules = Rules(longest=100_000)
    """What happens to faulty texts."""

    def __post_init__(self) -> None:
        if self.valid and self.hold_out:
            raise QkvError(
                f"hold_out is {self.hold_out} though valid names data to validate on: leave one of them out"
            )


@dataclass(frozen=True)
class LabelledSet:
    """Labelled texts, read and encoded."""

    examples: list[Example]
    texts: Sequences
    truth_NC: np.ndarray


def read_data(data: LabelledDataConfig) -> tuple[list[Example], list[Example], list[Report]]:
    """The texts to train and to validate on, and what was found in their files."""
    reports: list[Report] = []
    train = read_all(data.train, data.rules, data.names, reports)
    # With its duplicates: scores are comparable only over all of a set.
    valid = read_all(data.valid, replace(data.rules, duplicates="keep"), data.names, reports)
    return held_out(train, valid, data.hold_out, bool(data.valid), reports)


def held_out(
    train: list[Example], valid: list[Example], share: float, validated: bool, reports: list[Report]
) -> tuple[list[Example], list[Example], list[Report]]:
    """Hold a share of the training texts out; nothing left to train or to validate on is an error."""
    if share:
        held = [_share(example.text) < share for example in train]
        valid = [example for example, out in zip(train, held, strict=True) if out]
        train = [example for example, out in zip(train, held, strict=True) if not out]
    if not train or (not valid and (validated or share)):
        which = "train" if not train else "validate"
        raise QkvError(
            "\n".join([*map(str, reports), f"there is no text left to {which} on: see what was skipped"])
        )
    return train, valid, reports


def read_all(
    corpora: Sequence[LabelledCorpus],
    rules: Rules,
    names: Mapping[str, str],
    reports: list[Report],
    *,
    labelled: bool = True,
) -> list[Example]:
    """The texts of all corpora, their labels by the names that they are to have."""
    found: list[Example] = []
    for corpus in corpora:
        report = Report(corpus.name, what="texts")
        for example in read_examples(corpus, report, rules, labelled=labelled):
            labels = tuple(names.get(name, name) for name in example.labels)
            found.append(example._replace(labels=labels))
        reports.append(report)
    return found


def _share(text: str) -> float:
    """A number from 0 to 1 that is a text's own, for ever."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64


def truth_of(labels: Labels, examples: list[Example]) -> np.ndarray:
    """Which labels each of these has, truth_NC."""
    return labels.matrix([one.labels for one in examples], [one.where for one in examples])


def baselines(train: LabelledSet, test: LabelledSet, labels: Labels) -> dict[str, dict[str, float]]:
    """What simple classifiers reach that learnt from the same texts."""
    commonest_NC = np.broadcast_to(majority(train.truth_NC, labels), test.truth_NC.shape)
    words = WordWeights([one.text for one in train.examples], train.truth_NC, labels)
    chosen_NC = labels.chosen(words.logits([one.text for one in test.examples]))
    return {
        "majority": compare(test.truth_NC, commonest_NC, labels.multiple),
        "tf-idf": compare(test.truth_NC, chosen_NC, labels.multiple),
    }
