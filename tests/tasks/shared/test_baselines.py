"""The baselines are what they say: the least of their loss, by numpy in float64, and scikit-learn's where it is."""

from itertools import pairwise

import numpy as np
import pytest

from qkv.tasks.shared.baselines import WordWeights, majority
from qkv.tasks.shared.labels import Labels

TEXTS = ["good good film", "a bad film", "good plot , bad end", "bad bad bad", "fine", "a film"]
TRUTH = np.eye(3, dtype=bool)[[0, 1, 2, 1, 0, 2]]
LABELS = Labels(("a", "b", "c"))


def tf_idf(texts: list[str]) -> tuple[np.ndarray, list[str]]:
    """As its definition says, cell by cell."""
    words = [text.split() for text in texts]
    terms = [[*one, *(f"{a} {b}" for a, b in pairwise(one))] for one in words]
    known = sorted({term for one in terms for term in one})
    x = np.zeros((len(texts), len(known)))
    for row, one in enumerate(terms):
        for column, term in enumerate(known):
            if term in one:
                rarity = np.log((1 + len(texts)) / (1 + sum(term in other for other in terms))) + 1
                x[row, column] = (1 + np.log(one.count(term))) * rarity
    return x / np.linalg.norm(x, axis=1, keepdims=True), known


@pytest.mark.parametrize("multiple", [False, True])
def test_no_weights_have_a_lesser_loss(multiple: bool):
    model = WordWeights(TEXTS, TRUTH, Labels(LABELS.names, multiple))
    x, known = tf_idf(TEXTS)
    weight, bias = model.weight_VC.numpy()[[model.columns[term] for term in known]], model.bias_C.numpy()
    logits = x @ weight + bias
    np.testing.assert_allclose(model.logits(TEXTS), logits, atol=1e-12)
    if multiple:
        likely = 1 / (1 + np.exp(-logits))
    else:
        likely = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    # The loss is convex, so where its gradient vanishes it is least: 10 · Xᵀ(p - y) + w = 0
    np.testing.assert_allclose(10 * x.T @ (likely - TRUTH) + weight, 0, atol=1e-3)
    np.testing.assert_allclose(10 * (likely - TRUTH).sum(0), 0, atol=1e-3)


def test_scikit_learn_finds_the_same():
    linear = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    text = pytest.importorskip("sklearn.feature_extraction.text")
    words = text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    theirs = linear.LogisticRegression(C=10.0, tol=1e-8, max_iter=1000)
    theirs.fit(words.fit_transform(TEXTS), TRUTH.argmax(1))
    new = ["good bad film", "nothing known", "a fine plot"]
    ours = WordWeights(TEXTS, TRUTH, LABELS).logits(new)
    theirs = theirs.decision_function(words.transform(new))
    np.testing.assert_allclose(
        ours - ours.mean(1, keepdims=True), theirs - theirs.mean(1, keepdims=True), atol=1e-3
    )


def test_the_commonest_label():
    assert majority(TRUTH[:4], LABELS).tolist() == [False, True, False]
    several = np.array([[1, 0], [1, 1], [0, 0]], dtype=bool)
    assert majority(several, Labels(("x", "y"), True)).tolist() == [True, False]


def test_texts_of_unknown_words_get_the_bias_alone():
    model = WordWeights(TEXTS, TRUTH, LABELS)
    assert model.logits(["zzz", ""]).tolist() == [model.bias_C.tolist()] * 2
    assert model.logits([]).shape == (0, 3)
