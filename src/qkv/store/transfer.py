"""The weights of one model in another: what fits is taken over, and what does not is said."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.store.bundle import Bundle

_SHOWN = 6  # names in a list


@torch.no_grad()
def transfer(model: nn.Module, start: Bundle, rows: Mapping[str, Sequence[int | None]] | None = None) -> str:
    """Put the tensors of a bundle into the model, by name, and say which were loaded, resized, new or left over.

    `rows` says for tensors by name which of the old rows each new one has; none stays as it was made. A tensor of
    another shape goes to the module that holds it, if that has `fit(tensor)`; else it is new.
    """
    loaded, resized, new = [], [], []
    wanted = model.state_dict()
    for name, tensor in wanted.items():
        old = start.tensors.get(name)
        if old is None:
            new.append(name)
        elif rows and name in rows and list(rows[name]) != list(range(len(old))):
            (resized if _copy_rows(tensor, old, rows[name]) else new).append(name)
        elif old.shape == tensor.shape:
            tensor.copy_(old)
            loaded.append(name)
        elif (fitting := _resized(model, name, old)) is not None:
            tensor.copy_(fitting)
            resized.append(f"{name} {_size(old)} → {_size(tensor)}")
        else:
            new.append(f"{name} {_size(tensor)}, where it was {_size(old)}")
    if not loaded:
        raise QkvError(
            f"{start.path} is a model for {start.task}, and none of its {len(start.tensors)} tensors fits this one: start "
            "from a model of the same kind and sizes"
        )
    left = [name for name in start.tensors if name not in wanted]
    numbers = sum(wanted[name].numel() for name in loaded)
    told = [f"{len(loaded)} tensors loaded ({numbers:,} numbers)"]
    for what, names in (("resized", resized), ("new", new), ("left over", left)):
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            told.append(f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{more}")
    return f"from {start.path}: {'; '.join(told)}"


def _copy_rows(tensor: Tensor, old: Tensor, rows: Sequence[int | None]) -> bool:
    """Whether any row was taken over."""
    if tensor.shape[1:] != old.shape[1:]:
        return False
    for new, before in enumerate(rows):
        if before is not None:
            tensor[new] = old[before]
    return any(before is not None for before in rows)


def _resized(model: nn.Module, name: str, old: Tensor) -> Tensor | None:
    """The tensor as the module that holds it would have it, in the new shape."""
    path, _, _ = name.rpartition(".")
    fit = getattr(model.get_submodule(path), "fit", None)
    return None if fit is None else fit(old)


def _size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "1"
