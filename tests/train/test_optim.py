"""The optimiser does what the papers and torch say, moves what it should, and goes on exactly from its state."""

import math
import re
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models.luong import Luong, LuongConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.recipe.training import OptimConfig
from qkv.store.files import read_tensors, write_tensors
from qkv.train.optim import Optimizer, clip

CONFIG = OptimConfig(
    rate=0.03, betas=(0.8, 0.9), epsilon=1e-6, weight_decay=0.2, muon_rate=0.05, momentum=0.7
)
MUON = OptimConfig(kind="muon", rate=0.03, weight_decay=0.2, muon_rate=0.05, momentum=0.7)


class Tied(nn.Module):
    """A table that is also the output, a matrix between hidden vectors, and one that never gets a gradient."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 5)
        self.inner = nn.Linear(5, 5)
        self.norm = nn.LayerNorm(5)
        self.out = nn.Linear(5, 11)
        self.out.weight = self.table.weight
        self.unused = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.inner(self.table(x)).tanh()))


def gradients(model: nn.Module, seed: int) -> None:
    """The gradients of a made-up step."""
    x = torch.randint(11, (13,), generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    model(x).logsumexp(-1).square().sum().backward()


def make() -> Tied:
    torch.manual_seed(3)
    return Tied().double()


def test_adamw_by_hand():
    """Loshchilov and Hutter 2019, algorithm 2, in plain loops."""
    model, ours = make(), make()
    optimizer = Optimizer(ours, CONFIG)
    (b1, b2), mean, square = CONFIG.betas, {}, {}
    for step, factor in enumerate((0.5, 1.0, 0.25, 0.75), 1):
        gradients(ours, step)
        optimizer.step(factor)
        gradients(model, step)
        for name, weight in model.named_parameters():
            if weight.grad is None:
                continue
            g = weight.grad
            mean[name] = b1 * mean.get(name, 0) + (1 - b1) * g
            square[name] = b2 * square.get(name, 0) + (1 - b2) * g * g
            corrected = mean[name] / (1 - b1**step), (square[name] / (1 - b2**step)).sqrt()
            decay = 0.2 if name in ("inner.weight", "unused.weight") else 0.0
            with torch.no_grad():
                weight -= 0.03 * factor * (corrected[0] / (corrected[1] + 1e-6) + decay * weight)
    for (name, one), other in zip(ours.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14, msg=name)


def test_adamw_is_that_of_torch():
    model, ours = make(), make()
    optimizer = Optimizer(ours, CONFIG)
    theirs = torch.optim.AdamW(
        [
            {"params": [model.inner.weight, model.unused.weight], "weight_decay": 0.2},
            {"params": [w for n, w in model.named_parameters() if n not in ("inner.weight", "unused.weight")]},
        ],
        lr=0.03, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.0, foreach=False, fused=False,
    )  # fmt: skip
    for step in range(7):
        gradients(ours, step)
        optimizer.step()
        gradients(model, step)
        theirs.step()
    for (name, one), other in zip(ours.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14, msg=name)


def test_zero_forgets_the_gradients():
    model = make()
    optimizer = Optimizer(model, CONFIG)
    gradients(model, 0)
    optimizer.zero()
    assert all(weight.grad is None for weight in model.parameters())


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.output = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Linear(5, 7)


MODELS = {
    "tied": lambda: Transformer(
        TransformerConfig(source_vocabulary=11, target_vocabulary=11, width=8, hidden=10, heads=2, encoder_layers=1, decoder_layers=1)
    ),
    "untied": lambda: Transformer(
        TransformerConfig(
            source_vocabulary=11, target_vocabulary=13, width=8, hidden=10, heads=2, encoder_layers=1, decoder_layers=1,
            tied="none", positions="learned", norm="rms",
        )
    ),
    "luong": lambda: Luong(
        LuongConfig(source_vocabulary=11, target_vocabulary=11, width=8, encoder_layers=1, decoder_layers=1, input_feeding=True)
    ),
    "convolutional": Convolutional,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("name", MODELS)
def test_matrices_between_hidden_vectors_decay_and_nothing_else(name: str, kind: str):
    """With gradients of zero, decay is all that happens."""
    model = MODELS[name]()
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(1.0)
            weight.grad = torch.zeros_like(weight)
    Optimizer(model, OptimConfig(kind=kind, rate=0.5, muon_rate=0.5, weight_decay=0.5)).step()
    decayed = {path for path, weight in model.named_parameters() if not (weight == 1).all()}
    still = re.compile(r"embedding|positions|norm|bias|^output|score")
    assert decayed == {path for path, _ in model.named_parameters() if not still.search(path)}
    assert decayed
    for path in decayed:
        torch.testing.assert_close(
            model.get_parameter(path), torch.full_like(model.get_parameter(path), 0.75)
        )


def test_muon_moves_matrices_and_adamw_the_rest():
    model, ours = make(), make()
    optimizer = Optimizer(ours, MUON)
    theirs = torch.optim.Muon([model.inner.weight], lr=0.05, momentum=0.7, weight_decay=0.2)
    rest = [weight for name, weight in model.named_parameters() if name != "inner.weight"]
    adamw = torch.optim.AdamW(rest, lr=0.03, betas=MUON.betas, eps=MUON.epsilon, weight_decay=0.0)
    for step in range(3):
        gradients(ours, step)
        optimizer.step(0.5)
        gradients(model, step)
        for other in (theirs, adamw):
            other.param_groups[0]["lr"] = other.defaults["lr"] * 0.5
            other.step()
    for (name, one), other in zip(ours.named_parameters(), model.parameters(), strict=True):
        near = (
            0.004 if name == "inner.weight" else 0.002
        )  # the matrix is moved in bf16, and what reads it follows
        torch.testing.assert_close(one, other, rtol=0, atol=near, msg=name)
    assert (ours.inner.weight - make().inner.weight).abs().max() > 0.02


@pytest.mark.parametrize("config", [CONFIG, MUON], ids=["adamw", "muon"])
def test_tied_weights_are_moved_once(config: OptimConfig):
    model = make()
    optimizer = Optimizer(model, config)
    gradients(model, 0)
    optimizer.step()
    states = {key.rpartition(".")[0] for key in optimizer.tensors()}
    assert states == {"table.weight", "inner.weight", "inner.bias", "norm.weight", "norm.bias", "out.bias"}


def steps(model: Tied, optimizer: Optimizer, numbers: range) -> None:
    for step in numbers:
        gradients(model, step)
        optimizer.step(1 / (1 + step))


@pytest.mark.parametrize("config", [CONFIG, MUON], ids=["adamw", "muon"])
def test_it_goes_on_from_its_state_bit_for_bit(config: OptimConfig, tmp_path):
    whole, first, second = make().float(), make().float(), make().float()
    steps(whole, Optimizer(whole, config), range(6))
    optimizer = Optimizer(first, config)
    steps(first, optimizer, range(3))
    write_tensors(tmp_path / "o", optimizer.tensors())
    second.load_state_dict(first.state_dict())
    resumed = Optimizer(second, config)
    resumed.load(read_tensors(tmp_path / "o"))
    steps(first, optimizer, range(3, 5))  # the state that was read is no view of this one
    steps(second, resumed, range(3, 6))
    for one, other in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(first.inner.weight, second.inner.weight)


def test_the_state_of_another_optimiser_is_refused():
    model = make()
    optimizer = Optimizer(model, CONFIG)
    steps(model, optimizer, range(1))
    state = optimizer.tensors()
    with pytest.raises(QkvError, match=r"no place for inner.weight.exp_avg.* \(\d in all\).*another kind"):
        Optimizer(make(), MUON).load({k: v for k, v in state.items() if k.startswith("inner.weight")})
    with pytest.raises(QkvError, match=r"inner.bias.exp_avg is missing"):
        Optimizer(make(), CONFIG).load({"inner.bias.step": torch.tensor(1.0)})
    with pytest.raises(QkvError, match=r"norm.bias.exp_avg is of shape \(3,\), it should be of shape \(5,\)"):
        Optimizer(make(), CONFIG).load(
            {"norm.bias.step": torch.tensor(1.0), "norm.bias.exp_avg": torch.ones(3)}
        )


def with_gradients(*rows: list[float]) -> nn.ParameterList:
    model = nn.ParameterList([nn.Parameter(torch.zeros(len(row))) for row in rows])
    for weight, row in zip(model, rows, strict=True):
        weight.grad = torch.tensor(row)
    return model


def test_gradients_are_clipped_to_a_global_norm():
    model = with_gradients([3.0], [0.0, 4.0, 12.0])  # 3² + 4² + 12² = 13²
    assert clip(model, None) == 13
    assert clip(model, 13.5) == 13
    assert [weight.grad.tolist() for weight in model] == [[3.0], [0.0, 4.0, 12.0]]
    assert clip(model, 6.5) == 13
    torch.testing.assert_close(model[0].grad, torch.tensor([1.5]))
    torch.testing.assert_close(model[1].grad, torch.tensor([0.0, 2.0, 6.0]))


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_gradients_that_are_not_finite_are_left_as_they_are(bad: float):
    model = with_gradients([3.0], [bad, 4.0])
    assert not math.isfinite(clip(model, 1.0))
    assert model[0].grad.tolist() == [3.0]
    assert model[1].grad[1] == 4.0


def test_a_gradient_that_tied_weights_share_is_counted_once():
    model = make()
    gradients(model, 0)
    by_hand = math.sqrt(sum(float(w.grad.square().sum()) for w in model.parameters() if w.grad is not None))
    assert clip(model, None) == pytest.approx(by_hand, rel=1e-12)


def test_the_rate_follows_the_factor():
    """AdamW's first step is as long as its rate, whatever the gradient."""
    places = []
    for factor in (0.0, 0.25, 0.5, 1.0):
        model = nn.ParameterList([nn.Parameter(torch.ones(1, dtype=torch.float64))])
        model[0].grad = torch.full((1,), 7.0, dtype=torch.float64)
        Optimizer(model, CONFIG).step(factor)
        places.append(1 - model[0].item())
    assert places == pytest.approx([0, 0.0075, 0.015, 0.03], abs=1e-8)
    assert all(one < other for one, other in pairwise(places))


class Stack(nn.Module):
    """A table, three layers and an output."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 5)
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.output = nn.Linear(5, 11)

    def forward(self, x: Tensor) -> Tensor:
        x = self.table(x)
        for layer in self.layers:
            x = layer(x).tanh()
        return self.output(x)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_each_weight_moves_at_its_own_rate(kind: str):
    """The first step of either is proportional to its rate, whatever the gradient's length."""
    moved = []
    options = {"rates": {"layers.1.*": 3.0, "*.bias": 2.0, "output.*": 5.0}, "layer_decay": 0.5}
    for extra in ({}, options):
        torch.manual_seed(0)
        model = Stack()
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        gradients(model, 0)
        config = OptimConfig(kind=kind, rate=0.01, muon_rate=0.01, weight_decay=0.0, **extra)
        Optimizer(model, config).step(0.7)
        moved.append({name: weight - before[name] for name, weight in model.named_parameters()})
    wanted = {"table.weight": 0.5**4, "output.weight": 5.0, "output.bias": 5.0}
    for layer, depth in enumerate((3, 2, 1)):
        wanted[f"layers.{layer}.weight"] = 0.5**depth * (3.0 if layer == 1 else 1.0)
        wanted[f"layers.{layer}.bias"] = 0.5**depth * 2.0
    assert wanted.keys() == moved[0].keys()
    for name, factor in wanted.items():
        torch.testing.assert_close(moved[1][name], factor * moved[0][name], rtol=1e-3, atol=1e-6, msg=name)


def test_what_is_frozen_stays_and_needs_no_gradient():
    model = Stack()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer = Optimizer(model, OptimConfig(frozen=("table.*", "layers.0.*")))
    model(torch.arange(11)).square().sum().backward()
    assert model.table.weight.grad is None
    optimizer.step()
    still = {name for name, weight in model.named_parameters() if torch.equal(weight, before[name])}
    assert {"table.weight", "layers.0.weight", "layers.0.bias"} <= still
    assert "output.weight" not in still
    assert not any(name.startswith(("table", "layers.0")) for name in optimizer.tensors())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"frozen": ("tabel.*",)}, r"no weight is called 'tabel\.\*'.*did you mean 'table\.\*'\?"),
        ({"rates": {"x": 2.0}}, r"no weight is called 'x'"),
        ({"frozen": ("*",)}, r"every weight is frozen"),
    ],
)
def test_patterns_that_cannot_be_meant_are_said(options: dict[str, object], said: str):
    with pytest.raises(QkvError, match=said):
        Optimizer(Stack(), OptimConfig(**options))
    with pytest.raises(QkvError, match=r"rates\.x is 0\.0; a factor above 0"):
        OptimConfig(rates={"x": 0.0})
    with pytest.raises(QkvError, match=r"layer_decay is 0\.5, and the model has no layers"):
        Optimizer(nn.Linear(2, 3), OptimConfig(layer_decay=0.5))
