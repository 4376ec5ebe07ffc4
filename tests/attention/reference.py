"""The equation a second time: float64, numpy, plain loops, from the papers and from nothing in qkv.

Axes: B batch (any leading axes), H heads of the queries, G heads of the keys and values, T query length,
S key length, K key width per head, V value width per head. Masks are boolean arrays, True = may attend.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
Score = Callable[[Array, Array, int, int], float]  # (query_K, key_K, head, number of the key)


# Scores


def dot(q_K: Array, k_K: Array, head: int, s: int) -> float:
    """Vaswani et al. 2017, eq. 1."""
    return sum(float(a) * float(b) for a, b in zip(q_K, k_K, strict=True))


def general(weight_HKK: Array) -> Score:
    """Luong et al. 2015, section 3.1: qᵀ W k."""

    def score(q_K: Array, k_K: Array, head: int, s: int) -> float:
        weight_KK = weight_HKK[head % len(weight_HKK)]
        return sum(q_K[i] * weight_KK[i, j] * k_K[j] for i in range(len(q_K)) for j in range(len(k_K)))

    return score


def concat(query_HKA: Array, key_HKA: Array, v_HA1: Array) -> Score:
    """Bahdanau et al. 2015, A.1.2: vᵀ tanh(W q + U k)."""

    def score(q_K: Array, k_K: Array, head: int, s: int) -> float:
        total = 0.0
        for a in range(v_HA1.shape[1]):
            inner = sum(x * query_HKA[head, i, a] for i, x in enumerate(q_K))
            inner += sum(x * key_HKA[head, i, a] for i, x in enumerate(k_K))
            total += v_HA1[head, a, 0] * math.tanh(inner)
        return total

    return score


def location(places_HSK: Array) -> Score:
    """Luong et al. 2015, eq. 8: row s of W q."""
    return lambda q_K, k_K, head, s: dot(q_K, places_HSK[head, s], head, s)


def gaussian(q_K: Array, k_K: Array, head: int, s: int) -> float:
    """The exponent of the Gaussian kernel of Nadaraya 1964 and Watson 1964, for bandwidth 1."""
    return -sum((float(a) - float(b)) ** 2 for a, b in zip(q_K, k_K, strict=True)) / 2


def cosine(q_K: Array, k_K: Array, head: int, s: int) -> float:
    """Luo et al. 2018: the cosine of the angle between both."""
    return dot(q_K, k_K, head, s) / math.sqrt(dot(q_K, q_K, head, s) * dot(k_K, k_K, head, s))


# Normalisers: what the allowed scores of one row become


def softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    powers = [math.exp(s - top) for s in scores]
    return [power / sum(powers) for power in powers]


def hard(scores: list[float]) -> list[float]:
    best = scores.index(max(scores))  # the first of equals
    return [float(s == best) for s in range(len(scores))]


def sigmoid(scores: list[float]) -> list[float]:
    """Ramapuram et al. 2024, eq. 2."""
    return [1 / (1 + math.exp(-s)) for s in scores]


def sparsemax(scores: list[float]) -> list[float]:
    """Martins & Astudillo 2016, eq. 2 and proposition 1: max(s - τ, 0) with τ such that the sum is 1."""
    return _threshold(scores, lambda s, tau: max(s - tau, 0.0))


def entmax15(scores: list[float]) -> list[float]:
    """Peters et al. 2019, eq. 10 for α = 3/2: max(s / 2 - τ, 0)² with τ such that the sum is 1."""
    return _threshold(scores, lambda s, tau: max(s / 2 - tau, 0.0) ** 2)


def _threshold(scores: list[float], weight: Callable[[float, float], float]) -> list[float]:
    """Find τ by bisection: the sum of the weights falls as τ rises."""
    low, high = -max(abs(s) for s in scores) - 2, max(abs(s) for s in scores) + 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(weight(s, middle) for s in scores) > 1 else (low, middle)
    return [weight(s, low) for s in scores]


NORMALIZERS = {
    "softmax": softmax,
    "hard": hard,
    "sigmoid": sigmoid,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
}


# Masks over positions: the last query stands beside the last key


def pairs(T: int, S: int, may: Callable[[int, int], bool]) -> Array:
    """may(position of the query, position of the key), for every pair; allow_TS."""
    return np.array([[may(S - T + t, s) for s in range(S)] for t in range(T)], dtype=bool).reshape(T, S)


def causal(T: int, S: int, offset: int | None = None) -> Array:
    move = 0 if offset is None else offset - (S - T)
    return pairs(T, S, lambda i, j: j <= i + move)


def window(T: int, S: int, distance: int, offset: int | None = None) -> Array:
    move = 0 if offset is None else offset - (S - T)
    return pairs(T, S, lambda i, j: -distance <= i + move - j <= distance)


def lengths(counts: list[int], S: int) -> Array:
    """allow_B11S."""
    return np.array([[s < count for s in range(S)] for count in counts], dtype=bool).reshape(
        len(counts), 1, 1, S
    )


def documents(ids: list[list[int]], T: int, offset: int | None = None) -> Array:
    """allow_B1TS."""
    move = 0 if offset is None else offset - (len(ids[0]) - T)
    same = [pairs(T, len(row), lambda i, j: row[i + move] == row[j]) for row in ids]  # noqa: B023
    return np.stack(same)[:, None]


# The equation


def attend(
    q: Any,
    k: Any,
    v: Any,
    *,
    score: Score = dot,
    beta: Any = None,
    allow: Any = None,
    bias: Any = None,
    normalize: str = "softmax",
) -> Array:
    """H = normalise(β · score(Q, K) + bias) V over the allowed keys; (…, T, V), zeros where there are none."""
    return np.einsum("...ts,...sv->...tv", *_weights_and_values(q, k, v, score, beta, allow, bias, normalize))


def weights(q: Any, k: Any, **choices: Any) -> Array:
    """weights_BHTS."""
    filled = {"score": dot, "beta": None, "allow": None, "bias": None, "normalize": "softmax"} | choices
    return _weights_and_values(q, k, k, **filled)[0]


def _weights_and_values(q, k, v, score, beta, allow, bias, normalize) -> tuple[Array, Array]:
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    axes = max(q.ndim, k.ndim, v.ndim)
    heads = max(x.shape[-3] if x.ndim > 2 else 1 for x in (q, k, v))
    (T, K), S = q.shape[-2:], k.shape[-2]
    q, k, v = (_each_head(x, heads) for x in (q, k, v))
    lead = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    q, k, v = (np.broadcast_to(x, (*lead, *x.shape[-3:])) for x in (q, k, v))
    shape = (*lead, heads, T, S)
    allow = np.broadcast_to(True if allow is None else allow, shape)
    bias = np.broadcast_to(0.0 if bias is None else np.asarray(bias, dtype=np.float64), shape)
    if beta is None:
        beta = 1 / math.sqrt(K)
    if np.ndim(beta) == 0 and beta == math.inf:
        beta, normalize = 1.0, "hard"
    betas = np.broadcast_to(np.asarray(beta, dtype=np.float64).reshape(-1), (heads,))
    weights = np.zeros(shape)
    for *batch, head, t in np.ndindex(*shape[:-1]):
        at = (*batch, head)
        keys = [s for s in range(S) if allow[(*at, t, s)]]
        row = [betas[head] * score(q[at][t], k[at][s], head, s) + bias[(*at, t, s)] for s in keys]
        for s, weight in zip(keys, NORMALIZERS[normalize](row) if row else [], strict=True):
            weights[(*at, t, s)] = weight
    if axes == 2:
        return weights[0], v[0]
    return weights, v


def _each_head(x: Array, heads: int) -> Array:
    """A copy for each query head of the key head that it shares: head h of H uses head h // (H / G) of G."""
    if x.ndim == 2:
        x = x[None]
    group = heads // x.shape[-3]
    return np.stack([x[..., head // group, :, :] for head in range(heads)], axis=-3)
