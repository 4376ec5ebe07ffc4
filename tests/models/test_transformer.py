"""The Transformer: cached decoding for every choice, nn.Transformer with the same weights, sizes counted by hand."""

from itertools import cycle, product
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qkv import QkvError, masks, watch
from qkv.attention.positions import POSITIONS
from qkv.models.transformer import PRESETS, Transformer, TransformerConfig

B, S, T, D, H, L, M = 3, 7, 5, 24, 4, 17, 19  # M tokens in the source's vocabulary
KEEP = torch.arange(S) < torch.tensor([4, 7, 2])[:, None]
KINDS = sorted(POSITIONS.keys() - {"grid"})


def build(**choices: Any) -> Transformer:
    torch.manual_seed(0)
    plain: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 2, "tied": "none", "length": S}
    sizes = {"source_vocabulary": M, "target_vocabulary": L, "width": D, "hidden": 13, "heads": H}
    model = Transformer(TransformerConfig(**{**sizes, **plain, **choices})).double().eval()
    for parameter in model.parameters():  # a norm starts as ones and zeros, and could be taken for another
        nn.init.normal_(parameter, std=0.3)
    return model


def texts() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randint(min(L, M), (B, S)), torch.randint(L, (B, T))


def close(got: Tensor, wanted: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=atol)


CHOICES: list[dict[str, Any]] = [
    *(
        {"order": order, "norm": norm, "activation": activation, "groups": groups, "positions": kind}
        for (order, norm, activation, groups), kind in zip(
            product(("pre", "post"), ("layer", "rms"), ("relu", "gelu", "swiglu"), (None, 1, 2)),
            cycle(KINDS),
            strict=False,
        )
    ),
    *(
        {"positions": kind, "order": order, "groups": groups}
        for kind, order, groups in product(KINDS, ("pre", "post"), (None, 2))
    ),
    *({"positions": kind, "tied": "target"} for kind in KINDS),
    {"tied": "all", "source_vocabulary": L},
    {"encoder_layers": 0},
    {"decoder_layers": 1},
]


def name_of(choices: dict[str, Any]) -> str:
    return "-".join(str(value) for value in choices.values())


@pytest.mark.parametrize("choices", CHOICES, ids=name_of)
def test_step_by_step_equals_teacher_forcing_with_a_changing_beam(choices: dict[str, Any]):
    model, (source, target) = build(**choices), texts()
    with torch.no_grad():
        wanted = model.logits(model(source, KEEP, target))
        logits, state = model.step(target[:, :1], model.encode(source, KEEP))
        close(logits, wanted[:, 0])
        rows = torch.tensor([2, 2, 0, 0])  # a sentence dropped, the others swapped, two rows each
        state = state.pick(rows, 2)
        logits, state = model.step(target[rows, 1:3], state)
        close(logits, wanted[rows, 2])
        again = torch.tensor([1, 0, 0, 3, 2, 2])
        rows = rows[again]
        logits, state = model.step(target[rows, 3:], state.pick(again, 3))
        close(logits, wanted[rows, T - 1])


@pytest.mark.parametrize("positions", KINDS)
def test_nothing_leaks(positions: str):
    class TargetFirst(nn.Module):
        def __init__(self, model: Transformer):
            super().__init__()
            self.model = model

        def forward(self, target: Tensor, source: Tensor, keep: Tensor) -> Tensor:
            return self.model(source, keep, target)

    model, (source, target) = build(positions=positions), texts()
    masks.check_leaks(TargetFirst(model), target, source, KEEP)
    masks.check_leaks(model, source, KEEP, target, causal=False, keep_BT=KEEP)


def test_the_order_of_the_source_matters_only_through_positions():
    source, target = texts()
    everything = torch.ones_like(KEEP)
    for positions in KINDS:
        model = build(positions=positions)
        moved = (
            (model(source, everything, target) - model(source.roll(1, dims=1), everything, target))
            .abs()
            .max()
        )
        assert (moved < 1e-12) == (positions == "none"), positions


# ---- the same weights in torch ---------------------------------------------------------------------------------


def copied(model: Transformer, order: Literal["pre", "post"], activation: str) -> nn.Transformer:
    """torch's module with our weights, but for the embeddings; in pre-norm order with our two last norms."""
    c = model.config
    layer = {
        "d_model": D, "nhead": H, "dim_feedforward": c.hidden, "dropout": 0.0, "activation": activation,
        "batch_first": True, "norm_first": order == "pre",
    }  # fmt: skip
    ends = [nn.LayerNorm(D) if order == "pre" else None for _ in range(2)]
    theirs = nn.Transformer(
        D,
        H,
        batch_first=True,
        custom_encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**layer), c.encoder_layers, ends[0], enable_nested_tensor=False
        ),
        custom_decoder=nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), c.decoder_layers, ends[1]),
    )
    pairs: list[tuple[nn.Module | None, nn.Module]] = [
        (ends[0], model.encoder_norm),
        (ends[1], model.decoder_norm),
    ]
    for their, our in [
        *zip(theirs.encoder.layers, model.encoder, strict=True),
        *zip(theirs.decoder.layers, model.decoder, strict=True),
    ]:
        last = their.norm3 if our.config.cross else their.norm2
        their.self_attn = our.own.to_torch()
        pairs += [(their.norm1, our.own_norm), (last, our.feedforward_norm)]
        pairs += [(their.linear1, our.feedforward.up), (their.linear2, our.feedforward.down)]
        if our.config.cross:
            their.multihead_attn = our.cross.to_torch()
            pairs += [(their.norm2, our.cross_norm)]
    for their, our in pairs:
        if their is not None:
            their.to(model.output.weight).load_state_dict(our.state_dict())
    return theirs


def embedded(table: nn.Module, tokens: Tensor) -> Tensor:
    """√D times the token's vector, plus the waves of Vaswani et al. 2017, section 3.5."""
    vectors = table.table.detach()[tokens] * np.sqrt(D)
    for position in range(tokens.shape[1]):
        for channel in range(D):
            angle = position / 10000 ** (2 * (channel // 2) / D)
            vectors[:, position, channel] += np.cos(angle) if channel % 2 else np.sin(angle)
    return vectors


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("order", ["post", "pre"])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_torch_with_the_same_weights_agrees(
    order: Literal["pre", "post"], activation: str, dtype: torch.dtype, atol: float
):
    model, (source, target) = build(order=order, activation=activation).to(dtype), texts()
    theirs = copied(model, order, activation)
    wanted = theirs(
        embedded(model.source_embedding, source),
        embedded(model.target_embedding, target),
        src_key_padding_mask=~KEEP,
        memory_key_padding_mask=~KEEP,
        tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(1),  # True = may not attend
    )
    close(model(source, KEEP, target), wanted.to(dtype), atol)


# ---- tables, sizes, errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tied", "tables"), [("all", 1), ("target", 2), ("none", 3)])
def test_tied_tables_are_one(tied: str, tables: int):
    model = build(tied=tied, source_vocabulary=L)
    assert sum(parameter.shape == (L, D) for parameter in model.parameters()) == tables
    assert (model.source_embedding is model.target_embedding) == (tied == "all")


def count(joint: int, width: int, hidden: int, layers: int) -> int:
    """Parameters of an encoder and a decoder of so many layers, one table for all, pre-norm with its two last norms."""
    attention, norm = 4 * (width * width + width), 2 * width
    feedforward = 2 * width * hidden + hidden + width
    encoder_layer, decoder_layer = attention + feedforward + 2 * norm, 2 * attention + feedforward + 3 * norm
    return joint * width + layers * (encoder_layer + decoder_layer) + 2 * norm


@pytest.mark.parametrize(
    ("preset", "sizes"),
    [
        ("tiny", (128, 256, 4)),
        ("small", (256, 1024, 6)),
        ("base", (512, 2048, 6)),
        ("big", (1024, 4096, 6)),
    ],
)
def test_presets_have_as_many_parameters_as_counted_by_hand(preset: str, sizes: tuple[int, int, int]):
    config = TransformerConfig(source_vocabulary=8000, target_vocabulary=8000, **PRESETS[preset])
    with torch.device("meta"):
        have = sum(parameter.numel() for parameter in Transformer(config).parameters())
    assert have == count(8000, *sizes)
    assert preset != "tiny" or have <= 4_000_000


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"positions": "rotray"}, "did you mean 'rotary'"),
        ({"positions": "grid"}, "is for pictures"),
        ({"tied": "all"}, "17 tokens: use one joint vocabulary"),
        ({"heads": 5}, "does not divide"),
        ({"groups": 3}, "does not divide"),
        ({"decoder_layers": 0}, "decoder_layers is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"widht": 8}, "did you mean 'width'"),
    ],
)
def test_a_wrong_config_is_one_sentence(choices: dict[str, Any], message: str):
    with pytest.raises(QkvError, match=message):
        build(**choices)


def test_learned_positions_know_a_longest_sentence():
    model, (source, target) = build(positions="learned", length=S), texts()
    with pytest.raises(QkvError, match="the table holds 7"):
        model(source, KEEP, target.repeat(1, 2))


def test_every_attention_is_watched_by_its_path():
    model, (source, target) = build(), texts()
    with watch(model) as seen:
        model(source, KEEP, target)
    assert set(seen) == {
        *(f"encoder.{layer}.own" for layer in range(1)),
        *(f"decoder.{layer}.{which}" for layer in range(2) for which in ("own", "cross")),
    }
    cross = seen["decoder.1.cross"]
    assert cross.shape == (B, H, T, S)
    close(cross.sum(-1).double(), torch.ones(B, H, T).double(), atol=1e-6)
    assert not cross.movedim(-1, 1)[~KEEP].any()
