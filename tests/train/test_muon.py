"""Muon is that of torch, and its updates are nearly orthogonal."""

import pytest
import torch
from torch import nn

from qkv.train.muon import Muon, orthogonal

SHAPES = [(3, 5), (7, 3), (5, 5), (3, 5), (11, 7), (7, 11), (7, 3)]


def matrices() -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(5)
    return [nn.Parameter(torch.randn(shape, generator=random)) for shape in SHAPES]


def test_it_is_the_one_of_torch():
    """Which takes one matrix after another; ours takes those of one shape together, and bf16 rounds them alike."""
    ours, theirs = matrices(), matrices()
    one = Muon(ours, lr=0.1, momentum=0.9, weight_decay=0.3)
    other = torch.optim.Muon(theirs, lr=0.1, momentum=0.9, weight_decay=0.3)
    random = torch.Generator().manual_seed(6)
    for _ in range(5):
        for mine, yours in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=random)
            yours.grad = mine.grad.clone()
        one.step()
        other.step()
    for mine, yours, before in zip(ours, theirs, matrices(), strict=True):
        moved = (mine - before).norm()
        assert (mine - yours).norm() < 0.02 * moved


@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (11, 11), (3, 2)])
def test_directions_stay_and_no_singular_value_dominates(shape: tuple[int, int]):
    random = torch.Generator().manual_seed(2)
    u, _, vh = torch.linalg.svd(torch.randn(2, *shape, generator=random), full_matrices=False)
    values = torch.linspace(0.1, 5.0, min(shape))
    made = orthogonal((u * values) @ vh).float()
    inside = u.mT @ made @ vh.mT  # diagonal, if the directions are the same
    diagonal = inside.diagonal(dim1=-2, dim2=-1)
    assert diagonal.min() > 0.6
    assert diagonal.max() < 1.25
    assert (inside - diagonal.diag_embed()).abs().max() < 0.05


def test_each_matrix_of_a_stack_is_on_its_own():
    x = torch.randn(3, 5, 7)
    x[1] *= 1000
    together = orthogonal(x)
    for number in range(3):
        torch.testing.assert_close(
            together[number], orthogonal(x[number : number + 1])[0], rtol=0.02, atol=0.02
        )


def test_a_matrix_without_a_gradient_stays_and_zeros_give_zeros():
    first, second, third = (nn.Parameter(torch.ones(3, 5)) for _ in range(3))
    first.grad, third.grad = torch.zeros(3, 5), torch.eye(3, 5)
    Muon([first, second, third], lr=0.1, momentum=0.5, weight_decay=0.0).step()
    assert torch.equal(first, torch.ones(3, 5))
    assert torch.equal(second, torch.ones(3, 5))
    assert (1 - third.detach().diagonal() > 0.05).all()


def test_tall_matrices_move_further():
    """√(rows / columns) where there are more rows: the change of the output is then as large for each shape."""
    tall, wide = nn.Parameter(torch.zeros(20, 5)), nn.Parameter(torch.zeros(5, 20))
    gradient = torch.randn(20, 5)
    tall.grad, wide.grad = gradient, gradient.T.clone()
    Muon([tall, wide], lr=0.1, momentum=0.5, weight_decay=0.0).step()
    torch.testing.assert_close(tall.detach(), 2 * wide.detach().T, rtol=0.02, atol=0.002)
