"""What classifiers without a network reach on the same texts: always the commonest label, and words with weights.

Axes: N texts, V words and pairs of words, C labels.

The second is logistic regression on TF-IDF of words and pairs of neighbours, what scikit-learn's TfidfVectorizer
(ngram_range=(1, 2), sublinear_tf=True) and LogisticRegression find: the loss is convex, so there is one answer, and 60
lines here spare every user an installation of 150 MB.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.tasks.shared.labels import Labels

_WORD = re.compile(r"\w+|[^\w\s]")
_STRENGTH = 10.0  # C of scikit-learn: how much the examples count against short weights


def majority(truth_NC: np.ndarray, labels: Labels) -> np.ndarray:
    """The labels to choose for every text, chosen_C: the commonest one, or all that most texts have."""
    share_C = truth_NC.mean(0)
    return share_C > 0.5 if labels.multiple else np.arange(len(share_C)) == share_C.argmax()


class WordWeights:
    """TF-IDF and logistic regression, learnt from some texts."""

    def __init__(self, texts: Sequence[str], truth_NC: np.ndarray, labels: Labels):
        self.labels = labels
        counted = [_count(text) for text in texts]
        found = dict.fromkeys(term for terms in counted for term in terms)
        self.columns = {term: column for column, term in enumerate(found)}
        texts_V = np.zeros(len(self.columns))
        for terms in counted:
            texts_V[[self.columns[term] for term in terms]] += 1
        # Spärck Jones 1972, smoothed as if one more text had every word
        self.rarity_V = np.log((1 + len(texts)) / (1 + texts_V)) + 1
        words, truth = self._words(counted), torch.from_numpy(truth_NC)
        self.weight_VC = torch.zeros(len(self.columns), truth_NC.shape[1], dtype=torch.float64)
        self.bias_C = torch.zeros(truth_NC.shape[1], dtype=torch.float64)
        self._fit(words, truth)

    def logits(self, texts: Sequence[str]) -> np.ndarray:
        """Scores of the labels of these texts, logits_NC; words that were not learnt count nothing."""
        return self._score(self._words([_count(text) for text in texts])).numpy()

    def _score(self, words: "_Words") -> Tensor:
        weighed_NC = F.embedding_bag(
            words.columns, self.weight_VC, words.starts, mode="sum", per_sample_weights=words.values
        )
        return weighed_NC + self.bias_C

    def _loss(self, words: "_Words", truth_NC: Tensor) -> Tensor:
        """What is least at the weights that are learnt."""
        logits_NC = self._score(words)
        if self.labels.multiple:
            lost = F.binary_cross_entropy_with_logits(logits_NC, truth_NC.double(), reduction="sum")
        else:
            lost = F.cross_entropy(logits_NC, truth_NC.double().argmax(1), reduction="sum")
        return _STRENGTH * lost + self.weight_VC.square().sum() / 2

    def _fit(self, words: "_Words", truth_NC: Tensor) -> None:
        weights = [self.weight_VC.requires_grad_(), self.bias_C.requires_grad_()]
        search = torch.optim.LBFGS(
            weights, max_iter=200, tolerance_grad=1e-4, history_size=10, line_search_fn="strong_wolfe"
        )

        def evaluate() -> Tensor:
            search.zero_grad()
            loss = self._loss(words, truth_NC)
            loss.backward()
            return loss

        with torch.enable_grad():
            search.step(evaluate)  # pyright: ignore[reportArgumentType] - a tensor is as good as its value
        for weight in weights:
            weight.requires_grad_(False)

    def _words(self, counted: Sequence[Counter[str]]) -> "_Words":
        """TF-IDF of each text, of length 1."""
        columns, values, starts = [np.zeros(0, np.int64)], [np.zeros(0)], [0]
        for terms in counted:
            known = [term for term in terms if term in self.columns]
            column_K = np.array([self.columns[term] for term in known], dtype=np.int64)
            value_K = (1 + np.log([terms[term] for term in known])) * self.rarity_V[column_K]
            columns.append(column_K)
            values.append(value_K / max(np.linalg.norm(value_K), 1e-12))
            starts.append(starts[-1] + len(known))
        parts = np.concatenate(columns), np.concatenate(values), np.array(starts[:-1], dtype=np.int64)
        return _Words(*map(torch.from_numpy, parts))


class _Words(NamedTuple):
    """A sparse matrix, row after row: the columns and values that are not zero, and where each row starts."""

    columns: Tensor
    values: Tensor
    starts: Tensor


def _count(text: str) -> Counter[str]:
    """How often each word, and each pair of neighbours, stands in a text."""
    words = _WORD.findall(text.lower())
    return Counter([*words, *(" ".join(pair) for pair in pairwise(words))])
