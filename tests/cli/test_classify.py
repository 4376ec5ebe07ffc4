"""`qkv classify` and `qkv evaluate` of pictures, and the demo that learns digits."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

RECIPE = """\
task = "classify_images"
[data]
train = [{ source = "digits-test" }]
hold_out = 40
[batches]
size = 80
[model]
patch = 4
width = 12
hidden = 20
heads = 3
layers = 1
[train]
steps = 2
log_every = 1
precision = "fp32"
"""
QUICK = [
    "--count=30", "--set=model.width=12", "--set=model.hidden=20", "--set=model.layers=1", "--set=train.steps=2",
    "--set=train.precision=fp32",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    from tests.cli.conftest import in_process

    folder = tmp_path_factory.mktemp("pictures")
    (folder / "tiny.toml").write_text(RECIPE, "utf-8")
    result = in_process("train", folder / "tiny.toml", "--out", folder / "run")
    assert result.exit_code == 0, result.output
    assert (
        "319 pictures of 8 x 8 in 1 channels and 10 classes to learn from, 40 to validate on" in result.stderr
    )
    assert re.search(r"^accuracy \d+\.\d\d$", result.stdout, re.MULTILINE)
    return folder / "run"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two pictures and two files that are none."""
    root = tmp_path / "some"
    root.mkdir()
    for number in range(2):
        Image.fromarray(np.full((8, 8), 100 * number, np.uint8)).save(root / f"{number}.png")
    (root / "a.txt").write_text("none")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)).save(root / "b.png")
    (root / "b.png").write_bytes((root / "b.png").read_bytes()[:70])
    return root


def test_a_line_for_each_picture_and_the_others_are_named_and_counted(qkv, run: Path, pictures: Path):
    result = qkv("classify", run, pictures, pictures / "0.png", "--top", 3)
    assert result.exit_code == 0, result.stderr
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[0] for row in rows] == [
        str(pictures / "0.png"),
        str(pictures / "1.png"),
        str(pictures / "0.png"),
    ]
    assert all(len(row) == 1 + 2 * 3 for row in rows)
    assert all(cell in "0123456789" for row in rows for cell in row[1::2])
    assert all(re.fullmatch(r"\d+\.\d %", cell) for row in rows for cell in row[2::2])
    assert f"skipped: {pictures}/a.txt is no picture" in result.stderr
    assert f"skipped: {pictures}/b.png is damaged" in result.stderr
    assert "2 of 5 pictures skipped" in result.stderr


def test_json_has_every_answer_and_every_fault(qkv, run: Path, pictures: Path):
    result = qkv("classify", run, pictures, "--json")
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [Path(answer["input"]).name for answer in answers] == ["0.png", "1.png", "a.txt", "b.png"]
    assert [len(answer["classes"]) for answer in answers] == [5, 5, 0, 0]
    assert ["fault" in answer for answer in answers] == [False, False, True, True]
    first = answers[0]["classes"]
    assert first[0].keys() == {"label", "probability"}
    assert first[0]["probability"] >= first[1]["probability"]


def test_what_cannot_be_done_is_said(qkv, run: Path, trained: Path, pictures: Path):
    for arguments, code, said in [
        ([run], 2, "give the files of pictures, or folders of them"),
        ([run, pictures / "a.txt"], 1, "none of 1 inputs is a picture that can be used"),
        ([run, "nowhere.png"], 1, "there is no nowhere.png: name a file with a picture"),
        ([trained, pictures], 1, "is a model for translate; one that classifies is wanted"),
    ]:
        result = qkv("classify", *arguments)
        assert result.exit_code == code
        assert said in " ".join(result.stderr.replace("│", " ").split())
        assert result.stdout == ""
    result = qkv("translate", run, "-", stdin="one")
    assert result.exit_code == 1
    assert "is a model for classify_images; one that translates is wanted" in result.stderr


def test_evaluation_has_scores_classes_and_confusions(qkv, run: Path):
    result = qkv("evaluate", run, "--data", "digits-test")
    assert result.exit_code == 0, result.stderr
    scores, by_class, confused = result.stdout.split("\n\n")
    accuracy = float(
        re.match(r"359 pictures: accuracy (\d+\.\d\d), f1 \d+\.\d\d, loss \d+\.\d\d$", scores)[1]
    )
    assert [row.split()[0] for row in by_class.splitlines()[1:]] == list("0123456789")
    assert sum(int(row.split()[1]) for row in by_class.splitlines()[1:]) == 359
    counts = np.array(
        [[int(cell.replace("·", "0")) for cell in row.split()[1:]] for row in confused.splitlines()[1:]]
    )
    assert counts.sum() == 359
    assert 100 * counts.trace() / 359 == pytest.approx(accuracy, abs=0.006)
    tree = json.loads(qkv("evaluate", run, "--data", "digits-test", "--json").stdout)
    assert tree["confusion"]["rows"] == counts.tolist()
    assert tree["scores"]["accuracy"] == pytest.approx(accuracy, abs=0.006)
    assert tree["by_class"]["3"]["pictures"] == sum(counts[3])


def test_by_default_what_was_validated_on_is_evaluated(qkv, run: Path):
    found = json.loads(qkv("evaluate", run, "--json").stdout)
    (row,) = [
        row for row in map(json.loads, (run / "log.jsonl").read_text("utf-8").splitlines()) if "best" in row
    ]
    assert found["scores"]["accuracy"] == pytest.approx(row["valid_accuracy"])
    assert sum(map(sum, found["confusion"]["rows"])) == 40


def test_folders_and_pairs_of_files_are_evaluated_and_other_options_refused(qkv, run: Path, tmp_path: Path):
    (tmp_path / "set" / "3").mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "set" / "3" / "a.png")
    (tmp_path / "set" / "3" / "b.png").write_text("none")
    result = qkv("evaluate", run, "--data", tmp_path / "set")
    assert result.exit_code == 0
    assert "1 × no picture skipped, first at picture 2: '3/b.png'" in result.stderr
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 8, 8), np.uint8), y=[3, 4])
    assert qkv("evaluate", run, "--data", tmp_path / "a.npz", "--keys", "x,y").exit_code == 0
    for options, said in [
        (["--data", tmp_path / "set", "--strict"], "b.png is no picture"),
        (["--beam", "3"], "--beam is about translations, and this model classifies pictures: leave it out"),
        (["--data", tmp_path / "none"], "none is no folder: name one"),
    ]:
        result = qkv("evaluate", run, *options)
        assert result.exit_code == 1
        assert said in result.stderr


def test_info_describes_it(qkv, run: Path):
    result = qkv("info", run)
    assert result.exit_code == 0
    assert "classify_images" in result.stdout
    assert re.search(r"architecture: +vit: classes 10, channels 1, size \[8, 8\]", result.stdout)


def test_the_demo_shows_digits_their_classes_and_where_it_looked(qkv, tmp_path: Path):
    out = tmp_path / "run"
    first = qkv("demo", "images", "--out", out, *QUICK)
    assert first.exit_code == 0, first.stderr
    share = re.search(r"^30 digits that it never saw: (\d+\.\d) % right$", first.stdout, re.MULTILINE)
    assert share
    wrong = re.search(r"^Mistakes: (\d+) of 30", first.stdout, re.MULTILINE)
    assert float(share[1]) == pytest.approx(100 * (30 - int(wrong[1] if wrong else 0)) / 30, abs=0.06)
    assert re.search(r"^(taken for \d(, is \d)? +){3}taken for \d", first.stdout, re.MULTILINE)
    art = [line for line in first.stdout.splitlines() if "█" in line]
    assert len(art) >= 8
    assert max(map(len, art)) <= 80
    page = (out / "attention.html").read_text("utf-8")
    assert str(out / "attention.html") in first.stdout
    assert "taken for" in page
    again = qkv("demo", "images", "--out", out, "--count=30")
    assert again.exit_code == 0, again.stderr
    assert "is used again" in again.stderr
    strip = r"\nAll of this took.*"
    assert re.sub(strip, "", again.stdout) == re.sub(strip, "", first.stdout)


def test_the_demos_leave_each_others_runs_alone(qkv, run: Path, trained: Path):
    for what, other in (("images", trained), ("numbers", run)):
        result = qkv("demo", what, "--out", other, "--fresh")
        assert result.exit_code == 1
        assert "is a run on other data than the" in result.stderr
        assert (other / "model").exists()
