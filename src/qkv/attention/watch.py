"""See the weights of a running model without changing the run.

    with qkv.watch(model, "decoder.*.cross") as seen:
        model(source, target)
    seen["decoder.0.cross"]  # weights_BHTS

The run stays as it is, bit for bit, with its fused kernels: after each watched attention the weights are
computed again, at least in fp32 and before dropout, from the queries, keys and mask that it used. What is kept is
a reducer's choice, and only full maps hold a whole T×S matrix.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from qkv.attention.attend import Attend
from qkv.attention.reduce import REDUCERS, Reducer, reduce_weights
from qkv.errors import QkvError, choose, nearest


class Seen(dict[str, Tensor]):
    """What was kept of the last call of each attention, by its path; `calls` has every call."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[str, list[Tensor]] = {}

    def __missing__(self, path: str) -> NoReturn:
        ran = ", ".join(self) or "none yet"
        raise QkvError(f"no watched attention {path!r} has run; these have: {ran}{nearest(path, self)}")

    def calls(self, path: str) -> list[Tensor]:
        """What was kept of each call in turn, such as the steps of cached decoding."""
        return self._calls[path] if path in self else self.__missing__(path)

    def keep(self, path: str, kept: Tensor) -> None:
        """Take in what was kept of one more call."""
        self._calls.setdefault(path, []).append(kept)
        self[path] = kept


@contextmanager
def watch(model: nn.Module, *patterns: str, keep: str | Reducer = "full") -> Iterator[Seen]:
    """Watch every attention of the model whose path matches one of the shell-style patterns (default: all).

    `keep` is full, entropy, top_k, distance, column_mass, max_logit, or a reducer of your own. What is kept
    of every call lives as long as `seen`: watch training with a small reducer, or a few steps at a time. A
    module that a model uses in several places is known by its first path.
    """
    if not isinstance(model, nn.Module) or not all(isinstance(pattern, str) for pattern in patterns):
        raise QkvError(
            f"watch got {type(model).__name__} and patterns {patterns!r:.60}; a module and strings are wanted: "
            "watch(model, 'encoder.*', 'decoder.*.cross')"
        )
    reducer = choose("reducer", keep, REDUCERS)() if isinstance(keep, str) else keep
    if not isinstance(reducer, Reducer):
        raise QkvError(f"keep is {keep!r}; a name or a reducer is wanted: keep='entropy', or keep=Entropy()")
    _expect_eager(model)
    watched = _matching(model, patterns or ("*",))
    seen = Seen()
    handles = [
        module.register_forward_hook(_observer(path, reducer, seen), with_kwargs=True)
        for path, module in watched.items()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
    if not seen:
        raise QkvError(
            f"watched {len(watched)} attentions but none ran: run the model inside the with block, "
            "and not through a function compiled by torch.compile, which takes no observers"
        )


def _observer(path: str, reducer: Reducer, seen: Seen) -> Any:
    def observe(module: Attend, inputs: tuple[Tensor, ...], options: dict[str, Any], output: Tensor) -> None:
        with torch.no_grad():
            seen.keep(path, reduce_weights(module.call(*inputs, **options), reducer))

    return observe


def _matching(model: nn.Module, patterns: tuple[str, ...]) -> dict[str, Attend]:
    """The attentions by path: an `Attend` is known by the module that holds it."""
    paths = {
        path.removesuffix(".attend") or "attend": module
        for path, module in model.named_modules()
        if isinstance(module, Attend)
    }
    if not paths:
        raise QkvError(
            f"{type(model).__name__} has no attention to watch: it needs a MultiHeadAttention or an Attend in it"
        )
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise QkvError(
                f"no attention matches {pattern!r}; there are {', '.join(paths)}{nearest(pattern, paths)}"
            )
    return {
        path: module
        for path, module in paths.items()
        if any(fnmatchcase(path, pattern) for pattern in patterns)
    }


def _expect_eager(model: nn.Module) -> None:
    """A compiled module never calls observers added later: say so instead of returning nothing."""
    for path, module in model.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise QkvError(
                f"{path or 'the model'} is compiled, and compiled code takes no observers: "
                "watch the module that you gave to torch.compile"
            )
