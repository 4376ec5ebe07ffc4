"""Arguments of attend that do not fit: each gets one sentence with the value, what was wanted and the fix."""

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv import Attend, QkvError, attend, masks, weights
from qkv.attention.scores import Concat, General, Location


def qkv_of(*shapes: tuple[int, ...], **options: Any) -> list[Tensor]:
    return [torch.zeros(shape, **options) for shape in shapes]


FITTING = qkv_of((2, 4, 5, 3), (2, 4, 7, 3), (2, 4, 7, 2))

MISFITS: list[tuple[list[Tensor], dict[str, Any], str]] = [
    # Shapes
    (
        qkv_of((3,), (7, 3), (7, 2)),
        {},
        "q is (3,), k (7, 3), v (7, 2): each needs at least a length and a width, (…, T, K)",
    ),
    (
        qkv_of((5, 0), (7, 0), (7, 2)),
        {},
        "q is (5, 0), k (7, 0), v (7, 2): a key width of 0 leaves nothing to compare; 1 or more is wanted",
    ),
    (
        qkv_of((5, 3), (7, 3), (11, 2)),
        {},
        "q is (5, 3), k (7, 3), v (11, 2): 7 keys for 11 values; one value for each key is wanted",
    ),
    (
        qkv_of((2, 6, 5, 3), (2, 4, 7, 3), (2, 4, 7, 2)),
        {},
        "q is (2, 6, 5, 3), k (2, 4, 7, 3), v (2, 4, 7, 2): 6 heads of queries cannot share 4 heads of keys; "
        "a divisor is wanted, and a batch axis before the heads",
    ),
    (
        qkv_of((2, 2, 5, 3), (2, 4, 7, 3), (2, 4, 7, 2)),
        {},
        "q is (2, 2, 5, 3), k (2, 4, 7, 3), v (2, 4, 7, 2): 2 heads of queries cannot share 4 heads of keys; "
        "a divisor is wanted, and a batch axis before the heads",
    ),
    (
        # Without a batch axis these may be batches: a divisor is no sign that heads are shared.
        qkv_of((6, 5, 3), (3, 7, 3), (3, 7, 2)),
        {},
        "q is (6, 5, 3), k (3, 7, 3), v (3, 7, 2): 6 heads of queries cannot share 3 heads of keys; "
        "a divisor is wanted, and a batch axis before the heads",
    ),
    (
        qkv_of((2, 6, 5, 3), (2, 0, 7, 3), (2, 0, 7, 2)),
        {},
        "q is (2, 6, 5, 3), k (2, 0, 7, 3), v (2, 0, 7, 2): 6 heads of queries cannot share 0 heads of keys; "
        "a divisor is wanted, and a batch axis before the heads",
    ),
    (
        qkv_of((2, 6, 5, 3), (2, 2, 7, 3), (2, 3, 7, 2)),
        {},
        "q is (2, 6, 5, 3), k (2, 2, 7, 3), v (2, 3, 7, 2): keys and values must have the same number of heads, "
        "or one of them 1",
    ),
    (
        qkv_of((2, 4, 5, 3), (3, 4, 7, 3), (3, 4, 7, 2)),
        {},
        "q is (2, 4, 5, 3), k (3, 4, 7, 3), v (3, 4, 7, 2): the axes before the heads must be equal or 1",
    ),
    (
        qkv_of((2, 4, 5, 3), (2, 4, 7, 11), (2, 4, 7, 2)),
        {},
        "queries have key width 3, keys 11: make them equal, or use a score with a matrix between them, "
        "e.g. score=General(key_width, query_width=query_width)",
    ),
    # dtypes and devices
    (
        [FITTING[0], FITTING[1].double(), FITTING[2]],
        {},
        "q is torch.float32, k torch.float64, v torch.float32: one floating dtype for all three is wanted",
    ),
    (
        qkv_of((5, 3), (7, 3), (7, 2), dtype=torch.long),
        {},
        "q is torch.int64, k torch.int64, v torch.int64: one floating dtype for all three is wanted",
    ),
    (
        [FITTING[0], FITTING[1].to("meta"), FITTING[2]],
        {},
        "q is on cpu, k on meta, v on cpu: one device for all three is wanted",
    ),
    (
        [x.to("meta") for x in FITTING],
        {"allow": torch.ones(5, 7, dtype=torch.bool)},
        "allow is on cpu, the queries on meta: move the mask with .to()",
    ),
    (
        FITTING,
        {"bias": torch.zeros(5, 7, device="meta")},
        "bias is on meta, the queries on cpu: move it with .to()",
    ),
    (
        FITTING,
        {"beta": torch.ones(4, device="meta")},
        "beta is on meta, the queries on cpu: move it with .to()",
    ),
    # beta
    (
        FITTING,
        {"beta": torch.ones(3)},
        "beta has shape (3,) for 4 heads: give one value, or one a head",
    ),
    (
        FITTING,
        {"beta": math.nan},
        "beta is nan; a finite number, or inf for hard attention, is wanted",
    ),
    (
        FITTING,
        {"beta": -math.inf},
        "beta is -inf; a finite number, or inf for hard attention, is wanted",
    ),
    # bias
    (
        FITTING,
        {"bias": torch.zeros(5, 7, dtype=torch.bool)},
        "bias is torch.bool; numbers to add to the scores are wanted: a boolean mask goes to allow",
    ),
    (
        FITTING,
        {"bias": torch.zeros(7, 5)},
        "bias has shape (7, 5); scores are (2, 4, 5, 7): each axis must be theirs or 1",
    ),
    (
        FITTING,
        {"bias": torch.zeros(1, 2, 4, 5, 7)},
        "bias has shape (1, 2, 4, 5, 7); scores are (2, 4, 5, 7): each axis must be theirs or 1",
    ),
    # dropout and normalisers
    (
        FITTING,
        {"dropout": 1.0},
        "dropout is 1.0; a share of the weights from 0 up to, not including, 1 is wanted",
    ),
    (
        FITTING,
        {"dropout": -0.1},
        "dropout is -0.1; a share of the weights from 0 up to, not including, 1 is wanted",
    ),
    (
        FITTING,
        {"normalize": "sofmax"},
        "unknown normaliser 'sofmax': choose one of entmax15, hard, sigmoid, softmax, sparsemax; did you mean 'softmax'?",
    ),
    # allow
    (
        FITTING,
        {"allow": torch.ones(2, 7, dtype=torch.bool)},
        "allow has shape (2, 7); scores are (2, 4, 5, 7): add a query axis, e.g. masks.padding(keep)",
    ),
    (
        FITTING,
        {"allow": torch.ones(2, 5, 7, dtype=torch.bool)},
        "allow has shape (2, 5, 7); scores are (2, 4, 5, 7): add a head axis, e.g. allow.unsqueeze(1)",
    ),
    (
        FITTING,
        {"allow": torch.ones(5, 11, dtype=torch.bool)},
        "allow has shape (5, 11); scores are (2, 4, 5, 7): each axis must be theirs or 1, counted from the right",
    ),
    (
        FITTING,
        {"allow": torch.ones(11, dtype=torch.bool)},
        "allow has shape (11,); scores are (2, 4, 5, 7): each axis must be theirs or 1, counted from the right",
    ),
    (
        FITTING,
        {"allow": torch.ones(1, 2, 4, 5, 7, dtype=torch.bool)},
        "allow has shape (1, 2, 4, 5, 7); scores are (2, 4, 5, 7): each axis must be theirs or 1, counted from the right",
    ),
    (
        FITTING,
        {"allow": torch.ones(5, 7, dtype=torch.long)},
        "allow is torch.int64; a boolean tensor is wanted: allow.bool() if 1 means may attend",
    ),
    (
        FITTING,
        {"allow": torch.zeros(5, 7)},
        "allow is torch.float32; True = may attend is wanted: part an additive mask with "
        "allow, bias = masks.split_additive(mask)",
    ),
    (
        FITTING,
        {"allow": torch.tensor(True)},
        "allow is a single value; a mask over keys (…, T, S) is wanted: leave allow out to allow all",
    ),
    (
        FITTING,
        {"allow": "causal"},
        "allow is str; a boolean tensor or a mask is wanted: e.g. masks.causal()",
    ),
    (
        FITTING,
        {"allow": masks.padding(torch.tensor([7, 8]))},
        "lengths run from 7 to 8, but there are 7 keys: lengths of 0 to 7 are wanted",
    ),
    (
        FITTING,
        {"allow": masks.padding(torch.tensor([-1, 7]))},
        "lengths run from -1 to 7, but there are 7 keys: lengths of 0 to 7 are wanted",
    ),
    (
        FITTING,
        {"allow": masks.padding(torch.tensor([7, 7, 7]))},
        "the mask has batch axes (3,); scores are (2, 4, 5, 7): its first axes must be theirs (or 1)",
    ),
    (
        FITTING,
        {"allow": masks.padding(torch.ones(2, 4, 5, 7, dtype=torch.bool))},
        "the mask has batch axes (2, 4, 5); scores are (2, 4, 5, 7): its first axes must be theirs (or 1)",
    ),
    (
        FITTING,
        {"allow": masks.padding(torch.ones(2, 5, dtype=torch.bool))},
        "padding covers 5 keys; scores are (2, 4, 5, 7), 7 keys: pad or cut it to the keys",
    ),
    (
        FITTING,
        {"allow": masks.documents(torch.zeros(2, 5, dtype=torch.long))},
        "documents covers 5 keys; scores are (2, 4, 5, 7), 7 keys: pad or cut it to the keys",
    ),
    (
        qkv_of((2, 4, 7, 3), (2, 4, 5, 3), (2, 4, 5, 2)),
        {"allow": masks.documents(torch.zeros(2, 5, dtype=torch.long))},
        "documents has ids for 5 keys, but there are 7 queries: give as many keys",
    ),
    (
        FITTING,
        {"allow": masks.documents(torch.zeros(2, 7, dtype=torch.long), offset=-1)},
        "documents has offset=-1, before the first of its ids: an offset of 0 or more is wanted",
    ),
    # Choices of another kind
    (FITTING, {"beta": torch.ones(2, 2)}, "beta has shape (2, 2) for 4 heads: give one value, or one a head"),
    (
        FITTING,
        {"bias": torch.tensor([0.0, -math.inf] + [0.0] * 5)},
        "bias runs from -inf to 0.0; finite numbers are wanted: part an additive mask with "
        "allow, bias = masks.split_additive(mask)",
    ),
    # Scores with parameters for other sizes or another dtype
    *(
        (
            [x.double() for x in FITTING],
            {"score": score},
            f"this {name} score has weights of torch.float32, queries and keys are torch.float64: "
            "move one with .to(), or use autocast",
        )
        for name, score in [("general", General(3)), ("concat", Concat(3)), ("location", Location(3))]
    ),
    (
        FITTING,
        {"score": General(3, heads=3)},
        "this general score was built for 3 heads of width 3, but is given 4 heads of width 3: build it for those",
    ),
    (
        FITTING,
        {"score": General(3, heads=4, query_width=5)},
        "this general score was built for 4 heads of width 5, but is given 4 heads of width 3: build it for those",
    ),
    (
        FITTING,
        {"score": General(5, heads=4, query_width=3)},
        "queries have key width 5, keys 3: make them equal, or use a score with a matrix between them, "
        "e.g. score=General(key_width, query_width=query_width)",
    ),
    (
        FITTING,
        {"score": Concat(3, heads=2)},
        "this concat score was built for 2 heads of width 3, but is given 4 heads of width 3: build it for those",
    ),
    (
        FITTING,
        {"score": Concat(5, heads=4, query_width=3)},
        "this concat score was built for 4 heads of width 5, but is given 4 heads of width 3: build it for those",
    ),
    (
        FITTING,
        {"score": Location(3, heads=2)},
        "this location score was built for 2 heads of width 3, but is given 4 heads of width 3: build it for those",
    ),
    (
        FITTING,
        {"score": Location(3, heads=4, length=6)},
        "7 keys, but this location score knows 6 places: build it with length=7",
    ),
]


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"beta": "inf"}, "beta is 'inf' of type str; a number is wanted, or a tensor with one a head"),
        ({"normalize": None}, "normalize is None; a name or a function of the scores is wanted: 'softmax'"),
        ({"bias": [0.0]}, "bias is list; a tensor to add to the scores is wanted"),
    ],
)
def test_each_type_that_none_expects_has_its_sentence(choices: dict[str, Any], sentence: str):
    with pytest.raises(QkvError, match=f"^{re.escape(sentence)}$"):
        attend(*FITTING, **choices)


@pytest.mark.parametrize(
    ("qkv", "choices", "sentence"), MISFITS, ids=[sentence[:60] for *_, sentence in MISFITS]
)
def test_each_misfit_has_its_sentence(qkv: list[Tensor], choices: dict[str, Any], sentence: str):
    with pytest.raises(QkvError, match=f"^{re.escape(sentence)}$"):
        attend(*qkv, **choices)


@pytest.mark.parametrize(
    ("qkv", "choices", "sentence"), MISFITS, ids=[sentence[:60] for *_, sentence in MISFITS]
)
def test_the_module_says_the_same(qkv: list[Tensor], choices: dict[str, Any], sentence: str):
    built = {name: choices[name] for name in ("score", "beta", "normalize", "dropout") if name in choices}
    called = {name: value for name, value in choices.items() if name not in built}
    with pytest.raises(QkvError, match=f"^{re.escape(sentence)}$"):
        Attend(**built)(*qkv, **called)


def test_the_name_of_a_score_is_no_score():
    name: Any = "gaussian"
    with pytest.raises(QkvError, match=r"^score is 'gaussian'; a score is wanted: e.g. score=Cosine\(\)"):
        attend(*FITTING, score=name)


def test_weights_check_too():
    with pytest.raises(
        QkvError, match=r"^allow has shape \(2, 7\); scores are \(2, 4, 5, 7\): add a query axis"
    ):
        weights(*FITTING[:2], allow=torch.ones(2, 7, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_every_floating_dtype_stays_what_it_is(dtype: torch.dtype):
    out = attend(
        *(x.to(dtype) for x in FITTING), beta=torch.ones(4), bias=torch.zeros(5, 7), allow=masks.causal()
    )
    assert out.dtype == dtype
