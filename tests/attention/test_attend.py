"""attend on each of its paths, against closed forms, a float64 reference in plain loops, and torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.attention import reference
from tests.attention.paths import NAMES, PATHS, attend_on, forced, gradients, path_of, takes
from tests.attention.strategies import composed
from torch import Tensor
from torch.nn import functional as F

from qkv import Attend, QkvError, attend, masks, weights
from qkv.attention.attend import Path
from qkv.attention.normalize import NORMALIZERS
from qkv.attention.scores import Concat, Cosine, Gaussian, General, Location
from qkv.attention.watch import watch

PRODUCTS, PRODUCTS_IN_BLOCKS, FUSED, FUSED_IN_BLOCKS, SHORT = PATHS
B, H, T, S, K, V = 2, 3, 5, 7, 11, 13

on_each_path = pytest.mark.parametrize("on", PATHS, ids=NAMES)
whole_paths = pytest.mark.parametrize("on", [PRODUCTS, FUSED], ids=["products", "fused"])


# Worked by hand


def e_keys(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """One query 1; keys 0 and 1, so that the logits are 0 and 1 (β = 1); values 0 and 1. One head, one batch."""
    q_BHTK, k_BHSK = (
        torch.ones(1, 1, 1, 1, dtype=dtype),
        torch.tensor([0.0, 1.0], dtype=dtype).reshape(1, 1, 2, 1),
    )
    return q_BHTK, k_BHSK, k_BHSK.clone()


@whole_paths
@pytest.mark.parametrize(
    ("beta", "wanted"),
    [
        (None, math.e / (1 + math.e)),  # weights (1, e) / (1 + e)
        (1.0, math.e / (1 + math.e)),
        (math.log(3), 3 / 4),  # weights (1, 3) / 4
        (-math.log(3), 1 / 4),
        (0.0, 1 / 2),
        (torch.tensor(math.log(4)), 4 / 5),
        (torch.tensor([[math.log(4)]], dtype=torch.float64), 4 / 5),
    ],
)
def test_two_keys_by_hand(on: Path, beta: Any, wanted: float):
    assert attend_on(on, *e_keys(), beta=beta).item() == pytest.approx(wanted, abs=1e-7)


def test_weights_by_hand():
    q_BHTK, k_BHSK, _ = e_keys()
    got_BHTS = weights(q_BHTK, k_BHSK, bias=torch.tensor([0.0, 1.0], dtype=torch.float64))
    want = torch.tensor([1, math.e**2], dtype=torch.float64) / (1 + math.e**2)  # the bias doubles the logit
    torch.testing.assert_close(got_BHTS.flatten(), want, atol=1e-15, rtol=0)


def test_hard_attention_takes_the_first_of_the_best_keys():
    q_BHTK = torch.ones(1, 1, 1, 1)
    k_BHSK = torch.tensor([1.0, 3.0, 3.0, 2.0, 3.0]).reshape(1, 1, 5, 1)
    v_BHSV = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0]).reshape(1, 1, 5, 1)
    assert attend(q_BHTK, k_BHSK, v_BHSV, beta=math.inf).item() == 20
    assert attend(-q_BHTK, k_BHSK, v_BHSV, beta=math.inf).item() == 10
    allow = torch.tensor([True, False, False, True, True])
    assert attend(q_BHTK, k_BHSK, v_BHSV, beta=math.inf, allow=allow).item() == 50
    assert attend(q_BHTK * 0, k_BHSK, v_BHSV, beta=math.inf, allow=~allow).item() == 20  # all tie at 0


@on_each_path
def test_beta_zero_is_the_plain_average_of_the_allowed_values(on: Path):
    q_BHTK, k_BHSK, v_BHSV = random_qkv(torch.float64)
    allow_TS = torch.ones(T, S, dtype=torch.bool).tril(2)
    got_BHTV = attend_on(on, q_BHTK, k_BHSK, v_BHSV, beta=0.0, allow=allow_TS)
    for t in range(T):
        mean_BHV = v_BHSV[:, :, : t + 3].mean(-2)
        torch.testing.assert_close(got_BHTV[:, :, t], mean_BHV, atol=1e-14, rtol=0)


# Against the reference


@dataclass
class Case:
    """One call: the shapes of q, k and v, what `attend` gets besides, and the same for the reference."""

    q: tuple[int, ...] = (B, H, T, K)
    k: tuple[int, ...] = (B, H, S, K)
    v: tuple[int, ...] = (B, H, S, V)
    ours: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] | None = None  # None: as ours
    kernels: tuple[str, ...] = ("products", "fused")
    per_query: bool = False  # whether a mask differs from query to query, so that fused works in blocks

    def paths(self) -> list[Path]:
        in_blocks = {"products": self.q[-2] > 1, "fused": self.per_query}
        found = [
            on for on in PATHS[:4] if on.kernel in self.kernels and (in_blocks[on.kernel] or not on.in_blocks)
        ]
        score = self.ours.get("score")
        dtype = (
            next((weight.dtype for weight in score.parameters()), torch.float32) if score else torch.float32
        )
        fits_short = takes(SHORT, *self.tensors(dtype), **self.ours)
        return [*found, SHORT] if fits_short else found

    def tensors(self, dtype: torch.dtype) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        return [
            torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            for shape in (self.q, self.k, self.v)
        ]


def masked(allow: Any, dense: Any, **others: Any) -> Case:
    return Case(ours={"allow": allow}, theirs={"allow": dense}, per_query=True, **others)


def square(beta: Any) -> Case:
    """T = S: the fused kernel's own causal flag."""
    allow = reference.causal(S, S)
    return Case(
        (B, H, S, K), ours={"allow": masks.causal(), "beta": beta}, theirs={"allow": allow, "beta": beta}
    )


def some(*shape: int, seed: int = 2, share: float = 0.5) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


def numbers(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scored(
    score: torch.nn.Module, theirs: Callable[..., Any], kernels: tuple[str, ...] = ("products", "fused")
) -> Case:
    """A score and the reference's, which gets the same parameters in the same order."""
    parameters = [parameter.detach().double().numpy() for parameter in score.parameters()]
    same = theirs(*parameters) if parameters else theirs
    return Case(ours={"score": score, "allow": masks.window(3)}, theirs={"score": same, "allow": reference.window(T, S, 3)},
                kernels=kernels, per_query=True)  # fmt: skip


torch.manual_seed(0)
PADDED = reference.lengths([3, 7], S)
IDS = [[0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 1]]
ONLY_PRODUCTS = ("products",)
CASES = {
    "plain": Case(),
    "values narrower than keys": Case(v=(B, H, S, 2)),
    "one query": Case(q=(B, H, 1, K)),
    "one key": Case(k=(B, H, 1, K), v=(B, H, 1, V)),
    "more queries than keys": Case(q=(B, H, 11, K)),
    "no batch, no heads": Case(q=(T, K), k=(S, K), v=(S, V)),
    "no batch": Case(q=(H, T, K), k=(H, S, K), v=(H, S, V)),
    "two batch axes": Case(q=(2, 5, H, T, K), k=(2, 5, H, S, K), v=(2, 5, H, S, V)),
    "two batch axes, broadcast": Case(q=(2, 1, H, T, K), k=(1, 5, H, S, K), v=(5, 1, S, V)),
    "shared memory": Case(k=(1, H, S, K), v=(1, H, S, V)),
    "shared memory without a batch axis": Case(k=(H, S, K), v=(H, S, V)),
    "shared memory without heads": Case(k=(S, K), v=(S, V)),
    "one query for all sentences": Case(q=(1, H, T, K)),
    "one query without a batch axis": Case(q=(H, T, K)),
    "one head of queries": Case(q=(B, 1, T, K)),
    "one head of queries and keys": Case(q=(B, 1, T, K), k=(B, 1, S, K)),
    "shared keys, values of their own": Case(k=(1, H, S, K), v=(B, H, S, V)),
    "grouped": Case(q=(B, 6, T, K), k=(B, 2, S, K), v=(B, 2, S, V)),
    "multi-query": Case(q=(B, 6, T, K), k=(B, 1, S, K), v=(B, 1, S, V)),
    "multi-query keys, grouped values": Case(q=(B, 6, T, K), k=(B, 1, S, K), v=(B, 2, S, V)),
    "grouped keys, multi-query values": Case(q=(B, 6, T, K), k=(B, 2, S, K), v=(B, 1, S, V)),
    "full keys, multi-query values": Case(q=(B, 6, T, K), k=(B, 6, S, K), v=(B, 1, S, V)),
    "grouped memory without a batch axis": Case(q=(B, 6, T, K), k=(2, S, K), v=(2, S, V)),
    "grouped, two batch axes": Case(q=(2, 5, 6, T, K), k=(2, 5, 2, S, K), v=(2, 5, 2, S, V)),
    "beta": Case(ours={"beta": 0.7}),
    "beta of zero": Case(ours={"beta": 0.0}),
    "negative beta": Case(ours={"beta": -0.4}),
    "beta per head": Case(ours={"beta": torch.tensor([0.5, 0.0, -0.3])}),
    "one beta, a tensor": Case(ours={"beta": torch.tensor([0.25])}),
    "beta per head, grouped": Case(
        q=(B, 6, T, K), k=(B, 2, S, K), v=(B, 2, S, V), ours={"beta": torch.arange(6) / 8}
    ),
    "hard": Case(ours={"beta": math.inf}, kernels=ONLY_PRODUCTS),
    "hard, grouped": Case(
        q=(B, 6, T, K), k=(B, 2, S, K), v=(B, 2, S, V), ours={"beta": math.inf}, kernels=ONLY_PRODUCTS
    ),
    "bias": Case(ours={"bias": numbers(B, H, T, S)}),
    "bias per key": Case(ours={"bias": numbers(S)}),
    "bias per head and query": Case(ours={"bias": numbers(H, T, 1)}),
    "bias per sentence": Case(ours={"bias": numbers(B, 1, 1, S)}),
    "bias, two batch axes": Case(
        q=(2, 5, H, T, K), k=(2, 5, H, S, K), v=(2, 5, H, S, V), ours={"bias": numbers(5, H, T, S)}
    ),
    "bias and hard": Case(ours={"bias": numbers(T, S), "beta": math.inf}, kernels=ONLY_PRODUCTS),
    "bias per key and a mask": Case(
        ours={"bias": numbers(S), "allow": masks.causal()},
        theirs={"bias": numbers(S), "allow": reference.causal(T, S)},
        per_query=True,
    ),
    "bias, mask, beta, grouped": Case(
        q=(B, 6, T, K),
        k=(B, 2, S, K),
        v=(B, 2, S, V),
        ours={"bias": numbers(6, T, S), "beta": torch.arange(6) / 8, "allow": some(B, 6, T, S)},
        theirs={"bias": numbers(6, T, S), "beta": np.arange(6) / 8, "allow": some(B, 6, T, S).numpy()},
        per_query=True,
    ),
    "plainly causal": square(None),
    "plainly causal, beta of zero": square(0.0),
    "plainly causal, negative beta": square(-0.7),
    "plainly causal, beta per head": square(torch.tensor([0.5, 0.0, -0.3])),
    "causal": masked(masks.causal(), reference.causal(T, S)),
    "causal, more queries than keys": masked(masks.causal(), reference.causal(11, S), q=(B, H, 11, K)),
    "causal from an offset": masked(masks.causal(1), reference.causal(T, S, 1)),
    "causal from before the first key": masked(masks.causal(-2), reference.causal(T, S, -2)),
    "window": masked(masks.window(1), reference.window(T, S, 1)),
    "window, more queries than keys": masked(masks.window(1), reference.window(11, S, 1), q=(B, H, 11, K)),
    "causal window": masked(
        masks.causal() & masks.window(2), reference.causal(T, S) & reference.window(T, S, 2)
    ),
    "padding and causal": masked(
        masks.padding(torch.tensor([3, 7])) & masks.causal(), PADDED & reference.causal(T, S)
    ),
    "documents": masked(masks.documents(torch.tensor(IDS)), reference.documents(IDS, T)),
    "documents or the first key": masked(
        masks.documents(torch.tensor(IDS)) | (torch.arange(S) == 0),
        reference.documents(IDS, T) | (np.arange(S) == 0),
    ),
    "not": masked(~masks.causal(1), ~reference.causal(T, S, 1)),
    "dense": masked(some(B, H, T, S), some(B, H, T, S).numpy()),
    "dense per sentence": masked(some(B, 1, T, S), some(B, 1, T, S).numpy()),
    "dense for all": masked(some(T, S), some(T, S).numpy()),
    "dense per query": masked(some(T, 1), some(T, 1).numpy()),
    "rows with nothing allowed": masked(some(B, H, T, S, share=0.15), some(B, H, T, S, share=0.15).numpy()),
    "mask, no batch": masked(some(H, T, S), some(H, T, S).numpy(), q=(H, T, K), k=(H, S, K), v=(H, S, V)),
    "mask, no heads": masked(some(T, S), some(T, S).numpy(), q=(T, K), k=(S, K), v=(S, V)),
    "mask, two batch axes": masked(
        some(2, 1, H, T, S),
        some(2, 1, H, T, S).numpy(),
        q=(2, 5, H, T, K),
        k=(2, 5, H, S, K),
        v=(2, 5, H, S, V),
    ),
    "mask for the second batch axis": masked(
        some(5, 1, T, S), some(5, 1, T, S).numpy(), q=(2, 5, H, T, K), k=(2, 5, H, S, K), v=(2, 5, H, S, V)
    ),
    "padding lengths": Case(ours={"allow": masks.padding(torch.tensor([3, 7]))}, theirs={"allow": PADDED}),
    "padding to nothing": Case(
        ours={"allow": masks.padding(torch.tensor([0, 7]))}, theirs={"allow": reference.lengths([0, 7], S)}
    ),
    "padding in the middle": Case(
        ours={"allow": masks.padding(some(B, S))}, theirs={"allow": some(B, S).numpy()[:, None, None]}
    ),
    "dense per key": Case(ours={"allow": some(S)}, theirs={"allow": some(S).numpy()}),
    "padding, two batch axes": Case(
        q=(2, 5, H, T, K),
        k=(2, 5, H, S, K),
        v=(2, 5, H, S, V),
        ours={"allow": masks.padding(some(2, 5, S))},
        theirs={"allow": some(2, 5, S).numpy()[:, :, None, None]},
    ),
    "general": scored(General(K, H), reference.general),
    "general, one matrix": scored(General(K, 1), reference.general),
    "location": scored(Location(K, H, S), reference.location),
    "gaussian": scored(Gaussian(), reference.gaussian),
    "cosine": scored(Cosine(), reference.cosine),
    "concat": scored(Concat(K, H), reference.concat, ONLY_PRODUCTS),
    **{
        f"{name} and a mask": masked(some(T, S), some(T, S).numpy(), kernels=ONLY_PRODUCTS)
        for name in NORMALIZERS
        if name != "softmax"
    },
}
for name in NORMALIZERS:
    if name != "softmax":
        CASES[f"{name} and a mask"].ours["normalize"] = CASES[f"{name} and a mask"].theirs["normalize"] = name  # pyright: ignore

# Largest difference allowed to outputs and gradients of ordinary size. bf16 keeps 8 bits: the logits, of
# about ±3, are off by 1 %, and so are the weights.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 6e-2}


def cast(choices: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The same choices in another precision; a mask and a float stay."""
    return {
        name: value.to(dtype)
        if isinstance(value, torch.nn.Module) or (isinstance(value, Tensor) and value.dtype != torch.bool)
        else value
        for name, value in choices.items()
    }


def as_array(value: Any) -> Any:
    return value.detach().double().numpy() if isinstance(value, Tensor) else value


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_path_is_the_reference(name: str, dtype: torch.dtype):
    case = CASES[name]
    if dtype == torch.bfloat16 and "hard" in name:
        return  # which key is the best may change with the rounding
    q, k, v = case.tensors(dtype)
    choices = cast(case.ours, dtype)
    theirs = {key: as_array(value) for key, value in (case.theirs or case.ours).items()}
    want = reference.attend(as_array(q), as_array(k), as_array(v), **theirs)
    for on in case.paths():
        got = attend_on(on, q, k, v, **choices)
        assert got.dtype == dtype
        assert got.shape == want.shape, on
        assert np.abs(as_array(got) - want).max() <= TOLERANCE[dtype], on
    cast(case.ours, torch.float32)  # modules change in place


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_path_has_the_same_gradient(name: str, dtype: torch.dtype):
    """Against float64 products, whose gradient gradcheck proves below."""
    case = CASES[name]
    if dtype == torch.bfloat16 and "hard" in name:
        return
    tensors = case.tensors(dtype)

    def run(on: Path, dtype: torch.dtype) -> list[Tensor]:
        choices = cast(case.ours, dtype)
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        if isinstance(choices.get("beta"), Tensor):
            choices["beta"] = choices["beta"].clone().requires_grad_()
            leaves.append(choices["beta"])
        if "bias" in choices and on.kernel == "products":
            choices["bias"] = choices["bias"].clone().requires_grad_()
            leaves.append(choices["bias"])
        # Hard attention has no gradient into q and k: that is not an error here.
        out = attend_on(on, *leaves[:3], **choices) + 0 * sum(leaf.sum() for leaf in leaves)
        return gradients(out, leaves)

    want = run(PRODUCTS, torch.float64)
    for on in case.paths():
        for got_X, want_X in zip(run(on, dtype), want, strict=False):
            torch.testing.assert_close(
                got_X.double(), want_X, atol=3 * TOLERANCE[dtype], rtol=3 * TOLERANCE[dtype]
            )
    cast(case.ours, torch.float32)


def random_qkv(dtype: torch.dtype, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(B, H, T, K, dtype=dtype, **options),
        torch.randn(B, H, S, K, dtype=dtype, **options),
        torch.randn(B, H, S, V, dtype=dtype, **options),
    )


@st.composite
def calls(draw: Any) -> tuple[list[Tensor], dict[str, Any], dict[str, Any], float]:
    """q, k and v, the choices for `attend`, the same for the reference, and how far the two may be apart."""
    size = st.integers(1, 4)
    B, G, T, S, K, V = (
        draw(size),
        draw(st.integers(1, 2)),
        draw(size),
        draw(st.integers(1, 5)),
        draw(size),
        draw(size),
    )
    H = G * draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    beta = draw(st.sampled_from([None, 0.0, 1.5, -0.5, math.inf, torch.linspace(-1, 1, H)]))
    normalize = draw(st.sampled_from(["softmax", "softmax", *NORMALIZERS]))
    # Rounded scores have other ties and corners: bf16 is for what is smooth.
    smooth = normalize in ("softmax", "sigmoid") and beta is not math.inf
    dtype = draw(
        st.sampled_from([torch.float32, torch.float64, *([torch.bfloat16, torch.float16] if smooth else [])])
    )
    batches = [draw(st.sampled_from([B, B, 1])) for _ in range(2)]
    shapes = [(B, H, T, K), (batches[0], G, S, K), (batches[1], draw(st.sampled_from([G, 1])), S, V)]
    qkv = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    ours: dict[str, Any] = {"beta": beta, "normalize": normalize}
    theirs: dict[str, Any] = {"beta": as_array(beta), "normalize": ours["normalize"]}
    if draw(st.booleans()):
        shape = [draw(st.sampled_from([1, size])) for size in (B, H, T, S)][draw(st.integers(0, 3)) :]
        bias = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        ours["bias"], theirs["bias"] = bias, as_array(bias)
    if draw(st.booleans()):
        ours["allow"], theirs["allow"] = draw(composed(B, H, T, S))
    tolerances = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 3e-2, torch.bfloat16: 2.5e-1}
    return qkv, ours, theirs, tolerances[dtype]


@given(calls(), st.integers(1, 40))
def test_any_call_on_any_path_is_the_reference(call: Any, block: int):
    qkv, ours, theirs, tolerance = call
    want = reference.attend(*(as_array(x) for x in qkv), **theirs)
    paths = set()
    for preferred in PATHS:
        with forced(preferred, block):
            paths.add(path_of(*qkv, **ours))
            got = attend(*qkv, **ours)
        assert got.shape == want.shape
        assert np.abs(as_array(got) - want).max() <= tolerance
    assert PRODUCTS in paths


@given(calls())
def test_weights_times_values_is_attend(call: Any):
    (q, k, _), ours, theirs, tolerance = call
    got_BHTS = weights(q, k, **ours)
    want_BHTS = reference.weights(as_array(q), as_array(k), **theirs)
    assert got_BHTS.shape == want_BHTS.shape
    assert np.abs(as_array(got_BHTS) - want_BHTS).max() <= tolerance


@pytest.mark.parametrize(
    "shapes", [[(T, K), (S, K)], [(H, T, K), (H, S, K)], [(2, 5, H, T, K), (5, 1, S, K)]]
)
def test_weights_keep_the_leading_axes(shapes: list[tuple[int, ...]]):
    q, k = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    got, want = weights(q, k), reference.weights(as_array(q), as_array(k))
    assert got.shape == want.shape
    np.testing.assert_allclose(as_array(got), want, atol=1e-12)


# Gradients


GRADCHECKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"allow": masks.causal()},
    "rows with nothing allowed": {"allow": masks.window(1, offset=0) & ~masks.causal(0)},
    "padding": {"allow": masks.padding(torch.tensor([2]))},
    "beta per head": {"beta": torch.tensor([0.5, -1.5], dtype=torch.float64)},
    "bias": {"bias": numbers(2, 3, 5)},
    "all": {
        "allow": masks.window(2),
        "bias": numbers(2, 1, 5),
        "beta": torch.tensor([0.5, -1.5], dtype=torch.float64),
        "score": Gaussian(),
    },
    **{name: {"normalize": name, "allow": masks.window(2)} for name in ("sigmoid", "sparsemax", "entmax15")},
}


@on_each_path
@pytest.mark.parametrize("name", GRADCHECKS)
def test_gradcheck(on: Path, name: str):
    choices = GRADCHECKS[name]
    if on.kernel == "fused":
        if "normalize" in choices:
            return
        choices = (
            {"allow": masks.window(9), **choices} if on.in_blocks else choices
        )  # allows all, query by query
        if on.in_blocks and name == "padding":
            return
    q, k, v = (
        torch.randn(1, 2, length, width, dtype=torch.float64) for length, width in [(3, 2), (5, 2), (5, 3)]
    )
    learned = [
        key for key in ("beta", "bias") if key in choices and not (key == "bias" and on.kernel != "products")
    ]
    if on == SHORT and not takes(SHORT, q, k, v, **choices):
        return

    def f(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Tensor:
        return attend_on(on, q, k, v, block=20, **(choices | dict(zip(learned, more, strict=True))))

    inputs = [x.clone().requires_grad_() for x in (q, k, v, *(choices[key] for key in learned))]
    assert torch.autograd.gradcheck(f, inputs, fast_mode=on != PRODUCTS)


# Rows with nothing allowed


@on_each_path
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_a_query_with_nothing_allowed_gets_zeros_and_sends_no_gradient(
    on: Path, dtype: torch.dtype, normalize: str
):
    if on.kernel != "products" and normalize != "softmax":
        return
    blocked = [0, 3]
    allow_BHTS = torch.ones(B, H, T, S, dtype=torch.bool)
    allow_BHTS[:, :, blocked] = False
    open_rows = [t for t in range(T) if t not in blocked]
    q, k, v = random_qkv(dtype, requires_grad=True)
    bias = torch.randn(T, S, dtype=dtype, requires_grad=on.kernel == "products")
    leaves = [q, k, v, *([bias] if bias.requires_grad else [])]

    def run(rows: list[int]) -> tuple[Tensor, list[Tensor]]:
        """Only the queries in `rows`, each with the output gradient that it has in the whole."""
        choices = {"allow": allow_BHTS[:, :, rows], "normalize": normalize, "bias": bias[rows]}
        out = attend_on(on, q[:, :, rows], k, v, **choices)
        weight = torch.linspace(-1, 2, T * V).reshape(T, V)[rows].to(dtype)
        total = (out * weight).sum() + 0 * sum(leaf.sum() for leaf in leaves)
        return out, list(torch.autograd.grad(total, leaves))

    with torch.autograd.set_detect_anomaly(True):
        out, grads = run(list(range(T)))
    assert (out[:, :, blocked] == 0).all()
    assert out[:, :, open_rows].abs().amin() > 0 or normalize == "hard"
    assert (grads[0][:, :, blocked] == 0).all()
    assert all((grad[blocked] == 0).all() for grad in grads[3:])
    _, without = run(open_rows)
    for grad, want in zip(grads, without, strict=True):
        assert grad.isfinite().all()
        torch.testing.assert_close(grad, want, atol=2e-6 if dtype == torch.float32 else 3e-2, rtol=1e-2)


@on_each_path
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_where_nothing_at_all_is_allowed_all_is_zero(on: Path, dtype: torch.dtype):
    q, k, v = random_qkv(dtype, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        out = attend_on(on, q, k, v, allow=torch.zeros(T, S, dtype=torch.bool))
        grads = gradients(out, [q, k, v])
    assert (out == 0).all()
    assert all((grad == 0).all() for grad in grads)


@whole_paths
def test_a_sentence_of_nothing_but_padding_gets_zeros(on: Path):
    q, k, v = random_qkv(torch.float32, requires_grad=True)
    out = attend_on(on, q, k, v, allow=masks.padding(torch.tensor([0, S])))
    grads = gradients(out, [q, k, v])
    for x in (out, *grads):
        assert (x[0] == 0).all()
        assert (x[1] != 0).any()


@on_each_path
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_forbidden_keys_weigh_nothing_however_large_they_are(on: Path, dtype: torch.dtype):
    q, k, v = random_qkv(dtype)
    allow = masks.causal() & masks.window(2)
    want = attend_on(on, q, k, v, allow=allow)
    k[:, :, -1], v[:, :, -1] = 1e4, -1e6
    got = attend_on(on, q, k, v, allow=allow)
    assert torch.equal(got[:, :, :-1], want[:, :, :-1])
    assert not torch.equal(got[:, :, -1], want[:, :, -1])


# Nothing to look up


@on_each_path
@pytest.mark.parametrize("normalize", NORMALIZERS)
@pytest.mark.parametrize("sizes", [{"batch": 0}, {"T": 0}, {"S": 0}, {"T": 0, "S": 0}, {"V": 0}], ids=str)
def test_empty_axes_give_zeros_and_zero_gradients(on: Path, normalize: str, sizes: dict[str, int]):
    if on.kernel == "fused" and normalize != "softmax":
        return
    B, T, S, V = ({"batch": 2, "T": 5, "S": 7, "V": 2} | sizes).values()
    for lead in [(), (3,), (B, 3), (5, B, 3)]:
        q, k, v = (
            torch.randn(*lead, length, width, requires_grad=True)
            for length, width in [(T, 11), (S, 11), (S, V)]
        )
        for allow in [None, masks.causal(), torch.ones(T, S, dtype=torch.bool)]:
            with forced(on):
                out = attend(q, k, v, normalize=normalize, allow=allow)
            assert out.shape == (*lead, T, V)
            if out.numel() == 0 or S == 0:
                assert (out == 0).all()
                grads = torch.autograd.grad(out.sum() + 0 * (q.sum() + k.sum() + v.sum()), [q, k, v])
                assert all((grad == 0).all() for grad in grads)


def test_an_empty_batch_meets_a_shared_memory():
    q, k, v = torch.randn(0, H, T, K), torch.randn(1, H, S, K), torch.randn(1, H, S, V)
    for on in [PRODUCTS, FUSED]:
        with forced(on):
            assert attend(q, k, v).shape == (0, H, T, V)


# Dropout


@pytest.mark.parametrize("on", [PRODUCTS, PRODUCTS_IN_BLOCKS], ids=NAMES[:2])
def test_dropout_drops_weights_and_scales_the_rest(on: Path):
    n, share = 40, 0.25
    q, k = torch.randn(1, 2, n, 3), torch.randn(1, 2, n, 3)
    want_BHTS = weights(q, k) / (1 - share)
    got_BHTS = attend_on(on, q, k, torch.eye(n).expand(1, 2, n, n), dropout=share, block=500)
    kept_BHTS = got_BHTS != 0
    torch.testing.assert_close(got_BHTS[kept_BHTS], want_BHTS[kept_BHTS])
    dropped = 1 - kept_BHTS.float().mean().item()
    assert abs(dropped - share) < 5 * math.sqrt(share * (1 - share) / (2 * n * n))  # five standard deviations
    assert not torch.equal(kept_BHTS[0, 0], kept_BHTS[0, 1])
    assert not torch.equal(kept_BHTS[0, 0, : n // 2], kept_BHTS[0, 0, n // 2 :])  # no block repeats another


@pytest.mark.parametrize("on", [PRODUCTS, PRODUCTS_IN_BLOCKS], ids=NAMES[:2])
def test_the_backward_pass_drops_the_weights_that_the_forward_pass_dropped(on: Path):
    n = 11
    q, k = torch.randn(1, 1, n, 3), torch.randn(1, 1, n, 3)
    v = torch.eye(n).reshape(1, 1, n, n).requires_grad_()
    dropped_BHTS = attend_on(
        on, q, k, v, dropout=0.5, block=30
    )  # with these values, the output is the weights
    torch.rand(3)  # others draw numbers in between
    (got,) = torch.autograd.grad(dropped_BHTS.sum(), v)
    torch.testing.assert_close(got, dropped_BHTS.detach().mT.sum(-1, keepdim=True).expand(1, 1, n, n))


# Parity with torch


def torch_cases() -> dict[str, tuple[dict[str, Any], dict[str, Any], list[tuple[int, ...]]]]:
    """Our choices, torch's arguments, shapes of q, k and v."""
    plain = [(B, H, T, K), (B, H, S, K), (B, H, S, V)]
    allow, bias = some(B, 1, T, S, share=0.8), numbers(H, T, S)
    return {
        "plain": ({}, {}, plain),
        "bool mask": ({"allow": allow}, {"attn_mask": allow}, plain),
        "float mask": ({"bias": bias}, {"attn_mask": bias}, plain),
        "is_causal": ({"allow": masks.causal()}, {"is_causal": True}, [(B, H, S, K)] * 3),
        "is_causal, T < S": ({"allow": masks.causal(offset=0)}, {"is_causal": True}, plain),
        "scale": ({"beta": 0.7}, {"scale": 0.7}, plain),
        "enable_gqa": ({}, {"enable_gqa": True}, [(B, 6, T, K), (B, 2, S, K), (B, 2, S, V)]),
        "all": (
            {"bias": bias, "beta": 0.7, "allow": allow},
            {"attn_mask": bias.masked_fill(~allow, -math.inf), "scale": 0.7},
            plain,
        ),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@on_each_path
@pytest.mark.parametrize("name", torch_cases())
def test_parity_with_scaled_dot_product_attention(on: Path, name: str, dtype: torch.dtype):
    ours, theirs, shapes = torch_cases()[name]
    ours, theirs = cast(ours, dtype), cast(theirs, dtype)
    qkv = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    with forced(on):
        got = attend(*qkv, **ours)
    want = F.scaled_dot_product_attention(*qkv, **theirs)
    atol = TOLERANCE[dtype]
    torch.testing.assert_close(got, want, atol=atol, rtol=0)
    for got_grad, want_grad in zip(gradients(got, qkv), gradients(want, qkv), strict=True):
        torch.testing.assert_close(got_grad, want_grad, atol=10 * atol, rtol=atol)


# The module


def test_the_module_drops_weights_in_training_alone():
    q, k, v = random_qkv(torch.float32)
    module = Attend(dropout=0.5)
    assert not torch.equal(module(q, k, v), module(q, k, v))
    module.eval()
    assert torch.equal(module(q, k, v), attend(q, k, v))


def test_the_module_makes_its_choices_once():
    q, k, v = random_qkv(torch.float32)
    score = General(K, H)
    module = Attend(score=score, beta=0.5, normalize="entmax15")
    bias, allow = torch.randn(S), masks.causal()
    want = attend(q, k, v, score=score, beta=0.5, normalize="entmax15", bias=bias, allow=allow)
    assert torch.equal(module(q, k, v, bias=bias, allow=allow), want)
    assert dict(module.named_parameters()).keys() == {"score.weight_HKK"}


def test_a_beta_of_the_module_learns():
    module = Attend(beta=torch.nn.Parameter(torch.ones(H)))
    module(*random_qkv(torch.float32)).square().sum().backward()
    (beta,) = module.parameters()
    assert (beta.grad != 0).all()


def test_the_module_names_the_nearest_normaliser():
    with pytest.raises(QkvError, match=r"unknown normaliser 'sparsmax'.*did you mean 'sparsemax'"):
        Attend(normalize="sparsmax")


def test_a_normaliser_of_ones_own_works_in_a_module_and_is_watched():
    def halves(scores_BHTS: Tensor) -> Tensor:
        return torch.softmax(scores_BHTS, -1) / 2

    q, k, v = (torch.randn(2, 3, length, 5) for length in (4, 7, 7))
    module = Attend(normalize=halves)
    torch.testing.assert_close(module(q, k, v), attend(q, k, v) / 2)
    with watch(module) as seen:
        module(q, k, v)
    torch.testing.assert_close(seen["attend"].sum(-1), torch.full((2, 3, 4), 0.5))
