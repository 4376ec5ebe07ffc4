"""The command itself: help without torch, exit codes, and what goes wrong in one sentence."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from qkv import __version__
from qkv.cli import main
from qkv.errors import QkvError

VERBS = ["train", "evaluate", "translate", "classify", "embed", "info", "init", "schema"]
HEAVY = {"torch", "numpy", "sacrebleu", "num2words", "tokenizers"}  # typer itself reads options with pydantic


@pytest.mark.parametrize("arguments", [["--help"], *([verb, "--help"] for verb in VERBS), ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]):
    code = f"""
import sys
from qkv.cli.main import main
sys.argv = ["qkv", *{arguments}]
try:
    main()
except SystemExit as end:
    assert not end.code
print(sorted({HEAVY} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
    assert result.stdout.startswith(f"qkv {__version__}" if "--version" in arguments else (" ", "\n"))


def test_help_names_every_verb(qkv):
    result = qkv("--help")
    assert result.exit_code == 0
    assert [verb for verb in VERBS if not re.search(rf"\b{verb}\b", result.stdout)] == []


def test_no_color_is_honoured_and_nothing_is_coloured_in_a_pipe():
    shown = subprocess.run([sys.executable, "-m", "qkv", "--help"], capture_output=True, check=True).stdout
    assert b"\x1b" not in shown


def test_the_shell_completes_verbs():
    environment = {
        **os.environ,
        "_QKV_COMPLETE": "complete_bash",
        "COMP_WORDS": "qkv tra",
        "COMP_CWORD": "1",
    }
    result = subprocess.run([sys.executable, "-m", "qkv"], env=environment, capture_output=True, text=True)
    assert result.stdout.split() == ["train", "translate"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["info", "nowhere"], 1, "qkv: there is no nowhere: give a model directory"),
        (["train", "--resume", "--out", "nowhere"], 1, "qkv: nowhere is no run"),
        (["trian"], 2, "Did you mean 'train'"),
        (["train"], 2, "give a RECIPE.toml"),
        (["train", "--no-such-option"], 2, "--no-such-option"),
        (["translate", "x", "--beam", "0"], 2, "--beam"),
        (["schema", "translat"], 1, "did you mean 'translate'?"),
    ],
)
def test_exit_codes_and_where_they_are_explained(qkv, arguments: list[str], code: int, said: str):
    result = qkv(*arguments)
    assert result.exit_code == code
    assert said in " ".join(result.stderr.replace("│", " ").split())
    assert result.stdout == ""


def fails_with(error: BaseException) -> int:
    def verb() -> None:
        raise error

    with pytest.raises(typer.Exit) as end:
        main.guarded(verb)()
    return end.value.exit_code


def test_a_user_error_is_one_sentence(capsys: pytest.CaptureFixture[str]):
    assert fails_with(QkvError("beta is 3: lower it")) == 1
    assert capsys.readouterr() == ("", "qkv: beta is 3: lower it\n")


def test_what_nobody_expected_is_named_and_points_to_debug(capsys: pytest.CaptureFixture[str]):
    assert fails_with(ZeroDivisionError("division by zero")) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("qkv: unexpected ZeroDivisionError: division by zero: run it again with --debug")


@pytest.mark.parametrize(
    ("words", "said"), [((), "interrupted"), (["interrupted: go on"], "interrupted: go on")]
)
def test_an_interrupt_is_one_short_sentence(capsys: pytest.CaptureFixture[str], words: list[str], said: str):
    assert fails_with(KeyboardInterrupt(*words)) == 130
    assert capsys.readouterr() == ("", f"qkv: {said}\n")


@pytest.mark.parametrize("arguments", [["--debug", "info", "nowhere"], ["info", "nowhere", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(tmp_path: Path, arguments: list[str]):
    result = subprocess.run(
        [sys.executable, "-m", "qkv", *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert result.stderr.startswith("Traceback")
    assert "QkvError: there is no nowhere" in result.stderr


def test_a_usage_error_says_no_traceback_even_with_debug(qkv):
    result = qkv("--debug", "train")
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
