"""`qkv classify`, `qkv embed`, and what the other verbs say of a text classifier."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

import qkv as public

TOPICS = Path(__file__).parents[1] / "tasks" / "topics.tsv"
RECIPE = f"""\
task = "classify_text"
[data]
train = [{{ source = "{TOPICS}" }}]
hold_out = 0.2
[tokens]
kind = "word"
minimum = 1
[batches]
budget = 100
longest = 20
[model]
width = 12
hidden = 20
heads = 3
layers = 1
pool = "average"
[train]
epochs = 4
precision = "fp32"
[train.optimizer]
rate = 0.02
[train.schedule]
warmup = 5
"""
LINES = ["so much rain again today", "", "I like cheese", "no harp , please"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    folder = tmp_path_factory.mktemp("classify")
    (folder / "topics.toml").write_text(RECIPE, "utf-8")
    from qkv.recipe.recipe import read
    from qkv.tasks.task import resolved
    from qkv.train.progress import Display
    from qkv.train.train import train

    train(resolved(read(folder / "topics.toml")), folder / "run", display=Display(quiet=True))
    return folder / "run"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES) + "\n", "utf-8")
    return path


def test_a_line_out_for_each_line_in(qkv, start, model: Path, lines: Path):
    wanted = public.load(model).classify(LINES)
    result = qkv("classify", model, lines)
    assert result.exit_code == 0, result.stderr
    shown = ["\t".join([f"{one.label}\t{one.probability:.4f}" for one in each]) for each in wanted]
    assert result.stdout.split("\n") == [*shown, ""]
    piped, _ = start("classify", model).communicate("\n".join(LINES).encode())
    assert piped.decode() == result.stdout
    two = qkv("classify", model, lines, "--top", 2).stdout.split("\n")
    assert [len(line.split("\t")) for line in two] == [4, 1, 4, 4, 1]


def test_json_has_all_of_it(qkv, model: Path, lines: Path, tmp_path: Path):
    out = tmp_path / "out.jsonl"
    result = qkv("classify", model, lines, "--json", "--top", 3, "--out", out)
    assert (result.exit_code, result.stdout) == (0, "")
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [(row["line"], row["source"]) for row in rows] == list(enumerate(LINES, 1))
    assert [len(row["labels"]) for row in rows] == [3, 0, 3, 3]
    wanted = public.load(model).classify(LINES, top=3)
    assert rows[0]["labels"] == [{"label": one.label, "probability": one.probability} for one in wanted[0]]


def test_vectors_as_lines_and_as_an_array(qkv, model: Path, lines: Path, tmp_path: Path):
    reader = public.load(model)
    result = qkv("embed", model, lines)
    assert result.exit_code == 0, result.stderr
    found = np.array([json.loads(line) for line in result.stdout.splitlines()])
    np.testing.assert_allclose(found, reader.embed(LINES), atol=1e-6)
    out = tmp_path / "v.npz"
    assert qkv("embed", model, lines, "--out", out, "--raw", "--pool", "class").exit_code == 0
    with np.load(out) as arrays:
        wanted = reader.embed(LINES, pool="class", normalise=False)
        np.testing.assert_array_equal(arrays["vectors"], wanted)


def test_bytes_are_text_as_is_said(qkv, model: Path, tmp_path: Path):
    path = tmp_path / "latin"
    path.write_bytes("I like café\n".encode("latin-1"))
    assert "line 1 is not UTF-8" in qkv("classify", model, path).stderr
    found = json.loads(qkv("classify", model, path, "--json", "--encoding", "latin-1").stdout)
    assert found["source"] == "I like café"
    assert "�" in json.loads(qkv("classify", model, path, "--json", "--replace-invalid").stdout)["source"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["classify", "{run}", "a", "b"], "2 files are given, and the model reads the lines of one"),
        (["classify", "{run}", "none"], "none cannot be read"),
        (["classify", "{run}", "none", "--encoding", "utf-61"], "encoding is 'utf-61', which Python does not know"),
        (["translate", "{run}"], "is a model for classify_text; one that translates is wanted"),
        (["evaluate", "{run}", "--beam", "2"], "--beam is about a search, which a model for classify_text has none of"),
        (["evaluate", "{run}", "--data", "a", "--data", "b"], "2 files of data are given"),
        (["evaluate", "{run}", "--data", "a.tsv", "--tag", "de"], "tag is not a key of LabelledCorpus"),
        (["evaluate", "{run}", "--set", "train.seed=1"], "set metrics.…, or train anew"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(qkv, model: Path, arguments: list[str], said: str):
    result = qkv(*(argument.format(run=model) for argument in arguments))
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split())


def test_a_translator_is_no_classifier(qkv, seq2seq: Path):
    assert "is a model for translate; one that classifies is wanted" in qkv("classify", seq2seq).stderr
    assert "is a model for translate; one that embeds" in qkv("embed", seq2seq).stderr


def test_evaluation_of_other_data_read_in_another_way(qkv, model: Path, tmp_path: Path):
    rows = [line.split("\t") for line in TOPICS.read_text().splitlines()]
    path = tmp_path / "a.csv"
    path.write_text("topic,words\n" + "".join(f'{label},"{text}"\n' for text, label in rows))
    result = qkv(
        "evaluate", model, "--data", path, "--columns", "words,topic", "--json", "--out", tmp_path / "out"
    )
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    said = (tmp_path / "out").read_text().splitlines()
    right = sum(one == label for one, (_, label) in zip(said, rows, strict=True))
    assert found["scores"]["all"]["texts"] == len(rows)
    assert found["scores"]["all"]["accuracy"] == pytest.approx(100 * right / len(rows))
    assert {"majority", "tf-idf"} <= set(found["scores"])
    shown = qkv("evaluate", model, "--set", "metrics.baselines=false").stdout
    assert "confusion" in shown
    assert "tf-idf" not in shown
    assert qkv("evaluate", model, "--data", path, "--columns", "words,topics").stderr.endswith(
        "did you mean 'topic'?\n"
    )


def test_info_names_the_labels(qkv, model: Path):
    shown = qkv("info", model).stdout
    assert "3: food, music, weather" in shown
    assert "to beat on the validation data: majority" in shown


def test_a_recipe_for_a_file_with_labels(qkv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    result = qkv("init", TOPICS)
    assert result.exit_code == 0, result.stderr
    assert "45 texts kept" in result.stderr or "texts kept" in result.stderr
    assert "3 labels; next: qkv train recipe.toml" in result.stdout
    assert tomllib.loads(Path("recipe.toml").read_text("utf-8"))["task"] == "classify_text"
    small = ["model.width=8", "model.hidden=8", "train.steps=1", "train.precision=fp32"]
    changes = [part for change in small for part in ("--set", change)]
    trained = qkv("train", "recipe.toml", *changes)
    assert trained.exit_code == 0, trained.stderr
    assert "accuracy" in trained.stdout
    assert qkv("train", "recipe.toml", "--dry-run", *changes).exit_code == 0
    assert "exists, and is never overwritten" in qkv("init", TOPICS).stderr
    Path("one.txt").write_text("only a\nonly b\n")
    assert "texts with at least two labels are wanted" in qkv("init", "one.txt", "--out", "x.toml").stderr
    Path("many.csv").write_text("kind,words\na,one\nb,two\n")
    many = qkv("init", "many.csv", "--columns", "words,kind", "--out", "y.toml", "--json")
    assert json.loads(many.stdout)["labels"] == {"a": 1, "b": 1}
    assert tomllib.loads(Path("y.toml").read_text("utf-8"))["data"]["train"][0]["columns"] == [
        "words",
        "kind",
    ]


def test_training_starts_from_a_model_and_goes_on(
    qkv, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("next.toml").write_text(
        f'task = "classify_text"\n[data]\ntrain = [{{ source = "{TOPICS}" }}]\nhold_out = 0.2\n'
        '[batches]\nlongest = 20\n[train]\nepochs = 1\nprecision = "fp32"\n'
        '[train.optimizer]\nfrozen = ["bert.embedding.*"]\n'
    )
    result = qkv("train", "next.toml", "--from", model, "--out", "next")
    assert result.exit_code == 0, result.stderr
    assert "tensors loaded" in result.stderr
    assert "of them frozen)" in result.stderr
    before, after = public.load(model).model, public.load("next").model
    assert before.state_dict()["bert.embedding.table"].equal(after.state_dict()["bert.embedding.table"])
    assert not before.state_dict()["output.weight"].equal(after.state_dict()["output.weight"])
    again = qkv("train", "--resume", "--out", "next")
    assert again.exit_code == 0, again.stderr
    assert "is finished" in again.stderr
    assert "there is no" in qkv("train", "next.toml", "--from", "nowhere", "--out", "x").stderr
