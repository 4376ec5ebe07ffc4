"""check_leaks on models that are right and on models with each of the classic bugs."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from qkv import QkvError, attend, masks
from qkv.attention.heads import AttentionConfig, MultiHeadAttention
from qkv.attention.masks.values import Mask
from qkv.attention.scores import SCORES

B, T, WORDS, WIDTH = 2, 7, 11, 12
IDS_BT = torch.randint(0, WORDS, (B, T), generator=torch.Generator().manual_seed(3))
KEEP_BT = torch.tensor([[True] * 4 + [False] * 3, [True] * 7])


class Layer(nn.Module):
    """Self-attention over whatever `allow` says, and a feed-forward network."""

    def __init__(self, allow: Mask | None, **choices: str):
        super().__init__()
        self.allow = allow
        self.attention = MultiHeadAttention(AttentionConfig(width=WIDTH, heads=3, **choices))
        self.feedforward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5), nn.ReLU(), nn.Linear(5, WIDTH)
        )

    def forward(self, x_BTD: Tensor, keep: Mask | None = None) -> Tensor:
        allow = self.allow if keep is None else keep if self.allow is None else self.allow & keep
        x_BTD = x_BTD + self.attention(x_BTD, allow=allow)
        return x_BTD + self.feedforward(x_BTD)


class Model(nn.Module):
    """Embeddings, layers, and one step in between that may be wrong."""

    def __init__(self, *layers: nn.Module, step: nn.Module | None = None):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.step = step or nn.Identity()
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, ids_BT: Tensor, keep: Mask | None = None) -> Tensor:
        x_BTD = self.embed(ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, keep)
        return self.out(self.step(x_BTD))


class Step(nn.Module):
    """A function as a module with a name."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x_BTD: Tensor, keep: Mask | None = None) -> Tensor:
        return self.function(x_BTD)


def causal_layer() -> Layer:
    return Layer(masks.causal())


def leak(model: nn.Module, x: Tensor = IDS_BT, **options: object) -> str:
    with pytest.raises(QkvError) as caught:
        masks.check_leaks(model, x, **options)
    return str(caught.value)


# Right


@pytest.mark.parametrize("score", SCORES)
def test_a_causal_model_passes_with_every_score(score: str):
    """A score of its own compares a query with all keys before the mask comes: that is no leak."""
    masks.check_leaks(Model(causal_layer(), Layer(masks.causal(), score=score)), IDS_BT)


@pytest.mark.parametrize("length", [2, 3, 4, T])
def test_a_causal_model_passes_at_every_length(length: int):
    masks.check_leaks(Model(causal_layer(), Layer(masks.causal() & masks.window(2))), IDS_BT[:, :length])


def test_a_causal_model_of_numbers_passes():
    masks.check_leaks(nn.Sequential(causal_layer(), causal_layer()), torch.randn(B, T, WIDTH))


def test_an_encoder_that_knows_its_padding_passes():
    keep = masks.padding(KEEP_BT)
    masks.check_leaks(Model(Layer(None), Layer(None)), IDS_BT, keep, causal=False, keep_BT=KEEP_BT)


def test_a_decoder_that_knows_its_padding_passes():
    masks.check_leaks(Model(causal_layer(), causal_layer()), IDS_BT, masks.padding(KEEP_BT), keep_BT=KEEP_BT)


def test_a_recurrent_model_passes_and_a_bidirectional_one_does_not():
    x_BTD = torch.randn(B, T, WIDTH)
    masks.check_leaks(nn.LSTM(WIDTH, 5, batch_first=True), x_BTD)  # its output is the first of several
    assert "'the model'" in leak(nn.LSTM(WIDTH, 5, batch_first=True, bidirectional=True), x_BTD)


def test_a_causal_convolution_passes_and_a_centred_one_does_not():
    right, wrong = (nn.Conv1d(WIDTH, WIDTH, 3, padding=padding) for padding in (2, 1))
    ahead = Step(lambda x: right(x.mT)[..., :-2].mT)
    masks.check_leaks(Model(causal_layer(), step=ahead), IDS_BT)
    assert leak(Model(causal_layer(), step=Step(lambda x: wrong(x.mT).mT))).startswith("position 0 of 'step'")


def test_heads_may_stand_before_positions():
    """(B, H, T, K), as attention has them, with as many heads as there are positions, too."""
    for heads in (3, T):
        split = Step(lambda x, heads=heads: x.unsqueeze(1).expand(B, heads, T, WIDTH))
        masks.check_leaks(nn.Sequential(causal_layer(), split), torch.randn(B, T, WIDTH))


def test_heads_may_stand_behind_positions():
    """(B, T, H, K), with as many heads as there are positions, too."""
    for heads in (3, T):
        split = Step(lambda x, heads=heads: x.unsqueeze(2).expand(B, T, heads, WIDTH))
        masks.check_leaks(nn.Sequential(causal_layer(), split), torch.randn(B, T, WIDTH))


# Wrong


@pytest.mark.parametrize("axis", [1, 2])
def test_a_leak_between_as_many_heads_as_positions(axis: int):
    split = Step(lambda x: (x + x.mean(1, keepdim=True)).unsqueeze(axis).repeat_interleave(T, axis))
    assert leak(nn.Sequential(causal_layer(), split), torch.randn(B, T, WIDTH)).startswith(
        "position 0 of '1'"
    )


def test_no_mask_in_one_layer():
    model = Model(causal_layer(), Layer(None), causal_layer())
    message = leak(model)
    assert message.startswith("position 0 of 'layers.1.attention.attend' (sentence 0) sees the future")
    assert "its output moved when only positions 1 to 6 changed (by " in message
    assert message.endswith("check the mask it gets")


def test_a_mask_that_is_off_by_one():
    assert leak(Model(causal_layer(), Layer(masks.causal(1)))).startswith(
        "position 0 of 'layers.1.attention.attend'"
    )


def test_a_mask_that_is_wrong_at_the_last_step_alone():
    allow_TS = masks.causal().dense((T, T)).clone()
    allow_TS[T - 2, T - 1] = True
    message = leak(Model(causal_layer(), Layer(masks.from_sdpa(allow_TS))))
    assert message.startswith(f"position {T - 2} of 'layers.1.attention.attend'")
    assert f"only positions {T - 1} to {T - 1} changed" in message


def test_a_window_on_both_sides():
    assert leak(Model(Layer(masks.window(2)))).startswith("position 0 of 'layers.0.attention.attend'")


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(WIDTH, track_running_stats=False), nn.InstanceNorm1d(WIDTH)], ids=str
)
def test_a_norm_over_time(norm: nn.Module):
    message = leak(Model(causal_layer(), step=Step(lambda x: norm(x.mT).mT)))
    assert message.startswith("position 0 of 'step' (sentence 0) sees the future")


def test_a_layer_norm_over_the_wrong_axis():
    norm = nn.LayerNorm(T)
    assert leak(Model(causal_layer(), step=Step(lambda x: norm(x.mT).mT))).startswith("position 0 of 'step'")
    assert leak(Model(causal_layer(), step=nn.LayerNorm([T, WIDTH]))).startswith("position 0 of 'step'")


def test_a_mean_over_time():
    assert leak(Model(causal_layer(), step=Step(lambda x: x - x.mean(1, keepdim=True)))).startswith(
        "position 0 of 'step'"
    )


def test_padding_ignored_in_attention():
    message = leak(Model(Layer(None)), causal=False, keep_BT=KEEP_BT)
    assert message.startswith(
        "position 0 of 'layers.0.attention.attend' (sentence 0) sees padding: its output moved"
    )


def test_padding_ignored_in_pooling():
    """The pooled vector has no positions; what is made of it at each position has."""
    model = Model(Layer(None), step=Step(lambda x: x + x.mean(1, keepdim=True)))
    masks.check_leaks(Model(Layer(None)), IDS_BT, masks.padding(KEEP_BT), causal=False, keep_BT=KEEP_BT)
    with pytest.raises(QkvError, match=r"^position 0 of 'step' \(sentence 0\) sees padding"):
        masks.check_leaks(model, IDS_BT, masks.padding(KEEP_BT), causal=False, keep_BT=KEEP_BT)


def test_one_answer_for_a_sentence_must_not_see_its_padding():
    def mean(x_BTD: Tensor) -> Tensor:
        return x_BTD.mean(1)

    def mean_of_words(x_BTD: Tensor) -> Tensor:
        return (x_BTD * KEEP_BT[..., None]).sum(1) / KEEP_BT.sum(1, keepdim=True)

    wrong, right = (nn.Sequential(nn.Embedding(WORDS, WIDTH), Step(step)) for step in (mean, mean_of_words))
    assert leak(wrong, causal=False, keep_BT=KEEP_BT).startswith(
        "the model's answer to sentence 0 sees padding: its output moved"
    )
    masks.check_leaks(right, IDS_BT, causal=False, keep_BT=KEEP_BT)


def test_positions_before_the_batch_are_refused_not_passed():
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), Step(lambda x: x.transpose(0, 1).cumsum(1)))
    assert leak(model).startswith("the model's output has shape (7, 2, 12), positions first")


def test_a_module_is_not_blamed_for_what_is_added_to_its_output_in_place():
    def add(x_BTD: Tensor) -> Tensor:
        return x_BTD.add_(attend(x_BTD, x_BTD, x_BTD))

    assert leak(Model(step=Step(add))).startswith("position 0 of 'step'")


def test_nan_where_the_future_is_counts():
    def spread(x_BTD: Tensor) -> Tensor:
        return torch.where(x_BTD[:, -1:].abs() > 3, math.nan, x_BTD)

    x_BTD = torch.zeros(B, T, WIDTH)
    x_BTD[:, -1] = 2.5  # the check adds at least 1
    assert leak(Step(spread), x_BTD).startswith("position 0 of 'the model'")


# What it leaves behind


def test_it_leaves_training_mode_gradients_and_hooks_as_they_were():
    model = Model(causal_layer(), Layer(None))
    model.train()
    model.layers[0].eval()  # frozen
    before = {name: module.training for name, module in model.named_modules()}
    leak(model)
    masks.check_leaks(Model(causal_layer()), IDS_BT)
    assert {name: module.training for name, module in model.named_modules()} == before
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


def test_dropout_is_no_leak():
    model = Model(causal_layer(), step=nn.Dropout(0.5))
    model.train()
    masks.check_leaks(model, IDS_BT)
    assert model.step.training


def test_an_error_of_the_model_leaves_no_hooks():
    def fail(x_BTD: Tensor) -> Tensor:
        raise ZeroDivisionError

    model = Model(step=Step(fail))
    with pytest.raises(ZeroDivisionError):
        masks.check_leaks(model, IDS_BT)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_it_draws_no_random_numbers_of_yours():
    state = torch.get_rng_state()
    masks.check_leaks(nn.Sequential(causal_layer()), torch.randn(B, T, WIDTH, generator=torch.Generator()))
    torch.set_rng_state(state)
    layer = causal_layer()
    after = torch.get_rng_state()
    masks.check_leaks(layer, torch.ones(B, T, WIDTH))
    assert torch.equal(torch.get_rng_state(), after)


# Misfits


@pytest.mark.parametrize(
    ("x", "options", "sentence"),
    [
        (
            IDS_BT[0],
            {},
            "check_leaks got an input of shape (7,); (batch, length) ids or (batch, length, width) is wanted",
        ),
        (
            IDS_BT[:0],
            {},
            "check_leaks got an input of shape (0, 7); (batch, length) ids or (batch, length, width) is wanted",
        ),
        (IDS_BT[:, :1], {}, "check_leaks got length 1; a causal check needs 2 positions or more"),
        (
            torch.full((B, T), 5),
            {},
            "check_leaks got only the token 5; two different tokens or more are wanted, to change one into the other",
        ),
        (
            IDS_BT,
            {"causal": False},
            "check_leaks has nothing to check: pass causal=True, or keep_BT with some padding in it",
        ),
        (
            IDS_BT,
            {"causal": False, "keep_BT": KEEP_BT | True},
            "check_leaks has nothing to check: pass causal=True, or keep_BT with some padding in it",
        ),
        (
            IDS_BT,
            {"keep_BT": KEEP_BT.long()},
            "keep_BT is torch.int64 of shape (2, 7); booleans (2, 7) are wanted",
        ),
        (
            IDS_BT,
            {"keep_BT": KEEP_BT[:, :5]},
            "keep_BT is torch.bool of shape (2, 5); booleans (2, 7) are wanted",
        ),
    ],
)
def test_each_misfit_has_its_sentence(x: Tensor, options: dict[str, object], sentence: str):
    assert leak(Model(causal_layer()), x, **options) == sentence


def test_a_model_without_positions_cannot_be_compared():
    model = Step(lambda x: x.float().mean(1))
    assert (
        leak(model)
        == "no module's output has axes (batch, length) = (2, 7) like the input: there is nothing to compare"
    )


@pytest.mark.parametrize("leak", range(7))
def test_a_single_wrong_cell_is_found_wherever_it_is(leak: int):
    class OneCell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = MultiHeadAttention(AttentionConfig(width=6, heads=2))

        def forward(self, x: Tensor) -> Tensor:
            allow = torch.ones(8, 8).tril().bool()
            allow[leak, leak + 1] = True
            return self.attention(x, allow=allow)

    with pytest.raises(QkvError, match=f"^position {leak} of 'attention.attend'"):
        masks.check_leaks(OneCell(), torch.randn(2, 8, 6))
