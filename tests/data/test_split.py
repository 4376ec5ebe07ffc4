"""Tokens taken apart: the same text, the right share of merges undone, the same for the same draws."""

import numpy as np
import pytest

from qkv import QkvError
from qkv.data.batches import Batches
from qkv.data.pairs import encode_pairs
from qkv.data.ragged import Ragged
from qkv.data.split import split, splitting
from qkv.data.text import Corpus, ParallelText
from qkv.data.tokens import Tokens, TokensConfig

LINES = ["a banana and an ananas", "bandanas banned", "banana banana"] * 30


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return Tokens.train(LINES, size=300)


def bits(seed: int = 1) -> np.random.PCG64:
    return np.random.PCG64(seed)


def by_hand() -> tuple[Ragged, np.ndarray]:
    """Tokens 0 to 2 are single; 3 = 0 1, 4 = 3 2."""
    return Ragged.of([[4, 0], [3], [], [1, 2]]), np.array([[-1, -1], [-1, -1], [-1, -1], [0, 1], [3, 2]])


def test_with_a_share_of_nearly_one_every_merge_is_undone():
    ids, merged_L2 = by_hand()
    found = split(ids, merged_L2, 1 - 1e-15, bits(), 99)
    assert [row.tolist() for row in found] == [[0, 1, 2, 0], [0, 1], [], [1, 2]]


def test_a_share_of_zero_changes_nothing():
    ids, merged_L2 = by_hand()
    assert [row.tolist() for row in split(ids, merged_L2, 0.0, bits(), 99)] == [[4, 0], [3], [], [1, 2]]


def test_a_row_that_would_be_too_long_stays_whole():
    ids, merged_L2 = by_hand()
    found = split(ids, merged_L2, 1 - 1e-15, bits(), 4)
    assert [row.tolist() for row in found] == [[4, 0], [0, 1], [], [1, 2]]


def test_each_merge_is_undone_with_the_share_asked_for():
    _, merged_L2 = by_hand()
    ids = Ragged.of([[4]] * 40_000)
    spelt = [tuple(row.tolist()) for row in split(ids, merged_L2, 0.3, bits(), 99)]
    counts = {spelling: spelt.count(spelling) / len(spelt) for spelling in set(spelt)}
    assert counts == pytest.approx({(4,): 0.7, (3, 2): 0.3 * 0.7, (0, 1, 2): 0.3 * 0.3}, abs=0.01)


def test_what_is_taken_apart_still_reads_the_same(tokens: Tokens):
    ids = tokens.encode_all(LINES)
    found = split(ids, tokens.merged(), 0.5, bits(), 999)
    assert len(found.flat) > len(ids.flat)
    assert tokens.decode_all(found) == LINES


def test_the_table_of_merges_spells_every_token_by_its_two(tokens: Tokens):
    merged_L2, entries = tokens.merged(), tokens.entries()
    parted = np.flatnonzero(merged_L2[:, 0] >= 0)
    assert len(parted) == tokens.size - 4 - 256  # all but the specials and the bytes
    assert all(entries[token] == "".join(entries[part] for part in merged_L2[token]) for token in parted)


def test_an_epoch_is_spelt_by_its_seed_and_number_alone(tokens: Tokens, tmp_path):
    for name in ("source", "target"):
        (tmp_path / name).write_text("\n".join(LINES))
    corpus = Corpus(source=str(tmp_path / "source"), target=str(tmp_path / "target"))
    pairs = encode_pairs(ParallelText((corpus,)), tokens, tokens)

    def spelt(seed: int, number: int) -> list[list[int]]:
        batches = Batches(pairs, seed=7, vary=splitting(tokens, tokens, 0.5, seed, 50))
        return [
            row.tolist() for batch in batches.epoch(number) for row in (*batch.source_BS, *batch.label_BT)
        ]

    assert spelt(0, 3) == spelt(0, 3)
    assert spelt(0, 3) != spelt(1, 3)
    assert spelt(0, 3) != spelt(0, 4)
    assert splitting(tokens, tokens, 0.0, 0, 50) is None


def test_what_has_no_merges_cannot_be_split():
    with pytest.raises(QkvError, match=r"split is 0\.1, but only bpe merges tokens and kind is 'word'"):
        TokensConfig(kind="word", split=0.1)
