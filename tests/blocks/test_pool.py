"""Pools: what they compute, and that padding never counts."""

import pytest
import torch
from torch import Tensor

from qkv.attention.heads import AttentionConfig
from qkv.blocks.feedforward import FeedForward
from qkv.blocks.pool import POOLS, AttentionPool, ClassToken, GlobalAverage, GlobalMax, Pool
from qkv.errors import QkvError

B, T, D = 3, 5, 14
KEEP = torch.arange(T) < torch.tensor([5, 3, 1])[:, None]


def build(kind: str) -> Pool:
    torch.manual_seed(0)
    return POOLS[kind].sized(width=D, heads=7, hidden=11).double()


def tokens() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(B, T, D, dtype=torch.float64)


@pytest.mark.parametrize("kind", POOLS)
def test_one_vector_per_example(kind: str):
    pool = build(kind)
    x, keep = pool.prepend(tokens(), KEEP)
    assert keep is not None
    assert keep.shape == x.shape[:2]
    assert pool(x, keep).shape == (B, D)
    assert pool(*pool.prepend(tokens())).shape == (B, D)


@pytest.mark.parametrize(
    ("kind", "rubbish"), [*((kind, 1e6) for kind in POOLS), ("average", torch.inf), ("average", torch.nan)]
)
def test_padding_never_counts(kind: str, rubbish: float):
    pool = build(kind)
    x, keep = pool.prepend(tokens(), KEEP)
    assert keep is not None
    dirty = x.masked_fill(~keep.unsqueeze(-1), rubbish)
    torch.testing.assert_close(pool(dirty, keep), pool(x, keep), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", POOLS)
def test_a_padded_example_equals_the_example_alone(kind: str):
    pool = build(kind)
    batch = pool(*pool.prepend(tokens(), KEEP))
    for row, length in enumerate([5, 3, 1]):
        alone = pool(*pool.prepend(tokens()[row : row + 1, :length]))
        torch.testing.assert_close(batch[row : row + 1], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", POOLS)
def test_everything_learned_gets_a_gradient(kind: str):
    pool, x = build(kind), tokens().requires_grad_()
    (pool(*pool.prepend(x, KEEP)) ** 2).sum().backward()
    for name, parameter in pool.named_parameters():
        assert parameter.grad is not None, name
        # Softmax does not see what is added to all its scores, as a bias of the keys is.
        assert parameter.grad.abs().sum() > 0 or name.endswith("key.bias"), name


def test_class_token_stands_in_front_of_each_example():
    pool = ClassToken(width=D).double()
    x, keep = pool.prepend(tokens(), KEEP)
    assert x.shape == (B, 1 + T, D)
    assert torch.equal(x[:, 0], pool.token.expand(B, D))
    assert torch.equal(x[:, 1:], tokens())
    assert keep is not None
    assert keep[:, 0].all()
    assert torch.equal(keep[:, 1:], KEEP)
    assert torch.equal(pool(x, keep), x[:, 0])


def test_average_by_hand():
    x = torch.tensor([[[1.0], [3.0], [8.0]], [[1.0], [3.0], [8.0]]])
    keep = torch.tensor([[True, True, False], [False, False, False]])
    assert GlobalAverage()(x, keep).tolist() == [[2.0], [0.0]]
    assert GlobalAverage()(x).tolist() == [[4.0], [4.0]]


def test_max_by_hand():
    x = torch.tensor([[[-1.0, 5.0], [-3.0, 2.0], [8.0, 9.0]], [[1.0, 1.0], [3.0, 3.0], [8.0, 8.0]]])
    keep = torch.tensor([[True, True, False], [False, False, False]])
    assert GlobalMax()(x, keep).tolist() == [[-1.0, 5.0], [0.0, 0.0]]
    assert GlobalMax()(x).tolist() == [[8.0, 9.0], [8.0, 8.0]]


def test_attention_pool_with_a_zero_probe_is_the_average_projected():
    pool = AttentionPool(AttentionConfig(width=D, heads=7, bias=False)).double()
    torch.nn.init.zeros_(pool.probe)
    average = GlobalAverage()(tokens(), KEEP).unsqueeze(1)
    # One token only: all weight is on it, so that attention is its projections alone.
    torch.testing.assert_close(pool(tokens(), KEEP), pool.attention(average).squeeze(1), rtol=0, atol=1e-12)


def test_attention_pool_adds_its_mlp():
    pool = build("attention")
    assert isinstance(pool, AttentionPool)
    assert pool.mlp is not None
    mlp, pool.mlp = pool.mlp, None
    bare = pool(tokens(), KEEP)
    normed = torch.nn.functional.layer_norm(bare, (D,))
    feedforward = mlp[1]
    assert isinstance(feedforward, FeedForward)
    wanted = bare + feedforward.down(torch.nn.functional.gelu(feedforward.up(normed)))
    pool.mlp = mlp
    torch.testing.assert_close(pool(tokens(), KEEP), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", POOLS)
def test_an_example_without_a_batch_is_refused(kind: str):
    pool = build(kind)
    with pytest.raises(QkvError, match=r"^x has shape \(5, 14\); \(batch, length, width\) is wanted"):
        pool(*pool.prepend(tokens()[0]))


def test_the_class_token_refuses_what_it_does_not_fit():
    with pytest.raises(QkvError, match=r"the class token width"):
        build("class").prepend(tokens()[..., :5])
    with pytest.raises(QkvError, match=r"there is no first token"):
        build("class")(tokens()[:, :0])


def test_class_token_refuses_a_mask_of_another_kind():
    with pytest.raises(QkvError, match=r"torch.bool of shape \(3, 5\) is wanted"):
        build("class").prepend(tokens(), KEEP.long())


@pytest.mark.parametrize("kind", ["average", "max", "attention"])
@pytest.mark.parametrize("keep", [KEEP.long(), KEEP.T, KEEP[:, :3]])
def test_a_mask_of_another_kind_is_refused(kind: str, keep: Tensor):
    with pytest.raises(QkvError, match=r"torch.bool of shape \(3, 5\) is wanted"):
        build(kind)(tokens(), keep)
