"""Scores of labels, against counting by hand; names, weights and what is wrong with labels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import QkvError
from qkv.tasks.shared.labels import Labels, by_label, compare, confusion


def onehot(numbers: list[int], labels: int = 3) -> np.ndarray:
    return np.eye(labels, dtype=bool)[numbers]


def test_by_hand():
    truth, guess = onehot([0, 0, 0, 1, 1, 2]), onehot([0, 0, 1, 1, 2, 2])
    # F1 is 2·right / (guessed + true): 4/5, 2/4, 2/3
    assert compare(truth, guess) == pytest.approx(
        {"accuracy": 100 * 4 / 6, "macro_f1": 100 * (4 / 5 + 2 / 4 + 2 / 3) / 3}
    )
    labels = Labels(("x", "y", "z"))
    assert confusion(labels, truth, guess)[1:] == [
        ["x", "2", "1", "0"],
        ["y", "0", "1", "1"],
        ["z", "0", "0", "1"],
    ]
    assert by_label(labels, truth, guess)[1] == ["x", "3", "100.00", "66.67", "80.00"]


def test_a_label_that_does_not_occur_does_not_count():
    assert compare(onehot([0, 1]), onehot([0, 1])) == {"accuracy": 100, "macro_f1": 100}


def test_several_labels_by_hand():
    truth = np.array([[1, 1, 0], [0, 0, 0], [0, 1, 0]], dtype=bool)
    guess = np.array([[1, 0, 0], [0, 0, 0], [0, 1, 1]], dtype=bool)
    # F1: 2/2, 2/3, 0/1; all together 2·2 / (3 + 3)
    assert compare(truth, guess, multiple=True) == pytest.approx(
        {"accuracy": 100 / 3, "macro_f1": 100 * (1 + 2 / 3) / 3, "micro_f1": 100 * 4 / 6}
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_counting_one_by_one_agrees(pairs: list[tuple[int, int]]):
    found = compare(onehot([t for t, _ in pairs], 4), onehot([g for _, g in pairs], 4))
    f1 = []
    for label in sorted({label for pair in pairs for label in pair}):
        right = sum(t == g == label for t, g in pairs)
        precision = right / max(1, sum(g == label for _, g in pairs))
        recall = right / max(1, sum(t == label for t, _ in pairs))
        f1.append(2 * precision * recall / (precision + recall) if right else 0.0)
    assert found["macro_f1"] == pytest.approx(100 * sum(f1) / len(f1))
    assert found["accuracy"] == pytest.approx(100 * sum(t == g for t, g in pairs) / len(pairs))


def test_names_are_sorted_and_numbers_by_size():
    assert Labels.of([("b",), ("10",), ("a",), ("9",)], False, "x").names == ("9", "10", "a", "b")


def test_chosen_is_the_likeliest_or_all_that_are_likely():
    logits = np.array([[1.0, 2.0, -1.0], [-3.0, -2.0, -1.0]])
    assert Labels(("a", "b", "c")).chosen(logits).tolist() == [[False, True, False], [False, False, True]]
    assert Labels(("a", "b", "c"), True).chosen(logits).tolist() == [[True, True, False], [False] * 3]


def test_balanced_weights_give_each_label_the_same_sum():
    truth = onehot([0, 0, 0, 1, 2, 2])
    labels = Labels(("a", "b", "c"))
    weights = labels.weights(truth, "balanced")
    assert (weights * truth.sum(0)).tolist() == pytest.approx([2.0, 2.0, 2.0])
    assert labels.weights(truth, "equal").tolist() == [1, 1, 1]
    assert labels.weights(truth, {"b": 4.0}).tolist() == [1, 4, 1]


def test_what_is_wrong_with_labels_is_said():
    with pytest.raises(
        QkvError, match=r"all 2 examples of a\.txt have the label 'x': give examples of at least two"
    ):
        Labels.of([("x",), ("x",)], False, "a.txt")
    labels = Labels(("positive", "negative"))
    with pytest.raises(
        QkvError, match=r"a line 3 has the label 'postive', which no training.*did you mean 'positive'\?"
    ):
        labels.matrix([("postive",)], ["a line 3"])
    with pytest.raises(
        QkvError, match=r"a line 3 has 2 labels \(positive, negative\): give it one, or say multiple"
    ):
        labels.matrix([("positive", "negative")], ["a line 3"])
    with pytest.raises(QkvError, match=r"class_weights has 'postive'.*did you mean"):
        labels.weights(np.eye(2, dtype=bool), {"postive": 2.0})
    with pytest.raises(QkvError, match=r"class_weights\.positive is 0\.0; give a number above 0"):
        labels.weights(np.eye(2, dtype=bool), {"positive": 0.0})
