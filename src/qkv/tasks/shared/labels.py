"""Labels: their names, what weighs how much, and how well guesses agree with them.

Axes: B examples of a batch, N examples, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.config import config
from qkv.data.report import Report
from qkv.errors import QkvError, nearest
from qkv.tasks.task import Evaluation, Scores

ClassWeights = Literal["equal", "balanced"] | dict[str, float]


@config
class LabelMetricsConfig:
    """How labels are scored."""

    best_by: Literal["accuracy", "macro_f1", "loss"] = "accuracy"
    """By which score the best weights are chosen; with several labels a text, accuracy asks for all of them."""
    baselines: bool = True
    """Whether what simple classifiers reach is shown beside the scores."""


@dataclass(frozen=True)
class Labels:
    """The labels that a model knows, in the order of its scores."""

    names: tuple[str, ...]
    multiple: bool = False
    """Whether an example may have several, or none."""

    @classmethod
    def of(cls, found: Sequence[tuple[str, ...]], multiple: bool, where: str) -> "Labels":
        """Those of the training examples, by name; numbers by size."""
        names = sorted({name for labels in found for name in labels}, key=_order)
        if len(names) < 2 - multiple:
            only = f"the label {names[0]!r}" if names else "no label"
            raise QkvError(
                f"all {len(found):,} examples of {where} have {only}: give examples of at least two labels"
            )
        return cls(tuple(names), multiple)

    def matrix(self, found: Sequence[tuple[str, ...]], where: Sequence[str]) -> np.ndarray:
        """Which labels each example has, truth_NC; one that is not known is named with its place."""
        numbers = {name: number for number, name in enumerate(self.names)}
        truth_NC = np.zeros((len(found), len(self.names)), dtype=bool)
        for row, labels in enumerate(found):
            if len(labels) != 1 and not self.multiple:
                raise QkvError(
                    f"{where[row]} has {len(labels)} labels ({', '.join(labels)}): give it one, or say multiple = true in "
                    "the recipe, for texts with several"
                )
            for name in labels:
                if name not in numbers:
                    raise QkvError(
                        f"{where[row]} has the label {name!r}, which no training example has; they have "
                        f"{', '.join(self.names)}: correct it, or add examples to train on{nearest(name, self.names)}"
                    )
                truth_NC[row, numbers[name]] = True
        return truth_NC

    def text(self, chosen_C: np.ndarray) -> str:
        """The names of the chosen ones."""
        return ", ".join(name for name, chosen in zip(self.names, chosen_C, strict=True) if chosen)

    def chosen(self, logits_NC: np.ndarray) -> np.ndarray:
        """The likeliest label, or all that are likelier than not."""
        if self.multiple:
            return logits_NC > 0
        return np.arange(len(self.names)) == logits_NC.argmax(1)[:, None]

    def weights(self, truth_NC: np.ndarray, wanted: ClassWeights) -> np.ndarray:
        """How much the examples of each label count: balanced gives each label the same sum."""
        if wanted == "equal":
            return np.ones(len(self.names))
        if wanted == "balanced":
            return len(truth_NC) / (len(self.names) * np.maximum(truth_NC.sum(0), 1))
        assert isinstance(wanted, dict)
        for name, weight in wanted.items():
            if name not in self.names:
                known = ", ".join(self.names)
                raise QkvError(
                    f"class_weights has {name!r}; the labels are {known}: name one of them{nearest(name, self.names)}"
                )
            if not 0 < weight < np.inf:
                raise QkvError(f"class_weights.{name} is {weight}; give a number above 0, e.g. 2.0")
        return np.array([wanted.get(name, 1.0) for name in self.names])


def compare(truth_NC: np.ndarray, chosen_NC: np.ndarray, multiple: bool = False) -> dict[str, float]:
    """Accuracy and F1, in percent.

    Accuracy is the share of examples whose labels are all right. Macro-F1 is the mean over the labels that occur, in
    truth or among the guesses; micro-F1, for several labels, counts all of them alike.
    """
    right_C, guessed_C, true_C = _counts(truth_NC, chosen_NC)
    occurs_C = guessed_C + true_C > 0
    f1_C = 2 * right_C[occurs_C] / (guessed_C + true_C)[occurs_C]
    values = {
        "accuracy": 100 * float((truth_NC == chosen_NC).all(1).mean()),
        "macro_f1": 100 * float(f1_C.mean()) if len(f1_C) else 0.0,
    }
    if multiple:
        values["micro_f1"] = 200 * float(right_C.sum() / max(1, (guessed_C + true_C).sum()))
    return values


def loss_of(
    logits_BC: Tensor,
    truth_BC: Tensor,
    labels: Labels,
    weight_C: Tensor | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """Nats, summed over examples: of the one right label, or of all labels."""
    if labels.multiple:
        lost_BC = F.binary_cross_entropy_with_logits(logits_BC, truth_BC.float(), reduction="none")
        return (lost_BC if weight_C is None else lost_BC * weight_C).sum()
    label_B = truth_BC.int().argmax(1)
    return F.cross_entropy(logits_BC, label_B, weight_C, reduction="sum", label_smoothing=smoothing)


def scores(logits_NC: np.ndarray, truth_NC: np.ndarray, labels: Labels, best_by: str) -> Scores:
    """Loss in nats an example, accuracy and F1."""
    loss = loss_of(torch.from_numpy(logits_NC).double(), torch.from_numpy(truth_NC), labels).item()
    values = {
        "loss": loss / len(truth_NC),
        **compare(truth_NC, labels.chosen(logits_NC), labels.multiple),
    }
    return Scores(values, best_by, more_is_better=best_by != "loss")


def evaluation(
    logits_NC: np.ndarray,
    truth_NC: np.ndarray,
    labels: Labels,
    *,
    best_by: str,
    unit: str,
    reports: Sequence[Report],
) -> Evaluation:
    """Scores, each label by itself, and, where an example has one label, what is taken for what."""
    chosen_NC = labels.chosen(logits_NC)
    tables = {"by label": by_label(labels, truth_NC, chosen_NC)}
    if not labels.multiple:
        tables["confusion"] = confusion(labels, truth_NC, chosen_NC)
    return Evaluation(
        counts={"all": len(truth_NC)},
        scores={"all": scores(logits_NC, truth_NC, labels, best_by)},
        unit=unit,
        outputs=[labels.text(chosen_C) for chosen_C in chosen_NC],
        reports=reports,
        tables=tables,
    )


def output_rows(names: Sequence[str], before: Sequence[str]) -> dict[str, list[int | None]]:
    """For each row of a model's output, the row of the model to start from that has the same label."""
    known = {name: row for row, name in enumerate(before)}
    rows = [known.get(name) for name in names]
    return {"output.weight": rows, "output.bias": rows}


def by_label(labels: Labels, truth_NC: np.ndarray, chosen_NC: np.ndarray) -> list[list[str]]:
    """A table: precision, recall and F1 of each label, in percent, and how many examples have it."""
    right_C, guessed_C, true_C = _counts(truth_NC, chosen_NC)
    rows = [["label", "examples", "precision", "recall", "f1"]]
    for name, right, guessed, true in zip(labels.names, right_C, guessed_C, true_C, strict=True):
        shares = (right / max(1, guessed), right / max(1, true), 2 * right / max(1, guessed + true))
        rows.append([name, f"{true:,}", *(f"{100 * share:.2f}" for share in shares)])
    return rows


def confusion(labels: Labels, truth_NC: np.ndarray, chosen_NC: np.ndarray) -> list[list[str]]:
    """A table: how often the label of a row was taken for that of a column."""
    count = len(labels.names)
    pairs_N = truth_NC.argmax(1) * count + chosen_NC.argmax(1)
    counts_CC = np.bincount(pairs_N, minlength=count * count).reshape(count, count)
    rows = [["true ↓ guessed →", *labels.names]]
    return rows + [
        [name, *(f"{count:,}" for count in counts_C)]
        for name, counts_C in zip(labels.names, counts_CC, strict=True)
    ]


def _counts(truth_NC: np.ndarray, chosen_NC: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (truth_NC & chosen_NC).sum(0), chosen_NC.sum(0), truth_NC.sum(0)


def _order(name: str) -> tuple[bool, int, str]:
    return not name.isdecimal(), int(name) if name.isdecimal() else 0, name
