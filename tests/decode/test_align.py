"""Alignments: the weights of cached decoding along the winning beam, and links made of them."""

import pytest
import torch
from tests.decode.toy import END, START, sources, transformer

from qkv.attention.watch import watch
from qkv.decode import SearchConfig, align, links, search, word_links
from qkv.errors import QkvError


def test_an_alignment_is_what_cached_decoding_looked_at():
    model, (source_BS, keep_BS) = transformer(9), sources(4, 7, 2)
    start = torch.tensor([[1, 3], [2, 1], [1, 1]])
    config = SearchConfig(beam=4, maximum=8, minimum=2)
    targets = [
        ones[0].tokens for ones in search(model, source_BS, keep_BS, start=start, end=END, config=config)
    ]
    maps = align(model, source_BS, keep_BS, start=start, targets=targets)
    for number, (alignment_TS, target) in enumerate(zip(maps, targets, strict=True)):
        source_1S = source_BS[number][keep_BS[number]].unsqueeze(0)
        state = model.encode(source_1S, torch.ones_like(source_1S, dtype=torch.bool))
        token_1T, rows = start[number : number + 1], []
        for token in target:
            with watch(model, "decoder.*.cross") as seen, torch.no_grad():
                _, state = model.step(token_1T, state)
            rows.append(torch.stack([weights_BHTS[0, :, -1] for weights_BHTS in seen.values()]).mean((0, 1)))
            token_1T = torch.tensor([[token]])
        torch.testing.assert_close(alignment_TS, torch.stack(rows), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(alignment_TS.sum(-1), alignment_TS.new_ones(len(target)))


def test_one_layer_can_be_chosen_and_none_is_an_error():
    model, (source_BS, keep_BS) = transformer(9), sources(4, 7)
    ask = {"start": torch.full((2,), START), "targets": [[2, 3], []]}
    both = align(model, source_BS, keep_BS, **ask)
    single = [align(model, source_BS, keep_BS, **ask, pattern=f"decoder.{layer}.cross") for layer in (0, 1)]
    assert [one.shape for one in both] == [(2, 4), (0, 7)]
    torch.testing.assert_close(both[0], (single[0][0] + single[1][0]) / 2)
    with pytest.raises(QkvError, match=r"no attention matches 'encoder\.\*\.cross'"):
        align(model, source_BS, keep_BS, **ask, pattern="encoder.*.cross")


def test_links_by_hand():
    alignment_TS = torch.tensor([[0.1, 0.7, 0.2], [0.6, 0.3, 0.1], [0.2, 0.2, 0.6]])
    assert links(alignment_TS) == [(1, 0), (0, 1), (2, 2)]
    assert links(alignment_TS[:0]) == []
    # Tokens 0 and 1 of the source are one word, token 2 is its end; two of the target are one word.
    assert word_links(links(alignment_TS), [0, 0, None], [0, 1, 1]) == [(0, 0), (0, 1)]
    assert word_links([(0, 0), (1, 0), (2, 1)], [0, 1, 2], [0, 0]) == [(0, 0), (1, 0), (2, 0)]
