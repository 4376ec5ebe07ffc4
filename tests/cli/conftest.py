"""A tiny model, trained once, and two ways to run the command: in this process, and as a user does."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

RECIPE = """\
[data]
train = [{ source = "numbers", limit = 200 }]
valid = [{ source = "numbers", limit = 20 }]
[tokens]
size = 300
[batches]
budget = 128
longest = 32
[model]
width = 16
hidden = 32
heads = 2
encoder_layers = 1
decoder_layers = 1
[search]
beam = 2
maximum = 8
[train]
steps = 2
log_every = 1
precision = "fp32"
"""

PLAIN = """\
[data]
train = [{{ source = "{}" }}]
[tokens]
size = 300
[model]
kind = "luong"
width = 8
encoder_layers = 1
decoder_layers = 1
attention = "none"
[search]
maximum = 8
[train]
steps = 1
precision = "fp32"
"""

Run = Callable[..., Result]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipe `tiny.toml` in a new directory, which is the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE, "utf-8")
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tiny.toml").write_text(RECIPE, "utf-8")
    result = in_process("train", folder / "tiny.toml", "--out", folder / "run")
    assert result.exit_code == 0, result.output
    return folder / "run"


@pytest.fixture(scope="session")
def seq2seq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a model that knows one language and has no attention; not to be changed."""
    folder = tmp_path_factory.mktemp("seq2seq")
    (folder / "a.tsv").write_text("one\teins\ntwo\tzwei\nthree\tdrei\n", "utf-8")
    (folder / "plain.toml").write_text(PLAIN.format(folder / "a.tsv"), "utf-8")
    result = in_process("train", folder / "plain.toml", "--out", folder / "run")
    assert result.exit_code == 0, result.output
    return folder / "run"


@pytest.fixture
def qkv() -> Run:
    """The command in this process: quick."""
    return in_process


def in_process(*arguments: object, stdin: str | bytes | None = None) -> Result:
    from qkv.cli.main import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin, prog_name="qkv")


def command(*arguments: object) -> list[str]:
    """What a shell would start."""
    return [sys.executable, "-m", "qkv", *map(str, arguments)]


def started(*arguments: object, **pipes: Any) -> "subprocess.Popen[bytes]":
    """The command in a process of its own, as a user starts it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONUNBUFFERED", None)  # it would flush where the command forgets to
    kinds = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
    return subprocess.Popen(command(*arguments), env=environment, **kinds)


@pytest.fixture
def start() -> Callable[..., "subprocess.Popen[bytes]"]:
    return started
