"""The contract of models/interface.py, held by every Generator and every TextClassifier in models/ (the file's name is
the registry)."""

import importlib
import inspect
import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

import qkv.models
from qkv import Attend, QkvError, masks, watch
from qkv.models.interface import Generator, State, TextClassifier, no_source
from qkv.recipe.config import override

FILES = sorted(path.stem for path in Path(qkv.models.__path__[0]).glob("[!_]*.py"))
B, S, T, L, C = 3, 7, 5, 11, 4
KEEP = torch.arange(S) < torch.tensor([4, 7, 2])[:, None]
REAL = KEEP[:, :T]  # of the targets


Kind = TypeVar("Kind", bound=nn.Module)


def models(base: type[Kind]) -> Iterator[tuple[ModuleType, type[Kind]]]:
    """Every model of this kind, and the module that holds it and its PRESETS."""
    for name in FILES:
        module = importlib.import_module(f"qkv.models.{name}")
        for member in vars(module).values():
            own = inspect.isclass(member) and member.__module__ == module.__name__
            if own and issubclass(member, base) and not inspect.isabstract(member):
                yield module, member


FOUND, CLASSIFIERS = list(models(Generator)), list(models(TextClassifier))
READERS = [(module, kind) for module, kind in FOUND if kind.reads_source]
every_model, every_reader, every_classifier, every_one = (
    pytest.mark.parametrize(("module", "kind"), found, ids=[kind.__name__ for _, kind in found])
    for found in (FOUND, READERS, CLASSIFIERS, [*FOUND, *CLASSIFIERS])
)


def configure(kind: type[nn.Module], preset: dict[str, object], vocabulary: int = L) -> Any:
    """The model's Config, as its constructor names it: a preset, and as many tokens (and labels) as wanted."""
    hint = inspect.signature(kind).parameters["config"].annotation
    config = hint if inspect.isclass(hint) else getattr(inspect.getmodule(kind), hint)
    fields = config.__dataclass_fields__
    sizes = {name: vocabulary for name in fields if name.endswith("vocabulary")}
    assert sizes, f"{config.__name__} has no field that ends in vocabulary"
    labels = {"labels": C} if "labels" in fields else {}
    return config(**{**preset, **sizes, **labels})


def build(module: ModuleType, kind: type[Kind], dtype: torch.dtype = torch.float64) -> Kind:
    """The first, smallest preset."""
    torch.manual_seed(0)
    return kind(configure(kind, next(iter(module.PRESETS.values())))).to(dtype).eval()


def texts(model: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Sources as the model reads them, which of their tokens are real, and targets."""
    torch.manual_seed(1)
    source, target = torch.randint(L, (B, S)), torch.randint(L, (B, T))
    return *((source, KEEP) if model.reads_source else no_source(B)), target


def words() -> Tensor:
    """Texts of ids, as a classifier reads them beside KEEP."""
    torch.manual_seed(1)
    return torch.randint(L, (B, S))


def close(got: Tensor, wanted: Tensor, atol: float = 1e-11) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=atol)


def test_the_models_that_exist_are_found():
    assert {"Transformer", "Luong", "LanguageModel"} <= {kind.__name__ for _, kind in FOUND}
    assert (
        {"Transformer", "Luong"}
        <= {kind.__name__ for _, kind in READERS}
        < {kind.__name__ for _, kind in FOUND}
    )
    assert {"BertClassifier", "TextCnn"} <= {kind.__name__ for _, kind in CLASSIFIERS}


@every_model
def test_states_and_logits_have_their_shapes(module: ModuleType, kind: type[Generator]):
    model = build(module, kind)
    source, keep, target = texts(model)
    x = model(source, keep, target)
    assert x.shape[:2] == (B, T)
    assert model.logits(x).shape == (B, T, L)
    assert model.logits(x[REAL]).shape == (
        int(REAL.sum()),
        L,
    )  # training asks for real positions only
    logits, state = model.step(target, model.encode(source, keep))
    assert logits.shape == (B, L)
    assert isinstance(state, State)


@every_model
@pytest.mark.parametrize("pieces", [[1, 1, 1, 1, 1], [2, 1, 2], [5]])
@pytest.mark.parametrize("training", [False, True])  # without gradients, buffers are reused
def test_step_by_step_equals_teacher_forcing(
    module: ModuleType, kind: type[Generator], pieces: list[int], training: bool
):
    model = build(module, kind)
    source, keep, target = texts(model)
    with torch.set_grad_enabled(training):
        wanted, state, read = model.logits(model(source, keep, target)), model.encode(source, keep), 0
        for piece in pieces:
            logits, state = model.step(target[:, read : read + piece], state)
            read += piece
            close(logits, wanted[:, read - 1])


@every_model
@pytest.mark.parametrize("number", range(4))
def test_pick_repeats_reorders_and_drops_rows_and_sentences(
    module: ModuleType, kind: type[Generator], number: int
):
    """A random search: each of its rows must answer as its own prefix does, read alone from the start."""
    draw, model = random.Random(number), build(module, kind)
    source, keep, _ = texts(model)
    rows: list[tuple[int, list[int]]] = [(sentence, []) for sentence in range(B)]
    width, dropped = 1, 0
    with torch.no_grad():
        state = model.encode(source, keep)
        for _ in range(6):
            groups = [range(start, start + width) for start in range(0, len(rows), width)]
            if draw.random() < 0.5:
                draw.shuffle(groups)
            if draw.random() < 0.3 and len(groups) > 1:
                groups, dropped = groups[:-1], dropped + 1
            width = draw.randint(1, 4)
            picked = [draw.choice(group) for group in groups for _ in range(width)]
            tokens = [draw.randrange(L) for _ in picked]
            rows = [(rows[row][0], [*rows[row][1], token]) for row, token in zip(picked, tokens, strict=True)]
            state = state.pick(torch.tensor(picked), width)
            logits, state = model.step(torch.tensor(tokens)[:, None], state)
            sentences, prefixes = (
                torch.tensor([row[0] for row in rows]),
                torch.tensor([row[1] for row in rows]),
            )
            close(logits, model.logits(model(source[sentences], keep[sentences], prefixes))[:, -1])
    assert len({sentence for sentence, _ in rows}) == B - dropped


@every_model
def test_neighbours_change_nothing(module: ModuleType, kind: type[Generator]):
    model = build(module, kind)
    source, keep, target = texts(model)
    wanted = model(source, keep, target)
    order = torch.tensor([2, 0, 1])
    close(model(source[order], keep[order], target[order]), wanted[order])
    for row, length in enumerate(keep.sum(-1)):
        close(model(source[row, None, :length], keep[row, None, :length], target[row, None])[0], wanted[row])


@every_reader
def test_padding_changes_nothing(module: ModuleType, kind: type[Generator]):
    model = build(module, kind)
    source, keep, target = texts(model)
    other = torch.where(keep, source, (source + 1) % L)
    longer = torch.cat([other, other[:, :4]], dim=1), nn.functional.pad(keep, (0, 4))
    close(model(*longer, target), model(source, keep, target))


@every_reader
def test_an_empty_source_is_a_source(module: ModuleType, kind: type[Generator]):
    model = build(module, kind)
    source, keep, target = texts(model)
    read = keep.clone()
    read[1] = False
    x = model(source, read, target)
    assert x.isfinite().all()
    close(x[[0, 2]], model(source, keep, target)[[0, 2]])
    close(x, model(torch.where(read, source, (source + 1) % L), read, target))


@every_reader
def test_the_source_matters(module: ModuleType, kind: type[Generator]):
    model = build(module, kind)
    source, keep, target = texts(model)
    moved = (model((source + 1) % L, keep, target) - model(source, keep, target)).abs().amax(-1)
    assert (moved > 1e-3).all()


class TargetFirst(nn.Module):
    """The model as a function of its target, whose tokens must not see those after them."""

    def __init__(self, model: Generator):
        super().__init__()
        self.model = model

    def forward(self, target: Tensor, source: Tensor, keep: Tensor) -> Tensor:
        return self.model(source, keep, target)


@every_model
def test_no_token_sees_those_after_it_and_nothing_sees_padding(module: ModuleType, kind: type[Generator]):
    model = build(module, kind)
    source, keep, target = texts(model)
    masks.check_leaks(TargetFirst(model), target, source, keep)
    if model.reads_source:
        masks.check_leaks(model, source, keep, target, causal=False, keep_BT=keep)


@every_model
def test_a_consumed_state_raises(module: ModuleType, kind: type[Generator]):
    model = build(module, kind)
    source, keep, target = texts(model)
    for training in (False, True):
        with torch.set_grad_enabled(training):
            _, first = model.step(target[:, :2], model.encode(source, keep))
            model.step(target[:, 2:3], first)
            with pytest.raises(QkvError, match="consumed"):
                model.step(target[:, 2:3], first)
            with pytest.raises(QkvError, match="consumed"):
                first.pick(torch.arange(B))


@every_model
def test_one_encoding_starts_several_translations(module: ModuleType, kind: type[Generator]):
    model = build(module, kind)
    source, keep, target = texts(model)
    with torch.no_grad():
        encoded = model.encode(source, keep)
        for start in (target[:, :1], (target[:, :1] + 1) % L):  # as with one tag for each language
            _, state = model.step(start, encoded)
            logits, _ = model.step(target[:, 1:2], state)
            close(logits, model.logits(model(source, keep, torch.cat([start, target[:, 1:2]], 1)))[:, -1])


@every_model
def test_everything_learned_gets_a_gradient(module: ModuleType, kind: type[Generator]):
    model = build(module, kind)
    source, keep, target = texts(model)
    model.logits(model(source, keep, target)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # A softmax does not see what is added to all its scores, as a bias of the keys is.
        assert parameter.grad.any() or name.endswith("key.bias"), name


@every_model
def test_it_runs_in_inference_mode_and_under_autocast_and_is_watched_unchanged(
    module: ModuleType, kind: type[Generator]
):
    model = build(module, kind, torch.float32)
    source, keep, target = texts(model)
    with torch.inference_mode():
        plain = model(source, keep, target)
        with watch(model) as seen:
            assert torch.equal(model(source, keep, target), plain)
        assert seen
        state = model.encode(source, keep).pick(torch.arange(B).repeat_interleave(2), 2)
    with torch.no_grad():  # a state made in inference mode can be used outside it
        logits, _ = model.step(target.repeat_interleave(2, 0), state)
        close(logits, model.logits(plain)[:, -1].repeat_interleave(2, 0), atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        close(model(source, keep, target).float(), plain, atol=0.15)
        state = model.encode(source, keep)
        for t in range(2):
            _, state = model.step(target[:, t : t + 1], state)


@every_one
def test_every_preset_builds_and_returns_from_the_command_line(module: ModuleType, kind: type[nn.Module]):
    assert module.PRESETS
    for name, preset in module.PRESETS.items():
        config = configure(kind, preset, vocabulary=8000)
        assert override(config, [f"{key}={json.dumps(value)}" for key, value in preset.items()]) == config, (
            name
        )
        with torch.device("meta"):  # shapes without memory
            model = kind(config)
        assert sum(parameter.numel() for parameter in model.parameters()) > 8000, name


@every_model
def test_dropout_is_for_training_only(module: ModuleType, kind: type[Generator]):
    model = build(module, kind)
    source, keep, target = texts(model)
    assert torch.equal(model(source, keep, target), model(source, keep, target))
    model.train()
    assert not torch.equal(model(source, keep, target), model(source, keep, target))


# What reads whole texts and says which labels they have.


@every_classifier
def test_a_score_for_each_label_and_a_vector_for_each_token(module: ModuleType, kind: type[TextClassifier]):
    model, text = build(module, kind), words()
    assert model(text, KEEP).shape == (B, C)
    x = model.read(text, KEEP)
    assert x.shape[:2] == (B, S)
    pooled = model.pooled(x, KEEP)
    assert pooled.shape == (B, model.output.in_features)
    close(model.output(pooled), model(text, KEEP))


@every_classifier
def test_a_text_is_judged_by_itself(module: ModuleType, kind: type[TextClassifier]):
    model, text = build(module, kind), words()
    wanted = model(text, KEEP)
    other = torch.where(KEEP, text, (text + 1) % L)
    close(model(torch.cat([other, other[:, :4]], dim=1), nn.functional.pad(KEEP, (0, 4))), wanted)
    order = torch.tensor([2, 0, 1])
    close(model(text[order], KEEP[order]), wanted[order])
    for row, length in enumerate(KEEP.sum(-1)):
        close(model(text[row, None, :length], KEEP[row, None, :length])[0], wanted[row])
    moved = (model(torch.where(KEEP, (text + 1) % L, text), KEEP) - wanted).abs().amax(-1)
    assert (moved > 1e-6).all()


@every_classifier
def test_every_weight_of_a_classifier_gets_a_gradient(module: ModuleType, kind: type[TextClassifier]):
    model, text = build(module, kind), words()
    model(text, KEEP).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any() or name.endswith("key.bias"), name


@every_classifier
def test_a_classifier_is_watched_unchanged_in_inference_mode_and_under_autocast(
    module: ModuleType, kind: type[TextClassifier]
):
    model, text = build(module, kind, torch.float32), words()
    with torch.inference_mode():
        plain = model(text, KEEP)
        if any(isinstance(part, Attend) for part in model.modules()):
            with watch(model) as seen:
                assert torch.equal(model(text, KEEP), plain)
            assert seen
    with torch.autocast("cpu", torch.bfloat16):
        close(model(text, KEEP).float(), plain, atol=0.15)


@every_classifier
def test_the_dropout_of_a_classifier_is_for_training_only(module: ModuleType, kind: type[TextClassifier]):
    model, text = build(module, kind), words()
    assert torch.equal(model(text, KEEP), model(text, KEEP))
    model.train()
    assert not torch.equal(model(text, KEEP), model(text, KEEP))
