"""Every score against its direct formula, and what must hold for each one in the registry."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.attention import reference
from tests.attention.paths import NAMES, PATHS, SHORT, attend_on
from torch import Tensor

from qkv import SCORES, QkvError, attend, masks
from qkv.attention.scores import (
    Concat,
    Cosine,
    Dot,
    Gaussian,
    General,
    Location,
    Score,
    grouped_product,
    repeat_heads,
)

B, H, G, T, S, K, A = 2, 6, 3, 5, 7, 11, 13


def inputs(groups: int = H, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.randn(B, H, T, K, dtype=dtype), torch.randn(B, groups, S, K, dtype=dtype)


def sized(kind: str, dtype: torch.dtype = torch.float64) -> Score:
    return SCORES[kind].sized(width=K, heads=H, length=S).to(dtype)


def direct(kind: str, score: Score) -> Any:
    """The reference's score with the same parameters, under the names that its paper gives them."""
    p = {name: parameter.detach().double().numpy() for name, parameter in score.named_parameters()}
    return {
        "dot": lambda: reference.dot,
        "general": lambda: reference.general(p["weight_HKK"]),
        "concat": lambda: reference.concat(p["query_HKA"], p["key_HKA"], p["v_HA1"]),
        "location": lambda: reference.location(p["places_HSK"]),
        "gaussian": lambda: reference.gaussian,
        "cosine": lambda: reference.cosine,
    }[kind]()


def scores_of(score: Score, q_BHTK: Tensor, k_BGSK: Tensor) -> np.ndarray:
    return score(q_BHTK, k_BGSK).detach().double().numpy()


def direct_BHTS(kind: str, score: Score, q_BHTK: Tensor, k_BGSK: Tensor) -> np.ndarray:
    formula, q, k = direct(kind, score), q_BHTK.double().numpy(), k_BGSK.double().numpy()
    out_BHTS, share = np.zeros((B, H, T, S)), H // k.shape[1]
    for b, h, t, s in np.ndindex(*out_BHTS.shape):
        out_BHTS[b, h, t, s] = formula(q[b, h, t], k[b, h // share, s], h, s)
    return out_BHTS


# By hand


@pytest.mark.parametrize(
    ("score", "wanted"),
    [
        (Dot(), [11.0, -2.0]),  # (1, 2) · (3, 4), (1, 2) · (0, -1)
        (Gaussian(), [-4.0, -5.0]),  # -(2² + 2²) / 2, -(1² + 3²) / 2
        (Cosine(), [11 / (5 * math.sqrt(5)), -2 / math.sqrt(5)]),
    ],
)
def test_by_hand(score: Score, wanted: list[float]):
    q, k = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, 4.0], [0.0, -1.0]]]])
    torch.testing.assert_close(score(q, k).flatten(), torch.tensor(wanted))


def test_scores_with_parameters_by_hand():
    q, k = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, 4.0], [0.0, -1.0]]]])
    general, location, concat = General(2), Location(2, length=3), Concat(2, hidden=1)
    with torch.no_grad():
        general.weight_HKK.copy_(torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]))  # qᵀ W k = q₀ k₁
        location.places_HSK.copy_(torch.tensor([[[1.0, 1.0], [0.0, 3.0], [9.0, 9.0]]]))
        concat.query_HKA.copy_(torch.tensor([[[1.0], [0.0]]]))
        concat.key_HKA.copy_(torch.tensor([[[0.0], [0.5]]]))
        concat.v_HA1.fill_(2.0)  # 2 tanh(q₀ + k₁ / 2)
    torch.testing.assert_close(general(q, k).flatten(), torch.tensor([4.0, -1.0]))
    torch.testing.assert_close(location(q, k).flatten(), torch.tensor([3.0, 6.0]))
    torch.testing.assert_close(concat(q, k).flatten(), torch.tensor([2 * math.tanh(3), 2 * math.tanh(0.5)]))


def test_gaussian_attention_is_kernel_regression():
    """Nadaraya 1964: the known answers, weighted by exp(-distance² / (2 bandwidth²))."""
    x_S, y_S, at, bandwidth = torch.tensor([0.0, 1.0, 4.0]), torch.tensor([2.0, 3.0, -1.0]), 1.5, 0.7
    kernel_S = torch.exp(-((at - x_S) ** 2) / (2 * bandwidth**2))
    got = attend(torch.tensor([[at]]), x_S[:, None], y_S[:, None], score=Gaussian(), beta=1 / bandwidth**2)
    torch.testing.assert_close(got.squeeze(), (kernel_S * y_S).sum() / kernel_S.sum())


# Every score in the registry


@pytest.mark.parametrize("groups", [H, G, 1])
@pytest.mark.parametrize("kind", SCORES)
def test_the_score_is_its_direct_formula(kind: str, groups: int):
    score = sized(kind)
    q_BHTK, k_BGSK = inputs(groups)
    got_BHTS = scores_of(score, q_BHTK, k_BGSK)
    assert got_BHTS.shape == (B, H, T, S)
    assert np.abs(got_BHTS - direct_BHTS(kind, score, q_BHTK, k_BGSK)).max() <= 1e-12


@pytest.mark.parametrize("kind", SCORES)
def test_lowering_is_exact(kind: str):
    """score(q, k) = q' · k' to the last digits of float64, for inputs of every size."""
    score = sized(kind)
    q_BHTK, k_BGSK = inputs()
    q_BHTK, k_BGSK = q_BHTK * torch.logspace(-2, 2, T, dtype=torch.float64)[:, None], k_BGSK * 10
    lowered = score.lower(q_BHTK, k_BGSK)
    assert (lowered is None) == (kind == "concat")
    if lowered is None:
        return
    with torch.no_grad():
        got_BHTS = (lowered[0] @ lowered[1].mT).numpy()
    want_BHTS = direct_BHTS(kind, score, q_BHTK, k_BGSK)
    assert np.abs(got_BHTS - want_BHTS).max() <= 1e-12 * np.abs(want_BHTS).max()


@pytest.mark.parametrize("on", PATHS, ids=NAMES)
@pytest.mark.parametrize("kind", SCORES)
def test_attend_with_the_score_is_the_reference(kind: str, on: Any):
    if kind == "concat" and on.kernel != "products":
        return
    score = sized(kind)
    groups = H if on == SHORT else G
    (q, k), v = inputs(groups), torch.randn(B, groups, S, 2, dtype=torch.float64)
    got = attend_on(on, q, k, v, score=score, allow=masks.causal())
    want = reference.attend(
        q.numpy(), k.numpy(), v.numpy(), score=direct(kind, score), allow=reference.causal(T, S)
    )
    assert np.abs(got.detach().numpy() - want).max() <= 1e-12


@pytest.mark.parametrize("on", PATHS, ids=NAMES)
@pytest.mark.parametrize("kind", SCORES)
def test_a_gradient_reaches_every_parameter(kind: str, on: Any):
    if kind == "concat" and on.kernel != "products":
        return
    score = sized(kind)
    (q, k), v = inputs(), torch.randn(B, H, S, 2, dtype=torch.float64)
    leaves = [
        x.transpose(0, 1).contiguous().requires_grad_() for x in (q, k)
    ]  # heads first, as in parameters
    q, k = (leaf.transpose(0, 1) for leaf in leaves)
    attend_on(on, q, k, v, score=score, allow=masks.causal()).square().sum().backward()
    learning = [
        ("q", leaves[0]),
        *([] if kind == "location" else [("k", leaves[1])]),
        *score.named_parameters(),
    ]
    for name, parameter in learning:
        assert (parameter.grad.flatten(1) != 0).any(-1).all(), f"a head of {name} learns nothing"


@pytest.mark.parametrize("kind", SCORES)
def test_gradcheck(kind: str):
    score = SCORES[kind].sized(width=2, heads=3, length=4).double()
    q, k = torch.randn(1, 3, 2, 2, dtype=torch.float64), torch.randn(1, 3, 4, 2, dtype=torch.float64)
    names = [name for name, _ in score.named_parameters()]

    def f(q: Tensor, k: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(score, dict(zip(names, parameters, strict=True)), (q, k))

    inputs = [x.detach().clone().requires_grad_() for x in (q, k, *score.parameters())]
    assert torch.autograd.gradcheck(f, inputs)


@pytest.mark.parametrize("kind", SCORES)
def test_the_state_survives_a_round_trip(kind: str):
    q_BHTK, k_BGSK = inputs()
    one, other = sized(kind), sized(kind)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(q_BHTK, k_BGSK), other(q_BHTK, k_BGSK))
    assert all(parameter.isfinite().all() and parameter.std() > 0 for parameter in one.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", SCORES)
def test_the_dtype_stays(kind: str, dtype: torch.dtype):
    assert sized(kind, dtype)(*inputs(dtype=dtype)).dtype == dtype


# Each for itself


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_gaussian_in_bf16_is_as_good_as_the_inputs_allow(scale: float):
    """Norms that grow with K must not swallow differences: within 2⁻⁷ of |q|² + |k|², the size of what is summed."""
    q_BHTK, k_BGSK = inputs(dtype=torch.bfloat16)
    q_BHTK, k_BGSK = q_BHTK * scale, k_BGSK * scale
    lowered_q, lowered_k = Gaussian().lower(q_BHTK, k_BGSK)
    assert lowered_q.dtype == torch.bfloat16
    exact_BHTS = direct_BHTS("gaussian", Gaussian(), q_BHTK, k_BGSK)
    # What lowering itself loses, whatever the kernel then does in bf16
    lowered_BHTS = (lowered_q.double() @ lowered_k.double().mT).numpy()
    size_BHTS = (
        q_BHTK.double().square().sum(-1)[..., None] + k_BGSK.double().square().sum(-1)[..., None, :]
    ).numpy()
    assert np.abs(lowered_BHTS - exact_BHTS).max() <= 2**-16 * size_BHTS.max()
    got_BHTS = scores_of(Gaussian(), q_BHTK, k_BGSK)
    assert (np.abs(got_BHTS - exact_BHTS) <= 2**-7 * size_BHTS).all()


def test_gaussian_attention_in_bf16_is_close_to_the_reference():
    q, k = inputs(dtype=torch.bfloat16)
    v = torch.randn(B, H, S, 2, dtype=torch.bfloat16)
    want = reference.attend(
        q.double().numpy(), k.double().numpy(), v.double().numpy(), score=reference.gaussian
    )
    for on in (PATHS[0], PATHS[2]):
        got = attend_on(on, q, k, v, score=Gaussian()).double().numpy()
        assert np.abs(got - want).max() <= 0.05  # logits of about -3 in 8 bits are off by 1 %, weights too


def test_cosine_of_nothing_is_zero():
    q, k = torch.zeros(1, 1, 2, 3, requires_grad=True), torch.ones(1, 1, 5, 3)
    out = Cosine()(q, k)
    assert (out == 0).all()
    (grad,) = torch.autograd.grad(out.sum(), q)
    assert grad.isfinite().all()


def test_general_bridges_queries_and_keys_of_different_widths():
    score = General(3, heads=2, query_width=5).double()
    q, k, v = (torch.randn(1, 2, n, w, dtype=torch.float64) for n, w in [(7, 5), (11, 3), (11, 2)])
    want = reference.attend(
        q.numpy(),
        k.numpy(),
        v.numpy(),
        score=reference.general(score.weight_HKK.detach().numpy()),
        beta=1 / math.sqrt(5),
    )
    assert np.abs(attend(q, k, v, score=score).detach().numpy() - want).max() <= 1e-12


def test_concat_bridges_queries_and_keys_of_different_widths():
    score = Concat(3, heads=2, hidden=A, query_width=5).double()
    q, k, v = (torch.randn(1, 2, n, w, dtype=torch.float64) for n, w in [(7, 5), (11, 3), (11, 2)])
    parameters = [parameter.detach().numpy() for parameter in (score.query_HKA, score.key_HKA, score.v_HA1)]
    want = reference.attend(q.numpy(), k.numpy(), v.numpy(), score=reference.concat(*parameters))
    assert np.abs(attend(q, k, v, score=score).detach().numpy() - want).max() <= 1e-12


def test_location_looks_at_places_and_not_at_keys():
    score = sized("location")
    q, k = inputs()
    assert torch.equal(score(q, k), score(q, k + 1))
    assert torch.equal(score(q, k[:, :, :3]), score(q, k)[..., :3])
    with pytest.raises(
        QkvError, match=r"^8 keys, but this location score knows 7 places: build it with length=8$"
    ):
        score(q, torch.cat([k, k[:, :, :1]], dim=-2))


def test_a_score_that_says_nothing_is_our_own_mistake():
    with pytest.raises(TypeError, match="Score overrides neither lower nor forward"):
        Score()(*inputs())


def test_a_score_of_your_own_needs_only_forward():
    class Distance(Score):
        """-|q - k|₁."""

        def forward(self, q_BHTK: Tensor, k_BGSK: Tensor) -> Tensor:
            return -(q_BHTK.unsqueeze(-2) - k_BGSK.unsqueeze(-3)).abs().sum(-1)

    (q, k), v = inputs(), torch.randn(B, H, S, 2, dtype=torch.float64)
    want = reference.attend(
        q.numpy(),
        k.numpy(),
        v.numpy(),
        score=lambda a, b, head, s: -np.abs(a - b).sum(),
        allow=reference.window(T, S, 2),
    )
    for on in PATHS[:2]:
        got = attend_on(on, q, k, v, score=Distance(), allow=masks.window(2))
        assert np.abs(got.numpy() - want).max() <= 1e-12


@pytest.mark.parametrize("groups", [H, G, 1])
def test_grouped_products_copy_nothing(groups: int):
    a_BHTX, b_BGXY = torch.randn(B, H, T, K), torch.randn(B, groups, K, S)
    want = a_BHTX @ repeat_heads(b_BGXY, H)
    torch.testing.assert_close(grouped_product(a_BHTX, b_BGXY), want)
    shared = torch.randn(1, groups, K, S)
    torch.testing.assert_close(grouped_product(a_BHTX, shared), a_BHTX @ repeat_heads(shared, H))
    torch.testing.assert_close(grouped_product(a_BHTX[:1], b_BGXY), a_BHTX[:1] @ repeat_heads(b_BGXY, H))
