"""The equation: H = normalise(β · score(Q, K) + mask) · V, fused where it can be, explicit where it must be.

Axes: B batch (any leading axes), H heads of the queries, G heads of the keys and values (H / G queries
share one), T query length, S key length, K key width per head, V value width per head.

Three kernels compute the same function, and `path` alone chooses:

* ``fused``: torch's, which never holds a T×S matrix;
* ``short``: batched products with a backward pass of their own, for rows of a sentence's length;
* ``products``: two batched matrix products around a normaliser, for all that the other two cannot do.

Fused and products run over *blocks* of query rows where it would need a large T×S matrix (of weights, or of a mask
that differs from query to query). Blocks are computed again in the backward pass instead of being kept,
and skip the keys that a causal or window mask hides from all their rows.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from qkv.attention.call import Beta, Call, normalizer
from qkv.attention.dropout import drop
from qkv.attention.masks.values import Causal, Mask
from qkv.attention.normalize import Normalizer, softmax
from qkv.attention.scores import Dot, Score, grouped_product
from qkv.attention.short import short
from qkv.errors import QkvError

# Measured on two Zen 5 cores: below 256×256 scores a head, batched products beat the fused kernel, whose
# backward pass is slow on short rows; above, the kernel wins.
FUSED_FROM = 256 * 256
# From this many scores (batch and heads together) on the short kernel saves more than entering it costs.
SHORT_FROM = 1
# Above this many elements (64 MiB in fp32) a T×S matrix is built in row blocks of about BLOCK elements.
WHOLE_UP_TO = 1 << 24
BLOCK = 1 << 21

DOT = Dot()


def attend(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSV: Tensor,
    *,
    score: Score = DOT,
    beta: Beta = None,
    allow: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    normalize: str | Normalizer = softmax,
    dropout: float = 0.0,
) -> Tensor:
    """Look up values by how well their keys fit the queries: normalise(β · score(Q, K) + bias) · V.

    Leading axes broadcast; keys and values may have fewer heads than queries if the numbers divide.
    `beta` is 1/√K by default, any number, or a tensor with one value a head; 0 is the plain average of
    the allowed values, `math.inf` is hard attention: the first of the keys with the best score + bias,
    whatever `normalize` says. `allow` is a mask or a boolean tensor over (…, T, S), True = may attend; a
    query with nothing allowed gets zeros and sends no gradient. `bias` is added to the scaled scores; it
    must be finite, and so must what stands at forbidden keys. `dropout` drops weights.
    Returns out_BHTV. (Vaswani et al. 2017, eq. 1.)
    """
    return compute(Call.of(q_BHTK, k_BGSK, v_BGSV, score, beta, allow, bias, normalize, dropout))


def weights(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    *,
    score: Score = DOT,
    beta: Beta = None,
    allow: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    normalize: str | Normalizer = softmax,
) -> Tensor:
    """What `attend` multiplies the values with, before dropout: weights_BHTS."""
    call = Call.of(q_BHTK, k_BGSK, k_BGSK[..., :0], score, beta, allow, bias, normalize, dropout=0.0)
    allow_BHTS = call.allow()
    weights_BHTS = normalised(call, logits(call, allow_BHTS))
    return zero_blocked(weights_BHTS, allow_BHTS).expand(call.four).reshape(call.shape)


def compute(call: Call) -> Tensor:
    """Run a checked call on the path that suits it; returns out_BHTV with the caller's leading axes."""
    kernel, in_blocks = path(call)
    out_BHTV = _in_blocks(call, kernel) if in_blocks else _whole(call, kernel)
    return out_BHTV.reshape(*call.shape[:-1], call.v_BGSV.shape[-1])


class Path(NamedTuple):
    """How a call is computed."""

    kernel: Literal["fused", "short", "products"]
    in_blocks: bool


def path(call: Call) -> Path:
    """Decide, in this one place, how a call is computed.

    Fused: softmax over a dot product, without dropout (on a CPU: its kernel has none) or a bias that
    wants its gradient, and long enough to pay. Short: the same where it is too short for that, in eager
    mode on a CPU, with one β, one dtype (not half, whose exp overflows) and no shared heads or batch
    entries. Products: everything else. In blocks: where the kernel would need a large T×S matrix, of
    scores for products; of the mask for fused, unless the mask is plainly causal or the same for every
    query.
    """
    B, H, T, S = call.four
    on_cpu = call.q_BHTK.device.type == "cpu"
    trains_bias = call.bias is not None and call.bias.requires_grad and torch.is_grad_enabled()
    too_short = on_cpu and T * S < FUSED_FROM
    too_random = on_cpu and call.dropout > 0
    plain = call.normalize is softmax and call.score is None and not trains_bias and not too_random
    if plain and too_short and _suits_short(call) and SHORT_FROM <= B * H * T * S <= WHOLE_UP_TO:
        return Path("short", in_blocks=False)
    if not plain or too_short:
        depth = 1 if call.score is None else call.score.depth
        return Path("products", in_blocks=T > 1 and B * H * T * S * depth > WHOLE_UP_TO)
    return Path("fused", in_blocks=T > 1 and _mask_size(call) > WHOLE_UP_TO)


def _whole(call: Call, kernel: str) -> Tensor:
    """All rows at once; returns out_BHTV."""
    if kernel == "products":
        return _products(call, call.allow())
    if kernel == "short":
        assert isinstance(call.beta, float)
        return short(call.q_BHTK, call.k_BGSK, call.v_BGSV, call.beta, call.allow(), call.bias)
    if _plainly_causal(call):
        return _fused(call, None, causal=True)
    return _fused(call, call.allow())


def _in_blocks(call: Call, kernel: str) -> Tensor:
    """Block after block of query rows; returns out_BHTV."""
    B, H, T, S = call.four
    depth = 1 if call.score is None else call.score.depth
    size = B * H * T * S * depth if kernel == "products" else _mask_size(call)
    step = max(1, BLOCK * T // size)

    def rows(start: int) -> Tensor:
        part, block = call.rows(start, start + step)
        allow = call.allow(block)  # built here: the backward pass builds it again instead of keeping it
        return _products(part, allow) if kernel == "products" else _fused(part, allow)

    if not torch.is_grad_enabled():
        return torch.cat([rows(start) for start in range(0, T, step)], dim=-2)
    random = call.dropout > 0
    blocks = [checkpoint(rows, t, use_reentrant=False, preserve_rng_state=random) for t in range(0, T, step)]
    return torch.cat(blocks, dim=-2)


def _fused(call: Call, allow_BHTS: Tensor | None, causal: bool = False) -> Tensor:
    """torch's kernel; returns out_BHTV."""
    q_BHTK, k_BGSK, v_BGSV = call.q_BHTK, call.k_BGSK, call.v_BGSV
    scale = call.beta
    # torch 2.13 scales its causal -inf too, which is NaN for a scale of 0 or less.
    if isinstance(scale, Tensor) or scale <= 0:
        q_BHTK, scale = (q_BHTK * scale).to(q_BHTK.dtype), 1.0
    mask = allow_BHTS
    if call.bias is not None:
        mask = call.bias if mask is None else call.bias.masked_fill(~mask, -torch.inf)
    if mask is not None and mask.dim() == 3:
        mask = mask.unsqueeze(0)  # the CPU kernel takes masks of two axes or four
    (B, H, _, _), K, V = call.four, q_BHTK.shape[-1], v_BGSV.shape[-1]
    # The CPU kernel wants one width; zeros change no score, and the values' extra columns are cut off.
    if K != V:
        q_BHTK, k_BGSK, v_BGSV = (F.pad(x, (0, max(K, V) - x.shape[-1])) for x in (q_BHTK, k_BGSK, v_BGSV))
    out_BHTV = F.scaled_dot_product_attention(
        q_BHTK.expand(B, H, -1, -1),
        k_BGSK.expand(B, -1, -1, -1),
        v_BGSV.expand(B, -1, -1, -1),
        attn_mask=mask,
        dropout_p=call.dropout,
        is_causal=causal,
        scale=scale,
        # Where shapes are dynamic the comparison is a symbol, which torch does not take; a branch decides it.
        enable_gqa=True if k_BGSK.shape[1] != H else False,  # noqa: SIM210
    )
    return out_BHTV[..., :V]


def _products(call: Call, allow_BHTS: Tensor | None) -> Tensor:
    """The equation as it is written; returns out_BHTV."""
    weights_BHTS = normalised(call, logits(call, allow_BHTS))
    weights_BHTS = drop(weights_BHTS, call.dropout)
    return zero_blocked(grouped_product(weights_BHTS, call.v_BGSV), allow_BHTS)


def logits(call: Call, allow_BHTS: Tensor | None) -> Tensor:
    """β · score(Q, K) + bias, the lowest finite number where not allowed; logits_BHTS."""
    if call.score is None:
        logits_BHTS = grouped_product((call.q_BHTK * call.beta).to(call.q_BHTK.dtype), call.k_BGSK.mT)
    else:
        logits_BHTS = (call.score(call.q_BHTK, call.k_BGSK) * call.beta).to(call.q_BHTK.dtype)
    if call.bias is not None:
        logits_BHTS = logits_BHTS + call.bias
    return logits_BHTS if allow_BHTS is None else hide(logits_BHTS, allow_BHTS)


def hide(logits_BHTS: Tensor, allow_BHTS: Tensor) -> Tensor:
    """The lowest finite number where not allowed: a row of nothing but -inf would be NaN, and its gradient too."""
    return logits_BHTS.masked_fill(~allow_BHTS, torch.finfo(logits_BHTS.dtype).min)


def normalised(call: Call, logits_BHTS: Tensor) -> Tensor:
    """normalise(logits), also where there is no key at all; weights_BHTS."""
    return call.normalize(logits_BHTS) if logits_BHTS.shape[-1] else logits_BHTS


def zero_blocked(x_BHTX: Tensor, allow_BHTS: Tensor | None) -> Tensor:
    """Zero the rows of queries with nothing allowed, whose weights a normaliser cannot know."""
    if allow_BHTS is None:
        return x_BHTX
    return x_BHTX.masked_fill(~allow_BHTS.any(dim=-1, keepdim=True), 0)


def _mask_size(call: Call) -> int:
    """How many elements the mask has that the fused kernel is given; 0 if it needs none for each query."""
    B, _, T, S = call.four
    if call.mask is None:
        return 0  # a bias alone goes in as it is
    if call.bias is not None:  # the two become one, with the bias's heads
        return B * T * S * (call.bias.shape[-3] if call.bias.dim() > 2 else 1)
    return B * T * S if call.mask.per_query and not _plainly_causal(call) else 0


def _suits_short(call: Call) -> bool:
    """Whether each query head has keys and values to itself, in one dtype, as the short kernel takes them."""
    q, k, v = call.q_BHTK, call.k_BGSK, call.v_BGSV
    alike = q.shape[:2] == k.shape[:2] == v.shape[:2] and q.dtype == k.dtype == v.dtype
    eager = not torch.compiler.is_compiling() and not torch.is_autocast_enabled(q.device.type)
    return alike and eager and q.dtype != torch.float16 and isinstance(call.beta, float) and k.shape[2] > 0


def _plainly_causal(call: Call) -> bool:
    """Whether the kernel's own causal flag, which aligns query 0 with key 0, says what the mask says."""
    return isinstance(call.mask, Causal) and call.mask.first(call.shape) == 0 and call.bias is None


class Attend(nn.Module):
    """`attend` with the choices that a model makes once; the place where `qkv.watch` looks."""

    def __init__(
        self,
        *,
        score: Score | None = None,
        beta: Beta = None,
        normalize: str | Normalizer = "softmax",
        dropout: float = 0.0,
    ):
        super().__init__()
        self.score = score or Dot()
        if isinstance(beta, Tensor) and not isinstance(beta, nn.Parameter):
            self.register_buffer("beta", beta)
        else:
            self.beta = beta
        if not 0.0 <= dropout < 1.0:
            raise QkvError(
                f"dropout is {dropout}; a share of the weights from 0 up to, not including, 1 is wanted"
            )
        self.normalize = normalizer(normalize)
        self.dropout = dropout

    def call(
        self,
        q_BHTK: Tensor,
        k_BGSK: Tensor,
        v_BGSV: Tensor,
        *,
        allow: Mask | Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Call:
        """The checked call that `forward` makes."""
        dropout = self.dropout if self.training else 0.0
        return Call.of(q_BHTK, k_BGSK, v_BGSV, self.score, self.beta, allow, bias, self.normalize, dropout)

    def forward(
        self,
        q_BHTK: Tensor,
        k_BGSK: Tensor,
        v_BGSV: Tensor,
        *,
        allow: Mask | Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Return out_BHTV; drops weights only in training."""
        return compute(self.call(q_BHTK, k_BGSK, v_BGSV, allow=allow, bias=bias))
