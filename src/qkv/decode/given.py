"""What decoding is given, checked: first tokens, and a model that answers with numbers.

Axes: B sentences, S source length, P first tokens that are given, R rows (some for each sentence), L vocabulary.
"""

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.models.interface import Generator


def first_tokens(model: Generator, keep_BS: Tensor, start: Tensor) -> Tensor:
    """The tokens (B,) or (B,P) that every hypothesis begins with, as start_BP."""
    if model.training:
        raise QkvError(
            "the model is in training mode, where dropout changes what it writes: call model.eval() first"
        )
    if keep_BS.dtype != torch.bool or keep_BS.dim() != 2:
        raise QkvError(
            f"keep is {keep_BS.dtype} of shape {tuple(keep_BS.shape)}; booleans (sentences, length) are wanted, True = real token"
        )
    start_BP = start.unsqueeze(-1) if start.dim() == 1 else start
    if (
        start_BP.dim() != 2
        or len(start_BP) != len(keep_BS)
        or start_BP.shape[1] == 0
        or start.is_floating_point()
    ):
        raise QkvError(
            f"start is {start.dtype} of shape {tuple(start.shape)} for {len(keep_BS)} sentences: "
            "give whole numbers, one first token for each sentence (sentences,), or several (sentences, tokens)"
        )
    return start_BP


def log_probabilities(logits_RL: Tensor) -> Tensor:
    """log softmax, in fp32 at least, as sums of many log probabilities need it; never above 0. Always a new tensor."""
    half = logits_RL.dtype in (torch.bfloat16, torch.float16)
    return logits_RL.log_softmax(-1, dtype=torch.float32 if half else logits_RL.dtype)


def expect_numbers(gains_RL: Tensor, sentence_B: Tensor, length: int) -> None:
    """Raise if the logits that these log probabilities were made of were no numbers."""
    is_finite_R = gains_RL.amax(-1).isfinite()  # nan, +inf and nothing but -inf all make a row of nan
    if not is_finite_R.all():
        row = int(is_finite_R.logical_not().nonzero()[0])
        sentence = int(sentence_B[row * len(sentence_B) // len(gains_RL)])
        raise QkvError(
            f"the logits for token {length} of sentence {sentence} are not numbers (nan, inf, or -inf throughout): "
            "look for the first bad layer, or run the model in fp32 if it is in half precision"
        )
