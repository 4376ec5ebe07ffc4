"""`qkv init` and `qkv schema`: a recipe that trains as it is, and what editors know of recipes."""

import json
import os
import tomllib
from pathlib import Path

import pytest


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sixty pairs, and a faulty one, in files with a name that needs quoting."""
    monkeypatch.chdir(tmp_path)
    sources = [f"sentence number {number} of many" for number in range(60)]
    targets = [f"Satz Nummer {number} von vielen" for number in range(60)]
    Path('the "en"').write_text("\n".join([*sources, ""]) + "\n", "utf-8")
    Path("the de").write_text("\n".join([*targets, "leer"]) + "\n", "utf-8")
    return ['the "en"', "the de"]


def lines(path: str) -> list[str]:
    return Path(path).read_text("utf-8").splitlines()


def test_a_part_is_held_out_and_every_pair_is_on_one_side(qkv, files: list[str]):
    result = qkv("init", *files)
    assert result.exit_code == 0
    assert "60 pairs kept, 1 skipped" in result.stderr
    assert "recipe-data/valid.source.txt" in result.stderr
    parts = {
        part: list(
            zip(lines(f"recipe-data/{part}.source.txt"), lines(f"recipe-data/{part}.target.txt"), strict=True)
        )
        for part in ("train", "valid")
    }
    assert len(parts["valid"]) == 3
    every = list(zip(lines(files[0])[:60], lines(files[1])[:60], strict=True))
    assert sorted(parts["train"] + parts["valid"]) == sorted(every)


def test_the_recipe_trains_as_it_is(qkv, files: list[str]):
    assert qkv("init", *files).exit_code == 0
    result = qkv("train", "recipe.toml", "--set", "train.steps=1", "--set", "train.precision=fp32")
    assert result.exit_code == 0, result.stderr
    assert "bleu" in result.stdout


def test_given_validation_data_nothing_else_is_written(qkv, files: list[str]):
    result = qkv("init", *files, "--valid", *files, "--out", "mine.toml", "--preset", "small", "--json")
    assert result.exit_code == 0
    assert sorted(path.name for path in Path().iterdir()) == sorted([*files, "mine.toml"])
    recipe = tomllib.loads(Path("mine.toml").read_text("utf-8"))
    assert recipe["data"]["train"] == recipe["data"]["valid"] == [{"source": files[0], "target": files[1]}]
    assert recipe["model"]["preset"] == json.loads(result.stdout)["preset"] == "small"
    assert qkv("train", "mine.toml", "--dry-run", "--set", "model.preset=tiny").exit_code == 0


@pytest.mark.parametrize("there", ["recipe.toml", "recipe-data"])
def test_nothing_is_overwritten(qkv, files: list[str], there: str):
    Path(there).write_text("mine")
    result = qkv("init", *files)
    assert result.exit_code == 1
    assert f"{there} exists, and is never overwritten" in result.stderr
    assert sorted(path.name for path in Path().iterdir()) == sorted([*files, there])


def test_faults_of_the_data_are_told(qkv, files: list[str]):
    Path("the de").write_text("zu kurz\n")
    result = qkv("init", *files)
    assert result.exit_code == 1
    assert "line by line one translates the other" in result.stderr
    Path("few en").write_text("a\nb\n")
    Path("few de").write_text("c\nd\n")
    few = qkv("init", "few en", "few de")
    assert few.exit_code == 1
    assert "few en → few de has 2 pairs, too few to hold some out" in few.stderr
    assert not Path("recipe.toml").exists()
    assert not Path("recipe-data").exists()


def test_what_can_be_read_only_once_is_refused(qkv, files: list[str]):
    os.mkfifo("pipe")
    piped = ["-", files[1]], [files[0], "-"], ["pipe", files[1]], [*files, "--valid", files[0], "-"]
    for arguments in piped:
        result = qkv("init", *arguments, stdin="one\n" * 60)
        assert result.exit_code == 1
        name = "pipe" if "pipe" in arguments else "stdin"
        assert f"qkv: {name} can be read only once, and a recipe's files are read again" in result.stderr
        assert "save it to a file first" in result.stderr
    assert sorted(path.name for path in Path().iterdir()) == sorted([*files, "pipe"])


def test_an_unknown_preset_is_named(qkv, files: list[str]):
    result = qkv("init", *files, "--valid", *files, "--preset", "smal")
    assert result.exit_code == 1
    assert "did you mean 'small'?" in result.stderr


def test_the_schema_knows_the_fields_their_help_and_the_presets(qkv):
    found = json.loads(qkv("schema").stdout)
    assert found["required"] == ["data"]
    transformer = found["$defs"]["TransformerConfig"]["properties"]
    assert "tiny" in transformer["preset"]["enum"]
    assert transformer["heads"]["description"] == "Heads of each attention."
    assert "anyOf" in found["properties"]["model"]  # without a kind, a table may fit several
