"""Token embeddings, and a table that the output shares."""

import pytest
import torch
from torch.nn import functional as F

from qkv.blocks.embed import Embedding
from qkv.errors import QkvError


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


def test_both_uses_send_gradients_to_the_one_table():
    embedding = Embedding(vocabulary=5, width=2, scale=False)
    F.linear(embedding(torch.tensor([[1]])), embedding.table)[0, 0, 3].backward()
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
    x = F.layer_norm(torch.randn(50, 1, width), (width,))
    assert F.linear(x, embedding.table).std().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("tokens", [[[11]], [[-1]], [[0.5]]])
def test_what_is_no_id_of_the_vocabulary_is_named(tokens: list[list[float]]):
    with pytest.raises(QkvError, match=r"token ids run from|tokens are torch.float32"):
        Embedding(vocabulary=11, width=2)(torch.tensor(tokens))
