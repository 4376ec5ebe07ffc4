"""Tensors and facts come back exactly."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkv.errors import QkvError
from qkv.store.files import read_facts, read_tensors, write_facts, write_tensors

DTYPES = [
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool,
]  # fmt: skip


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def through(tmp_path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    write_tensors(tmp_path / "t.safetensors", tensors)
    return read_tensors(tmp_path / "t.safetensors")


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert set(one) == set(other)
    for name, tensor in one.items():
        assert other[name].dtype == tensor.dtype
        assert other[name].shape == tensor.shape
        assert bits(other[name]) == bits(tensor), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 3)])
def test_every_kind_and_shape_comes_back(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]):
    tensors = {"x": (torch.randn(shape) * 9).to(dtype)}
    assert_same(tensors, through(tmp_path, tensors))


def test_values_that_no_arithmetic_would_keep_come_back(tmp_path: Path):
    odd = torch.tensor([math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308], dtype=torch.float64)
    quiet = torch.tensor([0x7FC00001, -0x3FFFFF], dtype=torch.int32).view(
        torch.float32
    )  # NaNs with a payload
    assert_same({"odd": odd, "quiet": quiet}, through(tmp_path, {"odd": odd, "quiet": quiet}))


def test_views_are_saved_as_what_they_show(tmp_path: Path):
    base = torch.arange(35.0).view(5, 7)
    tensors = {
        "whole": base,
        "turned": base.T,
        "row": base[2],
        "steps": base[:, ::2],
        "spread": base[:1].expand(3, 7),
    }
    back = through(tmp_path, tensors)
    assert_same(tensors, back)
    assert (tmp_path / "t.safetensors").stat().st_size < 1500  # a row does not drag its whole storage along


def test_tied_weights_are_saved_once_and_tied_again(tmp_path: Path):
    table = torch.nn.Parameter(torch.randn(100, 100))
    tensors = {"output": table, "embedding": table.detach(), "copy": table.detach().clone()}
    back = through(tmp_path, tensors)
    assert_same({name: tensor.detach() for name, tensor in tensors.items()}, back)
    assert back["output"].data_ptr() == back["embedding"].data_ptr() != back["copy"].data_ptr()
    assert (tmp_path / "t.safetensors").stat().st_size < 2.1 * 40_000


def test_same_memory_seen_as_another_kind_is_not_tied(tmp_path: Path):
    x = torch.randn(4)
    tensors = {"x": x, "bits": x.view(torch.int32), "square": x.view(2, 2)}
    assert_same(tensors, through(tmp_path, tensors))


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path):
    tensors = {name: torch.randn(3) for name in "cab"}
    through(tmp_path, tensors)
    first = (tmp_path / "t.safetensors").read_bytes()
    through(tmp_path, tensors)
    assert (tmp_path / "t.safetensors").read_bytes() == first


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**80), 10**80) | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def typed(value: Any) -> Any:
    """What tells 1 from 1.0 and True, and 0.0 from -0.0."""
    if isinstance(value, dict):
        return {key: typed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [typed(part) for part in value]
    return type(value), repr(value)


@given(facts=st.dictionaries(st.text(st.characters(codec="utf-8")), values, max_size=5))
def test_facts_come_back_exactly(facts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.getbasetemp() / "facts.json"
    write_facts(path, facts)
    assert typed(read_facts(path)) == typed(facts)


def test_the_facts_of_a_run_come_back(tmp_path: Path):
    facts = {
        "best": -math.inf,
        "loss": math.nan,
        "tiny": 5e-324,
        "third": 1 / 3,
        "state": 2**127 + 1,
        "long": 10**4000,
        "max": sys.float_info.max,
    }
    write_facts(tmp_path / "f.json", facts)
    back = read_facts(tmp_path / "f.json")
    assert math.isnan(back.pop("loss"))
    assert back == {name: value for name, value in facts.items() if name != "loss"}


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({"a": [1, (2, 3)]}, r"a\[1\] is a tuple, which JSON does not give back"),
        ({"a": {"b": {1: 2}}}, r"a\.b is a dict with keys that are not text, which"),
        ({"a": torch.tensor(1)}, "a is a Tensor, which"),
        ({"a": {1, 2}}, "a is a set, which"),
        ({3: 4}, "the whole is a dict with keys"),
    ],
)
def test_what_json_would_change_is_refused(tmp_path: Path, facts: Any, complaint: str):
    with pytest.raises(QkvError, match=complaint):
        write_facts(tmp_path / "f.json", facts)
    assert not (tmp_path / "f.json").exists()
