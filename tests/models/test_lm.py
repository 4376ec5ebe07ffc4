"""The language model: GPT-2 with the same weights, a pass in float64 loops, texts beyond the context, sizes by hand."""

import math
from itertools import cycle, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from qkv import QkvError, masks
from qkv.attention.positions import POSITIONS
from qkv.models.interface import no_source
from qkv.models.lm import PRESETS, LanguageModel, LanguageModelConfig, LanguageModelState

B, T, D, H, L = 3, 7, 24, 4, 17
KINDS = sorted(POSITIONS.keys() - {"grid"})
PLACES, DISTANCES = ("learned", "sinusoidal"), ("rotary", "alibi", "relative", "none")


def build(**choices: Any) -> LanguageModel:
    torch.manual_seed(0)
    plain: dict[str, Any] = {"layers": 2, "length": T, "dropout": 0.0}
    sizes = {"vocabulary": L, "width": D, "hidden": 13, "heads": H}
    model = LanguageModel(LanguageModelConfig(**{**sizes, **plain, **choices})).double().eval()
    for parameter in model.parameters():  # a norm starts as ones and zeros, and could be taken for another
        nn.init.normal_(parameter, std=0.3)
    return model


def text(length: int = T) -> Tensor:
    torch.manual_seed(1)
    return torch.randint(L, (B, length))


def read(model: LanguageModel, tokens: Tensor) -> Tensor:
    """The logits after each token, all read at once."""
    return model.logits(model(*no_source(len(tokens)), tokens))


def close(got: Tensor, wanted: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=atol)


CHOICES: list[dict[str, Any]] = [
    *(
        {"order": order, "norm": norm, "activation": activation, "groups": groups, "positions": kind}
        for (order, norm, activation, groups), kind in zip(
            product(("pre", "post"), ("layer", "rms"), ("relu", "gelu", "gelu_tanh", "swiglu"), (None, 1, 2)),
            cycle(KINDS),
            strict=False,
        )
    ),
    *({"positions": kind, "tied": False, "scale": False, "bias": False, "qk_norm": True} for kind in KINDS),
]


@pytest.mark.parametrize("choices", CHOICES, ids=lambda choices: "-".join(map(str, choices.values())))
def test_cached_equals_uncached_with_a_changing_beam_and_no_token_sees_the_future(choices: dict[str, Any]):
    model, tokens = build(**choices), text()
    with torch.no_grad():
        wanted = read(model, tokens)
        logits, state = model.step(tokens[:, :2], model.encode(*no_source(B)))
        close(logits, wanted[:, 1])
        rows = torch.tensor([2, 2, 0, 0])
        logits, state = model.step(tokens[rows, 2:5], state.pick(rows, 2))
        close(logits, wanted[rows, 4])
        again = torch.tensor([1, 0, 0, 3, 2, 2])
        rows = rows[again]
        logits, state = model.step(tokens[rows, 5:], state.pick(again, 3))
        close(logits, wanted[rows, T - 1])
    masks.check_leaks(Called(model), tokens)


class Called(nn.Module):
    """The model as a function of its tokens."""

    def __init__(self, model: LanguageModel):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(*no_source(len(tokens)), tokens)


def transpose_into(weights: list[Tensor], biases: list[Tensor], conv: Any) -> None:
    """Some of our maps side by side as one of GPT-2's, which are (in, out)."""
    conv.weight.copy_(torch.cat(weights).T)
    conv.bias.copy_(torch.cat(biases))


@pytest.mark.parametrize(
    ("heads", "inner", "hidden"), [(4, 13, "gelu_new"), (2, None, "relu"), (3, 31, "gelu")]
)
def test_it_computes_what_gpt2_does_with_its_weights(heads: int, inner: int | None, hidden: str):
    """transformers' GPT2LMHeadModel, named as the module's docstring says; also cached, step by step."""
    theirs_config = GPT2Config(
        vocab_size=L, n_positions=11, n_embd=D, n_layer=3, n_head=heads, n_inner=inner,
        activation_function=hidden, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    theirs = GPT2LMHeadModel(theirs_config).double().eval()
    ours = build(
        heads=heads, hidden=inner or 4 * D, layers=3, length=11, positions="learned", scale=False,
        activation={"gelu_new": "gelu_tanh"}.get(hidden, hidden),
    )  # fmt: skip
    with torch.no_grad():
        body = theirs.transformer
        body.wte.weight.copy_(ours.embedding.table)
        body.wpe.weight.copy_(ours.get_parameter("positions.table"))
        body.ln_f.load_state_dict(ours.norm.state_dict())
        for layer, block in zip(ours.layers, body.h, strict=True):
            own, forward = layer.own, layer.feedforward
            block.ln_1.load_state_dict(layer.own_norm.state_dict())
            block.ln_2.load_state_dict(layer.feedforward_norm.state_dict())
            three = (own.query, own.key, own.value)
            transpose_into([m.weight for m in three], [m.bias for m in three], block.attn.c_attn)
            transpose_into([own.out.weight], [own.out.bias], block.attn.c_proj)
            transpose_into([forward.up.weight], [forward.up.bias], block.mlp.c_fc)
            transpose_into([forward.down.weight], [forward.down.bias], block.mlp.c_proj)
        tokens = text(11)
        close(read(ours, tokens), theirs(tokens).logits, atol=1e-9)
        state = ours.encode(*no_source(B))
        for place in range(11):
            logits, state = ours.step(tokens[:, place : place + 1], state)
            close(logits, theirs(tokens[:, : place + 1]).logits[:, -1], atol=1e-9)


@pytest.mark.parametrize("kind", DISTANCES)
@pytest.mark.parametrize("pieces", [[1] * 23, [5, 9, 1, 8], [20, 3]])
def test_beyond_its_context_a_model_of_distances_looks_at_the_last_tokens_however_they_came(
    kind: str, pieces: list[int]
):
    model, tokens = build(positions=kind, layers=1), text(23)
    whole, state, done = read(model, tokens), model.encode(*no_source(B)), 0
    with torch.no_grad():
        for piece in pieces:
            logits, state = model.step(tokens[:, done : done + piece], state)
            done += piece
            close(logits, whole[:, done - 1])
    # One layer: what it says rests on the last T tokens, as if there had been no others, and on all of them.
    close(whole[:, -1], read(model, tokens[:, -T:])[:, -1])
    if kind != "none":
        other = tokens.clone()
        other[:, -T] = (other[:, -T] + 1) % L
        assert (read(model, other)[:, -1] - whole[:, -1]).abs().amax() > 1e-6


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("length", [1, 2, 7, 8])
@pytest.mark.parametrize("pieces", [[1] * 23, [5, 9, 1, 8], [20, 3]])
def test_beyond_its_context_a_model_of_places_moves_its_view_however_tokens_came(
    kind: str, length: int, pieces: list[int]
):
    model, tokens = build(positions=kind, length=length), text(23)
    state, done = model.encode(*no_source(B)), 0
    with torch.no_grad():
        for piece in pieces:
            logits, state = model.step(tokens[:, done : done + piece], state)
            done += piece
            close(logits, read(model, tokens[:, model.view(done) : done])[:, -1])
            assert state.length == done
            assert state.tokens_RT.shape == (B, done - model.view(done))


def test_the_view_moves_by_half_and_holds_half_or_more():
    model = build(positions="learned", length=8)
    assert [model.view(n) for n in range(1, 18)] == [0] * 8 + [4] * 4 + [8] * 4 + [12]
    assert [build(positions="learned", length=1).view(n) for n in (1, 2, 3)] == [0, 1, 2]
    assert build(positions="rotary", length=8).view(1000) == 0


def test_rows_are_picked_where_the_view_has_moved():
    model, tokens = build(positions="learned", length=6), text(9)
    with torch.no_grad():
        _, state = model.step(tokens[:, :8], model.encode(*no_source(B)))
        rows = torch.tensor([2, 0, 0])
        logits, _ = model.step(tokens[rows, 8:9], state.pick(rows))
        close(logits, read(model, tokens[rows, model.view(9) : 9])[:, -1])


def test_a_state_is_consumed_also_where_the_view_moves():
    model, tokens = build(positions="learned", length=4), text(6)
    with torch.no_grad():
        _, state = model.step(tokens[:, :4], model.encode(*no_source(B)))
        model.step(tokens[:, 4:5], state)
        with pytest.raises(QkvError, match="consumed"):
            model.step(tokens[:, 4:5], state)


def test_one_layer_equals_the_equations_in_loops():
    """Pre-norm, no positions, two heads, written out for one text in float64."""
    model = build(layers=1, heads=2, positions="none", activation="gelu_tanh", width=6, hidden=5)
    tokens, layer = text(5)[:1], model.layers[0]
    table, inner = model.embedding.table, layer.feedforward

    def normed(norm: Any, x: Tensor) -> Tensor:
        mean = sum(x.tolist()) / len(x)
        variance = sum((v - mean) ** 2 for v in x.tolist()) / len(x)
        return (x - mean) / math.sqrt(variance + 1e-5) * norm.weight + norm.bias

    def gelu(v: float) -> float:
        return v / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))

    with torch.no_grad():
        xs = [table[token] * math.sqrt(6) for token in tokens[0].tolist()]
        hs = [normed(layer.own_norm, x) for x in xs]
        queries, keys, values = (
            [part.weight @ h + part.bias for h in hs] for part in (layer.own.query, layer.own.key, layer.own.value)
        )  # fmt: skip
        for t in range(5):
            heads = []
            for side in (slice(0, 3), slice(3, 6)):
                weights = [
                    math.exp(float(queries[t][side] @ keys[s][side]) / math.sqrt(3)) for s in range(t + 1)
                ]
                heads.append(sum(w * values[s][side] for s, w in enumerate(weights)) / sum(weights))
            x = xs[t] + layer.own.out.weight @ torch.cat(heads) + layer.own.out.bias
            h = inner.up.weight @ normed(layer.feedforward_norm, x) + inner.up.bias
            x = (
                x
                + inner.down.weight @ torch.tensor([gelu(v) for v in h.tolist()], dtype=torch.float64)
                + inner.down.bias
            )
            close(read(model, tokens)[0, t], table @ normed(model.norm, x), atol=1e-10)


def test_grouped_heads_have_as_many_keys_as_groups_and_the_sizes_are_those_counted_by_hand():
    def count(**choices: Any) -> int:
        return sum(weight.numel() for weight in build(**choices).parameters())

    attention, forward, norms = 4 * (D * D + D), 13 * (2 * D + 1) + D, 2 * 2 * D
    wanted = L * D + 2 * (attention + forward + norms) + 2 * D
    assert count() == wanted
    assert count(tied=False) == wanted + L * D
    assert count(positions="learned") == wanted + T * D
    assert count(groups=1) == wanted - 2 * 2 * (D - D // H) * (D + 1)
    assert count(bias=False) == wanted - 2 * (4 * D + 13 + D)
    assert count(order="post") == wanted - 2 * D
    with torch.device("meta"):
        gpt2 = LanguageModel(LanguageModelConfig(vocabulary=50_257, **PRESETS["gpt2"]))
    assert sum(weight.numel() for weight in gpt2.parameters()) == 124_439_808  # as published


def test_a_source_is_refused_and_grid_positions_too():
    model = build()
    with pytest.raises(
        QkvError, match=r"the source has shape \(3, 7\), but a language model reads none: .*no_source"
    ):
        model.encode(text(), text().bool())
    with pytest.raises(QkvError, match="positions is 'grid', which is for pictures"):
        LanguageModelConfig(positions="grid")
    with pytest.raises(QkvError, match=r"choose one of .*rotary.*did you mean 'rotary'"):
        LanguageModelConfig(positions="rotery")


def test_learned_places_end_where_their_table_does():
    model = build(positions="learned")
    with pytest.raises(QkvError, match="x reaches position 8; the table holds 7"):
        read(model, text(T + 1))
    assert isinstance(model.encode(*no_source(2)), LanguageModelState)
