"""Which source tokens a translation came from, read from the cross-attention along the winning hypothesis.

Axes: B sentences, S source length, P first tokens that are given, T target tokens, H heads.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from qkv.attention.watch import watch
from qkv.decode.given import first_tokens
from qkv.decode.score import forced
from qkv.models.interface import Generator


@torch.no_grad()
def align(
    model: Generator,
    source_BS: Tensor,
    keep_BS: Tensor,
    *,
    start: Tensor,
    targets: Sequence[Sequence[int]],
    pattern: str | None = None,
) -> list[Tensor]:
    """alignment_TS for each sentence: how much each of its source tokens was looked at when each token was written.

    These are the averages of `weights_by_path` over heads and layers.
    """
    found = weights_by_path(model, source_BS, keep_BS, start=start, targets=targets, pattern=pattern)
    return [torch.stack([map_HTS.mean(0) for map_HTS in maps.values()]).mean(0) for maps in found]


@torch.no_grad()
def weights_by_path(
    model: Generator,
    source_BS: Tensor,
    keep_BS: Tensor,
    *,
    start: Tensor,
    targets: Sequence[Sequence[int]],
    pattern: str | None = None,
) -> list[dict[str, Tensor]]:
    """For each sentence the weights with which its target was written, weights_HTS by the path of their attention.

    The targets are read by the model once more, which gives the very weights that wrote them, of the attentions whose
    path matches `pattern` (see `qkv.watch`): by default those that look at the source. The columns are the real source
    tokens.
    """
    start_BP = first_tokens(model, keep_BS, start)
    inputs_BT, _, _ = forced(start_BP, targets)
    with watch(model, pattern or model.source_attention) as seen:
        model(source_BS, keep_BS, inputs_BT)
    # A model may attend to all target tokens in one call, or (an RNN that feeds its input) in one call for each.
    maps = {path: torch.cat(seen.calls(path), dim=-2)[:, :, start_BP.shape[1] - 1 :] for path in seen}
    return [
        {path: weights_BHTS[row, :, : len(target), keep_S] for path, weights_BHTS in maps.items()}
        for row, (target, keep_S) in enumerate(zip(targets, keep_BS, strict=True))
    ]


def links(alignment_TS: Tensor) -> list[tuple[int, int]]:
    """The source token that each target token came from: (source, target) pairs, in the order of the target."""
    if 0 in alignment_TS.shape:
        return []
    return [(source, target) for target, source in enumerate(alignment_TS.argmax(-1).tolist())]


def word_links(
    token_links: Iterable[tuple[int, int]],
    source_words: Sequence[int | None],
    target_words: Sequence[int | None],
) -> list[tuple[int, int]]:
    """Links between words, sorted, from links between their tokens.

    The lists give the number of the word that each token belongs to; None (a tag, an end) belongs to none. As in
    Pharaoh's format, two words are linked if any of their tokens are.
    """
    pairs = ((source_words[source], target_words[target]) for source, target in token_links)
    return sorted({(source, target) for source, target in pairs if source is not None and target is not None})
