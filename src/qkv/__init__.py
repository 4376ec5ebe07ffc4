"""Train, run, measure and look inside attention and Transformer models."""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Each public name and where it lives, so that `import qkv` costs nothing until a name is used (PEP 562).
# The colon matters: `qkv.attention.attend` alone could be the module or the function.
_PUBLIC = {
    "Attend": "qkv.attention.attend:Attend",
    "Memory": "qkv.attention.memory:Memory",
    "MultiHeadAttention": "qkv.attention.heads:MultiHeadAttention",
    "POSITIONS": "qkv.attention.positions:POSITIONS",
    "QkvError": "qkv.errors:QkvError",
    "SCORES": "qkv.attention.scores:SCORES",
    "attend": "qkv.attention.attend:attend",
    "load": "qkv.tasks.task:load",
    "masks": "qkv.attention.masks:",
    "watch": "qkv.attention.watch:watch",
    "weights": "qkv.attention.attend:weights",
}

if TYPE_CHECKING:  # the same names for editors and type checkers; tests/test_public.py keeps the two equal
    from qkv.attention import masks as masks
    from qkv.attention.attend import Attend as Attend
    from qkv.attention.attend import attend as attend
    from qkv.attention.attend import weights as weights
    from qkv.attention.heads import MultiHeadAttention as MultiHeadAttention
    from qkv.attention.memory import Memory as Memory
    from qkv.attention.positions import POSITIONS as POSITIONS
    from qkv.attention.scores import SCORES as SCORES
    from qkv.attention.watch import watch as watch
    from qkv.errors import QkvError as QkvError
    from qkv.tasks.task import load as load

__all__ = ["__version__", *_PUBLIC]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}")
    value = globals()[name] = resolve_name(_PUBLIC[name])  # kept, so that the next use is a plain lookup
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
