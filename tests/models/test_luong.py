"""The recurrent translator: Luong's equations in loops of numpy, and the same laws for every combination of choices."""

from contextlib import nullcontext
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qkv import QkvError, masks, watch
from qkv.attention import attend as attend_module
from qkv.attention import reduce
from qkv.attention.attend import Attend
from qkv.models.luong import PRESETS, Luong, LuongConfig, PeakedAttend

B, S, T, D, E, L, M = 3, 7, 5, 22, 13, 17, 19  # M tokens in the source's vocabulary
KEEP = torch.arange(S) < torch.tensor([4, 7, 2])[:, None]
SCORES = ("dot", "general", "concat", "location")

# attention, score, input feeding, self-attention: all that make sense together
LOOKS = [
    *product(("global", "local-m", "local-p"), SCORES, (False, True), (False, True)),
    *[("none", "dot", *rest) for rest in ((False, False), (False, True), (True, True))],
]
looks = pytest.mark.parametrize(("attention", "score", "input_feeding", "self_attention"), LOOKS)
cells = pytest.mark.parametrize("cell", ["lstm", "gru"])
directions = pytest.mark.parametrize("bidirectional", [False, True])


def build(**choices: Any) -> Luong:
    torch.manual_seed(0)
    plain: dict[str, Any] = {
        "encoder_layers": 1,
        "decoder_layers": 2,
        "window": 2,
        "length": S,
        "tied": "none",
    }
    sizes = {"source_vocabulary": M, "target_vocabulary": L, "width": D, "embedding": E}
    model = Luong(LuongConfig(**{**sizes, **plain, **choices})).double().eval()
    for parameter in model.parameters():  # far enough from 0 that nothing is nearly linear
        nn.init.normal_(parameter, std=0.4)
    return model


def texts() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randint(M, (B, S)), torch.randint(L, (B, T))


def close(got: Tensor, wanted: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=atol)


# ---- Luong et al. 2015, one sentence and one number at a time -------------------------------------------------


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum() if len(x) else x


class Loops:
    """The model's function, written again from the paper over its parameters by name."""

    def __init__(self, model: Luong):
        self.c = model.config
        self.p = {name: value.detach().numpy() for name, value in model.named_parameters()}

    def cell(self, name: str, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step of one layer; `name` is as in encoder.*_l0_reverse. A GRU hands its c through."""
        side, suffix = name.split(".")
        at_x, at_h, bias_x, bias_h = (
            self.p[f"{side}.{kind}_{suffix}"] for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        from_x, from_h = at_x @ x + bias_x, at_h @ h + bias_h
        if self.c.cell == "lstm":  # Hochreiter and Schmidhuber 1997, with Gers' forget gate
            i, f, g, o = np.split(from_x + from_h, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            return sigmoid(o) * np.tanh(c), c
        (r_x, z_x, n_x), (r_h, z_h, n_h) = np.split(from_x, 3), np.split(from_h, 3)  # Cho et al. 2014
        z = sigmoid(z_x + z_h)
        return (1 - z) * np.tanh(n_x + sigmoid(r_x + r_h) * n_h) + z * h, c

    def encode(self, tokens: list[int]) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """The states of the source, and the last (h, c) of each layer."""
        xs = [self.p["source_embedding.table"][token] * np.sqrt(E) for token in tokens]
        ends = []
        for layer in range(self.c.encoder_layers):
            sides, lasts = [], []
            for suffix in ("", "_reverse") if self.c.bidirectional else ("",):
                h = c = np.zeros(D // (1 + self.c.bidirectional))
                states = []
                for x in xs[::-1] if suffix else xs:
                    h, c = self.cell(f"encoder.l{layer}{suffix}", x, h, c)
                    states.append(h)
                sides.append(states[::-1] if suffix else states)
                lasts.append((h, c))
            xs = [np.concatenate(both) for both in zip(*sides, strict=True)]
            ends.append(tuple(np.concatenate(part) for part in zip(*lasts, strict=True)))
        return np.array(xs), ends

    def score(self, h: np.ndarray, keys: np.ndarray, s: int) -> float:
        """Eq. 8 and the list under eq. 7."""
        p = self.p
        match self.c.score:
            case "dot":
                return h @ keys[s]
            case "general":
                return h @ p["attention.attend.score.weight_HKK"][0] @ keys[s]
            case "concat":
                W = np.concatenate([p[f"attention.attend.score.{side}_HKA"][0] for side in ("query", "key")])
                return np.tanh(np.concatenate([h, keys[s]]) @ W) @ p["attention.attend.score.v_HA1"][0, :, 0]
            case _:
                return p["attention.attend.score.places_HSK"][0, s] @ h

    def align(self, h: np.ndarray, keys: np.ndarray, t: int) -> np.ndarray:
        """Eq. 7 over all of the source, or over a window; eq. 9 and 10 for a window where the model wants it."""
        p, length, weights = self.p, len(keys), np.zeros(len(keys))
        centre = float(t)
        if self.c.attention == "local-p":
            hidden = np.tanh(p["attention.place.0.weight"] @ h)
            centre = length * sigmoid(p["attention.place.2.weight"][0] @ hidden)
        seen = [s for s in range(length) if self.c.attention == "global" or abs(s - centre) <= self.c.window]
        weights[seen] = softmax(np.array([self.score(h, keys, s) for s in seen]))
        if self.c.attention == "local-p":
            sigma = self.c.window / 2
            weights *= [np.exp(-((s - centre) ** 2) / (2 * sigma**2)) for s in range(length)]
        return weights

    def decode(self, source: list[int], target: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """The logits after each target token, and the weights over the source."""
        p, (keys, ends) = self.p, self.encode(source)
        pairs = [
            max(0, n + self.c.encoder_layers - self.c.decoder_layers) for n in range(self.c.decoder_layers)
        ]
        states = [ends[pair] for pair in pairs]
        fed, past, logits, maps = np.zeros(D), [], [], []
        for t, token in enumerate(target):
            x = p["target_embedding.table"][token] * np.sqrt(E)
            x = np.concatenate([x, fed]) if self.c.input_feeding else x
            for layer, (h, c) in enumerate(states):
                states[layer] = self.cell(f"decoder.l{layer}", x, h, c)
                x = states[layer][0]
            h, looked = x, []
            if self.c.attention != "none":
                maps.append(self.align(h, keys, t))
                looked.append(maps[-1] @ keys)
            if self.c.self_attention:
                W = p["self_attention.score.weight_HKK"][0]
                weights = softmax(np.array([h @ W @ earlier for earlier in past]))
                looked.append(
                    sum((w * earlier for w, earlier in zip(weights, past, strict=True)), np.zeros(D))
                )
                past.append(h)
            if looked:
                h = np.tanh(p["merge.weight"] @ np.concatenate([*looked, h]))  # eq. 5
            fed = h
            logits.append(p["output.weight"] @ h)  # eq. 6
        return np.array(logits), np.array(maps)


@cells
@looks
def test_the_model_is_the_papers_equations_and_all_of_it_learns(
    cell: str, attention: str, score: str, input_feeding: bool, self_attention: bool
):
    model = build(
        cell=cell,
        attention=attention,
        score=score,
        input_feeding=input_feeding,
        self_attention=self_attention,
        encoder_layers=2,
    )
    (source, target), loops = texts(), Loops(model)
    with watch(model) if model.config.looks else nullcontext() as seen:
        logits = model.logits(model(source, KEEP, target))
    for row, length in enumerate(KEEP.sum(-1).tolist()):
        wanted, maps = loops.decode(source[row, :length].tolist(), target[row].tolist())
        close(logits[row], torch.from_numpy(wanted), atol=1e-11)
        if attention != "none":
            got = torch.cat(seen.calls("attention"), dim=-2)[row, 0]
            close(got[:, :length].double(), torch.from_numpy(maps), atol=1e-6)  # watched in fp32
            assert not got[:, length:].any()
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


# ---- decoding word by word -------------------------------------------------------------------------------------


@directions
@cells
@looks
@torch.no_grad()
def test_step_by_step_equals_teacher_forcing_with_a_changing_beam(
    cell: str, bidirectional: bool, attention: str, score: str, input_feeding: bool, self_attention: bool
):
    model = build(
        cell=cell,
        bidirectional=bidirectional,
        attention=attention,
        score=score,
        input_feeding=input_feeding,
        self_attention=self_attention,
    )
    source, target = texts()
    wanted = model.logits(model(source, KEEP, target))
    logits, state = model.step(target[:, :1], model.encode(source, KEEP))
    close(logits, wanted[:, 0])
    rows = torch.tensor([2, 2, 0, 0])  # a sentence dropped, the others swapped, two rows each
    logits, state = model.step(target[rows, 1:3], state.pick(rows, 2))
    close(logits, wanted[rows, 2])
    again = torch.tensor([1, 0, 0, 3, 2, 2])
    rows = rows[again]
    logits, state = model.step(target[rows, 3:], state.pick(again, 3))
    close(logits, wanted[rows, T - 1])
    assert state.length == T


@torch.no_grad()
def test_rows_of_a_sentence_share_its_memory():
    model, (source, target) = build(), texts()
    state = model.encode(source, KEEP)
    held = state.source.keys
    state = state.pick(torch.arange(B).repeat_interleave(4), 4)
    _, state = model.step(target[:, :1].repeat_interleave(4, 0), state)
    state = state.pick(torch.tensor([3, 3, 0, 1, 7, 6, 5, 4, 8, 8, 8, 8]), 4)
    assert state.source.keys.data_ptr() == held.data_ptr()
    assert state.source.keys.shape == (B, 1, S, D)


# ---- what sees what --------------------------------------------------------------------------------------------


class TargetFirst(nn.Module):
    """The model as a function of its target, whose tokens must not see those after them."""

    def __init__(self, model: Luong):
        super().__init__()
        self.model = model

    def forward(self, target: Tensor, source: Tensor, keep: Tensor) -> Tensor:
        return self.model(source, keep, target)


@looks
def test_nothing_leaks(attention: str, score: str, input_feeding: bool, self_attention: bool):
    choices = {"input_feeding": input_feeding, "self_attention": self_attention}
    model, (source, target) = build(attention=attention, score=score, **choices), texts()
    masks.check_leaks(TargetFirst(model), target, source, KEEP)
    masks.check_leaks(model, source, KEEP, target, causal=False, keep_BT=KEEP)


def test_the_leak_check_can_fail():
    """A self-attention that forgot its mask sees the next states."""

    class Careless(Attend):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
            return super().forward(q, k, v)

    model, (source, target) = build(self_attention=True), texts()
    careless = Careless(score=model.self_attention.score, beta=1.0)
    model.self_attention = careless
    with pytest.raises(QkvError, match=r"self_attention.*sees the future"):
        masks.check_leaks(TargetFirst(model), target, source, KEEP)


@cells
@directions
def test_padding_and_neighbours_do_not_change_the_encoder(cell: str, bidirectional: bool):
    model, (source, _) = build(cell=cell, bidirectional=bidirectional, encoder_layers=2), texts()
    state = model.encode(source, KEEP)
    assert not state.source.keys.movedim(2, 1)[~KEEP].any()
    for row, length in enumerate(KEEP.sum(-1).tolist()):
        alone = model.encode(source[row, None, :length], KEEP[row, None, :length])
        close(state.source.keys[row, :, :length], alone.source.keys[0])
        assert len(state.recurrent) == len(alone.recurrent) == (2 if cell == "lstm" else 1)
        for ours, theirs in zip(state.recurrent, alone.recurrent, strict=True):
            close(ours[:, row], theirs[:, 0])


@pytest.mark.parametrize(
    ("encoder_layers", "decoder_layers", "pairs"),
    [(1, 3, [0, 0, 0]), (3, 1, [2]), (2, 3, [0, 0, 1]), (2, 2, [0, 1])],
)
def test_the_decoder_starts_where_the_encoder_ended_paired_from_the_top(
    encoder_layers: int, decoder_layers: int, pairs: list[int]
):
    model = build(encoder_layers=encoder_layers, decoder_layers=decoder_layers, bidirectional=False)
    source, _ = texts()
    state = model.encode(source[:1], torch.ones(1, S, dtype=torch.bool))
    _, (h_NBD, c_NBD) = model.encoder(model.source_embedding(source[:1]))
    close(state.recurrent[0], h_NBD[pairs])
    close(state.recurrent[1], c_NBD[pairs])


@torch.no_grad()
def test_local_windows_see_what_they_should():
    source, target = texts()
    everything = torch.ones_like(KEEP)
    for attention in ("local-m", "local-p"):
        model = build(attention=attention, window=1)
        with watch(model, "attention") as seen:
            model(source, everything, target)
        weights = seen["attention"][:, 0]
        if attention == "local-m":
            place = torch.arange(S) - torch.arange(T)[:, None]
            assert torch.equal(weights > 0, (place.abs() <= 1).expand(B, T, S))
            close(weights.sum(-1).float(), torch.ones(B, T), atol=1e-6)
        else:
            assert (weights.sum(-1) <= 1).all()
            assert ((weights > 0).sum(-1) <= 3).all()
            assert weights.sum(-1).min() < 0.9  # not scaled up again


@torch.no_grad()
def test_a_window_beyond_the_source_gives_no_context():
    model, (source, target) = build(attention="local-m", window=1), texts()
    with watch(model) as seen:
        out = model(source, KEEP, target)
    assert out.isfinite().all()
    assert torch.equal(seen["attention"][2, 0].sum(-1).round(), torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0]))


def test_the_predicted_place_moves_the_weights_and_learns():
    """Training p alone brings it to the token whose vector is wanted: the gradient flows through the gaussian."""
    torch.manual_seed(0)
    model = build(attention="local-p", window=4)
    attention, keep = model.attention, torch.ones(1, S, dtype=torch.bool)
    h, keys = torch.randn(1, 1, D).double(), torch.randn(1, 1, S, D).double()
    memory = type(model.encode(*[x[:1] for x in (texts()[0], KEEP)]).source)(keys, keys)
    optimizer = torch.optim.Adam(attention.place.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        (attention._predict(h, keep) - 5.0).square().sum().backward()
        optimizer.step()
    assert attention._predict(h, keep).item() == pytest.approx(5.0, abs=0.1)
    with watch(model, "attention") as seen:
        out = attention(h, memory, keep, 0)
        attention.place.zero_grad()
        out.sum().backward()
    assert seen["attention"][0, 0, 0, 0] == 0  # further away than 4
    assert all(parameter.grad.any() for parameter in attention.place.parameters())


def test_weights_with_a_peak_are_exact_in_blocks_too(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, 1, length, D, dtype=torch.float64) for length in (T, S, S))
    bias = -torch.rand(B, 1, T, S, dtype=torch.float64, requires_grad=True)
    attend = PeakedAttend(beta=1.0)
    outs, maps, gradients = [], [], []
    for whole_up_to, block in ((1 << 24, 1 << 20), (8, 16)):
        monkeypatch.setattr(attend_module, "WHOLE_UP_TO", whole_up_to)
        monkeypatch.setattr(attend_module, "BLOCK", block)
        monkeypatch.setattr(reduce, "BLOCK", block)
        with watch(attend) as seen:
            outs.append(attend(q, k, v, allow=masks.padding(KEEP), bias=bias))
        maps.append(seen["attend"])
        gradients.append(torch.autograd.grad(outs[-1].sum(), bias)[0])
    scores = (q @ k.mT).masked_fill(~KEEP[:, None, None], -torch.inf)
    weights = scores.softmax(-1) * bias.exp()
    for out, seen_weights, gradient in zip(outs, maps, gradients, strict=True):
        close(out, weights @ v)
        close(seen_weights.double(), weights.detach(), atol=1e-6)
        close(gradient, gradients[0])


@looks
@torch.no_grad()
def test_watching_changes_nothing_and_sees_whole_rows(
    attention: str, score: str, input_feeding: bool, self_attention: bool
):
    if attention == "none" and not self_attention:
        with pytest.raises(QkvError, match="no attention to watch"), watch(build(attention=attention)):
            pass
        return
    choices = {"input_feeding": input_feeding, "self_attention": self_attention}
    model, (source, target) = build(attention=attention, score=score, **choices).float(), texts()
    plain = model(source, KEEP, target)
    with watch(model) as seen:
        assert torch.equal(model(source, KEEP, target), plain)
    paths = {"attention": attention != "none", "self_attention": self_attention}
    assert set(seen) == {path for path, there in paths.items() if there}
    for path in seen:
        assert len(seen.calls(path)) == (T if input_feeding else 1)
    if attention != "none":
        weights = torch.cat(seen.calls("attention"), dim=2)
        assert weights.shape == (B, 1, T, S)
        assert not weights.movedim(-1, 1)[~KEEP].any()
        if attention == "global":
            close(weights.sum(-1).float(), torch.ones(B, 1, T), atol=1e-5)
    if self_attention:
        last = seen["self_attention"][:, 0, -1]
        close(last[:, :-1].sum(-1), torch.ones(B), atol=1e-5)
        assert not last[:, -1].any()  # its past, not itself


@torch.no_grad()
def test_watching_a_beam_shows_the_rows_of_a_sentence_side_by_side():
    model, (source, target) = build(), texts()
    state = model.encode(source, KEEP).pick(torch.arange(B).repeat_interleave(2), 2)
    both = target[:, :2].reshape(-1, 1)  # two rows of a sentence, each with another token
    with watch(model, "attention") as seen:
        model.step(both, state)
    assert seen["attention"].shape == (B, 1, 2, S)
    for row in range(2):
        with watch(model, "attention") as alone:
            model.step(target[:, row, None], model.encode(source, KEEP))
        close(seen["attention"][:, :, row, None], alone["attention"], atol=1e-6)


# ---- training, sizes, errors -----------------------------------------------------------------------------------


def test_without_input_feeding_the_whole_target_is_one_call_of_each_part():
    calls: list[str] = []
    model, (source, target) = build(self_attention=True), texts()
    for name in ("decoder", "attention.attend", "self_attention"):
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    model(source, KEEP, target)
    assert calls == ["decoder", "attention.attend", "self_attention"]


@cells
@pytest.mark.parametrize("input_feeding", [False, True])
def test_autocast_trains_and_decodes(cell: str, input_feeding: bool):
    choices = {"attention": "local-p", "self_attention": True, "input_feeding": input_feeding}
    model, (source, target) = build(cell=cell, **choices).float(), texts()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(source, KEEP, target)
        state = model.encode(source, KEEP)
        for t in range(T):
            _, state = model.step(target[:, t, None], state)
    close(out.float(), model(source, KEEP, target), atol=0.1)
    out.float().square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.encoder.parameters())


def test_it_learns_to_copy():
    torch.manual_seed(0)
    sizes = {"source_vocabulary": L, "target_vocabulary": L, "width": 32, "dropout": 0.0}
    model = Luong(LuongConfig(**sizes, encoder_layers=1, decoder_layers=1, attention="local-p"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    source = torch.randint(1, L, (16, T))
    keep, target = torch.ones_like(source, dtype=torch.bool), torch.cat([source.new_zeros(16, 1), source], 1)
    for _ in range(60):
        optimizer.zero_grad()
        logits = model.logits(model(source, keep, target[:, :-1]))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), source.flatten())
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize(("tied", "tables"), [("all", 1), ("target", 2), ("none", 3)])
def test_tied_tables_are_one(tied: str, tables: int):
    model = build(tied=tied, source_vocabulary=L, embedding=D)
    assert sum(parameter.shape == (L, D) for parameter in model.parameters()) == tables
    assert (model.source_embedding is model.target_embedding) == (tied == "all")


def test_the_preset_of_the_paper_has_its_sizes():
    config = LuongConfig(source_vocabulary=50_000, target_vocabulary=50_000, **PRESETS["luong"])
    with torch.device("meta"):
        model = Luong(config)
    layer, input_layer = (
        8 * 1000 * 1000 + 8 * 1000,
        12 * 1000 * 1000 + 8 * 1000,
    )  # four gates, two biases each
    recurrent = 4 * layer + input_layer + 3 * layer
    looking = 1000 * 1000 + (1000 * 1000 + 1000) + 2 * 1000 * 1000  # general; place; merge
    assert sum(parameter.numel() for parameter in model.parameters()) == 3 * 50_000_000 + recurrent + looking


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"score": "generl"}, "did you mean 'general'"),
        ({"attention": "local"}, "attention is 'local'"),
        ({"width": 21}, "width is 21; each direction .* make it even"),
        ({"tied": "target"}, "a token has width 13 and a state 22"),
        ({"tied": "all", "embedding": None}, "19 and 17 tokens: use one joint vocabulary"),
        ({"attention": "none", "input_feeding": True}, "nothing to feed"),
        ({"window": 0}, "window is 0"),
        ({"cell": "rnn"}, "cell is 'rnn'"),
        ({"dropout": 1.0}, r"dropout is 1\.0"),
        ({"input_feding": True}, "did you mean 'input_feeding'"),
    ],
)
def test_a_wrong_config_is_one_sentence(choices: dict[str, Any], message: str):
    with pytest.raises(QkvError, match=message):
        build(**choices)


def test_a_source_longer_than_the_location_score_knows_is_named():
    model, (source, target) = build(score="location", length=S - 1), texts()
    with pytest.raises(QkvError, match="7 keys, but this location score knows 6"):
        model(source, KEEP, target)


def test_padding_before_a_real_token_is_refused():
    model, (source, target) = build(), texts()
    with pytest.raises(QkvError, match="padding before a real token"):
        model(source, KEEP.flip(1), target)
