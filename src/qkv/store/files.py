"""The two kinds of file in a store, tensors and facts, each read back exactly as it was written."""

import errno
import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qkv.errors import QkvError

_ALIASES = "aliases"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file; a tensor under several names (tied weights) is written once, under the first."""
    first: dict[Any, str] = {}
    aliases: dict[str, str] = {}
    whole: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        kept = first.setdefault(_place(tensor), name) if tensor.numel() else name
        if kept != name:
            aliases[name] = kept
            continue
        whole[name] = tensor.detach().contiguous()
        storage = whole[name].untyped_storage()
        # A part of another tensor, or the same memory in another shape or dtype: it is written as one of its own.
        if storage.nbytes() != whole[name].nbytes or (storage.data_ptr() in storages and storage.nbytes()):
            whole[name] = whole[name].clone()
        storages.add(storage.data_ptr())
    try:
        save_file(whole, path, metadata={_ALIASES: json.dumps(aliases)})
    except SafetensorError as error:  # a full disk, say
        raise OSError(errno.EIO, str(error)) from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, on the CPU; names that shared one tensor share one again."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        aliases = json.loads((file.metadata() or {}).get(_ALIASES, "{}"))
    return tensors | {name: tensors[kept] for name, kept in aliases.items()}


def count_numbers(path: Path) -> int:
    """How many numbers a file of tensors holds, without reading them; a tensor with several names counts once."""
    with safe_open(path, framework="pt") as file:
        return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - no mapping


def write_facts(path: Path, facts: dict[str, Any]) -> None:
    """Write JSON as Python reads it, with Infinity and NaN; every float keeps its bits, every integer its digits.

    What JSON would change without a word (a tuple, a key that is a number) is refused.
    """
    _expect_plain(facts, "")
    path.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", "utf-8", newline="\n")


def read_facts(path: Path) -> dict[str, Any]:
    """What `write_facts` wrote."""
    return json.loads(path.read_text("utf-8"))


def _place(tensor: Tensor) -> Any:
    """Equal for two tensors that are the same memory, seen in the same way."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _expect_plain(value: Any, path: str) -> None:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, part in value.items():
            _expect_plain(part, f"{path}.{key}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            _expect_plain(part, f"{path}[{index}]")
    elif value is not None and not isinstance(value, (bool, int, float, str)):
        kind = "dict with keys that are not text" if isinstance(value, dict) else type(value).__name__
        raise QkvError(
            f"{path.removeprefix('.') or 'the whole'} is a {kind}, which JSON does not give back: "
            "use dicts with text keys, lists, text, numbers, true, false or none"
        )
