"""The Vision Transformer against the one in transformers, with its weights, at its own and at other resolutions.

Axes: B pictures, C channels, Y and X height and width in pixels, T patches, D width, L classes.
"""

import itertools

import pytest
import torch
from torch import Tensor
from transformers import ViTConfig as TheirConfig
from transformers import ViTForImageClassification

from qkv.attention.positions import POSITIONS
from qkv.attention.watch import watch
from qkv.blocks.layer import Layer
from qkv.blocks.pool import POOLS
from qkv.errors import QkvError
from qkv.models.vit import ViT, ViTConfig

B, L = 2, 5
SMALL = {
    "classes": L,
    "channels": 3,
    "size": (6, 9),
    "patch": 3,
    "width": 12,
    "hidden": 20,
    "heads": 3,
    "layers": 2,
}


def pictures(height: int = 6, width: int = 9, channels: int = 3) -> Tensor:
    return torch.randn(
        B, channels, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )


def build(**values: object) -> ViT:
    torch.manual_seed(0)
    return ViT(ViTConfig(**{**SMALL, **values})).double().eval()


def theirs(config: ViTConfig) -> ViTForImageClassification:
    torch.manual_seed(1)
    model = ViTForImageClassification(
        TheirConfig(
            image_size=config.size, patch_size=config.patch, num_channels=config.channels, hidden_size=config.width,
            intermediate_size=config.hidden, num_hidden_layers=config.layers, num_attention_heads=config.heads,
            hidden_act=config.activation, layer_norm_eps=1e-6, num_labels=config.classes,
        )
    ).double().eval()  # fmt: skip
    with torch.no_grad():
        for weight in model.parameters():  # nothing at zero or one, where it could stand anywhere unseen
            weight += 0.2 * torch.randn_like(weight)
    return model


def copied(model: ViTForImageClassification, config: ViTConfig) -> ViT:
    """Ours with their weights; a class token's position is in the token."""
    ours, given = ViT(config).double().eval(), model.state_dict()
    embeddings = "vit.embeddings."
    positions_TD = given[embeddings + "position_embeddings"][0]
    found = {
        "pool.token": given[embeddings + "cls_token"][0, 0] + positions_TD[0],
        "positions.table": positions_TD[1:].view_as(ours.positions.table),
    }
    rest = {
        name: value
        for name, value in given.items()
        if not name.endswith(("cls_token", "position_embeddings"))
    }
    order = list(rest.values())
    wanted = [name for name in ours.state_dict() if name not in found]
    # Theirs is walked in the order of its layers, ours by name: paired by what each name says.
    for name in wanted:
        matches = [theirs for theirs in rest if means(theirs) == name]
        assert len(matches) == 1, (name, matches, list(rest))
        found[name] = rest.pop(matches[0])
    assert not rest, rest.keys()
    assert len(order) == len(wanted)
    ours.load_state_dict(found)
    return ours


NAMES = {
    "vit.embeddings.patch_embeddings.": "patches.",
    "vit.layernorm.": "norm.",
    "classifier.": "output.",
    "vit.encoder.layer.": "encoder.",
    "vit.layers.": "encoder.",
    ".attention.attention.": ".own.",
    ".attention.output.dense.": ".own.out.",
    ".attention.o_proj.": ".own.out.",
    ".attention.q_proj.": ".own.query.",
    ".attention.k_proj.": ".own.key.",
    ".attention.v_proj.": ".own.value.",
    ".intermediate.dense.": ".feedforward.up.",
    ".output.dense.": ".feedforward.down.",
    ".mlp.fc1.": ".feedforward.up.",
    ".mlp.fc2.": ".feedforward.down.",
    ".layernorm_before.": ".own_norm.",
    ".layernorm_after.": ".feedforward_norm.",
}


def means(name: str) -> str:
    for part, ours in NAMES.items():
        name = name.replace(part, ours)
    return name


@pytest.mark.parametrize("positions", ["learned", "grid"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"heads": 4, "layers": 3, "patch": 1, "size": (3, 4)},
        {"channels": 1, "activation": "relu", "width": 9, "size": (9, 9)},
        {"size": (12, 12)},
    ],
)
def test_it_is_the_one_in_transformers_with_its_weights(changes: dict[str, object], positions: str):
    config = ViTConfig(**{**SMALL, **changes, "pool": "class", "positions": positions})
    model, (height, width) = theirs(config), config.size
    ours, image = copied(model, config), pictures(height, width, config.channels)
    with torch.no_grad():
        torch.testing.assert_close(ours(image), model(image).logits, rtol=0, atol=1e-11)
        if height != width:
            return  # theirs interpolates positions only from a square
        for rows, columns in [(2, 1), (3, 2)]:  # to larger ones: smaller ones we smooth
            larger = pictures(rows * height, columns * width, config.channels)
            wanted = model(larger, interpolate_pos_encoding=True).logits
            torch.testing.assert_close(ours(larger), wanted, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("positions", "pool"), [*itertools.product(POSITIONS, POOLS)])
def test_every_position_and_pool_reads_every_size_that_the_patch_divides(positions: str, pool: str):
    model = build(positions=positions, pool=pool)
    for height, width in [(6, 9), (3, 3), (12, 6)]:
        logits = model(pictures(height, width))
        assert logits.shape == (B, L)
        assert logits.isfinite().all()
    with pytest.raises(QkvError, match="7 x 9 pixels; multiples of the patch, 3"):
        model(pictures(7, 9))


@pytest.mark.parametrize("positions", POSITIONS)
def test_only_without_positions_is_a_picture_a_bag_of_patches(positions: str):
    model, image = build(positions=positions), pictures()
    swapped = torch.cat([image[..., 3:6], image[..., :3], image[..., 6:]], dim=-1)
    assert torch.allclose(model(image), model(swapped), rtol=0, atol=1e-9) == (positions == "none")


def test_learned_positions_of_another_size_get_their_gradient():
    model = build()
    model(pictures(12, 9)).square().sum().backward()
    assert model.positions.table.grad.abs().amax(-1).min() > 0


def test_pools_make_one_vector_of_what_the_layers_give():
    average, image = build(pool="average"), pictures()
    x = average.encode(image)
    assert x.shape == (B, 6, 12)
    torch.testing.assert_close(average(image), average.output(x.mean(1)), rtol=0, atol=1e-12)
    token = build(pool="class")
    assert token.encode(image).shape == (B, 7, 12)
    torch.testing.assert_close(token(image), token.output(token.encode(image)[:, 0]), rtol=0, atol=1e-12)


def test_stochastic_depth_grows_to_the_last_layer_and_ends_with_training():
    model = build(layers=4, depth_drop=0.4)
    layers = [layer for layer in model.encoder if isinstance(layer, Layer)]
    assert [layer.config.depth_drop for layer in layers] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert torch.equal(model(pictures()), model(pictures()))
    model.train()
    assert not torch.equal(model(pictures()), model(pictures()))


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "hidden_dropout"])
def test_dropout_is_for_training_only(kind: str):
    model = build(**{kind: 0.5})
    assert torch.equal(model(pictures()), model(pictures()))
    model.train()
    assert not torch.equal(model(pictures()), model(pictures()))


def test_a_pool_that_attends_is_watched_with_the_layers():
    model = build(pool="attention")
    with watch(model) as seen:
        model(pictures())
    assert {path: weights.shape for path, weights in seen.items()} == {
        "encoder.0.own": (B, 3, 6, 6),
        "encoder.1.own": (B, 3, 6, 6),
        "pool.attention": (B, 3, 1, 6),
    }


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"size": (6, 8)},
            "6 x 8 pixels do not divide into patches of 3: set another model.patch, or images.size",
        ),
        ({"positions": "learnt"}, "unknown position 'learnt'.*did you mean 'learned'"),
        ({"pool": "mean"}, "unknown pool 'mean': choose one of attention, average, class"),
        ({"heads": 5}, "width=12 does not divide into heads=5"),
    ],
)
def test_what_cannot_be_built_is_refused(values: dict[str, object], said: str):
    with pytest.raises(QkvError, match=said):
        build(**values)
