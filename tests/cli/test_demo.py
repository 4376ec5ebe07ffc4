"""`qkv demo`, with a model that has hardly learnt: what it prints, what it writes, and what it does the second time."""

import re
from pathlib import Path

import pytest

from qkv.cli.demo_numbers import LONG, SHOWN, _mistakes
from qkv.data.numbers import LANGUAGES, is_held_out, split, write

QUICK = [
    "--count=3",
    '--set=data.train=[{source="numbers", limit=400}]',
    '--set=data.valid=[{source="numbers-valid", limit=10}]',
    "--set=tokens.size=300",
    "--set=batches.budget=256",
    "--set=model.width=16",
    "--set=model.hidden=16",
    "--set=search.maximum=6",
    "--set=train.steps=2",
    "--set=train.precision=fp32",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    """What the first demo in the folder prints."""
    from tests.cli.conftest import in_process

    result = in_process("demo", "--out", folder / "run", *QUICK)
    assert result.exit_code == 0, result.stderr
    assert "400 pairs kept" in result.stderr
    return result.stdout


def test_every_language_has_its_score_and_mistakes_are_shown(printed: str):
    assert "3 numbers that it never saw" in printed
    rows = re.findall(r"^(\w\w) +(\d+) +(\d+\.\d) %", printed, re.MULTILINE)
    assert [language for language, *_ in rows] == list(LANGUAGES)
    assert all(100 * int(right) / 3 == pytest.approx(float(share), abs=0.06) for _, right, share in rows)
    assert f"Mistakes: {15 - sum(int(right) for _, right, _ in rows)} of 15" in printed


def test_encoding_once_is_counted(printed: str):
    once, each = re.findall(r"^translate\w*, .*?  +(\d+) +[\d.]+ s +[\d.]+ s$", printed, re.MULTILINE)
    assert 0 < 5 * int(once) == int(each)  # one call or more, as there are threads to share the sentences
    assert "The same translations both times." in printed


def test_the_map_and_the_page_show_a_number_that_was_not_trained_on(printed: str, folder: Path):
    assert is_held_out(SHOWN)
    assert is_held_out(LONG)
    (header,) = re.findall(r"^ +.*⟨end⟩$", printed, re.MULTILINE)
    assert "".join(header.split()) == write(SHOWN).replace(" ", "") + "⟨end⟩"
    text = (folder / "run" / "attention.html").read_text("utf-8")
    assert str(folder / "run" / "attention.html") in printed
    assert write(SHOWN) in text
    assert write(LONG) in text


def test_a_finished_run_is_used_again_and_fresh_trains_anew(qkv, printed: str, folder: Path):
    model = folder / "run" / "model" / "model.safetensors"
    before = model.stat().st_mtime_ns
    again = qkv("demo", "--out", folder / "run", "--count=3")
    assert again.exit_code == 0, again.stderr
    assert "is used again" in again.stderr
    assert model.stat().st_mtime_ns == before
    table = r"^\w\w +\d+ +\d+\.\d %.*$"
    assert re.findall(table, again.stdout, re.MULTILINE) == re.findall(table, printed, re.MULTILINE)

    other = qkv("demo", "--out", folder / "run", *QUICK, "--set=train.seed=5")
    assert other.exit_code == 1
    assert "train.seed was 0 and is 5: add --fresh" in other.stderr

    fresh = qkv("demo", "--out", folder / "run", *QUICK, "--set=train.seed=5", "--fresh")
    assert fresh.exit_code == 0, fresh.stderr
    assert model.stat().st_mtime_ns != before


def test_an_interrupted_run_goes_on(qkv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from qkv.train.loop import Loop

    update = Loop._update

    def stopping(loop: Loop, *arguments: object) -> None:
        update(loop, *arguments)
        loop.stopping = 2

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_update", stopping)
        stopped = qkv("demo", "--out", tmp_path / "run", *QUICK)
        assert stopped.exit_code == 130
        assert "stopped after step 1" in stopped.stderr
    result = qkv("demo", "--out", tmp_path / "run", "--count=3")
    assert result.exit_code == 0, result.stderr
    assert '"step": 2' in (tmp_path / "run" / "log.jsonl").read_text("utf-8")


def test_a_run_on_other_data_is_left_alone(qkv, trained: Path, recipe: Path, tmp_path: Path):
    (tmp_path / "a.tsv").write_text("one\teins\ntwo\tzwei\n", "utf-8")
    data = ["--set=data.train=[{source='a.tsv'}]", "--set=data.valid=[]"]
    assert qkv("train", recipe, *data, "--out=other").exit_code == 0
    for options in ([], ["--fresh"]):
        result = qkv("demo", "--out=other", *options)
        assert result.exit_code == 1
        assert "is a run on other data than the numbers: choose another directory with --out" in result.stderr
    assert Path("other/model").exists()


def test_no_mistake_is_said_and_the_shortest_are_shown():
    assert _mistakes(["one"], {"de": ["eins"]}, {"de": ["eins"]}) == "\nNo mistakes."
    text = _mistakes(
        ["twenty one", "two"], {"de": ["zwanzig", ""]}, {"de": ["einundzwanzig", "zwei"]}, most=1
    )
    assert text.splitlines()[1:] == [
        "Mistakes: 2 of 2, the shortest",
        "  de     two",
        "  wrote  (nothing)",
        "  right  zwei",
    ]


def test_the_shipped_recipe_leaves_validation_and_test_numbers_out():
    from qkv.recipe.shipped import shipped

    tree = shipped("numbers")
    assert [corpus["source"] for corpus in tree["data"]["train"] + tree["data"]["valid"]] == [
        "numbers",
        "numbers-valid",
    ]
    assert split(SHOWN) == "test"
