"""`qkv.load`: a run or a model, or a sentence about what it is instead."""

import shutil
from pathlib import Path

import pytest

import qkv as public


def test_a_run_and_its_model_are_the_same_translator(trained: Path):
    texts = ["twenty-one", "", "five hundred"]
    found = public.load(str(trained)).translate(texts, to="de")
    assert len(found) == 3
    assert found[1] == ""
    assert public.load(trained / "model").translate(texts, to="de") == found


def test_a_run_that_is_not_finished_says_how_to_go_on(trained: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("model"))
    with pytest.raises(public.QkvError, match=f"not finished: go on with it, qkv train --resume --out {run}"):
        public.load(run)


def test_anything_else_is_named(tmp_path: Path):
    with pytest.raises(public.QkvError, match="is no model directory"):
        public.load(tmp_path)
