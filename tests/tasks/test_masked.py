"""Pretraining: which tokens are hidden, how, and that a model learns what stood there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.data.sequences import encode_texts
from qkv.data.tokens import Tokens
from qkv.recipe.config import from_tree
from qkv.store import bundle
from qkv.tasks.masked import KIND, MASK, MaskedConfig, hide
from qkv.tasks.task import Asked, resolved
from qkv.train.progress import Display
from qkv.train.train import train

WORDS = [f"w{n}" for n in range(50)]
TEXTS = [" ".join(np.random.default_rng(seed).choice(WORDS, 5 + seed % 17)) for seed in range(200)]


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return Tokens.train(TEXTS, kind="word", minimum=1, tags=(MASK,))


def test_fifteen_in_a_hundred_are_asked_for_and_hidden_as_in_the_paper(tokens: Tokens):
    texts = encode_texts(TEXTS, tokens, 64)
    rows = np.arange(200)
    asked = hidden = other = words = 0
    for seed in range(20):
        batch = hide(texts, rows, tokens, 0.15, (1, 2, seed))
        plain, keep = texts.batch(rows, tokens)
        changed = batch.token_BT != plain
        assert not (changed & ~batch.asked_BT).any()
        assert torch.equal(plain[batch.asked_BT], batch.answer_N)
        assert torch.equal(keep, batch.keep_BT)
        ends = (plain == tokens.start) | (plain == tokens.end) | ~keep
        assert not (batch.asked_BT & ends).any()
        lengths = texts.ids.lengths
        wanted = np.maximum(1, np.rint(0.15 * lengths))
        assert np.array_equal(batch.asked_BT.sum(1).numpy(), wanted)
        now = batch.token_BT[batch.asked_BT]
        assert (now != tokens.start).all()
        words += int(lengths.sum())
        asked += len(now)
        hidden += int((now == tokens.tag(MASK)).sum())
        other += int(((now != tokens.tag(MASK)) & (now != batch.answer_N)).sum())
    assert asked / words == pytest.approx(0.15, abs=0.01)
    assert hidden / asked == pytest.approx(0.8, abs=0.01)
    assert other / asked == pytest.approx(0.1 * 49 / 50, abs=0.01)


def test_the_seed_decides_and_every_place_can_be_asked(tokens: Tokens):
    texts, rows = encode_texts(TEXTS, tokens, 64), np.arange(3)
    one, same, other = (hide(texts, rows, tokens, 0.15, (0, 0, seed)) for seed in (1, 1, 2))
    assert torch.equal(one.token_BT, same.token_BT)
    assert not torch.equal(one.asked_BT, other.asked_BT)
    often = sum(hide(texts, rows, tokens, 0.15, (0, 0, seed)).asked_BT.float() for seed in range(300))
    assert isinstance(often, torch.Tensor)
    inner = one.keep_BT.clone()
    inner[:, 0] = False
    inner[torch.arange(3), one.keep_BT.sum(1) - 1] = False
    assert (often[inner] > 0).all()


def test_it_learns_and_reads(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{a} {b} {a} {b}\n" for a in "pqrst" for b in "uvwxyz"))
    tree: dict[str, Any] = {
        "task": "masked",
        "data": {"train": [{"source": str(path)}], "hold_out": 0.1},
        "tokens": {"kind": "word", "minimum": 1},
        "batches": {"budget": 200, "longest": 20},
        "model": {
            "width": 16,
            "hidden": 32,
            "heads": 2,
            "layers": 2,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        },
        "train": {"epochs": 40, "precision": "fp32", "validate_every": 10, "optimizer": {"rate": 0.01}},
    }
    done = train(resolved(tree, ["train.schedule.warmup=20"]), tmp_path / "run", display=Display(quiet=True))
    found = bundle.read(done)
    scores = found.results["scores"]
    assert scores["accuracy"] > 60  # by chance one in eleven
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]))
    reader = qkv.load(done)
    vectors = reader.embed(["p u p u", "q v"])
    assert vectors.shape == (2, 16)
    np.testing.assert_allclose(vectors, reader.embed(["p u p u", "q v"], pool="average"))
    result = KIND.evaluate(reader, from_tree(MaskedConfig, found.recipe), Asked())
    assert dict(result.scores["all"].values) == pytest.approx(scores)
    other = KIND.evaluate(reader, from_tree(MaskedConfig, found.recipe), Asked([str(path)]))
    assert other.counts == {"all": 30}
