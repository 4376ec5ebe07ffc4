"""`qkv classify` and `qkv evaluate` of pictures, and the demo that learns digits."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import qkv as public
from qkv.cli.evaluate import as_text, as_tree
from qkv.tasks.task import Evaluation, Scores

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
        str(pictures / name) for name in ("0.png", "1.png", "a.txt", "b.png", "0.png")
    ]
    assert [len(row) for row in rows] == [7, 7, 1, 1, 7]
    assert all(cell in "0123456789" for row in rows for cell in row[1::2])
    assert all(re.fullmatch(r"[01]\.\d{4}", cell) for row in rows for cell in row[2::2])
    assert f"{pictures}/a.txt is no picture" in result.stderr
    assert f"{pictures}/b.png is damaged" in result.stderr
    assert "2 of 5 files cannot be used" in result.stderr
    wanted = public.load(run).classify([pictures / "0.png", pictures / "1.png"], top=3)
    for row, best in zip(rows[:2], wanted, strict=True):
        assert row[1:] == [cell for one in best for cell in (one.label, f"{one.probability:.4f}")]


def test_json_has_every_answer_and_every_fault(qkv, run: Path, pictures: Path):
    result = qkv("classify", run, pictures, "--json")
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [Path(answer["source"]).name for answer in answers] == ["0.png", "1.png", "a.txt", "b.png"]
    assert [len(answer["labels"]) for answer in answers] == [1, 1, 0, 0]
    assert ["fault" in answer for answer in answers] == [False, False, True, True]
    assert answers[0]["labels"][0].keys() == {"label", "probability"}


def test_a_picture_is_never_written_to(qkv, run: Path, pictures: Path):
    before = (pictures / "1.png").read_bytes()
    result = qkv("classify", run, pictures, "--out", pictures / "1.png")
    assert "is also read from: give another file" in result.stderr
    assert (pictures / "1.png").read_bytes() == before


def test_what_cannot_be_done_is_said(qkv, run: Path, trained: Path, pictures: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for arguments, said in [
        ([run], "the model reads files such as images: name at least one, or a folder of them"),
        ([run, pictures / "a.txt"], "1 of 1 files cannot be used: see what was said of each"),
        ([run, "nowhere.png"], "there is no nowhere.png: name a file with a picture"),
        ([run, tmp_path / "empty"], "empty is a folder without files"),
        ([trained, pictures], "is a model for translate; one that classifies is wanted"),
    ]:
        result = qkv("classify", *arguments)
        assert result.exit_code == 1
        assert said in " ".join(result.stderr.split())
    for verb, does in [("translate", "translates"), ("embed", "embeds")]:
        result = qkv(verb, run, "-", stdin="one")
        assert result.exit_code == 1
        assert f"is a model for classify_images; one that {does}" in result.stderr


def test_evaluation_has_scores_classes_and_confusions(qkv, run: Path, tmp_path: Path):
    result = qkv("evaluate", run, "--data", "digits-test", "--out", tmp_path / "said")
    assert result.exit_code == 0, result.stderr
    scores, by_label, confused = result.stdout.split("\n\n")
    assert scores.splitlines()[0].split() == ["pictures", "loss", "accuracy", "macro_f1"]
    name, count, _, accuracy, _ = scores.splitlines()[1].split()
    assert (name, count) == ("all", "359")
    classes = by_label.splitlines()[2:]
    assert [row.split()[0] for row in classes] == list("0123456789")
    assert sum(int(row.split()[1]) for row in classes) == 359
    counts = np.array([[int(cell) for cell in row.split()[1:]] for row in confused.splitlines()[2:]])
    assert counts.sum() == 359
    assert 100 * counts.trace() / 359 == pytest.approx(float(accuracy), abs=0.006)
    said = (tmp_path / "said").read_text().splitlines()
    assert [said.count(digit) for digit in "0123456789"] == counts.sum(0).tolist()
    tree = json.loads(qkv("evaluate", run, "--data", "digits-test", "--json").stdout)
    assert [[int(cell) for cell in row[1:]] for row in tree["tables"]["confusion"][1:]] == counts.tolist()
    assert tree["scores"]["all"]["accuracy"] == pytest.approx(float(accuracy), abs=0.006)
    assert tree["scores"]["all"]["pictures"] == 359


def test_a_table_that_fits_no_screen_is_left_to_programs():
    narrow, wide = ([["", *map(str, range(columns))]] for columns in (10, 100))
    found = Evaluation(
        {"all": 1}, {"all": Scores({"loss": 1.0}, "loss")}, "pictures", tables={"a": narrow, "b": wide}
    )
    assert as_text(found).endswith("\nb\n101 columns are too many to be read here: add --json")
    assert "9\n" in as_text(found)
    assert as_tree(found)["tables"]["b"] == wide


def test_by_default_what_was_validated_on_is_evaluated(qkv, run: Path):
    found = json.loads(qkv("evaluate", run, "--json").stdout)["scores"]["all"]
    (row,) = [
        row for row in map(json.loads, (run / "log.jsonl").read_text("utf-8").splitlines()) if "best" in row
    ]
    assert found["accuracy"] == pytest.approx(row["valid_accuracy"])
    assert found["pictures"] == 40


def test_folders_and_pairs_of_files_are_evaluated_and_other_options_refused(qkv, run: Path, tmp_path: Path):
    (tmp_path / "set" / "3").mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "set" / "3" / "a.png")
    (tmp_path / "set" / "3" / "b.png").write_text("none")
    result = qkv("evaluate", run, "--data", tmp_path / "set")
    assert result.exit_code == 0
    assert "1 × no picture skipped, first at picture 2: '3/b.png'" in result.stderr
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 8, 8), np.uint8), y=[3, 4])
    assert qkv("evaluate", run, "--data", tmp_path / "a.npz", "--keys", "x,y").exit_code == 0
    write_idx(tmp_path / "images", np.zeros((2, 8, 8), np.uint8))
    write_idx(tmp_path / "classes", np.array([3, 4], np.uint8))
    two = ["--data", tmp_path / "images", "--data", tmp_path / "classes"]
    assert qkv("evaluate", run, *two).exit_code == 0
    for options, said in [
        (["--data", tmp_path / "set", "--strict"], "b.png is no picture"),
        (["--beam", "3"], "--beam is about a search, which a model for classify_images has none of: leave it out"),
        (["--data", tmp_path / "none"], "none is no folder: name one"),
        ([*two, "--data", "c"], "3 files of data are given; a folder or file is wanted, or two"),
        (["--data", tmp_path / "set", "--tag", "de"], "tag is not a key of ImageSet"),
    ]:  # fmt: skip
        result = qkv("evaluate", run, *options)
        assert result.exit_code == 1
        assert said in " ".join(result.stderr.split())


def write_idx(path: Path, array: np.ndarray) -> None:
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes())


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
