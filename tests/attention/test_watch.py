"""Watching: everything is seen, by its path, and nothing of the run changes, not one bit.

Axes: B batch, T query length, S key length, D width, H heads, K key width, V value width.
"""

import copy
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.attention import attend as kernels
from qkv.attention import masks
from qkv.attention.attend import Attend, path, weights
from qkv.attention.heads import AttentionConfig, MultiHeadAttention
from qkv.attention.masks import Mask
from qkv.attention.normalize import NORMALIZERS
from qkv.attention.positions import POSITIONS
from qkv.attention.reduce import REDUCERS, Reducer, Rows
from qkv.attention.scores import SCORES
from qkv.attention.watch import watch
from qkv.errors import QkvError

B, T, S, D, H, K = 2, 5, 7, 15, 3, 5


class Layer(nn.Module):
    """Attention to oneself and, in a decoder, to a memory."""

    def __init__(self, has_cross: bool, **choices: Any):
        super().__init__()
        self.own = MultiHeadAttention(AttentionConfig(width=D, heads=H, **choices))
        self.cross = MultiHeadAttention(AttentionConfig(width=D, heads=H, **choices)) if has_cross else None

    def forward(self, x_BTD: Tensor, memory_BSD: Tensor | None = None) -> Tensor:
        x_BTD = x_BTD + self.own(x_BTD, allow=None if self.cross is None else masks.causal())
        return x_BTD if self.cross is None else x_BTD + self.cross(x_BTD, memory_BSD)


class Model(nn.Module):
    """A translator of two layers, as small as can be."""

    def __init__(self, **choices: Any):
        super().__init__()
        self.encoder = nn.ModuleList(Layer(False, **choices) for _ in range(2))
        self.decoder = nn.ModuleList(Layer(True, **choices) for _ in range(2))

    def forward(self, source_BSD: Tensor, target_BTD: Tensor) -> Tensor:
        for layer in self.encoder:
            source_BSD = layer(source_BSD)
        for layer in self.decoder:
            target_BTD = layer(target_BTD, source_BSD)
        return target_BTD


PATHS = [
    "encoder.0.own",
    "encoder.1.own",
    "decoder.0.own",
    "decoder.0.cross",
    "decoder.1.own",
    "decoder.1.cross",
]


def inputs(source: int = S, target: int = T) -> tuple[Tensor, Tensor]:
    return torch.randn(B, source, D), torch.randn(B, target, D)


def assert_unwatched(model: nn.Module) -> None:
    """No hook of any kind, and no method put in another's place."""
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
        assert not module._backward_pre_hooks
        assert "call" not in vars(module)
        assert "forward" not in vars(module) or hasattr(module, "_orig_mod")  # torch.compile's own doing
    assert not nn.modules.module._global_forward_hooks
    assert Attend.forward.__qualname__ == "Attend.forward"


def assert_is_one_sentence(caught: pytest.ExceptionInfo[QkvError], *parts: str) -> None:
    text = str(caught.value)
    assert "\n" not in text
    assert ". " not in text
    assert not text.endswith(".")
    for part in parts:
        assert part in text


# What is seen


def test_every_attention_is_seen_by_its_path_in_the_order_of_the_run():
    model = Model()
    with watch(model) as seen:
        model(*inputs())
    assert list(seen) == PATHS
    shapes = [(S, S), (S, S), (T, T), (T, S), (T, T), (T, S)]
    assert {name: tuple(x.shape) for name, x in seen.items()} == {
        name: (B, H, *shape) for name, shape in zip(PATHS, shapes, strict=True)
    }


@pytest.mark.parametrize(
    ("patterns", "paths"),
    [
        (["*"], PATHS),
        (["decoder.*.cross"], ["decoder.0.cross", "decoder.1.cross"]),
        (["decoder.1.*"], ["decoder.1.own", "decoder.1.cross"]),
        (["encoder.[1-9].own"], ["encoder.1.own"]),
        (["*.?.own"], ["encoder.0.own", "encoder.1.own", "decoder.0.own", "decoder.1.own"]),
        (
            ["decoder.1.cross", "encoder.0.own", "*.cross"],
            ["encoder.0.own", "decoder.0.cross", "decoder.1.cross"],
        ),
        (["encoder.0.own"], ["encoder.0.own"]),
    ],
    ids=str,
)
def test_shell_patterns_choose(patterns: list[str], paths: list[str]):
    model = Model()
    with watch(model, *patterns) as seen:
        model(*inputs())
    assert list(seen) == paths


@pytest.mark.parametrize("length", [T, 256])
@pytest.mark.parametrize(
    "mask", [None, masks.causal(), masks.window(2), masks.padding(torch.tensor([4, 5]))], ids=str
)
def test_the_map_is_what_the_run_multiplied_its_values_with(mask: Mask | None, length: int):
    """Weights times values, through the output projection, give the output; on the fused kernel as well."""
    m = MultiHeadAttention(AttentionConfig(width=D, heads=H, value_width=2))
    x = torch.randn(B, length, D)
    if isinstance(mask, type(masks.padding(torch.tensor([1])))):
        mask = masks.padding(torch.tensor([length - 3, length]))
    with watch(m) as seen:
        out = m(x, allow=mask)
    q, k = (part(x).unflatten(-1, (H, K)).transpose(1, 2) for part in (m.query, m.key))
    v = m.value(x).unflatten(-1, (H, 2)).transpose(1, 2)
    torch.testing.assert_close(
        m.out((seen["attend"] @ v).transpose(1, 2).flatten(-2)), out, rtol=0, atol=1e-5
    )
    torch.testing.assert_close(seen["attend"], weights(q, k, allow=mask), rtol=0, atol=1e-6)
    exact = weights(q.double(), k.double(), allow=mask).detach()
    torch.testing.assert_close(seen["attend"].double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["rotary", "alibi", "relative"])
def test_positions_are_in_what_is_seen(kind: str):
    m = MultiHeadAttention(AttentionConfig(width=12, heads=H))
    position = POSITIONS[kind].sized(width=12, heads=H, key_width=4, length=11)
    x = torch.randn(B, T, 12)
    with watch(m) as seen:
        m(x, positions=position, allow=masks.causal())
    q, k = (part(x).unflatten(-1, (H, 4)).transpose(1, 2).double() for part in (m.query, m.key))
    bias = position.bias(T, T, device=x.device, dtype=torch.float64)
    wanted = weights(position.rotate(q), position.rotate(k), bias=bias, allow=masks.causal())
    torch.testing.assert_close(seen["attend"].double(), wanted, rtol=0, atol=1e-6)


def test_weights_are_seen_before_dropout():
    m = MultiHeadAttention(AttentionConfig(width=D, heads=H, dropout=0.9))
    with watch(m) as seen:
        m(torch.randn(B, T, D))
    torch.testing.assert_close(seen["attend"].sum(-1), torch.ones(B, H, T))


@pytest.mark.parametrize(
    ("dtype", "seen_as"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]
)
def test_what_is_seen_is_fp32_at_least(dtype: torch.dtype, seen_as: torch.dtype):
    m = MultiHeadAttention(AttentionConfig(width=D, heads=H)).to(dtype)
    with watch(m) as seen:
        m(torch.randn(B, T, D, dtype=dtype))
    assert seen["attend"].dtype == seen_as
    torch.testing.assert_close(seen["attend"].sum(-1), torch.ones(B, H, T, dtype=seen_as))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, nullcontext])
def test_what_is_seen_holds_no_graph(mode: Callable[[], AbstractContextManager[Any]]):
    model = Model()
    with mode(), watch(model) as seen:
        model(*inputs())
    assert list(seen) == PATHS
    assert all(not x.requires_grad and x.grad_fn is None for x in seen.values())


def test_each_call_is_kept_and_the_last_is_in_front():
    model = Model()
    runs = [inputs(target=t) for t in (2, 3, 1)]
    with watch(model, "decoder.0.*") as seen:
        for run in runs:
            model(*run)
    calls = seen.calls("decoder.0.cross")
    assert [x.shape for x in calls] == [(B, H, t, S) for t in (2, 3, 1)]
    assert seen["decoder.0.cross"] is calls[-1]


def test_cached_decoding_is_seen_step_by_step():
    m, x = MultiHeadAttention(AttentionConfig(width=D, heads=H)), torch.randn(B, T, D)
    with watch(m) as seen, torch.no_grad():
        m(x, allow=masks.causal())
        memory = None
        for t in range(T):
            memory = m.remember(x[:, t : t + 1], memory=memory)
            m.recall(x[:, t : t + 1], memory, allow=masks.causal())
    full, *steps = seen.calls("attend")
    for t, step in enumerate(steps):
        torch.testing.assert_close(step, full[:, :, t : t + 1, : t + 1], rtol=0, atol=1e-6)


def test_a_layer_that_is_used_twice_has_two_calls():
    layer = Layer(False)
    model = nn.Sequential(layer, layer)
    with watch(model) as seen:
        model(torch.randn(B, T, D))
    assert list(seen) == ["0.own"]
    assert len(seen.calls("0.own")) == 2


def test_seen_is_a_mapping_that_helps():
    model = Model()
    with watch(model, "decoder.*") as seen:
        assert dict(seen) == {}
        with pytest.raises(QkvError) as caught:
            seen["decoder.0.own"]
        assert_is_one_sentence(caught, "'decoder.0.own' has run", "none yet")
        model(*inputs())
    assert len(seen) == 4
    assert "decoder.0.own" in seen
    assert "encoder.0.own" not in seen
    assert seen.get("encoder.0.own") is None
    for use in (lambda: seen["decoder.0.cros"], lambda: seen.calls("decoder.0.cros")):
        with pytest.raises(QkvError) as caught:
            use()
        assert_is_one_sentence(
            caught,
            "no watched attention 'decoder.0.cros' has run",
            "decoder.1.own",
            "did you mean 'decoder.0.cross'?",
        )
    assert len(seen) == 4


# Any module with an `Attend` in it


class Own(nn.Module):
    """A module of the user's own, which names its parts and passes its arguments as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attend = Attend(beta=0.5)
        self.second = Attend(normalize="sparsemax")
        self.inner = nn.ModuleDict({"attend": Attend(beta=math.inf)})

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        one = self.self_attend(q_BHTK=q, k_BGSK=k, v_BGSV=k)
        return one + self.second(q, k, k, allow=masks.causal()) + self.inner["attend"](q, k, v_BGSV=k)


def test_attend_is_seen_in_a_module_of_ones_own():
    model, q, k = Own(), torch.randn(B, H, T, K), torch.randn(B, H, S, K)
    with watch(model) as seen:
        model(q, k)
    assert list(seen) == ["self_attend", "second", "inner"]
    torch.testing.assert_close(seen["self_attend"], weights(q, k, beta=0.5))
    torch.testing.assert_close(seen["second"], weights(q, k, normalize="sparsemax", allow=masks.causal()))
    torch.testing.assert_close(seen["inner"], weights(q, k, beta=math.inf))


def test_a_model_may_be_one_attention_or_a_bare_attend():
    x = torch.randn(B, T, D)
    m = MultiHeadAttention(AttentionConfig(width=D, heads=H))
    with watch(m, "attend") as seen:
        m(x)
    assert list(seen) == ["attend"]
    bare = Attend()
    with watch(bare) as seen:
        bare(x, x, x)
    torch.testing.assert_close(seen["attend"], weights(x, x))


# Not one bit changes


def autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def run(
    model: nn.Module,
    data: tuple[Tensor, ...],
    inside: Callable[[], AbstractContextManager[Any]],
    watching: Callable[[], AbstractContextManager[Any]],
) -> list[Tensor]:
    """Output, gradients of inputs and parameters, and the state of the generator afterwards."""
    model.zero_grad(set_to_none=True)
    data = tuple(x.detach().clone().requires_grad_() for x in data)
    torch.manual_seed(3)
    with watching(), inside():
        out = model(*data)
        after_forward = torch.get_rng_state()
    (out.float() * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    grads = [x.grad for x in (*data, *model.parameters()) if x.grad is not None]
    assert len(grads) > 4
    return [out.detach(), after_forward, torch.get_rng_state(), *grads]


def assert_bits_stay(
    model: nn.Module,
    data: tuple[Tensor, ...],
    inside: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> None:
    @contextmanager
    def watching() -> Iterator[None]:
        with watch(model) as full, watch(model, keep="entropy") as entropy:
            yield
        assert len(full) == len(entropy) == 2

    plain, watched = run(model, data, inside, nullcontext), run(model, data, inside, watching)
    assert len(watched) == len(plain)
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
    assert_unwatched(model)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("length", [T, 256])
@pytest.mark.parametrize("numbers", ["fp32", "bf16", "autocast"])
def test_outputs_gradients_and_random_numbers_are_bit_identical(
    numbers: str, length: int, training: bool, dropout: float
):
    dtype = torch.bfloat16 if numbers == "bf16" else torch.float32
    model = Layer(True, dropout=dropout).to(dtype).train(training)
    data = tuple(x.to(dtype) for x in inputs(length, length))
    assert_bits_stay(model, data, autocast if numbers == "autocast" else nullcontext)


@pytest.mark.parametrize("inside", [nullcontext, autocast])
@pytest.mark.parametrize(
    "choices",
    [
        *({"score": name} for name in SCORES),
        *({"normalize": name} for name in NORMALIZERS),
        {"beta": "learned"},
        {"qk_norm": True},
    ],
    ids=str,
)
def test_every_choice_is_bit_identical(
    choices: dict[str, Any], inside: Callable[[], AbstractContextManager[Any]]
):
    assert_bits_stay(Layer(True, dropout=0.3, **choices), inputs(), inside)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("choices", [{}, {"score": "concat"}, {"normalize": "sigmoid"}], ids=str)
def test_runs_over_row_blocks_are_bit_identical(
    choices: dict[str, Any], dropout: float, monkeypatch: pytest.MonkeyPatch
):
    """There the backward pass computes again, with the random numbers of the forward pass."""
    monkeypatch.setattr(kernels, "WHOLE_UP_TO", 16)
    monkeypatch.setattr(kernels, "BLOCK", 64)
    model, q = Layer(True, dropout=dropout, **choices), torch.randn(B, H, T, K)
    assert path(model.own.attend.call(q, q, q)).in_blocks
    assert_bits_stay(model, inputs())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference_is_bit_identical(mode: Callable[[], AbstractContextManager[Any]]):
    model, data = Model().eval(), inputs(256, 256)
    with mode():
        plain = model(*data)
        with watch(model):
            watched = model(*data)
    assert torch.equal(plain, watched)


def test_training_is_bit_identical_and_seen_at_each_step():
    watched = Model(dropout=0.3)
    plain = copy.deepcopy(watched)
    batches = [inputs() for _ in range(3)]

    def train(model: Model) -> None:
        torch.manual_seed(3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for batch in batches:
            optimizer.zero_grad()
            model(*batch).square().mean().backward()
            optimizer.step()

    train(plain)
    with watch(watched, keep="max_logit") as seen:
        train(watched)
    assert [len(seen.calls(name)) for name in PATHS] == [3] * 6
    first, _, last = seen.calls("encoder.0.own")
    assert not torch.equal(first, last)
    assert all(
        torch.equal(one, other) for one, other in zip(plain.parameters(), watched.parameters(), strict=True)
    )


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("length", [T, 256])
def test_autocast_is_watched_as_it_runs(length: int, score: str):
    m = MultiHeadAttention(AttentionConfig(width=D, heads=H, score=score))
    x = torch.randn(B, length, D)
    with watch(m) as exact:
        m(x)
    with autocast(), watch(m) as seen:
        m(x)
    assert seen["attend"].dtype == torch.float32
    torch.testing.assert_close(seen["attend"], exact["attend"], rtol=0, atol=0.03)


@pytest.mark.parametrize("score", ["dot", "gaussian", "cosine"])
def test_under_autocast_the_weights_are_those_of_its_queries_in_fp32(score: str):
    """The queries and keys are rounded, as in the run; their products are not rounded once more."""
    m = MultiHeadAttention(AttentionConfig(width=D, heads=H, score=score))
    taken: list[Tensor] = []
    m.attend.register_forward_hook(lambda _, args, out: taken.extend(args))
    with autocast(), watch(m) as seen:
        m(torch.randn(B, T, D))
    q, k, _ = taken
    assert q.dtype == torch.bfloat16
    q, k = SCORES[score]().lower(q, k) or (q, k)
    wanted = weights(q.double(), k.double(), beta=K**-0.5)
    torch.testing.assert_close(seen["attend"].double(), wanted, rtol=0, atol=1e-6)


def test_no_queries_no_batch_and_no_keys_run_as_they_do_unwatched():
    m = MultiHeadAttention(AttentionConfig(width=D, heads=H))
    for rows, queries, keys in ((B, 0, S), (0, T, S), (B, T, 0), (0, 0, 0)):
        for keep in REDUCERS:
            with watch(m, keep=keep) as seen:
                out = m(torch.randn(rows, queries, D), torch.randn(rows, keys, D))
            assert out.shape == (rows, queries, D)
            assert seen["attend"].shape[:2] == (rows, H)


# Hooks


def test_nothing_is_attached_before_and_after():
    model = Model()
    assert_unwatched(model)
    with watch(model, "encoder.*"):
        model(*inputs())
        hooked = [name for name, module in model.named_modules() if module._forward_hooks]
        assert hooked == ["encoder.0.own.attend", "encoder.1.own.attend"]
    assert_unwatched(model)


def test_nothing_stays_attached_when_the_body_raises():
    model = Model()
    with pytest.raises(ZeroDivisionError), watch(model):
        1 / 0  # noqa: B018
    assert_unwatched(model)


def test_nothing_stays_attached_when_the_model_raises():
    model = Model()
    with pytest.raises(QkvError, match="key has shape"), watch(model):
        model(torch.randn(B, S, 2), torch.randn(B, T, 2))
    assert_unwatched(model)


def test_nothing_is_attached_when_watching_is_refused():
    model = Model()
    with pytest.raises(QkvError), watch(model, "encoder.*", "nothing.*"):
        pass
    assert_unwatched(model)


def test_hooks_of_others_stay():
    model, ran = Model(), []
    model.encoder[0].own.attend.register_forward_hook(lambda *_: ran.append(1))
    with watch(model):
        model(*inputs())
    model(*inputs())
    assert len(ran) == 2
    assert len(model.encoder[0].own.attend._forward_hooks) == 1


def test_watches_nest():
    model, data = Model(), inputs()
    with watch(model) as full:
        with (
            watch(model, "decoder.*", keep="entropy") as entropy,
            watch(model, "decoder.*", keep="entropy") as twin,
        ):
            model(*data)
        assert len(full) == 6
        model(*data)
    assert list(entropy) == PATHS[2:]
    assert len(full.calls("decoder.0.own")) == 2
    assert len(entropy.calls("decoder.0.own")) == 1
    assert torch.equal(entropy["decoder.1.cross"], twin["decoder.1.cross"])
    p = full.calls("decoder.1.cross")[0]
    torch.testing.assert_close(entropy["decoder.1.cross"], -(p * p.log()).sum(-1))
    assert_unwatched(model)


def test_a_run_after_the_watch_is_not_seen():
    model = Model()
    with watch(model) as seen:
        model(*inputs())
    model(*inputs())
    assert len(seen.calls("encoder.0.own")) == 1


def test_a_reducer_of_ones_own_is_used():
    class Sharpest(Reducer):
        """The largest weight of each query."""

        def reduce(self, rows: Rows) -> Tensor:
            return rows.weights_BHTS.amax(-1)

    model = Model()
    with watch(model, keep=Sharpest()) as seen, watch(model) as full:
        model(*inputs())
    assert torch.equal(seen["decoder.1.cross"], full["decoder.1.cross"].amax(-1))


# What cannot be watched


def test_a_pattern_that_matches_nothing_names_the_nearest():
    with pytest.raises(QkvError) as caught, watch(Model(), "decoder.*", "decoder.1.crss"):
        pass
    assert_is_one_sentence(
        caught, "no attention matches 'decoder.1.crss'", *PATHS, "did you mean 'decoder.1.cross'?"
    )


def test_a_pattern_is_a_path_not_a_part_of_one():
    with pytest.raises(QkvError, match="no attention matches 'own'"), watch(Model(), "own"):
        pass


def test_patterns_mind_case():
    with pytest.raises(QkvError, match="no attention matches"), watch(Model(), "Encoder.*"):
        pass


def test_a_model_without_attention_is_named():
    with pytest.raises(QkvError) as caught, watch(nn.Sequential(nn.Linear(2, 2))):
        pass
    assert_is_one_sentence(caught, "Sequential has no attention to watch", "MultiHeadAttention or an Attend")


def test_torchs_own_attention_is_no_attention_of_ours():
    with pytest.raises(QkvError, match="MultiheadAttention has no attention to watch"):
        watch(nn.MultiheadAttention(4, 2)).__enter__()


def test_an_unknown_reducer_is_named():
    with pytest.raises(QkvError) as caught, watch(Model(), keep="entrpy"):
        pass
    assert_is_one_sentence(caught, "unknown reducer 'entrpy'", *REDUCERS, "did you mean 'entropy'?")


def test_a_model_that_did_not_run_is_said():
    with pytest.raises(QkvError) as caught, watch(Model(), "decoder.*"):
        pass
    assert_is_one_sentence(caught, "watched 4 attentions but none ran", "run the model inside the with block")


def compiled_whole(model: Model) -> nn.Module:
    return torch.compile(model, backend="eager")


def compiled_in_place(model: Model) -> nn.Module:
    model.compile(backend="eager")
    return model


def compiled_layer(model: Model) -> nn.Module:
    model.encoder[1] = torch.compile(model.encoder[1], backend="eager")
    return model


def compiled_layer_in_place(model: Model) -> nn.Module:
    model.decoder[0].cross.compile(backend="eager")
    return model


@pytest.mark.parametrize(
    ("how", "named"),
    [
        (compiled_whole, "the model is compiled"),
        (compiled_in_place, "the model is compiled"),
        (compiled_layer, "encoder.1 is compiled"),
        (compiled_layer_in_place, "decoder.0.cross is compiled"),
    ],
)
def test_a_compiled_model_says_so(how: Callable[[Model], nn.Module], named: str):
    model = how(Model())
    with pytest.raises(QkvError) as caught, watch(model):
        pass
    assert_is_one_sentence(caught, named, "watch the module that you gave to torch.compile")
    assert_unwatched(model)


def test_a_compiled_function_around_the_model_never_returns_empty():
    model, data = Layer(True), inputs()
    function = torch.compile(lambda *batch: model(*batch), backend="eager")
    plain = function(*data)
    with pytest.raises(QkvError) as caught, watch(model):
        assert torch.equal(function(*data), plain)
    assert_is_one_sentence(
        caught, "watched 2 attentions but none ran", "not through a function compiled by torch.compile"
    )


def test_a_function_compiled_while_watching_sees_what_it_should_and_no_more():
    model, data = Layer(True), inputs()
    function = torch.compile(lambda *batch: model(*batch), backend="eager")
    with watch(model) as seen:
        watched = function(*data)
    with watch(model) as wanted:
        plain = model(*data)
    torch.testing.assert_close(watched, plain)  # eager mode has a kernel of its own for short rows
    assert list(seen) == ["own", "cross"]
    torch.testing.assert_close(dict(seen), dict(wanted))
    assert torch.equal(function(*data), watched)
    assert [len(seen.calls(name)) for name in seen] == [1, 1]


def test_watching_the_module_given_to_compile_does_not_disturb_it():
    model, data = Layer(True), inputs()
    compiled = torch.compile(model, backend="eager")
    plain = compiled(*data)
    with watch(model) as seen:
        torch.testing.assert_close(model(*data), plain)  # eager mode has a kernel of its own for short rows
    assert list(seen) == ["own", "cross"]
    assert torch.equal(compiled(*data), plain)
    assert [len(seen.calls(name)) for name in seen] == [1, 1]


def test_what_is_no_model_pattern_or_reducer_is_named():
    """As a user meets it, without the tests' own checks of types."""
    code = """
import torch, qkv
from qkv.attention.reduce import Entropy
model = qkv.Attend()
for arguments, options in [(("no model",), {}), ((model, ["own"]), {}), ((model,), {"keep": Entropy}), ((model,), {"keep": None})]:
    try:
        with qkv.watch(*arguments, **options):
            pass
    except qkv.QkvError as error:
        print(error)
"""
    said = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"QKV_TYPECHECK": "0"},
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert [line.partition(";")[2][:30] for line in said.splitlines()] == [
        *[" a module and strings are want"] * 2,
        *[" a name or a reducer is wanted"] * 2,
    ]
