"""Pairs: what was read, as ids, and where each came from."""

from pathlib import Path

import pytest

from qkv.data.pairs import encode_pairs
from qkv.data.text import Corpus, ParallelText
from qkv.data.tokens import START, Tokens
from qkv.errors import QkvError


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("en").write_text("a b\n\nc\n", "utf-8")
    Path("de").write_text("A B\nX\nC\n", "utf-8")
    Path("all.tsv").write_text("a\tA\tde\nb\tE\tfr\n", "utf-8")
    return tmp_path


def test_pairs_keep_ids_tags_weights_and_places(here):
    text = ParallelText(
        [Corpus(source="en", target="de", tag="de", weight=2.0), Corpus(source="all.tsv", tag_column=3)]
    )
    source = Tokens.train((pair.source for pair in text), kind="bytes")
    target = Tokens.train((pair.target for pair in text), kind="character", tags=text.tags())
    pairs = encode_pairs(text, source, target)
    assert source.decode_all(pairs.sources) == ["a b", "c", "a", "b"]
    assert target.decode_all(pairs.targets) == ["A B", "C", "A", "E"]
    assert pairs.tags.tolist() == [4, 4, 4, 5]
    assert pairs.weights == (2.0, 1.0)
    assert [pairs.where(row) for row in range(len(pairs))] == [
        "en → de line 1",
        "en → de line 3",
        "all.tsv line 1",
        "all.tsv line 2",
    ]


def test_without_tags_the_decoder_begins_with_start(here):
    tokens = Tokens.train([], kind="bytes")
    assert (
        encode_pairs(ParallelText([Corpus(source="en", target="de")]), tokens, tokens).tags.tolist()
        == [START] * 2
    )


def test_a_tag_that_the_vocabulary_lacks_names_file_and_line(here):
    tokens = Tokens.train([], kind="bytes", tags=["de"])
    with pytest.raises(QkvError, match=r"all\.tsv line 2: the language is 'fr'; this vocabulary has tags de"):
        encode_pairs(ParallelText([Corpus(source="all.tsv", tag_column=3)]), tokens, tokens)


def test_no_pairs_at_all_are_refused(here):
    Path("en").write_text("\n\n\n", "utf-8")
    tokens = Tokens.train([], kind="bytes")
    with pytest.raises(QkvError, match="there are no pairs in en → de: see what was skipped"):
        encode_pairs(ParallelText([Corpus(source="en", target="de")]), tokens, tokens)
