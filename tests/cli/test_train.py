"""`qkv train`: to the end, stopped and resumed, and looked at before."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

import qkv as public


def test_training_ends_with_the_scores_on_stdout_and_all_else_on_stderr(qkv, recipe: Path):
    result = qkv("train", "tiny.toml", "--set", "train.seed=3")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["loss", "bleu", "chrf", "exact"]
    assert "nrefs:1" in result.stdout.splitlines()[1]
    assert "the model is runs/tiny/model" in result.stderr
    assert "seed = 3" in Path("runs/tiny/recipe.toml").read_text()

    again = qkv("train", "tiny.toml")
    assert again.exit_code == 1
    assert "--resume" in again.stderr


def test_json_has_the_scores_and_where_the_model_is(qkv, trained: Path):
    result = qkv("train", "--resume", "--out", trained, "--json")  # finished: its results are told again
    found = json.loads(result.stdout)
    assert found["model"] == str(trained / "model")
    assert found["steps"] == 2
    assert set(found["scores"]) == {"loss", "bleu", "chrf", "exact"}
    assert found["signatures"]["chrf"].startswith("nrefs:1")
    assert found["parameters"] == sum(p.numel() for p in public.load(trained).model.parameters())


def test_what_changes_nothing_may_change_on_resuming_and_nothing_else(qkv, trained: Path):
    free = qkv("train", "--resume", "--out", trained, "--set", "train.checkpoint_minutes=9")
    assert free.exit_code == 0
    other = qkv("train", "--resume", "--out", trained, "--set", "train.seed=9")
    assert other.exit_code == 1
    assert "train.seed was 0 and is 9" in other.stderr


def test_strict_stops_at_the_first_pair_that_would_be_skipped(qkv, recipe: Path):
    Path("a.tsv").write_text("one\teins\ntwo\tzwei\n\t\n", "utf-8")
    changes = ["--set", "data.train=[{source='a.tsv'}]", "--set", "data.valid=[]", "--dry-run"]
    assert qkv("train", "tiny.toml", *changes).exit_code == 0
    result = qkv("train", "tiny.toml", *changes, "--strict")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "a.tsv line 3 is empty on one side" in result.stderr
    assert qkv("train", "tiny.toml", *changes, "--strict", "--set", "data.rules.strict=false").exit_code == 0


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupt_at_once_says_what_is_kept(
    qkv, recipe: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("qkv.train.loop.Loop.run" if begun else "qkv.train.train.fingerprints", interrupt)
    result = qkv("train", "tiny.toml", "--out", "run")
    assert (result.exit_code, result.stdout) == (130, "")
    kept = ": what was saved last is kept, go on with qkv train --resume --out run" if begun else ""
    assert result.stderr.splitlines()[-1] == f"qkv: interrupted{kept}"


def test_a_dry_run_shows_model_memory_and_batches_and_writes_nothing(qkv, recipe: Path):
    before = sorted(recipe.parent.rglob("*"))
    text = qkv("train", "tiny.toml", "--dry-run")
    assert text.exit_code == 0
    assert "parameters" in text.stdout
    assert "⟨end⟩ → ⟨" in text.stdout  # the first examples, as the model gets them
    found = json.loads(qkv("train", "tiny.toml", "--dry-run", "--json").stdout)
    assert sorted(recipe.parent.rglob("*")) == before
    assert found["steps"] == 2
    assert found["vocabulary"] == {"source and target": 300}
    assert 0.5 < found["real"] <= 1
    assert found["batches"] > 3
    assert len(found["first"]) == 3
    assert found["mebibytes"]["activations"] > 0
    assert found["mebibytes"]["peak"] > 50


def test_memory_is_what_arithmetic_says(qkv, recipe: Path):
    wide = ["--set", "model.width=64", "--set", "model.hidden=2048", "--set", "train.average.kind=last"]
    found = json.loads(qkv("train", "tiny.toml", "--dry-run", "--json", *wide).stdout)
    weights = 4 * found["parameters"] / 2**20
    sizes = found["mebibytes"]
    assert sizes["weights"] == sizes["gradients"] == pytest.approx(weights, abs=0.06)
    assert sizes["optimizer"] == pytest.approx(2 * weights, abs=0.06)  # adamw's two means
    assert sizes["averages and best"] == pytest.approx(6 * weights, abs=0.06)  # of 5 epochs, and the best


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_says_how_to_go_on_and_that_works(
    start, qkv, recipe: Path, number: signal.Signals, code: int
):
    # Without validation meanwhile: the signal comes while it updates.
    steps = 150 if number == signal.SIGINT else 100_000
    changes = [
        "--set",
        f"train.steps={steps}",
        "--set",
        "train.epochs=none",
        "--set",
        "train.validate_from=100000",
    ]
    process = start("train", "tiny.toml", *changes, "--out", "run")
    wait_for(process, Path("run/log.jsonl"))
    process.send_signal(number)
    out, said = process.communicate(timeout=60)
    assert process.returncode == code, said.decode()
    assert out == b""
    last = said.decode().splitlines()[-1]
    assert "everything is saved" in last
    assert "Traceback" not in said.decode()
    if number == signal.SIGINT:
        command = last.partition("go on with qkv ")[2].split()
        result = qkv(*command)
        assert result.exit_code == 0, result.stderr
        assert public.load("run").languages == ("cs", "da", "de", "fr", "it")


def wait_for(process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Until the first update is in the log."""
    end = time.monotonic() + 60
    while not (log.exists() and log.stat().st_size):
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < end
        time.sleep(0.02)
