"""The packed Transformer: the same answers as the readable one, and the readable one wherever more is wanted."""

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.decode.toy import END, sources
from torch import Tensor, nn

from qkv import watch
from qkv.attention.scores import Cosine
from qkv.decode import SearchConfig, search
from qkv.models import packed as packing
from qkv.models import transformer as module
from qkv.models.packed import Packed, PackedState, Product, packed
from qkv.models.transformer import Transformer, TransformerConfig, TransformerState

LENGTHS = [4, 9, 2, 7, 7, 5, 1, 8]


def build(dtype: torch.dtype = torch.float64, **choices: Any) -> Transformer:
    torch.manual_seed(0)
    sizes = {
        "source_vocabulary": 50,
        "target_vocabulary": 11,
        "tied": "none",
        "width": 24,
        "hidden": 20,
        "heads": 4,
    }
    model = Transformer(TransformerConfig(**{**sizes, "encoder_layers": 2, "decoder_layers": 2, **choices}))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.to(dtype).eval()


def found(model: Transformer, config: SearchConfig) -> list[list[tuple[list[int], float]]]:
    source_BS, keep_BS = sources(*LENGTHS)
    start = torch.ones(len(LENGTHS), dtype=torch.long)
    best = search(model, source_BS, keep_BS, start=start, end=END, config=config)
    return [[(one.tokens, one.score) for one in ones] for ones in best]


def state_of(model: Transformer, steps: int = 3) -> tuple[Tensor, Any]:
    source_BS, keep_BS = sources(*LENGTHS)
    torch.manual_seed(1)
    state = model.encode(source_BS, keep_BS)
    logits = torch.empty(0)
    for number in range(steps):
        rows = 2 * len(LENGTHS) if number else len(LENGTHS)
        logits, state = model.step(torch.randint(11, (rows, 1)), state)
        if not number:
            state = state.pick(torch.arange(len(LENGTHS)).repeat_interleave(2), 2)
    return logits, state


@pytest.mark.parametrize(
    "config",
    [
        SearchConfig(beam=4, n_best=3, maximum=40),
        SearchConfig(beam=3, maximum=40, stop="quick"),
        SearchConfig(beam=1, maximum=40),
        SearchConfig(beam=1, n_best=3, temperature=0.9, maximum=30),
        SearchConfig(beam=40, n_best=2, maximum=12),  # wider than columns pay for
        SearchConfig(beam=3, coverage=0.3, maximum=20),  # which watches
    ],
    ids=["beam", "quick", "greedy", "samples", "wide", "coverage"],
)
@pytest.mark.parametrize(
    "choices", [{}, {"groups": 2, "order": "post", "positions": "rotary"}], ids=["plain", "other"]
)
def test_a_search_finds_the_same(
    config: SearchConfig, choices: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    model = build(**choices)
    fast = found(model, config)
    assert model in packing._PACKED
    monkeypatch.setattr(module, "packed", lambda *_: None)
    readable = found(model, config)
    assert [[tokens for tokens, _ in ones] for ones in fast] == [
        [tokens for tokens, _ in ones] for ones in readable
    ]
    scores = [[score for _, score in ones] for ones in readable]
    assert [[score for _, score in ones] for ones in fast] == [
        pytest.approx(one, rel=1e-11) for one in scores
    ]
    assert len({tuple(ones[0][0]) for ones in fast}) > 1


def watched(model: Transformer) -> Any:
    return watch(model, "decoder.*.cross")


@pytest.mark.parametrize("around", [watched, lambda _: torch.enable_grad()])
def test_more_than_an_answer_is_the_readable_path_from_the_start_or_in_the_middle(
    around: Callable[[Transformer], Any],
):
    model = build()
    with torch.no_grad():
        wanted, state = state_of(model)
        assert isinstance(state, PackedState)
        tokens = torch.arange(2 * len(LENGTHS)).view(-1, 1) % 11
        with around(model):
            logits, after = model.step(tokens, state)
            assert isinstance(after, TransformerState)
            plain, other = state_of(model)
            assert isinstance(other, TransformerState)
            again, _ = model.step(tokens, other)
    torch.testing.assert_close(plain, wanted)
    torch.testing.assert_close(logits, again)


def test_autocast_is_readable():
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert packed(build(torch.float32), sources(3)[0]) is None


def training_inside(model: Any) -> None:
    model.decoder[1].dropout.train()


def hooked(model: Any) -> None:
    model.encoder[0].register_forward_hook(lambda *_: None)


def another_score(model: Any) -> None:
    model.decoder[0].cross.attend.score = Cosine()


def hard(model: Any) -> None:
    model.decoder[0].own.attend.beta = float("inf")


class Louder(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def another_linear(model: Any) -> None:
    model.decoder[0].feedforward.up = Louder(24, 20).double().eval()


def halves(model: Any) -> None:
    model.decoder[0].bfloat16()


@pytest.mark.parametrize("change", [training_inside, hooked, another_score, hard, another_linear, halves])
def test_what_is_not_known_here_is_readable(change: Callable[[Transformer], None]):
    model, (source_BS, keep_BS) = build(), sources(*LENGTHS)
    with torch.no_grad():
        assert isinstance(model.encode(source_BS, keep_BS), PackedState)
        change(model)
        assert packed(model, source_BS) is None


@pytest.mark.parametrize("positions", ["alibi", "relative"])
def test_positions_that_are_a_bias_are_readable(positions: str):
    with torch.no_grad():
        assert packed(build(positions=positions), sources(3)[0]) is None


def test_a_source_that_wants_row_blocks_is_readable():
    with torch.no_grad():
        assert packed(build(), torch.zeros(1, 3000, dtype=torch.long)) is None
        assert packed(build(), torch.zeros(1, 300, dtype=torch.long)) is not None


def shifted(model: Any) -> None:
    with torch.no_grad():
        model.decoder[0].own.query.weight.add_(0.5)


def loaded(model: Any) -> None:
    model.load_state_dict({name: value + 0.1 for name, value in model.state_dict().items()})


def replaced(model: Any) -> None:
    model.decoder[1].cross.out.weight = nn.Parameter(torch.randn(24, 24, dtype=torch.float64))


def other_layer(model: Any) -> None:
    model.encoder[0] = copy.deepcopy(build().encoder[1])


@pytest.mark.parametrize("change", [shifted, loaded, replaced, other_layer])
def test_changed_weights_are_packed_again(change: Callable[[Transformer], None]):
    model = build()
    with torch.no_grad():
        before, _ = state_of(model)
        again, _ = state_of(model)
        assert torch.equal(before, again)
        change(model)
        after, _ = state_of(model)
        fresh = build()
        fresh.load_state_dict(model.state_dict())
        wanted, _ = state_of(fresh)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, wanted)


def test_weights_of_inference_mode_are_never_taken_for_others():
    with torch.inference_mode():
        model: Any = copy.deepcopy(build())
        before, _ = state_of(model)
        model.decoder[0].own.query.weight.add_(0.5)
        after, _ = state_of(model)
    assert not torch.allclose(before, after)


def test_a_packed_model_is_copied_saved_and_forgotten_as_any_other():
    model = build(torch.float32)
    with torch.no_grad():
        wanted, _ = state_of(model)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301 - our own
            assert torch.equal(state_of(other)[0], wanted)
    assert not any("packed" in name for name in model.state_dict())
    gc.collect()
    count = len(packing._PACKED)
    del model, other
    gc.collect()
    assert len(packing._PACKED) < count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [True, False])
def test_a_packed_product_is_the_product(dtype: torch.dtype, biased: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packing, "PACK_FROM", 0)
    maps = [nn.Linear(7, width, bias=biased, dtype=dtype) for width in (3, 5)]
    product, x = Product.of(*maps, scales=[0.5]), torch.randn(11, 7, dtype=dtype)
    with torch.no_grad():
        wanted = torch.cat([maps[0](x) * 0.5, maps[1](x)], dim=-1)
        close = 1e-6 if dtype == torch.float32 else 0.03
        torch.testing.assert_close(product(x), wanted, atol=close, rtol=close)


def test_in_fp32_all_of_it_is_as_near_to_float64_as_the_readable_path(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packing, "PACK_FROM", 0)
    with torch.no_grad():
        exact, _ = state_of(build())
        fast, state = state_of(build(torch.float32))
        assert isinstance(state, PackedState)
        monkeypatch.setattr(module, "packed", lambda *_: None)
        readable, _ = state_of(build(torch.float32))
    assert (fast - exact).abs().max() < 3 * (readable - exact).abs().max()


def test_one_encoding_serves_several_searches_though_sentences_leave():
    model, (source_BS, keep_BS) = build(), sources(*LENGTHS)
    config = SearchConfig(beam=3, maximum=12)
    with torch.no_grad():
        shared = model.encode(source_BS, keep_BS)
        for start in (1, 2, 3):
            first = torch.full((len(LENGTHS),), start)
            again = search(model, shared, keep_BS, start=first, end=END, config=config)
            alone = search(model, source_BS, keep_BS, start=first, end=END, config=config)
            assert [ones[0].tokens for ones in again] == [ones[0].tokens for ones in alone]
            assert len({len(ones[0].tokens) for ones in alone}) > 1


def test_the_packed_path_is_what_is_made(monkeypatch: pytest.MonkeyPatch):
    """Every other test would pass as well without it."""
    made: list[int] = []
    before = Packed.step
    monkeypatch.setattr(Packed, "step", lambda *args: made.append(1) or before(*args))
    with torch.no_grad():
        found(build(), SearchConfig(beam=3, maximum=6))
    assert len(made) > 2
