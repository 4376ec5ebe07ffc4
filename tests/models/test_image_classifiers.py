"""What every model of pictures must do, found by walking models/ (the file's name is the registry).

Axes: B pictures, C channels, Y and X height and width in pixels, T places, D width, L classes.
"""

import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import qkv.models
from qkv.attention.attend import Attend
from qkv.attention.watch import watch
from qkv.errors import QkvError
from qkv.models.interface import ImageClassifier
from qkv.recipe.config import override
from qkv.train.precision import computing_in

FILES = sorted(path.stem for path in Path(qkv.models.__path__[0]).glob("[!_]*.py"))
B, C, L = 3, 3, 11
SIZE = (8, 12)  # 4 x 6 patches of the smallest preset


def classifiers() -> Iterator[tuple[ModuleType, type[ImageClassifier]]]:
    """Every model of pictures, and the module that holds it and its PRESETS."""
    for name in FILES:
        module = importlib.import_module(f"qkv.models.{name}")
        for member in vars(module).values():
            own = inspect.isclass(member) and member.__module__ == module.__name__
            if own and issubclass(member, ImageClassifier) and not inspect.isabstract(member):
                yield module, member


FOUND = list(classifiers())
every_model = pytest.mark.parametrize(("module", "kind"), FOUND, ids=[kind.__name__ for _, kind in FOUND])


def configure(kind: type[ImageClassifier], preset: dict[str, object], **values: object) -> Any:
    """The model's Config, as its constructor names it: a preset, and sizes as wanted."""
    hint = inspect.signature(kind).parameters["config"].annotation
    config = hint if inspect.isclass(hint) else getattr(inspect.getmodule(kind), hint)
    return config(**{**preset, "classes": L, "channels": C, "size": SIZE, **values})


def build(module: ModuleType, kind: type[ImageClassifier], **values: object) -> ImageClassifier:
    """The first, smallest preset."""
    torch.manual_seed(0)
    model = kind(configure(kind, next(iter(module.PRESETS.values())), **values)).double().eval()
    with torch.no_grad():  # what begins at zero shall count, too
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape, dtype=weight.dtype)
    return model


def pictures() -> Tensor:
    return torch.randn(B, C, *SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_the_models_that_exist_are_found():
    assert {"ViT", "ConvNet"} <= {kind.__name__ for _, kind in FOUND}


@every_model
def test_there_is_a_score_for_each_class_and_a_vector_for_each_place(
    module: ModuleType, kind: type[ImageClassifier]
):
    model = build(module, kind)
    assert model.size == SIZE
    assert model(pictures()).shape == (B, L)
    x_BTD = model.encode(pictures())
    assert x_BTD.shape[0] == B
    assert x_BTD.dim() == 3


@every_model
def test_neighbours_change_nothing_and_pixels_do(module: ModuleType, kind: type[ImageClassifier]):
    model, image_BCYX = build(module, kind), pictures()
    logits_BL = model(image_BCYX)
    for row in range(B):
        torch.testing.assert_close(model(image_BCYX[row : row + 1])[0], logits_BL[row], rtol=0, atol=1e-11)
    for place in [(0, 0, 0), (2, 7, 11), (1, 3, 5)]:
        other_BCYX = image_BCYX.clone()
        other_BCYX[(1, *place)] += 1
        moved = (model(other_BCYX) - logits_BL).abs().amax(-1)
        assert moved[1] > 1e-6
        assert moved[[0, 2]].max() < 1e-11


@every_model
def test_everything_learned_gets_a_gradient(module: ModuleType, kind: type[ImageClassifier]):
    model = build(module, kind)
    model(pictures()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # A softmax does not see what is added to all its scores, as a bias of the keys is.
        assert parameter.grad.any() or name.endswith("key.bias"), name


@every_model
def test_bytes_of_any_precision_are_taken_and_sizes_that_do_not_fit_are_refused(
    module: ModuleType, kind: type[ImageClassifier]
):
    model = build(module, kind)
    assert model(pictures().float()).dtype == torch.float64
    with pytest.raises((QkvError, RuntimeError)):
        model(pictures()[:, :2])


@every_model
def test_bfloat16_is_near_and_reaches_the_weights(module: ModuleType, kind: type[ImageClassifier]):
    model = build(module, kind).float()
    plain = model(pictures())
    with computing_in(model, "bf16"):
        rounded = model(pictures())
        rounded.sum().backward()
    assert rounded.dtype == torch.bfloat16
    assert (rounded - plain).abs().max() < 0.1 * plain.abs().max()
    assert all(
        weight.grad is not None and weight.grad.dtype == torch.float32 for weight in model.parameters()
    )


@every_model
def test_it_is_watched_unchanged_or_says_that_it_attends_to_nothing(
    module: ModuleType, kind: type[ImageClassifier]
):
    model = build(module, kind)
    with torch.inference_mode():
        plain = model(pictures())
        if not any(isinstance(module, Attend) for module in model.modules()):
            with pytest.raises(QkvError, match="has no attention to watch"), watch(model):
                pass
            return
        with watch(model) as seen:
            assert torch.equal(model(pictures()), plain)
        assert all(weights.sum(-1).allclose(torch.ones(1).double()) for weights in seen.values())


@every_model
def test_every_preset_builds_and_returns_from_the_command_line(
    module: ModuleType, kind: type[ImageClassifier]
):
    assert module.PRESETS
    for name, preset in module.PRESETS.items():
        config = configure(kind, preset, size=(32, 32))
        changes = [f"{key}={json.dumps(value)}" for key, value in preset.items()]
        assert override(configure(kind, {}, size=(32, 32)), changes) == config, name
        with torch.device("meta"):  # shapes without memory
            model = kind(config)
        assert sum(parameter.numel() for parameter in model.parameters()) > 10_000, name


def cost(model: nn.Module, channels: int, size: tuple[int, int]) -> tuple[int, int]:
    """How many numbers it learns, and what a picture costs, in FLOPs as torch counts them: two for a product."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.empty(1, channels, *size, device="meta"))
    return sum(weight.numel() for weight in model.parameters()), counter.get_total_flops()


# What each preset has, in numbers and in millions of FLOPs a picture: that of the transformer, that of the convolutions.
MATCHED = {
    ("digits", 1, (8, 8)): ((227_530, 7.4), (236_146, 7.4)),
    ("tiny", 3, (32, 32)): ((786_218, 110.9), (775_138, 114.6)),
    ("small", 3, (32, 32)): ((2_693_194, 359.8), (2_698_462, 352.4)),
}


@pytest.mark.parametrize(("name", "channels", "size"), MATCHED)
def test_the_convolutions_learn_and_cost_as_much_as_the_transformer(
    name: str, channels: int, size: tuple[int, int]
):
    found = []
    for module, kind in FOUND:
        if name in module.PRESETS:
            with torch.device("meta"):
                model = kind(configure(kind, module.PRESETS[name], classes=10, channels=channels, size=size))
            found.append((kind.__name__, *cost(model, channels, size)))
    (_, *net), (_, *vit) = sorted(found)
    said_vit, said_net = MATCHED[name, channels, size]
    assert (vit[0], round(vit[1] / 1e6, 1)) == said_vit
    assert (net[0], round(net[1] / 1e6, 1)) == said_net
    for mine, theirs in zip(net, vit, strict=True):
        assert mine == pytest.approx(theirs, rel=0.05)
    if name == "tiny":
        assert max(vit[0], net[0]) <= 800_000
