"""Multi-head attention against loops over the equation, and against `nn.MultiheadAttention`.

Axes: B batch, T query length, S key length, D width, H heads, G key heads, K key width, V value width.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.attention import reference
from torch import Tensor, nn

from qkv.attention import masks
from qkv.attention.attend import path
from qkv.attention.heads import AttentionConfig, MultiHeadAttention
from qkv.attention.normalize import NORMALIZERS
from qkv.attention.positions import POSITIONS, Position
from qkv.attention.scores import SCORES
from qkv.attention.watch import watch
from qkv.errors import QkvError

B, T, S = 2, 5, 7
Array = np.ndarray

# The reference: one token, one head, one pair at a time, in float64 and numpy


def array(x: Tensor) -> Array:
    return x.detach().double().numpy()


def score_in_words(m: MultiHeadAttention) -> reference.Score:
    """The formula of the module's score, with its own weights."""
    own = {name: array(x) for name, x in m.attend.score.named_parameters()}
    plain = {"dot": reference.dot, "gaussian": reference.gaussian, "cosine": reference.cosine}
    learned = {"general": reference.general, "concat": reference.concat, "location": reference.location}
    if m.config.score in plain:
        return plain[m.config.score]
    if m.config.score in learned:
        return learned[m.config.score](**own)

    def newcomer(q_K: Array, k_K: Array, head: int, s: int) -> float:
        """Its formula is tested beside its class; here, that it gets the right pairs."""
        q, k = (torch.from_numpy(x).expand(1, m.config.heads, n, -1) for x, n in ((q_K, 1), (k_K, s + 1)))
        return float(m.attend.score(q, k)[0, head, 0, s])

    return newcomer


def projected(layer: nn.Linear, x_BTD: Tensor, heads: int, norm: nn.Module) -> Array:
    """Token by token through the layer, cut into heads, each normed if it is to be; (B, heads, T, K)."""
    weight, bias = array(layer.weight), 0 if layer.bias is None else array(layer.bias)
    parts = np.array([[np.split(weight @ x + bias, heads) for x in row] for row in array(x_BTD)])
    if not isinstance(norm, nn.Identity):
        epsilon = torch.finfo(torch.float64).eps
        parts = np.apply_along_axis(
            lambda x: x / np.sqrt((x * x).mean() + epsilon) * array(norm.weight), -1, parts
        )
    return parts.swapaxes(1, 2)


def expected(
    m: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, allow: Tensor | None = None
) -> Tensor:
    """Project, split, attend, merge: out_BTD, with `allow` of shape (B, H, T, S)."""
    H, G = m.config.heads, m.config.groups or m.config.heads
    out_BHTV = reference.attend(
        projected(m.query, query, H, m.query_norm),
        projected(m.key, key, G, m.key_norm),
        projected(m.value, value, G, nn.Identity()),
        score=score_in_words(m),
        beta=array(m.attend.beta) if m.config.beta == "learned" else m.config.beta,
        allow=None if allow is None else allow.numpy(),
        normalize=m.config.normalize,
    )
    bias = 0 if m.out.bias is None else array(m.out.bias)
    rows = [
        [array(m.out.weight) @ np.concatenate(list(out[:, t])) + bias for t in range(out.shape[1])]
        for out in out_BHTV
    ]
    return torch.from_numpy(np.array(rows))


def built(width: int = 15, heads: int = 3, **choices: Any) -> MultiHeadAttention:
    """In float64, with no parameter left at a value (0, 1) that would hide a mistake."""
    m = MultiHeadAttention(AttentionConfig(width=width, heads=heads, **choices)).double()
    with torch.no_grad():
        for name, parameter in m.named_parameters():
            if name.endswith("bias") or "norm" in name or name == "attend.beta":
                parameter.uniform_(0.5, 1.5)
    return m


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def assert_is_expected(
    m: MultiHeadAttention, query: Tensor, key: Tensor | None = None, value: Tensor | None = None
):
    """Without a mask, and with one that differs in batch, head, query and key and blocks a whole row."""
    source = query if key is None else key
    values = source if value is None else value
    allow = torch.rand(query.shape[0], m.config.heads, query.shape[1], source.shape[1]) < 0.6
    allow[0, -1, 2] = False
    for mask in (None, allow):
        wanted = expected(m, query, source, values, mask)
        torch.testing.assert_close(m(query, key, value, allow=mask), wanted, rtol=0, atol=1e-10)


# The equation


CHOICES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "grouped": {"width": 14, "heads": 6, "groups": 2, "key_width": 5},
    "multi-query": {"groups": 1},
    "value width": {"width": 11, "key_width": 5, "value_width": 7},
    "grouped value width": {"width": 11, "heads": 6, "groups": 3, "key_width": 2, "value_width": 5},
    "qk_norm": {"qk_norm": True},
    "grouped qk_norm": {"width": 11, "heads": 6, "groups": 3, "key_width": 5, "qk_norm": True},
    "beta": {"beta": 0.7},
    "negative beta": {"beta": -0.7},
    "average": {"beta": 0.0},
    "hard": {"beta": math.inf},
    "learned": {"beta": "learned"},
    "one head": {"heads": 1},
}


@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
def test_self_attention_is_the_loop_over_the_equation(choices: dict[str, Any]):
    m = built(**choices)
    assert_is_expected(m, random(B, T, m.config.width))


@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
def test_cross_attention_is_the_loop_over_the_equation(choices: dict[str, Any]):
    m = built(**choices, inputs=(2, 3, 3))
    assert_is_expected(m, random(B, T, 2), random(B, S, 3))


def test_values_may_come_from_another_source():
    m = built(inputs=(2, 3, 11), groups=1, value_width=7)
    assert_is_expected(m, random(B, T, 2), random(B, S, 3), random(B, S, 11))


def test_self_attention_may_look_up_values_of_another_source():
    m = built(inputs=(11, 11, 2))
    assert_is_expected(m, random(B, T, 11), None, random(B, T, 2))


@pytest.mark.parametrize("groups", [None, 2, 1])
@pytest.mark.parametrize("score", SCORES)
def test_every_score(score: str, groups: int | None):
    m = built(width=11, heads=4, key_width=5, value_width=3, groups=groups, score=score, length=11)
    assert_is_expected(m, random(B, T, 11), random(B, S, 11))


@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_every_normaliser(normalize: str):
    m = built(width=11, heads=4, key_width=5, groups=2, normalize=normalize, beta=1.5)
    assert_is_expected(m, random(B, T, 11), random(B, S, 11))


@pytest.mark.parametrize("kind", POSITIONS)
def test_every_position_reaches_queries_keys_and_scores(kind: str):
    """Each pair of query and key is turned and biased as if the two were alone."""
    position = sized(kind, heads=3, key_width=4)
    m = built(width=11, key_width=4)
    x = random(B, T, 11)
    out = m(x, positions=position, allow=masks.causal())
    q = m.query(x).unflatten(-1, (3, 4)).transpose(1, 2)
    k = m.key(x).unflatten(-1, (3, 4)).transpose(1, 2)
    v = m.value(x).unflatten(-1, (3, 4)).transpose(1, 2)
    bias = position.bias(T, T, device=x.device, dtype=x.dtype)
    rows = []
    for t in range(T):
        scores = torch.stack(
            [
                (position.rotate(q[:, :, t : t + 1], t) * position.rotate(k[:, :, s : s + 1], s)).sum(
                    (-1, -2)
                )
                / 2
                + (0 if bias is None else bias[:, t, s])
                for s in range(t + 1)
            ],
            dim=-1,
        )
        rows.append((scores.softmax(-1).unsqueeze(-1) * v[:, :, : t + 1]).sum(-2))
    wanted = m.out(torch.stack(rows, dim=1).flatten(-2))
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)


def sized(kind: str, heads: int, key_width: int) -> Position:
    return POSITIONS[kind].sized(width=11, heads=heads, key_width=key_width, length=35, grid=(5, 7)).double()


@pytest.mark.parametrize("score", SCORES)
def test_long_sequences_take_the_fused_kernel_and_mean_the_same(score: str):
    m = MultiHeadAttention(
        AttentionConfig(width=8, heads=4, groups=2, key_width=5, value_width=3, score=score)
    ).double()
    x = random(1, 256, 8)
    paths: list[Any] = []
    m.attend.register_forward_hook(
        lambda attend, args, options, _: paths.append(path(attend.call(*args, **options))), with_kwargs=True
    )
    allow = torch.rand(1, 4, 256, 256) < 0.5
    last = expected(m, x[:, -2:], x, x, allow[:, :, -2:])
    torch.testing.assert_close(m(x, allow=allow)[:, -2:], last, rtol=0, atol=1e-10)
    assert [kernel for kernel, _ in paths] == ["products" if score == "concat" else "fused"]


def test_zero_queries_give_the_plain_mean_of_the_values():
    """By hand: equal scores weigh the values 1, 2 and 6 alike, and the two heads see 3 and -3."""
    m = MultiHeadAttention(AttentionConfig(width=2, heads=2, bias=False, inputs=(2, 1, 1)))
    with torch.no_grad():
        m.query.weight.zero_()
        m.value.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        m.out.weight.copy_(torch.eye(2))
    out = m(torch.ones(1, 1, 2), torch.tensor([[[1.0], [2.0], [6.0]]]))
    torch.testing.assert_close(out, torch.tensor([[[3.0, -3.0]]]))


def test_leading_axes_may_be_none_or_many():
    m = built(width=15)
    x = random(2, 3, T, 15)
    out = m(x, allow=masks.causal())
    torch.testing.assert_close(out[1, 2], m(x[1, 2], allow=masks.causal()), rtol=0, atol=1e-12)
    torch.testing.assert_close(out[1], m(x[1], allow=masks.causal()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [3, 256])
def test_empty_batches_and_no_queries_give_empty_outputs(length: int):
    m = built(width=15)
    assert m(random(0, length, 15)).shape == (0, length, 15)
    assert m(random(B, 0, 15), random(B, length, 15)).shape == (B, 0, 15)


def test_no_keys_at_all_give_the_output_bias():
    m = built(width=15)
    out = m(random(B, T, 15), random(B, 0, 15))
    torch.testing.assert_close(out, m.out.bias.expand(B, T, 15))


# Gradients


def test_gradients_are_those_of_finite_differences():
    m = built(width=6, heads=2, groups=1, beta="learned", qk_norm=True)
    names = [name for name, _ in m.named_parameters()]

    def run(x: Tensor, source: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(m, dict(zip(names, parameters, strict=True)), (x, source))

    inputs = [random(1, 2, 6).requires_grad_(), random(1, 3, 6).requires_grad_()]
    assert torch.autograd.gradcheck(run, (*inputs, *m.parameters()))


@pytest.mark.parametrize("length", [T, 256])
def test_learned_beta_is_one_a_head_starts_at_the_default_and_learns(length: int):
    m = MultiHeadAttention(AttentionConfig(width=15, heads=3, beta="learned"))
    torch.testing.assert_close(m.attend.beta, torch.full((3,), 1 / math.sqrt(5)))
    assert dict(m.named_parameters())["attend.beta"] is m.attend.beta
    m(torch.randn(B, length, 15)).square().sum().backward()
    assert m.attend.beta.grad is not None
    assert (m.attend.beta.grad != 0).all()


@pytest.mark.parametrize("score", [name for name in SCORES if name != "location"])
def test_gradient_reaches_every_parameter(score: str):
    m = MultiHeadAttention(AttentionConfig(width=12, heads=3, score=score, qk_norm=True, beta="learned"))
    m(torch.randn(B, T, 12), torch.randn(B, S, 12)).square().sum().backward()
    without = [name for name, x in m.named_parameters() if x.grad is None or not (x.grad.abs() > 1e-9).any()]
    assert without == []


# Autocast and dtypes


@pytest.mark.parametrize("length", [T, 256])
@pytest.mark.parametrize("choices", [*({"score": score} for score in SCORES), {"qk_norm": True}], ids=str)
def test_autocast_is_close_to_fp32(choices: dict[str, Any], length: int):
    m = MultiHeadAttention(AttentionConfig(width=12, heads=4, groups=2, **choices))
    x = torch.randn(B, length, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = m(x, allow=masks.causal())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), m(x, allow=masks.causal()), rtol=0, atol=0.06)


# nn.MultiheadAttention


def torch_module(**options: Any) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(15, 3, **options)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    return theirs


def torch_masks() -> tuple[Tensor, Tensor]:
    """attn_mask (T, S) and key_padding_mask (B, S) in torch's meaning: True may not; no row is all blocked."""
    attn_mask, padding = torch.rand(T, S) < 0.3, torch.zeros(B, S, dtype=torch.bool)
    attn_mask[:, 0], padding[0, 5:], padding[1, 6:] = False, True, True
    return attn_mask, padding


def named_gradients(m: nn.Module) -> dict[str, Tensor]:
    """By our names, from either library: torch packs three projections into one where all widths agree."""
    if isinstance(m, MultiHeadAttention):
        return {name: x.grad for name, x in m.named_parameters() if x.grad is not None}
    grads = {name: x.grad for name, x in m.named_parameters() if x.grad is not None}
    names = ("query", "key", "value")
    if "in_proj_weight" in grads:
        weights = grads["in_proj_weight"].chunk(3)
    else:
        weights = [grads[f"{letter}_proj_weight"] for letter in "qkv"]
    ours = {f"{name}.weight": weight for name, weight in zip(names, weights, strict=True)}
    if "in_proj_bias" in grads:
        ours |= {
            f"{name}.bias": bias for name, bias in zip(names, grads["in_proj_bias"].chunk(3), strict=True)
        }
    return ours | {
        name.replace("_proj", ""): grad for name, grad in grads.items() if name.startswith("out_proj")
    }


WIDTHS = pytest.mark.parametrize("widths", [{}, {"kdim": 7, "vdim": 11}, {"kdim": 7}, {"vdim": 11}], ids=str)


@WIDTHS
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("direction", ["from_torch", "to_torch"])
def test_outputs_and_gradients_are_those_of_torch(
    widths: dict[str, int], bias: bool, batch_first: bool, direction: str
):
    theirs = torch_module(bias=bias, batch_first=batch_first, **widths)
    ours = MultiHeadAttention.from_torch(theirs)
    if direction == "to_torch":
        theirs = ours.to_torch()
        batch_first = True
        assert theirs.batch_first
    attn_mask, padding = torch_masks()
    inputs = [
        torch.randn(B, n, w) for n, w in ((T, 15), (S, widths.get("kdim", 15)), (S, widths.get("vdim", 15)))
    ]
    mine, other = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    out = ours(*mine, allow=masks.from_torch_mha(attn_mask, padding))
    turned = other if batch_first else [x.transpose(0, 1) for x in other]
    wanted = theirs(*turned, key_padding_mask=padding, attn_mask=attn_mask, need_weights=False)[0]
    wanted = wanted if batch_first else wanted.transpose(0, 1)
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-5)
    direction_of_loss = torch.randn_like(out)
    for result in (out, wanted):
        (result * direction_of_loss).sum().backward()
    for one, another in zip(mine, other, strict=True):
        torch.testing.assert_close(one.grad, another.grad, rtol=1e-5, atol=1e-5)
    grads = named_gradients(ours)
    assert set(grads) == {name for name, _ in ours.named_parameters()}
    assert len(grads) == (8 if bias else 4)
    torch.testing.assert_close(grads, named_gradients(theirs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("float_mask", [False, True])
def test_full_maps_are_the_weights_that_torch_needs(float_mask: bool):
    theirs = torch_module(kdim=7, vdim=11, batch_first=True)
    ours = MultiHeadAttention.from_torch(theirs)
    attn_mask, padding = torch_masks()
    if float_mask:
        attn_mask = torch.zeros(T, S).masked_fill(attn_mask, -torch.inf)
        padding = torch.zeros(B, S).masked_fill(padding, -torch.inf)
    inputs = torch.randn(B, T, 15), torch.randn(B, S, 7), torch.randn(B, S, 11)
    wanted, weights_BHTS = theirs(
        *inputs, key_padding_mask=padding, attn_mask=attn_mask, average_attn_weights=False
    )
    with watch(ours) as seen:
        out = ours(*inputs, allow=masks.from_torch_mha(attn_mask, padding))
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-5)
    assert weights_BHTS.shape == (B, 3, T, S)
    torch.testing.assert_close(seen["attend"], weights_BHTS, rtol=0, atol=1e-6)


def test_inference_agrees_with_the_fast_path_of_torch():
    theirs = torch_module(batch_first=True).eval()
    x = torch.randn(B, T, 15)
    with torch.no_grad():
        torch.testing.assert_close(
            MultiHeadAttention.from_torch(theirs)(x), theirs(x, x, x)[0], rtol=0, atol=1e-5
        )


@WIDTHS
@pytest.mark.parametrize("bias", [True, False])
def test_a_round_trip_changes_no_bit(widths: dict[str, int], bias: bool):
    theirs = torch_module(bias=bias, dropout=0.3, batch_first=True, **widths).double().eval()
    back = MultiHeadAttention.from_torch(theirs).to_torch()
    assert back.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(x, theirs.state_dict()[name]) for name, x in back.state_dict().items())
    assert all(x.dtype == torch.float64 for x in back.parameters())
    assert (back.dropout, back.kdim, back.vdim, back.training) == (0.3, theirs.kdim, theirs.vdim, False)


def test_dropout_and_mode_come_along():
    ours = MultiHeadAttention.from_torch(torch_module(dropout=0.3))
    assert ours.config.dropout == ours.attend.dropout == 0.3
    assert ours.training
    assert ours.attend.training
    assert not MultiHeadAttention.from_torch(torch_module().eval()).attend.training


def test_the_copy_is_independent():
    theirs = torch_module()
    ours = MultiHeadAttention.from_torch(theirs)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
    assert all(parameter.abs().sum() > 0 for parameter in ours.parameters())


def test_choices_that_only_spell_out_the_default_convert():
    m = MultiHeadAttention(
        AttentionConfig(width=15, heads=3, groups=3, key_width=5, value_width=5, inputs=(15, 15, 15))
    )
    assert m.to_torch().in_proj_weight is not None


def sentence(caught: pytest.ExceptionInfo[QkvError], *parts: str) -> None:
    """One sentence, with the value, what was wanted and the fix in it."""
    text = str(caught.value)
    assert "\n" not in text
    assert not text.endswith(".")
    assert ". " not in text
    for part in parts:
        assert part in text


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_what_torch_has_and_we_have_not_is_named(option: str):
    with pytest.raises(QkvError) as caught:
        MultiHeadAttention.from_torch(torch_module(**{option: True}))
    sentence(caught, option, "build it without")


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"groups": 1}, "key_heads"),
        ({"key_width": 7}, "query_head_width"),
        ({"value_width": 7}, "value_head_width"),
        ({"score": "cosine"}, "score"),
        ({"beta": 1.0}, "beta"),
        ({"beta": "learned"}, "beta"),
        ({"normalize": "sparsemax"}, "normalize"),
        ({"qk_norm": True}, "qk_norm"),
        ({"inputs": (7, 15, 15)}, "query width"),
    ],
)
def test_what_we_have_and_torch_has_not_is_named(choices: dict[str, Any], named: str):
    m = MultiHeadAttention(AttentionConfig(width=15, heads=3, **choices))
    with pytest.raises(QkvError) as caught:
        m.to_torch()
    sentence(caught, "nn.MultiheadAttention", named)


# Bad input


@pytest.mark.parametrize(
    ("choices", "parts"),
    [
        ({"width": 0}, ["width=0", "1 or more"]),
        ({"heads": 0}, ["heads=0", "1 or more"]),
        ({"width": 11}, ["width=11", "heads=3", "divisor", "key_width"]),
        ({"groups": 2}, ["groups=2", "heads=3", "divisor"]),
        ({"groups": 0}, ["groups=0", "heads=3", "divisor"]),
        ({"groups": -3}, ["groups=-3", "heads=3", "divisor"]),
        ({"key_width": 0}, ["key_width=0", "1 or more"]),
        ({"value_width": -1}, ["value_width=-1", "1 or more"]),
        ({"inputs": (15, 0, 15)}, ["inputs=(15, 0, 15)", "1 or more"]),
        ({"inputs": (15, 15)}, ["inputs"]),
        ({"score": "dott"}, ["'dott'", "choose one of", "did you mean 'dot'?"]),
        ({"normalize": "softmaxx"}, ["'softmaxx'", "choose one of", "did you mean 'softmax'?"]),
        ({"beta": math.nan}, ["beta=nan", "finite"]),
        ({"beta": -math.inf}, ["beta=-inf", "finite", "inf for hard"]),
        ({"beta": "larned"}, ["beta", "'larned'", "'learned'"]),
        ({"dropout": 1.0}, ["dropout=1.0", "up to, not including, 1"]),
        ({"dropout": -0.1}, ["dropout=-0.1", "from 0"]),
        ({"dropout": math.nan}, ["dropout=nan"]),
        ({"length": 0}, ["length=0", "1 key or more"]),
        ({"head": 3}, ["head is not a key of AttentionConfig", "did you mean 'heads'?"]),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_says_so_in_one_sentence(choices: dict[str, Any], parts: list[str]):
    with pytest.raises(QkvError) as caught:
        AttentionConfig(**{"width": 15, "heads": 3, **choices})
    sentence(caught, *parts)


def test_inputs_on_another_device_are_named():
    m = MultiHeadAttention(AttentionConfig(width=15, heads=3))
    with pytest.raises(QkvError) as caught:
        m(torch.randn(B, T, 15, device="meta"))
    sentence(caught, "key is on meta", "the weights are on cpu", "move one with .to()")


@pytest.mark.parametrize(
    ("shapes", "parts"),
    [
        ([(B, T, 7)], ["key", "(2, 5, 7)", "(batch, length, 15)"]),
        ([(B, T, 15), (B, S, 7)], ["key", "(2, 7, 7)", "(batch, length, 15)"]),
        ([(B, T, 15), (B, S, 15), (B, S, 7)], ["value", "(2, 7, 7)", "(batch, length, 15)"]),
        ([(B, T, 7), (B, S, 15)], ["query", "(2, 5, 7)", "(batch, length, 15)"]),
        ([(15,)], ["key", "(15,)", "(batch, length, 15)"]),
        ([(B, T, 15), (B, S, 15), (B, T, 15)], ["7 keys for 5 values"]),
        ([(B, T, 15), (3, S, 15)], ["(2, 3, 5, 5)", "(3, 3, 7, 5)", "equal or 1"]),
    ],
)
def test_inputs_that_do_not_fit_are_named(shapes: list[tuple[int, ...]], parts: list[str]):
    m = MultiHeadAttention(AttentionConfig(width=15, heads=3))
    with pytest.raises(QkvError) as caught:
        m(*(torch.randn(shape) for shape in shapes))
    sentence(caught, *parts)
