"""Tokens: any text returns exactly, and none can pass for a special or a tag."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from qkv.data.tokens import END, PAD, SPECIALS, START, UNK, Tokens
from qkv.errors import QkvError

LINES = ["a man in a blue shirt", "a woman in a red shirt", "ein Mann, eine Frau und zwölf Kinder"] * 3
EXACT = ["bpe", "character", "bytes"]
KINDS = [*EXACT, "word"]
TAGS = ["fr", "de", "zh-Hant"]


@pytest.fixture(scope="module")
def made() -> dict[str, Tokens]:
    return {kind: Tokens.train(LINES, kind=kind, size=330, tags=TAGS) for kind in KINDS}


# Text that looks like everything the vocabulary and the library know by name.
NAMES = [
    *(f"⟨ {name} ⟩" for name in (*SPECIALS, *TAGS)),
    *(f"⟨{name}⟩" for name in (*SPECIALS, *TAGS)),
    *(f"<{name}>" for name in (*SPECIALS, *TAGS, "s", "/s", "0x41", "0x00", "|endoftext|", "2de")),
    *("Ġ", "Ċ", "Ġman", "▁", "##a", "@@", "[CLS]", "\x00", "\ufeff", "\u2028", "\x85", "\r\n", "  ", "\n", " a", "a "),
]  # fmt: skip
texts = st.text(st.characters(exclude_categories=["Cs"]))
hostile = st.lists(st.sampled_from(NAMES) | texts).map("".join)


@pytest.mark.parametrize("kind", EXACT)
@given(hostile)
def test_any_text_returns_exactly(made, kind, text):
    tokens = made[kind]
    ids = tokens.encode(text)
    assert tokens.decode(ids) == text
    assert ids.dtype == np.int32
    assert (ids >= len(SPECIALS) + len(TAGS)).all(), "a special or a tag came out of text"


@given(hostile)
def test_words_never_become_a_special_but_unk(made, text):
    ids = made["word"].encode(text)
    assert not np.isin(ids, [PAD, START, END, *range(4, 4 + len(TAGS))]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_no_training_text_makes_a_piece_that_is_a_special(kind):
    names = [*NAMES, *(f"a⟨ {name} ⟩b" for name in SPECIALS)]
    tokens = Tokens.train(names * 20, kind=kind, size=600, tags=TAGS)
    first = len(SPECIALS) + len(TAGS)
    for name in names:
        ids = tokens.encode(name)
        assert (ids >= first).all(), name
        if kind != "word":
            assert tokens.decode(ids) == name


@given(st.lists(st.sampled_from(["a", "man", "in", "blue", "shirt"])))
def test_known_words_return_exactly(made, words):
    assert made["word"].decode(made["word"].encode(" ".join(words))) == " ".join(words)


def test_an_unknown_word_is_unk_and_shown(made):
    ids = made["word"].encode("a  purple\tman")
    assert ids.tolist() == [*made["word"].encode("a"), UNK, *made["word"].encode("man")]
    assert made["word"].decode(ids) == "a ⟨ unk ⟩ man"


def test_a_word_has_the_same_token_at_the_start_as_elsewhere(made):
    shirt = made["bpe"].encode("shirt")
    assert len(shirt) == 1
    assert made["bpe"].encode("a shirt")[-1] == shirt[0]
    assert made["bpe"].pieces(shirt) == [" shirt"]


def test_character_and_bytes_count_as_their_names_say(made):
    assert len(made["character"].encode("zwölf")) == 5
    assert len(made["bytes"].encode("zwölf")) == 6
    assert len(made["character"].encode("語")) == 3  # never seen: its bytes
    assert made["bytes"].size == 256 + 4 + len(TAGS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_ids_are_fixed_and_tags_follow_in_order(made, kind):
    tokens = made[kind]
    assert (PAD, START, END, UNK) == (0, 1, 2, 3)
    assert tokens.tags == ("de", "fr", "zh-Hant")
    assert [tokens.tag(name) for name in tokens.tags] == [4, 5, 6]
    assert tokens.pieces(range(5)) == ["⟨pad⟩", "⟨start⟩", "⟨end⟩", "⟨unk⟩", "⟨de⟩"]


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_drops_specials_and_stops_at_the_end(made, kind):
    tokens = made[kind]
    ids = tokens.encode("a man").tolist()
    noisy = [START, tokens.tag("de"), PAD, *ids, PAD, END, *ids, 1_000_000]
    assert tokens.decode(noisy) == "a man"
    assert tokens.decode(np.array(ids)) == "a man"
    assert tokens.decode([]) == ""
    assert tokens.decode_all([ids, [END], ids[:1]])[:2] == ["a man", ""]


def test_bytes_that_are_no_text_are_replaced(made):
    ids = made["bpe"].encode("ö")
    assert made["bpe"].decode(ids[:-1]).endswith("\ufffd")


def test_an_id_of_another_vocabulary_is_refused(made):
    for index in (-1, 330):
        with pytest.raises(
            QkvError, match=f"id {index} is not in this vocabulary of 3.*decode with the one that"
        ):
            made["bpe"].decode([index])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lowercase", [False, True])
def test_a_saved_vocabulary_is_the_same_and_the_same_bytes(tmp_path, kind, lowercase):
    tokens = Tokens.train(LINES, kind=kind, size=330, tags=TAGS, lowercase=lowercase)
    tokens.save(tmp_path / "a.json")
    loaded = Tokens.load(tmp_path / "a.json")
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (loaded.kind, loaded.tags, loaded.size) == (kind, tokens.tags, tokens.size)
    for line in [*LINES, *NAMES, "Ein Mann", ""]:
        assert loaded.encode(line).tolist() == tokens.encode(line).tolist()
    wanted = "ein mann," if lowercase else "ein Mann,"
    assert loaded.decode(loaded.encode("ein Mann,")) == wanted


def test_training_twice_gives_the_same_bytes(tmp_path):
    words = [f"{a}{b}{c}" for a in "abcdefg" for b in ("un", "ver", "") for c in ("ig", "lich", "ö", "")]
    lines = [" ".join(words[start::7]) for start in range(7)] * 2  # every count is met many times
    code = (
        "import sys; from pathlib import Path; from qkv.data.tokens import Tokens\n"
        f"for kind in {KINDS}:\n"
        f"    Tokens.train({lines}, kind=kind, size=700, tags=['de']).save(Path(kind + sys.argv[1]))"
    )
    for name in ("1", "2"):  # other processes: other hash seeds
        subprocess.run([sys.executable, "-c", code, name], cwd=tmp_path, check=True)
    for kind in KINDS:
        assert (tmp_path / f"{kind}1").read_bytes() == (tmp_path / f"{kind}2").read_bytes()


@pytest.mark.parametrize("content", [
    "", "{}", "not json", '{"model": 1}', b"\xff",
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str(),
    Tokenizer(models.BPE({f"⟨ {name} ⟩": index for index, name in enumerate(SPECIALS)}, [])).to_str(),
])  # fmt: skip
def test_a_file_that_is_not_ours_is_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(
        QkvError, match=r"tokenizer\.json (is not a vocabulary of qkv|cannot be read: it is not UTF-8)"
    ):
        Tokens.load(path)
    with pytest.raises(QkvError, match="cannot be read: No such file"):
        Tokens.load(tmp_path / "missing.json")


def test_the_file_is_self_contained_and_registers_nothing(made, tmp_path):
    made["bpe"].save(tmp_path / "tokenizer.json")
    assert json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))["added_tokens"] == []
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert library.encode("a man ⟨ end ⟩").ids == made["bpe"].encode("a man ⟨ end ⟩").tolist()


def test_the_size_is_met_or_a_notice_says_why_not():
    small = Tokens.train(LINES, size=8000)
    assert 270 < small.size < 500
    assert small.notice == (
        f"the vocabulary has {small.size} entries, not 8,000: "
        "the text has no more pieces that occur at least 2 times"
    )
    assert Tokens.train(LINES, size=290).size == 290
    assert Tokens.train(LINES, size=290).notice is None
    assert Tokens.train(LINES, kind="bytes").notice is None
    assert Tokens.train(LINES, kind="word", size=6).size == 6


def test_what_is_seen_once_gets_no_entry():
    tokens = Tokens.train(["aa aa b"], kind="word", size=100)
    assert tokens.encode("aa b").tolist() == [4, UNK]
    assert Tokens.train(["aa aa b"], kind="word", size=100, minimum=1).encode("aa b").tolist() == [4, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_no_lines_at_all_leave_the_fixed_entries(kind):
    tokens = Tokens.train([], kind=kind, size=1000)
    assert tokens.size == 4 + (0 if kind == "word" else 256)
    assert len(tokens.encode_all([])) == 0


def test_a_size_that_holds_too_little_and_tags_that_confuse_are_refused():
    with pytest.raises(
        QkvError, match="size is 100; a bpe vocabulary needs 262 at least, for 4 specials, 1 tags"
    ):
        Tokens.train(LINES, size=100, tags=["de"])
    for tag in ("pad", "", "d e", "⟩"):
        with pytest.raises(QkvError, match="use letters, digits, - and _"):
            Tokens.train(LINES, tags=[tag])


def test_an_unknown_tag_is_refused_with_the_choices(made):
    with pytest.raises(QkvError, match=r"language is 'dr'; .* tags de, fr, zh-Hant: choose one"):
        made["bpe"].tag("dr")
    with pytest.raises(QkvError, match=r"language is None; .* tags de, fr"):
        made["bpe"].tag(None)
    plain = Tokens.train(LINES, kind="bytes")
    assert plain.tag(None) == START
    with pytest.raises(QkvError, match="tag 'de' is unknown: this vocabulary has no tags"):
        plain.tag("de")


def test_what_is_no_text_is_refused(made):
    with pytest.raises(QkvError, match="half a surrogate pair"):
        made["bpe"].encode("a\ud800")
    with pytest.raises(QkvError, match="None is of type NoneType: give lines of text"):
        made["bpe"].encode_all(["a", None])


def test_many_lines_are_encoded_as_each_alone(made):
    lines = [f"a man {number} in blue" for number in range(10_001)]  # more than one chunk
    together = made["bpe"].encode_all(iter(lines))
    assert len(together) == len(lines)
    for row in (0, 9_999, 10_000):
        assert together[row].tolist() == made["bpe"].encode(lines[row]).tolist()
    assert made["bpe"].decode_all(together) == lines


def test_the_library_decodes_alike_with_every_token(made):
    """Each entry of the vocabulary, decoded on its own after a word, is what `pieces` calls it."""
    tokens = made["bpe"]
    space = tokens.encode("a")
    for index in range(4 + len(TAGS) + 256, tokens.size):
        assert tokens.decode([*space, index]) == "a" + tokens.pieces([index])[0]
