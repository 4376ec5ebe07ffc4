"""What every test runs under: one thread, a fixed seed, checked shapes, reproducible examples."""

import os

# Before torch is imported: pytest-xdist already fills the cores, and one thread makes sums reproducible.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import ast
import dataclasses
import functools
import inspect
import random
import re
import sys
import textwrap
from collections.abc import Callable
from typing import Any, Self, get_args

import hypothesis
import jaxtyping
import pytest
from beartype import BeartypeConf, FrozenDict, beartype

hypothesis.settings.register_profile("local", deadline=None, max_examples=30)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


# beartype refuses Self on a method that is decorated on its own, as jaxtyping's hook does.
check = beartype(
    conf=BeartypeConf(hint_overrides=FrozenDict({Self: object}), is_pep484_tower=True)
)  # 0 is a float, too


def axes(name: str) -> str | None:
    """What the suffix of a tensor's name says of its shape, in jaxtyping's words: `q_BHTK` has axes B H T K.

    B stands for any leading axes, which broadcast, as heads do; a mask broadcasts in all its axes; queries may be
    of another width than keys where a score has a matrix between them.
    """
    match = re.search(r"^(\w+)_(BH|BG|B|)([A-Z0-9]*)$", name)
    if not match or not match[2] + match[3]:
        return None
    lead = [f"*#{match[2]}"] if match[2] else []
    rest = [f"#{axis}" if match[1] == "allow" and axis.isalpha() else axis for axis in match[3]]
    if match[1] == "q":
        rest[-1] = "_"
    return " ".join([*lead, *rest])


def returned_name(function: Any) -> str:
    """The name that every `return` of the function returns, if it is the same one."""
    if function.__code__.co_filename == "<string>":  # a dataclass's own __init__
        return ""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    names = {
        ast.unparse(node.value) for node in ast.walk(tree) if isinstance(node, ast.Return) and node.value
    }
    return names.pop() if len(names) == 1 else ""


def annotate_from_names(function: Any) -> None:
    """Turn `x_BTD: Tensor` into `x_BTD: Shaped[Tensor, "*#B T D"]`: the name is the annotation."""
    from torch import Tensor

    notes = function.__annotations__
    for parameter, hint in notes.items():
        shape = axes(returned_name(function) if parameter == "return" else parameter)
        if shape is None:
            continue
        if hint is Tensor:
            notes[parameter] = jaxtyping.Shaped[Tensor, shape]
        elif Tensor in get_args(hint):
            others = [option for option in get_args(hint) if option is not Tensor]
            notes[parameter] = functools.reduce(lambda a, b: a | b, others, jaxtyping.Shaped[Tensor, shape])


def jaxtyped_unless_compiling(*, typechecker: object) -> Callable[[Any], Any]:
    """`jaxtyping.jaxtyped` with our `check`, except that torch.compile sees the bare function.

    The checks cannot be traced; this way `torch.compile(fullgraph=True)` is tested on the very functions whose
    shapes are checked everywhere else.
    """
    import torch

    def wrap(target: Any) -> Any:
        if inspect.isclass(target):
            if dataclasses.is_dataclass(target) and inspect.isfunction(target.__init__):
                target.__init__ = wrap(target.__init__)
            return target
        if "<locals>" in target.__qualname__:  # made anew at each call: too dear to check
            return target
        annotate_from_names(target)
        checked = original(target, typechecker=check)

        @functools.wraps(target)
        def either(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return target(*args, **kwargs)
            try:
                return checked(*args, **kwargs)
            except jaxtyping.TypeCheckError as misfit:
                if not hasattr(misfit, "judged"):  # by the innermost function that it concerns
                    misfit.judged = True
                    target(
                        *args, **kwargs
                    )  # what a user may get wrong, the function must refuse in its own words
                raise

        return either

    return wrap


original = jaxtyping.jaxtyped
if os.environ.get("QKV_TYPECHECK") != "0":  # QKV_TYPECHECK=0 for a debugger or a profile without the wrappers
    jaxtyping.jaxtyped = jaxtyped_unless_compiling  # by this name the import hook finds it
    jaxtyping.install_import_hook(["qkv.attention", "qkv.blocks"], "beartype.beartype")


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same random numbers for each test, whatever ran before it."""
    random.seed(0)
    if torch := sys.modules.get("torch"):  # a test that does not use torch need not load it
        torch.manual_seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)  # for libraries that use the global generator
