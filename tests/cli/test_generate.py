"""`qkv generate`, and what the other verbs do with a language model."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Run, in_process

RECIPE = """\
task = "language"
[data]
train = ["bottles.txt"]
held_out = 0.1
[tokens]
kind = "character"
size = 300
[windows]
budget = 256
[model]
width = 16
hidden = 32
heads = 2
layers = 1
length = 16
[writing]
maximum = 12
[train]
steps = 30
log_every = 1
precision = "fp32"
[train.optimizer]
kind = "muon"
rate = 1e-2
[train.schedule]
kind = "linear"
warmup = 3
"""


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a language model; not to be changed."""
    folder = tmp_path_factory.mktemp("language")
    text = folder / "bottles.txt"
    text.write_text("".join(f"{n} green bottles standing on the wall\n" for n in range(60, 0, -1)), "utf-8")
    (folder / "tiny.toml").write_text(RECIPE.replace("bottles.txt", str(text)), "utf-8")
    result = in_process("train", folder / "tiny.toml", "--out", folder / "run")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("loss ")
    return folder / "run"


def test_a_text_begins_with_its_prompt_and_is_the_same_each_time(written: Path, qkv: Run):
    one, same, other = (
        qkv("generate", written, "12 green", "--seed", seed, "--temperature", 1.5) for seed in (0, 0, 1)
    )
    assert one.exit_code == 0, one.output
    assert one.stdout.startswith("12 green")
    assert one.stdout.endswith("\n")
    assert len(one.stdout) > len("12 green\n") + 6
    assert one.stdout == same.stdout != other.stdout


def test_objects_hold_what_followed(written: Path, qkv: Run):
    arguments = ("12 green", "--count", 3, "--maximum", 9, "--temperature", 1.5)
    found = [json.loads(line) for line in qkv("generate", written, *arguments, "--json").stdout.splitlines()]
    assert [set(one) for one in found] == [{"prompt", "text", "score", "finished"}] * 3
    assert {one["prompt"] for one in found} == {"12 green"}
    assert all(one["score"] < 0 for one in found)
    assert len({one["text"] for one in found}) == 3
    plain = qkv("generate", written, *arguments).stdout
    assert plain == "\n---\n".join("12 green" + one["text"] for one in found) + "\n"


def test_a_beam_draws_nothing_and_a_stop_ends(written: Path, qkv: Run):
    first, other = (
        qkv("generate", written, "1", "--beam", 4, "-n", 2, "--seed", seed, "--json").stdout
        for seed in (0, 1)
    )
    assert first == other
    best, second = (json.loads(line) for line in first.splitlines())
    assert best["score"] >= second["score"]
    greedy = qkv("generate", written, "1", "--temperature", 0, "--maximum", 30).stdout.removesuffix("\n")
    letter = greedy[5]
    stopped = qkv("generate", written, "1", "--temperature", 0, "--maximum", 30, "--stop", letter).stdout
    assert stopped == "1" + greedy[1:].partition(letter)[0] + "\n"


def test_the_prompt_can_come_from_stdin_and_the_text_go_to_a_file(
    written: Path, start: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
):
    process = start("generate", written, "-", "--out", tmp_path / "a.txt")
    assert process.communicate("zwei\nZeilen…\n".encode()) == (b"", b"")
    assert process.returncode == 0
    assert (tmp_path / "a.txt").read_text("utf-8").startswith("zwei\nZeilen…")


def test_what_is_drawn_is_seen_while_it_is_drawn(
    written: Path, start: Callable[..., "subprocess.Popen[bytes]"]
):
    process = start("generate", written, "12", "--maximum", 1_000_000)
    assert process.stdout is not None
    assert process.stdout.read(5).startswith(b"12")  # long before a million tokens
    process.terminate()
    process.communicate()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--beam", 3, "--temperature", 0.5), "temperature is 0.5 with beam 3"),
        (("--top-p", 0), "top_p is 0.0; it should be greater than 0"),
        (("--temperature", 0, "--top-k", 3), "but nothing is sampled: set a temperature above 0"),
        (("--set", "model.width=3"), "has no effect on a finished model: set writing"),
        (("--set", "writing.maximun=3"), "did you mean 'maximum'"),
        (("--stop", ""), "stop is empty"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_sentence(
    written: Path, qkv: Run, arguments: tuple[object, ...], says: str
):
    result = qkv("generate", written, *arguments)
    assert result.exit_code == 1
    assert says in result.stderr
    assert result.stdout == ""


def test_each_verb_names_the_models_that_it_is_for(written: Path, trained: Path, qkv: Run):
    result = qkv("generate", trained)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "is a model for translate; one that goes on with a text is wanted" in result.stderr
    result = qkv("translate", written, stdin="one\n")
    assert result.exit_code == 1
    assert "is a model for language; one that translates is wanted" in result.stderr


def test_it_is_described_and_looked_at_before(written: Path, qkv: Run):
    found = json.loads(qkv("info", written, "--json").stdout)
    assert found["task"] == "language"
    assert set(found["results"]["scores"]) == {"loss", "perplexity", "bits"}
    told = qkv("info", written).stdout
    assert "lm: vocabulary" in told
    assert "perplexity:" in told
    recipe = written.parent / "tiny.toml"
    result = qkv("train", recipe, "--dry-run", "--out", written.parent / "never")
    assert result.exit_code == 0, result.output
    assert "batch 1: 16 windows of 16 tokens, 256 targets" in result.stdout
    assert not (written.parent / "never").exists()
    assert "held_out" in qkv("schema", "language").stdout


def test_an_interrupted_run_goes_on_to_the_same_weights(written: Path, qkv: Run, tmp_path: Path):
    from qkv.tasks.task import kind
    from qkv.train.loop import Interrupted, Loop
    from qkv.train.progress import Display
    from qkv.train.run import Run as RunDirectory
    from qkv.train.run import fingerprints

    whole = RunDirectory(written)
    config = whole.saved_recipe(kind("language").config)
    run = RunDirectory(tmp_path / "again")
    run.expect_new()
    task = kind("language").build(config, None)
    run.begin(config, fingerprints(config.data.train), task.digest())
    loop = Loop(task, run, Display(quiet=True))
    loop.stop(2)
    with pytest.raises(Interrupted, match="stopped after step 1,"):
        loop.run()
    result = qkv("train", "--resume", "--out", run.path)
    assert result.exit_code == 0, result.output
    assert (run.model / "model.safetensors").read_bytes() == (whole.model / "model.safetensors").read_bytes()
