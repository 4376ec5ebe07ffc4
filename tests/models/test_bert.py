"""BERT: the same numbers as Hugging Face's in every choice, and heads by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models.bert import Bert, BertClassifier, BertClassifierConfig, BertConfig, BertMasked

B, T, L, D, C = 3, 7, 13, 10, 4
KEEP = torch.arange(T) < torch.tensor([7, 4, 2])[:, None]
SIZES: dict[str, Any] = {"vocabulary": L, "width": D, "hidden": 11, "heads": 5, "layers": 3, "length": 9}


def tokens() -> Tensor:
    torch.manual_seed(1)
    return torch.randint(L, (B, T))


def theirs(kind: str, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=L,
        hidden_size=D,
        intermediate_size=11,
        num_attention_heads=5,
        num_hidden_layers=3,
        max_position_embeddings=9,
        type_vocab_size=3,
        num_labels=C,
        **options,
    )
    torch.manual_seed(2)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for weight in model.parameters():  # norms of one and biases of zero would hide a mistake
            weight.normal_(std=0.3)
    return model


# Their names, and ours.
NAMES = [
    ("bert.embeddings.word_embeddings.weight", "bert.embedding.table"),
    ("bert.embeddings.position_embeddings.weight", "bert.positions.table"),
    ("bert.embeddings.token_type_embeddings.weight", "bert.segments.table"),
    ("bert.embeddings.LayerNorm", "bert.embedding_norm"),
    ("bert.encoder.layer.", "bert.encoder."),
    (".attention.self.", ".own."),
    (".attention.output.dense", ".own.out"),
    (".attention.output.LayerNorm", ".own_norm"),
    (".intermediate.dense", ".feedforward.up"),
    (".output.dense", ".feedforward.down"),
    (".output.LayerNorm", ".feedforward_norm"),
    ("bert.pooler.dense", "pooler"),
    ("classifier", "output"),
    ("cls.predictions.transform.dense", "transform"),
    ("cls.predictions.transform.LayerNorm", "transform_norm"),
    ("cls.predictions.bias", "bias"),
]


def renamed(model: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, tensor in model.state_dict().items():
        for before, after in NAMES:
            name = name.replace(before, after)
        found[name] = tensor
    return {
        name: tensor
        for name, tensor in found.items()
        if not name.startswith("cls.") and "position_ids" not in name
    }


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_the_classifier_is_hugging_face_s(activation: str):
    other = theirs("BertForSequenceClassification", hidden_act=activation)
    ours = BertClassifier(BertClassifierConfig(**SIZES, segments=3, labels=C, activation=activation)).eval()
    ours.load_state_dict(renamed(other))
    segments = torch.randint(3, (B, T))
    for given in (None, segments):
        wanted = other(tokens(), attention_mask=KEEP.long(), token_type_ids=given).logits
        torch.testing.assert_close(ours(tokens(), KEEP, given), wanted, rtol=1e-5, atol=1e-5)


def test_the_masked_model_is_hugging_face_s():
    other = theirs("BertForMaskedLM")
    ours = BertMasked(BertConfig(**SIZES, segments=3)).eval()
    ours.load_state_dict(renamed(other))
    asked = KEEP & (torch.rand(B, T) < 0.5)
    wanted = other(tokens(), attention_mask=KEEP.long()).logits[asked]
    torch.testing.assert_close(ours(tokens(), KEEP, asked), wanted, rtol=1e-5, atol=1e-5)
    hidden = other.bert(tokens(), attention_mask=KEEP.long()).last_hidden_state
    torch.testing.assert_close(ours.read(tokens(), KEEP)[KEEP], hidden[KEEP], rtol=1e-5, atol=1e-5)


def test_the_pools_by_hand():
    x = torch.randn(B, T, D)
    for pool in ("class", "average"):
        model = BertClassifier(BertClassifierConfig(**SIZES, labels=C, pool=pool)).eval()
        assert model.pooler is not None
        wanted = (
            x[:, 0]
            if pool == "class"
            else torch.stack([row[keep].mean(0) for row, keep in zip(x, KEEP, strict=True)])
        )
        torch.testing.assert_close(model.pooled(x, KEEP), torch.tanh(model.pooler(wanted)))
        bare = BertClassifier(BertClassifierConfig(**SIZES, labels=C, pool=pool, pooler=False)).eval()
        torch.testing.assert_close(bare.pooled(x, KEEP), wanted)


def test_segments_tell_parts_apart_and_without_any_they_are_refused():
    torch.manual_seed(0)
    model = Bert(BertConfig(**SIZES)).eval()
    none = torch.zeros(B, T, dtype=torch.long)
    x = model.read(tokens(), KEEP)
    assert torch.equal(x, model.read(tokens(), KEEP, none))
    assert not torch.allclose(x, model.read(tokens(), KEEP, none + 1))
    with pytest.raises(QkvError, match=r"tells no segments apart: .*model\.segments=2"):
        Bert(BertConfig(**SIZES, segments=0)).read(tokens(), KEEP, none)


@pytest.mark.parametrize("order", ["pre", "post"])
def test_the_stream_ends_normalised(order: Any):
    x = Bert(BertConfig(**SIZES, order=order)).eval().read(tokens(), KEEP)
    torch.testing.assert_close(x.mean(-1), torch.zeros(B, T), rtol=0, atol=1e-5)
    torch.testing.assert_close(x.var(-1, unbiased=False), torch.ones(B, T), rtol=0, atol=1e-4)


def test_grid_positions_are_for_pictures():
    with pytest.raises(QkvError, match="positions is 'grid', which is for pictures"):
        BertConfig(**{**SIZES, "positions": "grid"})
