"""The public surface: exactly these names, found lazily."""

import ast
import importlib
import inspect
import subprocess
import sys

import pytest

import qkv

NAMES = [
    "Attend",
    "Memory",
    "MultiHeadAttention",
    "POSITIONS",
    "QkvError",
    "SCORES",
    "__version__",
    "attend",
    "load",
    "masks",
    "watch",
    "weights",
]


def test_the_public_names_are_exactly_these():
    assert sorted(qkv.__all__) == NAMES
    assert dir(qkv) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_resolves_to_the_thing_itself(name: str):
    value = getattr(qkv, name)
    if inspect.isfunction(value) or inspect.isclass(value):
        assert value.__name__ == name
        assert getattr(importlib.import_module(value.__module__), name) is value
    assert not inspect.ismodule(value) or name == "masks", f"qkv.{name} is the module, not what it defines"


def test_type_checkers_see_the_names_that_python_sees():
    tree = ast.parse(inspect.getsource(qkv))
    (typed,) = (node for node in tree.body if isinstance(node, ast.If))
    shown = [alias.asname for line in typed.body if isinstance(line, ast.ImportFrom) for alias in line.names]
    assert sorted(shown) == sorted(qkv._PUBLIC)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'qkv' has no attribute 'atend'"):
        qkv.atend  # noqa: B018


def test_importing_qkv_and_its_configs_loads_no_torch():
    code = "import sys, qkv, qkv.recipe.config; print([name for name in sys.modules if 'torch' in name])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )
