"""Writing: the one search without a source against a plain loop, and surprise against loops in float64."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.data.prose import Prose
from qkv.data.tokens import END, START, Tokens
from qkv.decode.choices import filtered, random_numbers
from qkv.decode.writer import Writer, WritingConfig, Written
from qkv.errors import QkvError
from qkv.models.interface import no_source
from qkv.models.lm import LanguageModel, LanguageModelConfig

TEXT = "to be or not to be,\nthat is the question\n"
PROSE = Prose(Tokens.train(TEXT.split("\n"), kind="character", size=300, minimum=1))
LENGTH = 8
LETTERS = [START, END, *range(PROSE.tokens.size - 16, PROSE.tokens.size)]


def model(likely: Sequence[int] = LETTERS, **choices: Any) -> LanguageModel:
    """A tiny one in float64, with weights large enough to have opinions, and few likely tokens."""
    torch.manual_seed(0)
    sizes = {"vocabulary": PROSE.tokens.size, "width": 12, "hidden": 20, "heads": 3, "layers": 2}
    config = LanguageModelConfig(**{**sizes, "length": LENGTH, "tied": False, **choices})
    made = LanguageModel(config).double().eval()
    assert made.output is not None
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2)
        made.norm.bias[0] = 50
        made.output.weight[:, 0] = 0
        made.output.weight[list(likely), 0] = 1
    return made


def writer(
    prose: Prose = PROSE, stride: int | None = None, likely: Sequence[int] = LETTERS, **choices: Any
) -> Writer:
    return Writer(model(likely, **choices), prose, LENGTH, stride)


def after(made: Writer, prefix: list[int]) -> Tensor:
    """The logits after a prefix, in one pass over what is in view: no cache."""
    assert isinstance(made.model, LanguageModel)
    with torch.no_grad():
        tokens = torch.tensor([prefix[made.model.view(len(prefix)) :]])
        return made.model.logits(made.model(*no_source(1), tokens))[0, -1]


def loop(made: Writer, prompt: str, config: WritingConfig, number: int = 0) -> Written:
    """Token by token, the whole prefix read again for each."""
    prefix = [END, *PROSE.encode(prompt).tolist()]
    given, total = len(prefix), 0.0
    drawn = random_numbers(config.seed, torch.tensor([number]), torch.tensor([config.maximum]), 1)[0, :, 0]
    for step in range(config.maximum):
        gains = after(made, prefix).log_softmax(-1)
        if config.temperature:
            mass, tokens = filtered(gains[None], config.temperature, config.top_k, config.top_p)
            share = drawn[step] * mass.sum()
            token = int(tokens[0, int((mass[0].cumsum(0) <= share).sum())])
        else:
            token = int(gains.argmax())
        total += float(gains[token])
        prefix.append(token)
        if token == START:
            break
    written = prefix[given:]
    ended = written[-1] == START
    return Written(PROSE.decode(written), total / len(written), ended, written[:-1] if ended else written)


def same(one: Written, other: Written) -> None:
    assert (one.text, one.tokens, one.finished) == (other.text, other.tokens, other.finished)
    assert one.score == pytest.approx(other.score, abs=1e-9)


CONFIGS = [
    WritingConfig(temperature=0, maximum=13),
    WritingConfig(temperature=1.3, maximum=13),
    WritingConfig(temperature=0.7, top_k=3, maximum=13, seed=2),
    WritingConfig(temperature=1.0, top_p=0.8, maximum=13, seed=3),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("positions", ["rotary", "learned", "alibi"])
@pytest.mark.parametrize("prompt", ["", "that is the question\n"])
def test_what_is_written_with_a_cache_is_what_a_loop_without_one_writes(
    config: WritingConfig, positions: str, prompt: str
):
    """Also beyond the context, which is of 8 tokens: there a model of distances is read as a whole."""
    made = writer(positions=positions)
    (found,) = made.generate(prompt, config=config)
    same(found, loop(made, prompt, config))


@pytest.mark.parametrize("seed", range(3))
def test_a_text_is_the_same_alone_and_among_others(seed: int):
    made = writer()
    one, five = (
        made.generate("to ", config=WritingConfig(temperature=1.5, maximum=17, count=count, seed=seed))
        for count in (1, 5)
    )
    assert one[0].tokens == five[0].tokens
    assert len({found.text for found in five}) > 1
    for number, found in enumerate(five):
        same(found, loop(made, "to ", WritingConfig(temperature=1.5, maximum=17, seed=seed), number))


def test_a_beam_finds_the_likeliest_text_of_all():
    likely = [START, END, *LETTERS[-3:]]
    made = writer(likely=likely)  # a beam of 20 holds all of two tokens, and nothing else is among the best
    config = WritingConfig(temperature=0, beam=20, count=4, maximum=3)
    found = made.generate("be", config=config)
    prefix, scored = [END, *PROSE.encode("be").tolist()], []
    for length in (1, 2, 3):
        for tokens in product(likely, repeat=length):
            if START in tokens[:-1] or (length < 3 and tokens[-1] != START):
                continue
            total = sum(
                float(after(made, [*prefix, *tokens[:n]]).log_softmax(-1)[token])
                for n, token in enumerate(tokens)
            )
            scored.append((tokens[-1] != START, -total / length, tokens))
    best = sorted(scored)[:4]
    assert [tuple(one.tokens) + (START,) * one.finished for one in found] == [tokens for _, _, tokens in best]
    assert [-one.score for one in found] == pytest.approx([score for _, score, _ in best])


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("stop", ["e", "be", "\n", "o t", "that never comes"])
def test_a_text_ends_before_its_stop(stop: str, count: int):
    made = writer()
    plain, stopped = (
        made.generate("to ", config=WritingConfig(temperature=1.2, maximum=40, count=count, stop=given))
        for given in (None, stop)
    )
    hits = 0
    for whole, found in zip(plain, stopped, strict=True):
        assert found.text == whole.text.partition(stop)[0]
        if stop in whole.text:
            hits += 1
            assert found.finished
            assert found.tokens == whole.tokens[: len(found.tokens)]
            assert len(found.tokens) <= len(PROSE.encode(found.text + stop))
    assert hits or len(stop) > 1 or count == 1


@pytest.mark.parametrize("stop", [None, "e", "t\n"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["character", "bytes", "bpe"])
def test_what_is_told_piece_by_piece_is_the_text(kind: Any, stop: str | None, seed: int):
    prose = Prose(Tokens.train(["tö bé ör nöt"] * 3, kind=kind, size=300, minimum=1))
    torch.manual_seed(0)
    sizes = {"width": 12, "hidden": 20, "heads": 3, "layers": 1, "length": LENGTH}
    made = Writer(LanguageModel(LanguageModelConfig(vocabulary=prose.tokens.size, **sizes)), prose, LENGTH)
    told: list[str] = []
    config = WritingConfig(temperature=1.5, maximum=40, seed=seed, stop=stop)
    (found,) = made.generate("tö", config=config, tell=told.append)
    assert "".join(told) == found.text
    assert found == made.generate("tö", config=config)[0]


def test_a_letter_is_told_once_all_of_its_bytes_are_there():
    prose = Prose(Tokens.train(["x"], kind="bytes", size=300))
    ids = prose.encode("ab…c\nd").tolist()
    told: list[str] = []

    class Scripted(LanguageModel):
        """It writes these ids, whatever it reads."""

        def step(self, tokens_RT: Tensor, state: Any) -> tuple[Tensor, Any]:
            _, state = super().step(tokens_RT, state)
            return nn.functional.one_hot(
                torch.tensor([[*ids, START][state.length - 1]]), prose.tokens.size
            ) * 1e3, state

    scripted = Scripted(
        LanguageModelConfig(vocabulary=prose.tokens.size, width=4, heads=1, hidden=3, layers=1)
    )
    (found,) = Writer(scripted, prose, LENGTH).generate(config=WritingConfig(temperature=0), tell=told.append)
    assert found.text == "ab…c\nd"
    assert found.finished
    assert [piece for piece in told if piece] == ["a", "b", "…", "c", "\n", "d"]


@pytest.mark.parametrize("stride", [None, 1, 3, 8])
def test_surprise_is_that_of_loops_in_float64(stride: int | None):
    """For each token the window that it counts in, read by itself; -log softmax written out."""
    made = writer(stride=stride)
    text = TEXT + "to be"
    ids, hop = PROSE.stream([text]).tolist(), stride or LENGTH
    total = 0.0
    for place in range(1, len(ids)):
        if place <= LENGTH:
            first = 0
        else:
            first = LENGTH - hop + hop * ((place - 1 - (LENGTH - hop)) // hop) - (LENGTH - hop)
        logits = after(made, ids[first:place]).tolist()
        assert place - first <= LENGTH
        total += math.log(sum(map(math.exp, logits))) - logits[ids[place]]
    found = made.surprise(text)
    assert found.nats == pytest.approx(total, rel=1e-6)
    assert found.tokens == found.characters == len(text)
    assert made.perplexity(text) == pytest.approx(math.exp(total / len(text)), rel=1e-6)
    assert found.bits == pytest.approx(total / math.log(2) / len(text), rel=1e-6)


def test_more_context_is_not_less_and_batches_change_nothing(monkeypatch: pytest.MonkeyPatch):
    made, stream = writer(), PROSE.stream([TEXT * 3])
    whole = made.nats(stream)
    monkeypatch.setattr("qkv.decode.writer._LOGITS", 1)  # one window after another
    assert made.nats(stream) == pytest.approx(whole, abs=1e-6)


def test_documents_begin_and_end_with_a_start():
    prose = Prose(PROSE.tokens, "line")
    made = writer(prose)
    assert prose.first == START
    stream = prose.stream(["to be\nor not\n"])
    assert made.surprise("to be").nats == pytest.approx(float(made.nats(stream)[:5].sum()))


def test_what_makes_no_sense_is_named():
    with pytest.raises(
        QkvError, match=r"temperature is 0.8 with beam 3, but texts are drawn one by one: set temperature=0"
    ):
        WritingConfig(beam=3)
    with pytest.raises(QkvError, match="stop is empty"):
        WritingConfig(stop="")
    with pytest.raises(QkvError, match="n_best is 2, but a beam of 1"):
        WritingConfig(temperature=0, count=2)
    with pytest.raises(QkvError, match="the text is '': give one with something to read"):
        writer().perplexity("")
    with pytest.raises(QkvError, match=r"the text is '\\n ': give one with something to read"):
        writer(Prose(PROSE.tokens, "line")).perplexity("\n ")
