"""Token embeddings and the logits that share their table."""

import pytest
import torch

from qkv.blocks.embed import Embedding


def test_rows_of_the_table_times_the_root_of_the_width():
    embedding = Embedding(vocabulary=11, width=9)
    token = torch.tensor([[0, 10, 3], [3, 3, 7]])
    out = embedding(token)
    assert out.shape == (2, 3, 9)
    torch.testing.assert_close(out[0, 1], embedding.table[10] * 3)  # sqrt(9)
    torch.testing.assert_close(out[1, 1], embedding.table[3] * 3)


def test_without_scale():
    embedding = Embedding(vocabulary=11, width=9, scale=False)
    assert torch.equal(embedding(torch.tensor([[4]]))[0, 0], embedding.table[4])


def test_logits_are_products_with_the_same_table():
    embedding = Embedding(vocabulary=11, width=7).double()
    x = torch.randn(3, 5, 7, dtype=torch.float64)
    logits = embedding.logits(x)
    assert logits.shape == (3, 5, 11)
    for token in range(11):
        torch.testing.assert_close(logits[..., token], (x * embedding.table[token]).sum(-1))
    assert [name for name, _ in embedding.named_parameters()] == ["table"]


def test_both_uses_send_gradients_to_the_one_table():
    embedding = Embedding(vocabulary=5, width=2, scale=False)
    embedding.logits(embedding(torch.tensor([[1]])))[0, 0, 3].backward()
    # The logit is e1 · e3: its gradient is e3 at row 1 and e1 at row 3.
    assert embedding.table.grad is not None
    wanted = torch.zeros(5, 2)
    wanted[1], wanted[3] = embedding.table[3].detach(), embedding.table[1].detach()
    torch.testing.assert_close(embedding.table.grad, wanted)


@pytest.mark.parametrize("width", [16, 512])
def test_embeddings_start_with_unit_variance_and_so_do_the_logits_of_a_normed_input(width: int):
    torch.manual_seed(0)
    embedding = Embedding(vocabulary=2000, width=width)
    assert embedding(torch.arange(2000)[None]).std().item() == pytest.approx(1, abs=0.05)
    x = torch.nn.functional.layer_norm(torch.randn(50, 1, width), (width,))
    assert embedding.logits(x).std().item() == pytest.approx(1, abs=0.05)
