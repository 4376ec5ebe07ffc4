"""The loss over a vocabulary against a float64 loop and torch's own."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import crossentropy
from qkv.blocks.crossentropy import cross_entropy
from qkv.errors import QkvError

N, D, L = 11, 5, 7


def data(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    x, table = torch.randn(N, D, dtype=dtype), torch.randn(L, D, dtype=dtype)
    return x.requires_grad_(), table.requires_grad_(), torch.randint(L, (N,))


def by_hand(x: Tensor, table: Tensor, labels: Tensor, smoothing: float) -> float:
    x, table, total = x.tolist(), table.tolist(), 0.0
    for n in range(len(x)):
        scores = [sum(x[n][d] * table[token][d] for d in range(D)) for token in range(L)]
        log_z = math.log(sum(math.exp(s) for s in scores))
        for token in range(L):
            wanted = smoothing / L + (1 - smoothing) * (token == int(labels[n]))
            total -= wanted * (scores[token] - log_z)
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_it_is_the_sum_that_the_equation_says(smoothing: float):
    x, table, labels = data()
    assert cross_entropy(x, table, labels, smoothing).item() == pytest.approx(
        by_hand(x, table, labels, smoothing), rel=1e-12
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_gradients_are_exact_however_it_is_cut(chunk: int, smoothing: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(crossentropy, "_CHUNK", chunk * L)
    x, table, labels = data()
    assert torch.autograd.gradcheck(lambda a, b: 3 * cross_entropy(a, b, labels, smoothing), (x, table))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_lower_precision_is_close_to_torch_in_float64(dtype: torch.dtype, tolerance: float):
    x, table, labels = data()
    F.cross_entropy(x @ table.mT, labels, label_smoothing=0.1, reduction="sum").backward()
    low_x, low_table = x.detach().to(dtype).requires_grad_(), table.detach().to(dtype).requires_grad_()
    loss = cross_entropy(low_x, low_table, labels, 0.1)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(by_hand(x, table, labels, 0.1), rel=tolerance)
    for low, exact in ((low_x.grad, x.grad), (low_table.grad, table.grad)):
        assert low.dtype == dtype
        torch.testing.assert_close(low.double(), exact, rtol=tolerance, atol=tolerance)


def test_a_table_of_another_precision_gets_its_gradient_in_its_own():
    x, table, labels = data(torch.float32)
    loss = cross_entropy(x.bfloat16(), table, labels)
    loss.backward()
    assert table.grad.dtype == x.grad.dtype == torch.float32


def test_a_label_without_any_probability_still_has_a_finite_loss():
    x = torch.tensor([[1.0]], requires_grad=True)
    table = torch.tensor([[200.0], [0.0]])
    loss = cross_entropy(x, table, torch.tensor([1]))
    loss.backward()
    assert loss.item() == pytest.approx(200)
    assert x.grad.item() == pytest.approx(200)


def test_what_is_not_a_number_shows():
    x, table, labels = data()
    with torch.no_grad():
        x[3, 2] = math.nan
    assert cross_entropy(x, table, labels).isnan()


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (torch.tensor([0, -1, 2]), "labels run from -1 to 2; the vocabulary has"),
        (torch.tensor([0, 500, 2]), "labels run from 0 to 500"),
        (torch.tensor([1]), "of shape (1,); torch.int64 of shape"),
        (torch.tensor([0.0, 1.0, 2.0]), "the labels are torch.float32"),
    ],
)
def test_labels_that_do_not_fit_are_named(labels: Tensor, sentence: str):
    x_ND, table_LD = torch.randn(3, 5), torch.randn(7, 5)
    with pytest.raises(QkvError) as caught:
        cross_entropy(x_ND, table_LD, labels)
    assert sentence in str(caught.value)
    with pytest.raises(QkvError, match=r"of one width are wanted"):
        cross_entropy(x_ND[:, :4], table_LD, torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("size", [1.0, 40.0, 3000.0])
def test_scores_of_any_size_neither_overflow_nor_vanish(size: float):
    x, table, labels = data()
    scaled = (size * x.detach()).requires_grad_()
    loss = cross_entropy(scaled, table, labels, 0.1)
    assert loss.item() == pytest.approx(
        F.cross_entropy(scaled @ table.mT, labels, label_smoothing=0.1, reduction="sum").item(), rel=1e-12
    )
    shifted = cross_entropy(scaled, table - 500 * scaled[:1].detach() / scaled[:1].norm() ** 2, labels)
    assert shifted.isfinite()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss + shifted, (scaled, table)))
