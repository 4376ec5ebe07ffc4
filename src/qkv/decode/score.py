"""How likely a model finds texts that are already there: teacher forcing.

Axes: B sentences, S source length, P first tokens that are given, T target tokens, D width, L vocabulary, X the real
target tokens of all sentences in a row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qkv.decode.given import first_tokens, log_probabilities
from qkv.errors import QkvError
from qkv.models.interface import Generator


@torch.no_grad()
def score(
    model: Generator, source_BS: Tensor, keep_BS: Tensor, *, start: Tensor, targets: Sequence[Sequence[int]]
) -> list[Tensor]:
    """The log probability of each token of each target, (T,) per sentence.

    `start` is as in `search`; the end of a sentence is scored if it is in the targets. The sum is log p(y | x), the
    chain rule read from left to right (Sutskever et al. 2014, equation 1).
    """
    start_BP = first_tokens(model, keep_BS, start)
    inputs_BT, targets_BT, is_real_BT = forced(start_BP, targets)
    if not is_real_BT.any():
        return [torch.empty(0) for _ in targets]
    x_BTD = model(source_BS, keep_BS, inputs_BT)[:, start_BP.shape[1] - 1 :]
    log_probability_XL = log_probabilities(model.logits(x_BTD[is_real_BT]))
    log_probability_X = log_probability_XL.gather(-1, targets_BT[is_real_BT].unsqueeze(-1)).squeeze(-1)
    return list(log_probability_X.split([len(target) for target in targets]))


def forced(start_BP: Tensor, targets: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """What the model reads (the first tokens, then each target but its last token), what it should answer from the
    last first token on, and where that is a real token: (inputs_BT, targets_BT, is_real_BT)."""
    if len(targets) != len(start_BP):
        raise QkvError(f"there are {len(targets)} targets for {len(start_BP)} sentences: give one for each")
    rows = [torch.tensor(list(target), dtype=torch.long) for target in targets]
    targets_BT = pad_sequence(rows, batch_first=True).to(start_BP.device) if rows else start_BP[:, :0]
    lengths_B1 = torch.tensor([[len(target)] for target in targets], device=start_BP.device)
    is_real_BT = torch.arange(targets_BT.shape[1], device=start_BP.device) < lengths_B1
    return torch.cat([start_BP, targets_BT[:, :-1]], dim=-1), targets_BT, is_real_BT
