"""Translation: its loss against loops in float64, its scores against sacreBLEU, its vocabularies, its model's directory."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import sacrebleu
import torch

from qkv.data.batches import BatchesConfig
from qkv.data.text import Corpus, Pair
from qkv.data.tokens import END, TokensConfig
from qkv.decode.config import SearchConfig
from qkv.decode.translator import Translator
from qkv.errors import QkvError
from qkv.models.luong import LuongConfig
from qkv.models.transformer import TransformerConfig
from qkv.store.bundle import TOKENIZERS, read
from qkv.tasks import task as tasks
from qkv.tasks.translate import DataConfig, MetricsConfig, TranslateConfig, Translation, compare, score
from qkv.train.machine import Cost
from qkv.train.state import Progress
from qkv.train.train import write_model

LINES = [
    ("one man sings", "ein Mann singt"), ("two men", "zwei Männer"), ("a dog and a cat", "ein Hund und eine Katze"),
    ("she reads", "sie liest ein Buch"), ("a cat", "eine Katze"), ("the dog barks at night", "nachts bellt der Hund"),
    ("one", "eins"),
]  # fmt: skip


def recipe(folder: Path, model: Any = None, joint: bool = True, **values: Any) -> TranslateConfig:
    for side, name in enumerate(("a.en", "a.de")):
        (folder / name).write_text("".join(pair[side] + "\n" for pair in LINES))
    corpus = Corpus(source=str(folder / "a.en"), target=str(folder / "a.de"))
    small = TransformerConfig(
        width=12, hidden=20, heads=3, encoder_layers=1, decoder_layers=1, tied="all" if joint else "none"
    )
    return TranslateConfig(
        data=DataConfig(train=(corpus,), valid=(replace(corpus, limit=5),)),
        tokens=TokensConfig(size=290, joint=joint),
        batches=BatchesConfig(budget=70, longest=30),
        model=model or small,
        search=SearchConfig(maximum=7, beam=3),
        **values,
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_the_smoothed_cross_entropy_of_the_real_positions(tmp_path: Path, smoothing: float):
    """Szegedy et al. 2016, section 7: -Σ q log p with q = (1-ε)·[label] + ε/L, one sentence at a time, in loops."""
    task = Translation(recipe(tmp_path, smoothing=smoothing))
    model = task.model.double().eval()
    padded = 0
    for number in range(len(task.epoch(0))):
        batch = task.epoch(0)[number]
        padded += int((~batch.keep_BT).sum())
        total, count = 0.0, 0
        for row in range(len(batch.rows)):
            source, target, label = (
                ids[row][keep[row]].unsqueeze(0)
                for ids, keep in (
                    (batch.source_BS, batch.keep_BS),
                    (batch.target_BT, batch.keep_BT),
                    (batch.label_BT, batch.keep_BT),
                )
            )
            with torch.no_grad():
                logits = model.logits(model(source, torch.ones_like(source, dtype=torch.bool), target))[
                    0
                ].tolist()
            for scores, right in zip(logits, label[0].tolist(), strict=True):
                log_total = math.log(sum(math.exp(value) for value in scores))
                logs = [value - log_total for value in scores]
                total -= (1 - smoothing) * logs[right] + smoothing * sum(logs) / len(logs)
                count += 1
        assert task.targets(batch) == count
        assert task.loss(batch).item() == pytest.approx(total, rel=1e-5)
    assert padded > 0


def test_what_stands_in_padding_does_not_matter(tmp_path: Path):
    task = Translation(recipe(tmp_path))
    task.model.double().eval()
    batch = next(
        b
        for b in map(task.epoch(0).__getitem__, range(len(task.epoch(0))))
        if not b.keep_BT.all() and not b.keep_BS.all()
    )
    other = replace(
        batch,
        source_BS=batch.source_BS.masked_fill(~batch.keep_BS, 77),
        target_BT=batch.target_BT.masked_fill(~batch.keep_BT, 78),
        label_BT=batch.label_BT.masked_fill(~batch.keep_BT, 79),
    )
    torch.testing.assert_close(task.loss(batch), task.loss(other), rtol=1e-12, atol=0)


def test_the_validation_loss_is_that_of_each_token_without_smoothing(tmp_path: Path):
    config = recipe(tmp_path, smoothing=0.3)
    task, plain = Translation(config), Translation(replace(config, smoothing=0.0))
    task.model.eval()
    plain.model.eval()
    pairs, total, tokens = task.valid_pairs, 0.0, 0
    for row in range(len(pairs)):
        source = torch.tensor([[*pairs.sources[row].tolist(), END]])
        label = torch.tensor([*pairs.targets[row].tolist(), END])
        target = torch.tensor([[int(pairs.tags[row]), *label[:-1].tolist()]])
        with torch.no_grad():
            logits = plain.model.logits(
                plain.model(source, torch.ones_like(source, dtype=torch.bool), target)
            )[0]
        total += float(torch.nn.functional.cross_entropy(logits, label, reduction="sum"))
        tokens += len(label)
    assert len(pairs) == 5
    scores = task.validate()
    assert scores is not None
    assert scores.values["loss"] == pytest.approx(total / tokens, rel=1e-5)


def test_scores_are_those_of_sacrebleu_with_its_signatures():
    found, right = (
        ["ein Mann singt .", "Zwei Männer gehen heim ."],
        ["ein Mann singt.", "zwei Männer gehen heim ."],
    )
    plain = compare(found, right, MetricsConfig())
    assert plain.values["bleu"] == sacrebleu.corpus_bleu(found, [right]).score
    assert plain.values["chrf"] == sacrebleu.corpus_chrf(found, [right]).score
    assert plain.values["exact"] == 0
    assert "case:mixed" in plain.signatures["bleu"]
    assert "tok:13a" in plain.signatures["bleu"]
    other = compare(found, right, MetricsConfig(tokenize="none", lowercase=True, best_by="chrf"))
    assert (
        other.values["bleu"]
        == sacrebleu.corpus_bleu(found, [right], tokenize="none", lowercase=True, force=True).score
    )
    assert other.best == other.values["chrf"] > plain.values["chrf"]
    assert "case:lc" in other.signatures["bleu"]
    assert "tok:none" in other.signatures["bleu"]
    assert sacrebleu.__version__ in other.signatures["chrf"]
    half = compare(["a", "b c", "d"], ["a", "b  c", "d"], MetricsConfig(best_by="exact"))
    assert half.best == pytest.approx(200 / 3)
    assert not compare(["a"], ["a"], MetricsConfig(best_by="loss")).more_is_better


def test_each_pair_is_translated_into_its_own_language():
    class Polyglot:
        def translate(self, sentences: list[str], to: str | None = None, config: object = None) -> list[str]:
            return [f"{sentence} in {to}" for sentence in sentences]

    pairs = [Pair(f"s{n}", f"s{n} in {tag}", tag, n) for n, tag in enumerate(["de", "fr", "de", "cs", "fr"])]
    assert score(cast("Translator", Polyglot()), pairs, MetricsConfig()).values["exact"] == 100
    pairs[1] = pairs[1]._replace(tag="de")
    assert score(cast("Translator", Polyglot()), pairs, MetricsConfig()).values["exact"] == 80


def test_validation_counts_every_pair_and_training_each_once(tmp_path: Path):
    config = recipe(tmp_path)
    for name in ("a.en", "a.de"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text + text)
    corpus = replace(config.data.train[0], limit=None)
    task = Translation(replace(config, data=DataConfig(train=(corpus,), valid=(corpus,))))
    assert len(task.valid) == 14
    assert len(task.batches.pairs) == 7
    assert any("7 × duplicate skipped" in notice for notice in task.notices)
    without = Translation(replace(config, data=DataConfig(train=(corpus,))))
    assert without.validate() is None


def test_a_validation_set_in_an_unknown_language_is_named_before_training(tmp_path: Path):
    config = recipe(tmp_path)
    corpus = replace(config.data.train[0], tag="de")
    data = DataConfig(train=(corpus,), valid=(replace(corpus, tag="fr"),))
    with pytest.raises(QkvError, match=r"a\.de line 1: the language is 'fr'; this vocabulary has tags de"):
        Translation(replace(config, data=data))


def test_a_batch_is_described_by_file_and_line(tmp_path: Path):
    task = Translation(recipe(tmp_path))
    batch = task.epoch(0)[0]
    said = task.describe(batch)
    assert said.count("a.de line ") == min(3, len(batch.rows))
    assert said.startswith(f"{task.batches.pairs.names[0]} line {int(batch.rows[0]) + 1}")


def test_vocabularies_are_one_or_two(tmp_path: Path):
    joint, apart = Translation(recipe(tmp_path)), Translation(recipe(tmp_path, joint=False))
    assert joint.vocabularies.source is joint.vocabularies.target
    assert set(joint.tokenizers()) == {TOKENIZERS[0]}
    assert set(apart.tokenizers()) == set(TOKENIZERS[1:])
    assert apart.vocabularies.source.decode(apart.vocabularies.source.encode("a dog")) == "a dog"
    for task in (joint, apart):
        assert task.config.model.source_vocabulary == task.vocabularies.source.size
        assert task.config.model.target_vocabulary == task.vocabularies.target.size


MODELS = {
    "transformer": (None, True),
    "apart": (None, False),
    "luong": (LuongConfig(width=10, encoder_layers=1, decoder_layers=1, input_feeding=True), True),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_translates_after_saving_as_before(tmp_path: Path, name: str):
    model, joint = MODELS[name]
    task = Translation(recipe(tmp_path, model, joint))
    with torch.no_grad():
        for weight in task.model.parameters():
            weight.mul_(3)  # so that it has opinions
    before = Translator(
        task.model,
        task.vocabularies.source,
        task.vocabularies.target,
        task.config.search,
        task.config.batches.longest,
    )
    path = write_model(
        task,
        tmp_path / "model",
        Progress(best_scores={"bleu": 1.5}, signatures={"bleu": "sig|1"}),
        Cost(1.0, 2, 3),
    )
    after = tasks.load(path)
    sentences = [source for source, _ in LINES]
    assert after.config == before.config
    assert after.longest == before.longest == task.batches.longest < 30
    lines = [(line.best, line.flagged) for line in before.stream(sentences)]
    assert lines == [(line.best, line.flagged) for line in after.stream(sentences)]
    assert len({best[0][0].text for best, _ in lines}) > 1
    card = (path / "README.md").read_text()
    assert "validation bleu: 1.50 (sig|1)" in card
    assert "7 pairs kept" in card


def test_a_model_can_be_where_training_starts(tmp_path: Path):
    first = Translation(recipe(tmp_path))
    with torch.no_grad():
        for weight in first.model.parameters():
            weight.add_(1)
    found = read(write_model(first, tmp_path / "model", Progress(), Cost(1.0, 2, 3)))
    second = Translation(replace(recipe(tmp_path), tokens=TokensConfig(size=500)), found)
    assert second.vocabularies.source.size == first.vocabularies.source.size
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_two_vocabularies_never_share_one_table(tmp_path: Path):
    """Of the same size they would pass for one."""
    with pytest.raises(QkvError, match=r"^tokens.joint is false and model.tied 'all'"):
        replace(recipe(tmp_path), tokens=TokensConfig(size=290, joint=False))


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (TransformerConfig(positions="learned", length=29), "batches.longest is 30"),
        (TransformerConfig(positions="learned", length=30), None),
        (TransformerConfig(positions="rotary", length=3), None),
        (LuongConfig(score="location", length=29), "batches.longest is 30"),
        (LuongConfig(score="location", attention="none", length=2), None),
    ],
)
def test_a_model_has_a_place_for_every_token(tmp_path: Path, model: Any, named: str | None):
    if named is None:
        recipe(tmp_path, model)
        return
    with pytest.raises(QkvError, match=f"{named}, but this model can tell 29 places apart"):
        recipe(tmp_path, model)


@pytest.mark.parametrize(
    ("metrics", "search", "named"),
    [
        (MetricsConfig(beam=3), SearchConfig(beam=1, temperature=0.7), "temperature is 0.7 with beam 3"),
        (MetricsConfig(beam=3), SearchConfig(coverage=0.2, coverage_from="decodr.*"), "decodr"),
    ],
)
def test_what_validations_cannot_search_is_said_before_training(tmp_path: Path, metrics, search, named: str):
    config = replace(recipe(tmp_path), metrics=metrics, search=search)
    with pytest.raises(QkvError, match=named):
        Translation(config)


def test_the_digest_is_of_what_is_learnt_from(tmp_path: Path):
    config = recipe(tmp_path)
    one = Translation(config).digest()
    assert Translation(config).digest() == one
    text = (tmp_path / "a.de").read_text()
    (tmp_path / "a.de").write_text(text.replace("Mann", "mann"))
    assert Translation(config).digest() != one
