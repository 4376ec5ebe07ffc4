"""`qkv evaluate`: scores that can be known beforehand, of one file or two, by language and all together."""

import json
import math
from pathlib import Path

import pytest

import qkv as public
from qkv.store import bundle
from qkv.tasks.task import Asked
from qkv.tasks.translate import asked_for

SOURCES = ["one", "fifty-two", "three hundred and four", "nine", "five", "six hundred"]


@pytest.fixture
def perfect(trained: Path, tmp_path: Path) -> Path:
    """What the model itself says, as data: half of it in German, half in French."""
    model = public.load(trained)
    rows = [
        f"{text}\t{' '.join(model.translate([text], to=tag)[0].split()) or '-'}\t{tag}"
        for tag, part in (("de", SOURCES[:3]), ("fr", SOURCES[3:]))
        for text in part
    ]
    path = tmp_path / "perfect.tsv"
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


def evaluate(qkv, *arguments: object) -> dict:
    result = qkv("evaluate", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_the_model_s_own_words_are_all_right_in_each_language(qkv, trained: Path, perfect: Path):
    found = evaluate(qkv, trained, "--data", perfect, "--tag-column", 3)["scores"]
    assert {name: scores["sentences"] for name, scores in found.items()} == {"all": 6, "de": 3, "fr": 3}
    wrong = perfect.with_name("wrong.tsv")
    first, *others = perfect.read_text("utf-8").splitlines()
    wrong.write_text("\n".join([first.replace("\t", "\tx", 1), *others]) + "\n", "utf-8")
    less = evaluate(qkv, trained, "--data", wrong, "--tag-column", 3)["scores"]
    assert found["all"]["exact"] - less["all"]["exact"] == pytest.approx(100 / 6)
    assert found["de"]["exact"] - less["de"]["exact"] == pytest.approx(100 / 3)
    assert found["fr"] == pytest.approx(less["fr"], rel=1e-5)  # batched with other neighbours


def test_the_loss_of_all_is_the_mean_over_tokens_of_the_languages(qkv, trained: Path):
    found = evaluate(qkv, trained)["scores"]
    saved = bundle.read(trained / "model").results["scores"]
    assert found["all"]["loss"] == pytest.approx(saved["loss"], rel=1e-5)  # as training measured it
    assert found["all"]["perplexity"] == pytest.approx(math.exp(found["all"]["loss"]))
    losses = [scores["loss"] for name, scores in found.items() if name != "all"]
    assert len(losses) == 5
    assert min(losses) < found["all"]["loss"] < max(losses)


def test_with_the_beam_of_the_validations_it_gives_their_scores(qkv, trained: Path):
    found = evaluate(qkv, trained, "--beam", 1)
    saved = bundle.read(trained / "model").results
    for name in ("bleu", "chrf", "exact"):
        assert found["scores"]["all"][name] == pytest.approx(saved["scores"][name])
    assert found["signatures"] == saved["signatures"]
    assert found["beam"] == 1


def test_one_file_and_two_are_the_same_data(qkv, trained: Path, tmp_path: Path):
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    (tmp_path / "a.tsv").write_text("one\teins\ntwo\tzwei\n")
    two = evaluate(qkv, trained, "--data", tmp_path / "a.en", "--data", tmp_path / "a.de", "--tag", "de")
    assert two == evaluate(qkv, trained, "--data", tmp_path / "a.tsv", "--tag", "de")
    assert list(two["scores"]) == ["all"]


def test_columns_and_keys_say_where_the_sentences_stand(qkv, trained: Path, seq2seq: Path, tmp_path: Path):
    rows = [("one", "eins"), ("two", "zwei")]
    (tmp_path / "a.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in rows))
    (tmp_path / "b.tsv").write_text("".join(f"{t}\tx\t{s}\n" for s, t in rows))
    objects = [{"id": 7, "both": {"en": s, "de": t}, "to": "de"} for s, t in rows]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, objects)))
    wanted = evaluate(qkv, trained, "--data", tmp_path / "a.tsv", "--tag", "de")
    options = ["--data", tmp_path / "b.tsv", "--columns", "3,1", "--tag", "de"]
    assert evaluate(qkv, trained, *options) == wanted
    options = ["--data", tmp_path / "b.jsonl", "--keys", "both.en, both.de", "--tag-key", "to"]
    assert evaluate(qkv, trained, *options) == wanted
    plain = evaluate(qkv, seq2seq, "--data", tmp_path / "b.tsv", "--columns", "3,1")  # a model without tags
    assert plain["scores"]["all"]["sentences"] == 2


def test_the_fix_that_an_error_names_can_be_typed(qkv, seq2seq: Path, tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"en": "one", "de": "eins"}\n')
    result = qkv("evaluate", seq2seq, "--data", path)
    assert "line 1 has no source (it has en, de): set keys in the recipe (--keys of qkv" in result.stderr
    assert qkv("evaluate", seq2seq, "--data", path, "--keys", "en,de").exit_code == 0


def test_strict_stops_at_what_would_be_left_out(qkv, seq2seq: Path, tmp_path: Path):
    path = tmp_path / "a.tsv"
    path.write_text("one\teins\none\teins\n\t\ntwo\tzwei\n")
    assert qkv("evaluate", seq2seq, "--data", path).exit_code == 0
    result = qkv("evaluate", seq2seq, "--data", path, "--strict")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{path} line 3 is empty on one side" in result.stderr  # what stands twice counts twice
    assert "leave strict out to skip it" in result.stderr


def test_numbers_bring_their_languages(trained: Path):
    (corpus,) = asked_for(Asked(["numbers-test"]), public.load(trained).languages)
    assert corpus.source == "numbers-test"


def test_the_metrics_can_be_changed_and_say_so(qkv, trained: Path):
    result = qkv("evaluate", trained, "--tokenize", "none", "--lowercase", "--beam", 1)
    assert "bleu: nrefs:1|case:lc|eff:no|tok:none" in result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines()[:3]] == ["sentences", "de", "fr"]
    by_name = qkv(
        "evaluate", trained, "--set", "metrics.tokenize=none", "--set", "metrics.lowercase=true", "--beam", 1
    )
    assert by_name.stdout == result.stdout


def test_the_translations_can_be_kept(qkv, trained: Path, tmp_path: Path):
    source = tmp_path / "a.tsv"
    source.write_text("".join(f"{text}\tx\n" for text in SOURCES))
    kept = tmp_path / "out.txt"
    assert qkv("evaluate", trained, "--data", source, "--tag", "de", "--out", kept).exit_code == 0
    wanted = public.load(trained).translate(SOURCES, to="de")
    assert kept.read_text("utf-8").split("\n") == [*(text.replace("\n", " ") for text in wanted), ""]


def test_what_is_left_out_of_the_data_is_told(qkv, trained: Path, tmp_path: Path):
    (tmp_path / "a.tsv").write_text("one\teins\n\t\ntwo\tzwei\none\teins\n")
    result = qkv("evaluate", trained, "--data", tmp_path / "a.tsv", "--tag", "de")
    assert "1 × empty skipped, first at line 2" in result.stderr
    assert result.stdout.splitlines()[1].split()[:2] == ["all", "3"]  # twice the same counts twice


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--data", "{}"], 1, "say with --tag"),
        (["--tag", "de"], 2, "name that, too"),
        (
            ["--data", "{}", "--data", "{}", "--data", "{}"],
            1,
            "3 files of data are given: one with both sides, or two",
        ),
        (["--data", "{}", "--tag", "xx"], 1, "the language is 'xx'"),
        (["--keys", "a,b"], 2, "--keys is about --data: name that, too"),
        (["--data", "{}", "--columns", "3", "--tag", "de"], 2, "e.g. --columns 2,3"),
        (
            ["--data", "{}", "--columns", "a,b", "--tag", "de"],
            1,
            "columns[0] is 'a'; it should be a valid integer",
        ),
        (["--data", "{}", "--encoding", "latin-1", "--tag", "de"], 1, "encoding is not a key of Corpus"),
        (["--data", "{}", "--columns", "0,1", "--tag", "de"], 1, "columns are counted from 1"),
        (["--data", "{}", "--keys", "a,b,c", "--tag", "de"], 2, "e.g. --keys en,de"),
        (["--data", "{}", "--keys", "a,b", "--tag", "de"], 1, "keys are for jsonl and this is tsv"),
        (["--tokenize", "14a"], 1, "tokenize is '14a'; it should be '13a'"),
        (["--set", "train.seed=1"], 1, "set search.… or metrics.…"),
    ],
)
def test_what_cannot_be_is_said(qkv, trained: Path, perfect: Path, options: list[str], code: int, said: str):
    result = qkv("evaluate", trained, *(option.format(perfect) for option in options))
    assert result.exit_code == code
    assert said in " ".join(result.stderr.replace("│", " ").split())


def test_a_model_of_one_language_is_asked_for_none(qkv, seq2seq: Path, perfect: Path):
    for option, value in (("--tag", "de"), ("--tag-column", 3)):
        result = qkv("evaluate", seq2seq, "--data", perfect, option, value)
        assert result.exit_code == 1
        assert f"the model knows one language only: leave {option} out" in result.stderr
