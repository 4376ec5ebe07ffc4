"""The penalty for translations that leave parts of their source unread.

Axes: B sentences, H heads, S source length, W prefixes of each sentence before a step, N after it.
"""

import torch
from torch import Tensor

from qkv.attention.watch import Seen


class Coverage:
    """How much each live prefix has looked at each source token, summed over its tokens.

    cp = weight · Σ_j log(min(Σ_i p_ij, 1)), where p_ij is how much target token i looked at source token j, averaged
    over heads and layers (Wu et al. 2016, equation 15). It is never above 0, so what bounds a score without it
    bounds the score with it.
    """

    def __init__(self, seen: Seen, keep_BS: Tensor, weight: float):
        self._seen, self._keep_BS, self._weight = seen, keep_BS, weight
        self._looked_BWS = torch.zeros(1, device=keep_BS.device)
        self.look()

    def look(self) -> None:
        """Add what the last step looked at."""
        B, S = self._keep_BS.shape
        W = self._looked_BWS.shape[1] if self._looked_BWS.dim() == 3 else 1
        # Heads aside, a step's weights are (sentences, prefixes, S) or (rows, 1, S), and the first one's, which read
        # all first tokens at once, (sentences, tokens, S): the last of them chose what comes next.
        maps = [self._seen[path].mean(1).reshape(B, W, -1, S)[:, :, -1] for path in self._seen]
        self._looked_BWS = self._looked_BWS + torch.stack(maps).mean(0)

    def pick(self, stays_B: Tensor, parents_BN: Tensor) -> None:
        """Follow the prefixes of the sentences that stay to what continues them."""
        self._looked_BWS = self._looked_BWS[stays_B.unsqueeze(-1), parents_BN]
        self._keep_BS = self._keep_BS[stays_B]

    def penalty(self) -> Tensor:
        """Of each prefix together with its next token, penalty_BW."""
        tiny = torch.finfo(
            self._looked_BWS.dtype
        ).tiny  # what was never looked at weighs much, but not infinitely
        logs_BWS = self._looked_BWS.clamp(min=tiny, max=1).log()
        return self._weight * logs_BWS.masked_fill(~self._keep_BS.unsqueeze(1), 0).sum(-1)
