"""Who may attend to what: mask values, other libraries' masks, and a check for leaks."""

from qkv.attention.masks.adapters import (
    from_fairseq,
    from_hf,
    from_keras,
    from_sdpa,
    from_torch_mha,
    split_additive,
    to_fairseq,
    to_hf,
    to_keras,
    to_sdpa,
    to_torch_mha,
)
from qkv.attention.masks.leaks import check_leaks
from qkv.attention.masks.values import Mask, causal, documents, padding, window

__all__ = [
    "Mask",
    "causal",
    "check_leaks",
    "documents",
    "from_fairseq",
    "from_hf",
    "from_keras",
    "from_sdpa",
    "from_torch_mha",
    "padding",
    "split_additive",
    "to_fairseq",
    "to_hf",
    "to_keras",
    "to_sdpa",
    "to_torch_mha",
    "window",
]
