"""Text in, text out: each line alone or among others, blank, too long, in several languages, or without an end."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkv.data.tokens import END, Tokens
from qkv.decode.config import SearchConfig
from qkv.decode.translator import Translation, Translator
from qkv.errors import QkvError
from qkv.models.interface import Generator, State
from qkv.models.luong import Luong, LuongConfig
from qkv.models.transformer import Transformer, TransformerConfig

WORDS = ["one", "two", "three", "four", "five", "sixty", "seven", "hundred", "and", "thousand"]
SENTENCES = [" ".join(WORDS[(n * 7 + k) % 10] for k in range(1 + n * 5 % 11)) for n in range(32)]
SOURCE = Tokens.train([*SENTENCES, "A b. C! D?"], size=340, minimum=1)
TARGET = Tokens.train([f"{w} wort und {w}heit" for w in WORDS], size=340, minimum=1, tags=["de", "fr", "cs"])
SEARCH = SearchConfig(beam=3, minimum=1, maximum=6)


def loud(model: Generator) -> Generator:
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    return model.double()


def transformer() -> Generator:
    torch.manual_seed(1)
    return loud(
        Transformer(
            TransformerConfig(
                source_vocabulary=SOURCE.size, target_vocabulary=TARGET.size, width=12, hidden=20, heads=3,
                encoder_layers=1, decoder_layers=2, tied="none",
            )
        )
    )  # fmt: skip


def luong() -> Generator:
    torch.manual_seed(2)
    return loud(
        Luong(
            LuongConfig(
                source_vocabulary=SOURCE.size, target_vocabulary=TARGET.size, width=10, encoder_layers=1,
                decoder_layers=1, tied="none", input_feeding=True,
            )
        )
    )  # fmt: skip


MODELS = {"transformer": transformer, "luong": luong}


@pytest.fixture(params=MODELS)
def translator(request: pytest.FixtureRequest) -> Translator:
    return Translator(MODELS[request.param](), SOURCE, TARGET, SEARCH, longest=60)


def close(one: Sequence[Translation], other: Sequence[Translation]) -> None:
    """The same tokens to the letter, in float64; the scores but for the order of sums."""
    assert [(t.text, t.tokens, t.finished) for t in one] == [(t.text, t.tokens, t.finished) for t in other]
    assert [t.score for t in one] == pytest.approx([t.score for t in other], rel=1e-9)


@pytest.mark.parametrize(
    "config", [replace(SEARCH, n_best=3), replace(SEARCH, beam=1)], ids=["beam", "greedy"]
)
def test_a_sentence_is_translated_alone_as_among_31_others_in_any_order(
    translator: Translator, config: SearchConfig
):
    alone = [next(translator.stream([sentence], ["de"], config=config)).best[0] for sentence in SENTENCES]
    assert len({best[0].text for best in alone}) > 5
    order = torch.randperm(32, generator=torch.Generator().manual_seed(3)).tolist()
    for places in (list(range(32)), order):
        together = translator.stream([SENTENCES[place] for place in places], ["de"], config=config)
        for place, line in zip(places, together, strict=True):
            close(line.best[0], alone[place])


def test_blank_lines_stay_blank_and_in_their_place(translator: Translator):
    lines = ["", SENTENCES[3], "  \t", "\u3000", SENTENCES[4], ""]
    found = translator.translate(lines, "de")
    assert found == [
        "",
        *translator.translate([SENTENCES[3]], "de"),
        "",
        "",
        *translator.translate([SENTENCES[4]], "de"),
        "",
    ]
    assert all(found[place] for place in (1, 4))
    assert translator.translate(["", " "], "fr") == ["", ""]
    assert translator.translate([], "fr") == []
    blank = next(translator.stream([""], ["de"]))
    assert (blank.flagged, blank.best) == (None, [[Translation.blank()]])


def test_lines_come_one_for_one_in_order_with_their_numbers(translator: Translator):
    lines = [SENTENCES[n % 32] if n % 5 else "" for n in range(40)]
    found = list(translator.stream(lines, ["de"], window=7))
    assert [line.number for line in found] == list(range(1, 41))
    assert [line.source for line in found] == lines
    assert [line.best[0][0].text for line in found] == translator.translate(lines, "de")


def test_a_stream_without_an_end_is_read_only_a_window_ahead():
    translator = Translator(transformer(), SOURCE, TARGET, replace(SEARCH, beam=1, maximum=2))
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for number in count():
            read += 1
            yield SENTENCES[number % 32]

    for taken, line in enumerate(islice(translator.stream(endless(), ["de"], window=6), 20), 1):
        assert line.number == taken
        assert read == 6 * -(-taken // 6)


def test_several_languages_cost_one_encoding(translator: Translator, monkeypatch: pytest.MonkeyPatch):
    lines = [*SENTENCES[:6], ""]
    single = {tag: translator.translate(lines, tag) for tag in ("de", "fr", "cs")}
    assert single["de"] != single["fr"] != single["cs"]
    encoded: list[int] = []
    encode = translator.model.encode

    def note(source_BS: Tensor, keep_BS: Tensor) -> State:
        encoded.append(len(source_BS))
        return encode(source_BS, keep_BS)

    monkeypatch.setattr(translator.model, "encode", note)
    assert translator.translate_into(lines, ["cs", "de", "fr"]) == {
        tag: single[tag] for tag in ("cs", "de", "fr")
    }
    assert sum(encoded) == 6
    encoded.clear()
    line = next(translator.stream(SENTENCES[:1], ["fr", "de"]))
    assert [best[0].text for best in line.best] == [single["fr"][0], single["de"][0]]
    assert encoded == [1]


def test_the_n_best_are_different_and_best_first(translator: Translator):
    for line in translator.stream(SENTENCES[:5], ["de", "fr"], config=replace(SEARCH, n_best=3)):
        for best in line.best:
            assert len(best) == 3
            assert len({(*one.tokens, one.finished) for one in best}) == 3
            assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)
            assert all(one.text == TARGET.decode(one.tokens) for one in best)


def test_samples_depend_on_the_place_in_the_stream_not_on_the_window():
    translator = Translator(
        transformer(), SOURCE, TARGET, SearchConfig(beam=1, temperature=1.0, maximum=6, seed=4)
    )
    lines = [SENTENCES[2]] * 9 + ["", SENTENCES[5]]
    drawn = [
        [line.best for line in translator.stream(lines, ["de"], window=window)] for window in (2, 5, 100)
    ]
    for one in drawn[1:]:
        for best, first in zip(one, drawn[0], strict=True):
            close(best[0], first[0])
    assert len({best[0][0].text for best in drawn[0][:9]}) > 3


# ---- lines that are too long --------------------------------------------------------------------------------------


def test_an_over_long_line_is_split_at_sentence_ends(translator: Translator):
    sentences = [
        "one two three. ",
        'four "five sixty!" ',
        "seven hundred? ",
        "and thousand…  ",
        "one one one",
    ]
    line = "".join(sentences)
    translator.longest = 11
    parts, flagged = translator._parts(line)
    assert flagged is None
    assert len(parts) > 2
    assert all(len(SOURCE.encode(part)) + 1 <= 11 for part in parts)
    assert " ".join(parts) == " ".join(line.split())
    found = next(translator.stream([line], ["de"]))
    alone = [next(translator.stream([part], ["de"])).best[0][0] for part in parts]
    (joined,) = found.best[0]
    assert joined.text == " ".join(one.text for one in alone)
    assert joined.tokens == [token for one in alone for token in one.tokens]
    assert joined.score == pytest.approx(sum(one.score for one in alone) / len(alone))
    assert [(part, one.text) for part, one in joined.parts] == [
        (part, one.text) for part, one in zip(parts, alone, strict=True)
    ]
    assert joined.finished == all(one.finished for one in alone)


def test_sentences_of_an_over_long_line_are_read_one_by_one_and_of_another_together():
    """What a model learnt from is mostly single sentences: several at once it tends to shorten."""
    translator = Translator(transformer(), SOURCE, TARGET, SEARCH, longest=60)
    assert translator._parts("one two. " * 30) == (["one two."] * 30, None)
    assert translator._parts("one two. one.") == (["one two. one."], None)
    assert translator._parts("一二。三四！五六" * 9)[0][:3] == ["一二。", "三四！", "五六一二。"]


def test_an_alignment_of_pieces_stays_within_each():
    translator = Translator(transformer(), SOURCE, TARGET, SEARCH, longest=12)
    line = "one two three. four five sixty! seven hundred? one"
    best = next(translator.stream([line], ["de"])).best[0][0]
    source_of = [number for number, (part, _) in enumerate(best.parts) for _ in part.split()]
    target_of = [number for number, (_, one) in enumerate(best.parts) for _ in one.text.split()]
    links = translator.alignment(line, best, "de")
    assert links
    assert all(source_of[source] == target_of[target] for source, target in links)


def test_every_translation_begins_with_the_prefix_and_goes_on_as_the_model_does(translator: Translator):
    greedy, again = replace(SEARCH, beam=1), 0
    for line in translator.stream(SENTENCES, ["de"], config=greedy):
        best = line.best[0][0]
        prefix = TARGET.decode(best.tokens[:1])
        if best.tokens and TARGET.encode(prefix).tolist() == best.tokens[:1]:  # then it finds the same again
            shorter = replace(greedy, maximum=greedy.maximum - 1)  # what is given does not count
            found = next(translator.stream([line.source], ["de"], prefix=prefix, config=shorter))
            assert found.best[0][0].tokens == best.tokens
            again += 1
    assert again
    for text in translator.translate([*SENTENCES, "one two. " * 30], "de", prefix="acht und"):
        assert not text or text.startswith("acht und")


@pytest.mark.parametrize("sentences", [["a \ud800"], [3], [None]])
def test_what_is_no_text_is_named(sentences: list[Any]):
    with pytest.raises(QkvError, match=r"half a surrogate pair|is of type"):
        Translator(transformer(), SOURCE, TARGET, SEARCH).translate(sentences, "de")


@pytest.mark.parametrize(
    "line", ["one " * 40 + "one. ", " " + "two " * 50, "one. " + "two " * 50 + ". one. "]
)
def test_what_cannot_be_split_is_flagged_and_read_to_its_end(line: str, monkeypatch: pytest.MonkeyPatch):
    """And a space at its end is no sentence of its own, to be translated into something."""
    translator = Translator(transformer(), SOURCE, TARGET, SEARCH, longest=30)
    read: list[Tensor] = []
    encode = translator.model.encode

    def note(source_BS: Tensor, keep_BS: Tensor) -> State:
        read.extend(source_BS[row][keep_BS[row]] for row in range(len(source_BS)))
        return encode(source_BS, keep_BS)

    monkeypatch.setattr(translator.model, "encode", note)
    found = next(translator.stream([line], ["de"]))
    assert found.flagged is not None
    assert (
        "tokens without a sentence end, the model learnt from up to 30, so it was cut between words: check its translation"
        in found.flagged
    )
    assert all(len(ids) > 1 and ids[-1] == END for ids in read)
    kept = "".join(SOURCE.decode(ids).replace(" ", "") for ids in read)
    assert sorted(kept) == sorted(line.replace(" ", ""))


PIECES = ["a", "İ", "é", "人", " ", ". ", "! ", "?", "…", "。", '."  ', "\u3000"]


@given(line=st.lists(st.sampled_from(PIECES), max_size=30).map("".join), longest=st.integers(3, 25))
@pytest.mark.parametrize("lowercase", [False, True])
def test_no_letter_is_lost_and_no_part_too_long_unless_it_says_so(line: str, longest: int, lowercase: bool):
    """Whatever the text: with capitals too whose small letters have more bytes."""
    tokens = LOWER if lowercase else SOURCE
    translator = Translator(MODEL, tokens, TARGET, SEARCH, longest=longest)
    parts, flagged = translator._parts(line)
    assert "".join("".join(parts).split()) == "".join(line.split())
    assert all(part.strip() for part in parts)
    assert all(len(tokens.encode(part)) < longest or len(part) == 1 for part in parts)
    if flagged is None:
        assert all(len(tokens.encode(part)) < longest for part in parts)


MODEL = transformer()
LOWER = Tokens.train(["a b c"], size=340, minimum=1, lowercase=True)


def test_what_was_cut_at_the_maximum_is_flagged():
    translator = Translator(transformer(), SOURCE, TARGET, replace(SEARCH, beam=1, maximum=3))
    lines = list(translator.stream(SENTENCES, ["de"]))
    assert {line.flagged for line in lines if not line.best[0][0].finished} == {
        "was cut at the maximum number of tokens: raise search.maximum or maximum_ratio"
    }
    assert all(line.flagged is None for line in lines if line.best[0][0].finished)
    assert any(line.flagged for line in lines)


# ---- where it came from --------------------------------------------------------------------------------------------


def test_maps_are_shares_of_the_source_tokens(translator: Translator):
    best = next(translator.stream([SENTENCES[4]], ["fr"])).best[0][0]
    map_TS = translator.maps(SENTENCES[4], best, "fr")
    assert map_TS.shape == (len(best.tokens) + 1, len(SOURCE.encode(SENTENCES[4])) + 1)
    torch.testing.assert_close(map_TS.sum(-1), torch.ones(len(map_TS), dtype=torch.float64))
    assert not torch.allclose(map_TS, translator.maps(SENTENCES[4], best, "de"))
    source, target = (len(text.split()) for text in (SENTENCES[4], best.text))
    for one, other in translator.alignment(SENTENCES[4], best, "fr"):
        assert 0 <= one < source
        assert 0 <= other < max(target, 1)


def test_words_are_linked_by_the_tokens_they_are_made_of(monkeypatch: pytest.MonkeyPatch):
    """A map that looks at everything in reverse: einundzwanzig crosses twenty-one."""
    translator = Translator(transformer(), SOURCE, TARGET, SEARCH)
    source, target = "one two three", "fiveheit wort one"
    read, written = SOURCE.encode(source).tolist(), TARGET.encode(target).tolist()
    where, into = SOURCE.words(read), TARGET.words(written)
    map_TS = torch.zeros(len(written) + 1, len(read) + 1)
    for t, word in enumerate(into):
        if word is not None:
            map_TS[t, where.index(2 - word)] = 1.0
    map_TS[-1, -1] = 1.0
    monkeypatch.setattr(translator, "maps", lambda *_: map_TS)
    found = translator.alignment(source, Translation(target, 0.0, True, written), "de")
    assert found == [(0, 2), (1, 1), (2, 0)]


# ---- what is wrong is named before anything is read ------------------------------------------------------------------


def test_faults_are_one_sentence_each(translator: Translator):
    untouched = iter(SENTENCES)
    for call, wanted in (
        (lambda: translator.translate("one two", "de"), r"sentences is the text 'one two': give a list"),
        (
            lambda: list(translator.stream(untouched, ["de", "dee"])),
            r"the language is 'dee'.*did you mean 'de'",
        ),
        (
            lambda: list(translator.stream(untouched)),
            r"the language is None; this vocabulary has tags cs, de, fr",
        ),
        (lambda: list(translator.stream(untouched, [])), r"to is empty: name at least one language"),
        (lambda: translator.translate_into(["a"], []), r"to is empty: name at least one language"),
    ):
        with pytest.raises(QkvError, match=wanted):
            call()
    assert next(untouched) == SENTENCES[0]
    assert translator.languages == ("cs", "de", "fr")


def test_a_model_of_one_language_needs_none_named():
    translator = Translator(_square(), SOURCE, SOURCE, SEARCH)
    assert translator.languages == ()
    assert len(translator.translate(SENTENCES[:2])) == 2
    with pytest.raises(QkvError, match="this vocabulary has no tags, so give none"):
        translator.translate(SENTENCES[:1], "de")


def _square() -> Any:
    sizes: dict[str, int] = {"source_vocabulary": SOURCE.size, "target_vocabulary": SOURCE.size}
    return Transformer(
        TransformerConfig(width=12, hidden=20, heads=3, encoder_layers=1, decoder_layers=1, **sizes)
    )
