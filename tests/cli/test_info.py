"""`qkv info`: a finished run, a model, and a run that was stopped."""

import json
import re
import shutil
from pathlib import Path

import pytest


def info(qkv, path: Path) -> dict:
    result = qkv("info", path, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_finished_run_tells_what_it_is_and_how_it_went(qkv, trained: Path):
    found = info(qkv, trained)
    assert found["finished"]
    assert found["recipe"]["model"]["width"] == 16
    assert found["vocabularies"]["tokenizer.json"] == {
        "kind": "bpe",
        "size": 300,
        "languages": ["cs", "da", "de", "fr", "it"],
    }
    assert found["results"]["steps"] == 2
    assert found["results"]["signatures"]["bleu"].startswith("nrefs:1")
    assert found["results"]["notices"][0].startswith("numbers: 200 pairs kept")
    assert [row["best"] for row in found["history"]] == [True]

    text = qkv("info", trained).stdout
    for part in (
        "finished",
        f"{found['parameters']:,}",
        "300 bpe",
        "cs, da, de, fr, it",
        "nrefs:1",
        "torch 2.",
    ):
        assert part in text
    assert "│ 2    │ 1 " in text or "│ 2 " in text  # the history


def test_a_model_directory_tells_the_same(qkv, trained: Path):
    run, model = info(qkv, trained), info(qkv, trained / "model")
    assert model["model"] == str(trained / "model")
    for name in ("recipe", "parameters", "vocabularies", "versions", "results"):
        assert model[name] == run[name]


@pytest.fixture
def stopped(trained: Path, tmp_path: Path) -> Path:
    """A run without its model, as if it had been stopped after its last checkpoint, and killed in mid-line."""
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("model"))
    with (run / "log.jsonl").open("a") as log:
        log.write('{"step": 3, "lo')
    return run


def test_a_stopped_run_tells_where_it_stands_and_nothing_is_touched(qkv, trained: Path, stopped: Path):
    before = {path: path.stat().st_mtime_ns for path in stopped.rglob("*")}
    found, whole = info(qkv, stopped), info(qkv, trained)
    assert not found["finished"]
    assert found["parameters"] == whole["parameters"]
    assert found["results"]["steps"] == 2
    assert found["results"]["scores"] == whole["results"]["scores"]
    assert found["history"] == whole["history"]
    assert f"qkv train --resume --out {stopped}" in qkv("info", stopped).stdout
    assert {path: path.stat().st_mtime_ns for path in stopped.rglob("*")} == before


def test_a_damaged_checkpoint_is_passed_over(qkv, stopped: Path):
    newest = max((stopped / "checkpoints").iterdir())
    later = newest.with_name("00000099")
    shutil.copytree(newest, later)
    (later / "checkpoint.json").write_text('{"format": 1, "st')
    assert info(qkv, stopped)["results"]["steps"] == 2


def test_a_run_without_a_checkpoint_yet(qkv, stopped: Path):
    shutil.rmtree(stopped / "checkpoints")
    assert info(qkv, stopped)["results"] == {}
    assert "without a checkpoint yet" in qkv("info", stopped).stdout


def test_a_damaged_model_is_named(qkv, trained: Path, tmp_path: Path):
    model = tmp_path / "model"
    shutil.copytree(trained / "model", model)
    (model / "model.safetensors").write_bytes(b"x")
    result = qkv("info", model)
    assert result.exit_code == 1
    assert "is damaged: model.safetensors is cut short" in result.stderr
    assert result.stderr.endswith("restore it from a copy, or train it again\n")


def test_a_run_writes_its_damaged_model_again_as_the_error_says(qkv, trained: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "model" / "model.safetensors").write_bytes(b"x")
    said = qkv("info", run).stderr
    assert (
        f"move it away, and write it again from the last checkpoint: qkv train --resume --out {run}" in said
    )
    (run / "model").rename(tmp_path / "away")
    assert qkv(*said.partition("checkpoint: qkv ")[2].split()).exit_code == 0
    for name in ("model.safetensors", "tokenizer.json"):
        assert (run / "model" / name).read_bytes() == (trained / "model" / name).read_bytes()


def test_a_checkpoint_that_is_cut_short_is_named(qkv, stopped: Path):
    newest = max((stopped / "checkpoints").iterdir())
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    result = qkv("info", stopped)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"qkv: {newest} is damaged: model.safetensors is cut short" in result.stderr
    assert result.stderr.endswith(f"checkpoint before it: qkv train --resume --out {stopped}\n")


def test_infinity_is_spelt_in_json_as_in_a_recipe(qkv, stopped: Path):
    recipe = stopped / "recipe.toml"
    recipe.write_text(re.sub(r"^clip = .*$", "clip = inf", recipe.read_text(), flags=re.MULTILINE))
    result = qkv("info", stopped, "--json")
    found = json.loads(result.stdout, parse_constant=pytest.fail)
    assert found["recipe"]["train"]["clip"] == "inf"
