"""Memory: the keys and values that a query may look back at, as a value passed in and returned.

Axes: B batch, G key heads, T new positions, S positions so far, K key width, V value width.

Cross-attention makes one once per sentence; cached decoding appends to one at each step. Buffers are
reused in place, so appending *consumes* a memory: only the returned one may be used, and using the
old one raises instead of answering from overwritten buffers.
"""

import torch
from torch import Tensor

from qkv.errors import QkvError


class Memory:
    """Keys and values of `length` positions; `append` adds to them, `pick` chooses and reorders rows."""

    def __init__(self, keys_BGSK: Tensor, values_BGSV: Tensor):
        if keys_BGSK.shape[-2] != values_BGSV.shape[-2]:
            shapes = f"keys are {tuple(keys_BGSK.shape)}, values {tuple(values_BGSV.shape)}"
            count = f"{keys_BGSK.shape[-2]} keys for {values_BGSV.shape[-2]} values"
            raise QkvError(f"{shapes}: {count}; one value for each key is wanted")
        self._keys, self._values, self.length = keys_BGSK, values_BGSV, keys_BGSK.shape[-2]
        self._consumed = False

    @property
    def keys(self) -> Tensor:
        """keys_BGSK, a view."""
        return self._buffers()[0][..., : self.length, :]

    @property
    def values(self) -> Tensor:
        """values_BGSV, a view."""
        return self._buffers()[1][..., : self.length, :]

    def append(self, keys_BGTK: Tensor, values_BGTV: Tensor) -> "Memory":
        """Return the memory with T more positions; this one is consumed."""
        keys, values = self._buffers()
        _expect_alike("keys", self.keys, keys_BGTK, keys_BGTK.shape[-2])
        _expect_alike("values", self.values, values_BGTV, keys_BGTK.shape[-2])
        self._consumed = True
        if torch.is_grad_enabled():
            # Autograd needs every step's tensors as they were, also those that need no gradient themselves.
            past = slice(0, self.length)
            return Memory(
                torch.cat([keys[..., past, :], keys_BGTK], dim=-2),
                torch.cat([values[..., past, :], values_BGTV], dim=-2),
            )
        length = self.length + keys_BGTK.shape[-2]
        grown = Memory(_with_room(keys, self.length, length), _with_room(values, self.length, length))
        grown.length = length
        grown._keys[..., self.length : length, :] = keys_BGTK
        grown._values[..., self.length : length, :] = values_BGTV
        return grown

    def pick(self, rows_B: Tensor) -> "Memory":
        """Return a memory of the chosen rows in that order (repeats allowed); this one stays usable."""
        keys, values = self._buffers()
        picked = Memory(keys.index_select(0, rows_B), values.index_select(0, rows_B))
        picked.length = self.length
        return picked

    def _buffers(self) -> tuple[Tensor, Tensor]:
        if self._consumed:
            raise QkvError(
                f"this memory of {self.length} positions was consumed by append: use the memory that append returned, "
                "or pick rows from it before appending to keep a copy"
            )
        return self._keys, self._values


def _with_room(buffer: Tensor, used: int, wanted: int) -> Tensor:
    """The buffer itself if it has room, else one of twice the size: appending n times copies O(n), not O(n²)."""
    if wanted <= buffer.shape[-2] and not _is_frozen(buffer):
        return buffer
    grown = buffer.new_empty(*buffer.shape[:-2], max(2 * buffer.shape[-2], wanted), buffer.shape[-1])
    grown[..., :used, :] = buffer[..., :used, :]
    return grown


def _is_frozen(buffer: Tensor) -> bool:
    """Made in inference mode, which we have left: torch lets nobody write to it any more."""
    if torch.compiler.is_compiling():  # compiled code can neither ask nor be inside
        return False
    return buffer.is_inference() and not torch.is_inference_mode_enabled()


def _expect_alike(name: str, past: Tensor, new: Tensor, length: int) -> None:
    wanted = (*past.shape[:-2], length, past.shape[-1])
    if tuple(new.shape) != wanted or new.dtype != past.dtype:
        raise QkvError(
            f"{name} of shape {tuple(new.shape)} and {new.dtype} cannot follow those of a memory of shape "
            f"{tuple(past.shape)} and {past.dtype}: {wanted} is wanted, so append the same rows and heads each time"
        )
