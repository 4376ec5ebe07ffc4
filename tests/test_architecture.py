"""The rules of the house (DESIGN, section 2), each with a proof that it can fail."""

import ast
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "qkv"
FILES = sorted(SOURCE.rglob("*.py"))

# From the ground up; a package may import its own layer and those below it.
LAYERS = [
    {"errors", "config"},
    {"attention", "data", "recipe"},
    {"blocks"},
    {"models"},
    {"decode", "store"},
    {"tasks"},
    {"train", "look"},
    {"cli", "serve", "lab", "__main__"},
]
HEIGHT = {package: height for height, layer in enumerate(LAYERS) for package in layer}
APART = {"attention", "data", "recipe"}  # of one layer, yet strangers: each is usable without the others

FILE_LINES = 400
FUNCTION_LINES = 60


def upward_imports(path: Path, tree: ast.Module) -> Iterable[str]:
    package = house_part(path)
    if package == "__init__":  # the public face: it names everything, lazily
        return
    if package not in HEIGHT:
        yield f"{package} has no place in LAYERS: give it one"
        return
    for node, target in imported_packages(path, tree):
        if target not in HEIGHT:
            yield f"line {node.lineno}: import from the module that defines the name, not from the public face"
        elif HEIGHT[target] > HEIGHT[package]:
            yield f"line {node.lineno}: {package} imports {target}, which stands above it"
        elif target != package and {target, package} <= APART:
            yield f"line {node.lineno}: {package} imports {target}: these two never meet"


def house_part(path: Path) -> str:
    """`attention` for attention/heads.py and its like, `errors` for errors.py."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_packages(path: Path, tree: ast.Module) -> Iterable[tuple[ast.stmt, str]]:
    """Each import of something in qkv, deferred and type-only ones too: the arrows hold for them all."""
    here = ("qkv", *path.relative_to(SOURCE).with_suffix("").parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: -node.level]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            targets = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            root, *rest = target.split(".")
            if root == "qkv" and rest != ["__version__"]:
                yield node, rest[0] if rest else "qkv"


def missing_docstring(path: Path, tree: ast.Module) -> Iterable[str]:
    opening = (ast.get_docstring(tree) or "").split("\n\n")[0]
    if not opening.endswith((".", "?", ":")) or re.search(r"[a-z)][.?] +[A-Z]", opening.replace("\n", " ")):
        yield "open with a docstring whose first paragraph is one sentence"


def swallowed_keywords(path: Path, tree: ast.Module) -> Iterable[str]:
    if house_part(path) == "cli":
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments) and node.kwarg:
            yield f"line {node.kwarg.lineno}: **{node.kwarg.arg} swallows typos: name the parameters"


def long_file(path: Path, tree: ast.Module) -> Iterable[str]:
    lines = max((node.end_lineno for node in tree.body), default=0)
    if lines > FILE_LINES:
        yield f"{lines} lines: split it by meaning, at most {FILE_LINES}"


def long_function(path: Path, tree: ast.Module) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            documented = ast.get_docstring(node) is not None
            docstring = first.end_lineno - first.lineno + 1 if documented else 0
            lines = node.end_lineno - node.lineno + 1 - docstring
            if lines > FUNCTION_LINES:
                yield f"line {node.lineno}: {node.name} has {lines} lines, at most {FUNCTION_LINES}"


Rule = Callable[[Path, ast.Module], Iterable[str]]
RULES: list[Rule] = [upward_imports, missing_docstring, swallowed_keywords, long_file, long_function]


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_the_rule(rule: Rule):
    assert len(FILES) > 1, f"no source under {SOURCE}"
    faults = [
        f"{path.relative_to(SOURCE)}: {fault}"
        for path in FILES
        for fault in rule(path, ast.parse(path.read_text("utf-8")))
    ]
    assert not faults, "\n".join(["", *faults])


LONG_BODY = "\n".join(["    x = 1"] * FUNCTION_LINES)

# rule, file, source, does the rule object?
CASES = [
    (upward_imports, "attention/heads.py", "from qkv.blocks import norm", True),
    (upward_imports, "attention/heads.py", "import qkv.look.maps", True),
    (upward_imports, "attention/heads.py", "from qkv import models", True),
    (upward_imports, "attention/heads.py", "from ..look import maps", True),
    (upward_imports, "attention/heads.py", "from ... import qkv", False),
    (upward_imports, "attention/heads.py", "def late():\n    from qkv.train import loop", True),
    (upward_imports, "attention/heads.py", "from qkv.data import text", True),
    (upward_imports, "recipe/config.py", "from qkv.attention import attend", True),
    (upward_imports, "attention/heads.py", "from qkv import attend", True),
    (upward_imports, "attention/heads.py", "import qkv", True),
    (upward_imports, "errors.py", "from qkv.attention import attend", True),
    (upward_imports, "shed/tool.py", "", True),
    (upward_imports, "attention/heads.py", "from qkv.errors import QkvError", False),
    (upward_imports, "attention/heads.py", "from .attend import attend", False),
    (upward_imports, "attention/heads.py", "from . import masks\nimport torch", False),
    (upward_imports, "attention/masks/values.py", "from ..attend import attend", False),
    (upward_imports, "attention/masks/values.py", "from ...blocks import norm", True),
    (upward_imports, "blocks/layer.py", "from qkv.attention.heads import MultiHeadAttention", False),
    (upward_imports, "store/bundle.py", "from qkv import __version__", False),
    (upward_imports, "train/loop.py", "from qkv.look import maps", False),
    (upward_imports, "__init__.py", "from qkv.lab import claims", False),
    (missing_docstring, "a.py", "x = 1", True),
    (missing_docstring, "a.py", '"""Not a sentence"""', True),
    (missing_docstring, "a.py", '"""One sentence. Another one."""', True),
    (missing_docstring, "a.py", '"""One sentence,\nof two lines.\n\nThen more. And more."""', False),
    (swallowed_keywords, "attention/a.py", "def f(**options): ...", True),
    (swallowed_keywords, "attention/a.py", "class A:\n    def f(self, **_): ...", True),
    (swallowed_keywords, "attention/a.py", "f = lambda **options: 1", True),
    (swallowed_keywords, "attention/a.py", "def f(*values, name=1): g(**values)", False),
    (swallowed_keywords, "cli/main.py", "def f(**options): ...", False),
    (long_file, "a.py", "x = 1\n" * (FILE_LINES + 1), True),
    (long_file, "a.py", "x = 1\n" * FILE_LINES, False),
    (long_function, "a.py", f"def f():\n{LONG_BODY}", True),
    (long_function, "a.py", f"class A:\n  async def f():\n{LONG_BODY}", True),
    (long_function, "a.py", f'def f():\n    """One.\n\n    Two.\n    """\n{LONG_BODY[:-10]}', False),
]


@pytest.mark.parametrize(("rule", "name", "source", "objects"), CASES)
def test_the_rule_can_fail_and_only_where_it_should(rule: Rule, name: str, source: str, objects: bool):
    assert bool(list(rule(SOURCE / name, ast.parse(source)))) == objects
