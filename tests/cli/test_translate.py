"""`qkv translate`: one line out for each line in, in every form, from files, pipes and a patient partner."""

import gzip
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import qkv as public
from qkv.decode.config import SearchConfig

LINES = ["twenty-one", "", "five hundred", "one million is too much", "   ", "seven"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES) + "\n", "utf-8")
    return path


def plain(text: str) -> str:
    return text.replace("\n", " ")


def test_each_line_is_translated_in_order_and_blank_ones_stay_blank(qkv, trained: Path, file: Path):
    result = qkv("translate", trained, file, "--to", "de")
    assert result.exit_code == 0
    wanted = public.load(trained).translate(LINES, to="de")
    assert result.stdout.split("\n") == [*map(plain, wanted), ""]
    assert result.stdout.split("\n")[1] == result.stdout.split("\n")[4] == ""


def test_languages_are_columns_in_the_order_asked(qkv, trained: Path, file: Path):
    result = qkv("translate", trained, file, "--to", "fr, de", "--window", "2")
    model = public.load(trained)
    columns = [model.translate(LINES, to=language) for language in ("fr", "de")]
    wanted = ["\t".join(plain(text).replace("\t", " ") for text in row) for row in zip(*columns, strict=True)]
    assert result.stdout.split("\n") == [*wanted, ""]


def test_an_n_best_list_numbers_the_lines_and_scores_each_translation(qkv, trained: Path, file: Path):
    result = qkv("translate", trained, file, "--to", "de,fr", "--n-best", "2", "--beam", "3", "--align")
    rows = [line.split(" ||| ") for line in result.stdout.splitlines()]
    assert {len(row) for row in rows} == {5}
    of_first = [row for row in rows if row[0] == "0"]
    assert [row[1] for row in of_first] == ["de", "de", "fr", "fr"]
    assert float(of_first[0][3]) >= float(of_first[1][3])
    assert [row for row in rows if row[0] == "1"] == [["1", "de", "", "0", ""], ["1", "fr", "", "0", ""]]
    assert {row[0] for row in rows} == {str(number) for number in range(len(LINES))}
    config = SearchConfig(beam=3, n_best=2, maximum=8)
    best = [next(public.load(trained).stream(LINES[:1], (to,), config=config)).best[0] for to in ("de", "fr")]
    assert [row[2] for row in of_first] == [plain(one.text) for some in best for one in some]


def test_alignments_are_in_pharaoh_s_format(qkv, trained: Path, file: Path):
    result = qkv("translate", trained, file, "--to", "de", "--align")
    model = public.load(trained)
    for line, written in zip(LINES, result.stdout.splitlines(), strict=True):
        text, links = written.split(" ||| ")
        best = next(model.stream([line], ("de",))).best[0][0]
        assert text == plain(best.text)
        wanted = model.alignment(line, best, "de") if line.strip() else []
        assert links == " ".join(f"{source}-{target}" for source, target in wanted)
    assert re.search(r"\|\|\| \d+-\d+", result.stdout)


def test_json_is_one_object_a_line_with_all_there_is(qkv, trained: Path, file: Path):
    result = qkv("translate", trained, file, "--to", "de,fr", "--json", "--align")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(one["line"], one["source"]) for one in found] == list(enumerate(LINES, 1))
    assert [one["to"] for one in found[0]["translations"]] == ["de", "fr"]
    assert found[0]["translations"][0].keys() == {"to", "text", "score", "finished", "alignment"}
    texts = public.load(trained).translate(LINES, to="fr")
    assert [one["translations"][1]["text"] for one in found] == texts


def test_stdin_gzip_and_a_file_give_the_same(start, qkv, trained: Path, file: Path, tmp_path: Path):
    packed = tmp_path / "lines.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    out = tmp_path / "out.txt"
    assert qkv("translate", trained, packed, "--to", "de", "--out", out).stdout == ""
    piped, said = start("translate", trained, "--to", "de").communicate(file.read_bytes(), timeout=60)
    assert piped == out.read_bytes()
    assert b"Ctrl-D" not in said  # nobody is typing
    assert piped.count(b"\n") == len(LINES)


def test_greedy_and_sampling_need_no_other_option(qkv, trained: Path, file: Path):
    greedy = qkv("translate", trained, file, "--to", "de", "--beam", "1")
    by_name = qkv("translate", trained, file, "--to", "de", "--set", "search.beam=1")
    assert greedy.exit_code == 0
    assert greedy.stdout == by_name.stdout
    hot = ["translate", trained, file, "--to", "de", "--temperature", "2"]
    samples = [qkv(*hot, "--set", f"search.seed={seed}").stdout for seed in (1, 1, 2)]
    assert samples[0] == samples[1] != samples[2]


def test_what_is_over_long_is_flagged_with_its_line(qkv, trained: Path, tmp_path: Path):
    path = tmp_path / "long.txt"
    path.write_text("five\n" + "thirty-one " * 40 + "\n", "utf-8")
    result = qkv("translate", trained, path, "--to", "de", "--json")
    assert re.search(r"^line 2 has \d+ tokens without a sentence end", result.stderr, re.MULTILINE)
    assert "flagged" in json.loads(result.stdout.splitlines()[1])
    assert len(result.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "translates into cs, da, de, fr, it: choose with --to, e.g. --to cs"),
        (["--to", "dee"], "did you mean 'de'?"),
        (["--to", "de,"], "the language is ''"),
        (["--to", "de", "--set", "model.heads=4"], "has no effect on a finished model: set search.…"),
        (
            ["--to", "de", "--n-best", "9"],
            "qkv: --n-best is 9, but a beam of 2 finds no more: widen the beam",
        ),
        (["--to", "de", "--set", "search.n_best=9"], "qkv: --set: n_best is 9"),
        (["--to", "de", "--n-best", "2", "--set", "search.n_best=9"], "qkv: --set: n_best is 9"),
        (["--to", "de", "--temperature", "0.5", "--beam", "4"], "qkv: --temperature is 0.5 with beam 4"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_read(qkv, trained: Path, options: list[str], said: str):
    result = qkv("translate", trained, "no-such-file", *options)
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stdout == ""


def test_a_model_of_one_language_is_asked_for_none(qkv, seq2seq: Path, file: Path):
    result = qkv("translate", seq2seq, "no-such-file", "--to", "xx")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"qkv: --to is 'xx', but {seq2seq} knows one language only: leave --to out\n"
    assert qkv("translate", seq2seq, file).stdout.count("\n") == len(LINES)


def test_alignments_of_a_model_without_attention_are_refused_before_anything_is_written(
    qkv, seq2seq: Path, file: Path, tmp_path: Path
):
    result = qkv("translate", seq2seq, file, "--align", "--out", tmp_path / "out.txt")
    assert result.exit_code == 1
    assert result.stderr.startswith("qkv: --align shows where a model looked")
    assert result.stderr.endswith("was trained without attention to its source: leave --align out\n")
    assert not (tmp_path / "out.txt").exists()


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot be read: No such file"), (b"\x1f\x8b\x08xx", "is damaged gzip")]
)
def test_an_input_that_cannot_be_read_leaves_the_output_as_it_was(
    qkv, trained: Path, tmp_path: Path, content: bytes | None, said: str
):
    source, out = tmp_path / "lines.gz", tmp_path / "out.txt"
    if content is not None:
        source.write_bytes(content)
    out.write_text("yesterday's work\n", "utf-8")
    for command in (["translate", source, "--to"], ["evaluate", "--data", source, "--data", out, "--tag"]):
        verb, *options = command
        result = qkv(verb, trained, *options, "de", "--out", out)
        assert result.exit_code == 1
        assert f"qkv: {source} {said}" in result.stderr
        assert out.read_text("utf-8") == "yesterday's work\n"


def test_a_file_is_not_written_while_it_is_read(qkv, trained: Path, file: Path):
    before = file.read_bytes()
    result = qkv("translate", trained, file, "--to", "de", "--out", file)
    assert result.exit_code == 1
    assert "is also read from" in result.stderr
    assert file.read_bytes() == before


def test_bytes_that_are_no_text_are_named_or_replaced(qkv, trained: Path, tmp_path: Path):
    path = tmp_path / "latin1.txt"
    path.write_bytes("fünf\nfive\n".encode("latin1"))
    result = qkv("translate", trained, path, "--to", "de")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{path} line 1 is not UTF-8" in result.stderr
    replaced = qkv("translate", trained, path, "--to", "de", "--replace-invalid", "--json")
    assert replaced.exit_code == 0
    assert json.loads(replaced.stdout.splitlines()[0])["source"] == "f\ufffdnf"


def test_what_comes_before_a_line_that_cannot_be_read_is_translated(qkv, trained: Path, tmp_path: Path):
    path = tmp_path / "mixed.txt"
    path.write_bytes("five\nsix\nfünf\nseven\n".encode("latin1"))
    result = qkv("translate", trained, path, "--to", "de")
    assert result.exit_code == 1
    assert f"{path} line 3 is not UTF-8" in result.stderr
    path.write_text("five\nsix\n", "utf-8")
    assert qkv("translate", trained, path, "--to", "de").stdout == result.stdout != ""


def test_a_reader_that_leaves_ends_it_quietly_though_the_input_never_ends(start, trained: Path):
    with subprocess.Popen(["yes", "five"], stdout=subprocess.PIPE) as endless:
        process = start("translate", trained, "--to", "de", "--window", "5", stdin=endless.stdout)
        endless.stdout.close()
        assert process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read().decode()
        process.stderr.close()
        assert process.wait(timeout=60) == 141
    assert all(line.startswith("line ") for line in said.splitlines()), said  # cut ones are flagged


def test_a_partner_that_waits_for_each_answer_gets_it(start, trained: Path):
    process = start("translate", trained, "--to", "de", "--window", "1")
    model = public.load(trained)
    for text in ("five", "seventy"):
        process.stdin.write(f"{text}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline().decode() == plain(model.translate([text], to="de")[0]) + "\n"
    assert process.communicate(timeout=60)[0] == b""
    assert process.returncode == 0


def test_who_types_is_told_how_and_answered_line_by_line(start, trained: Path):
    ours, theirs = os.openpty()
    process = start("translate", trained, "--to", "de", stdin=theirs)
    os.close(theirs)
    try:
        assert b"Ctrl-D ends" in process.stderr.readline()
        os.write(ours, b"five\n")
        answer = process.stdout.readline().decode()
        assert answer == plain(public.load(trained).translate(["five"], to="de")[0]) + "\n"
        os.write(ours, b"\x04")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        os.close(ours)
        process.communicate()


def test_progress_is_told_now_and_then_beside_the_results(
    qkv, trained: Path, file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("qkv.cli.translate._EVERY", 0.0)
    result = qkv("translate", trained, file, "--to", "de")
    told = re.findall(r"^(\d+) lines, [\d,]+ a second$", result.stderr, re.MULTILINE)
    assert told == ["1", "2", "3", "4", "5", "6"]
    assert "a second" not in result.stdout


def test_every_translation_begins_with_the_prefix(qkv, trained: Path, file: Path):
    result = qkv("translate", trained, file, "--to", "de", "--prefix", "acht und")
    assert result.exit_code == 0
    lines = result.stdout.split("\n")[:-1]
    assert [bool(line) for line in lines] == [bool(line.strip()) for line in LINES]
    assert all(line.startswith("acht und") for line in lines if line)


def test_ctranslate2_says_what_qkv_says(qkv, trained: Path, file: Path):
    native = qkv("translate", trained, file, "--to", "de", "--set", "search.stop=quick")
    assert qkv("translate", trained, file, "--to", "de", "--engine", "ctranslate2").stdout == native.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--int8"], "--int8 is given without --engine ctranslate2"),
        (
            ["--engine", "ctranslate2", "--set", "search.coverage=0.2"],
            "CTranslate2 cannot search with search.coverage",
        ),
        (["--engine", "ctranslate2", "--prefix", "acht"], "CTranslate2 cannot begin with one"),
    ],
)
def test_what_an_engine_cannot_do_is_said(qkv, trained: Path, file: Path, options: list[str], said: str):
    result = qkv("translate", trained, file, "--to", "de", *options)
    assert result.exit_code == 1
    assert said in result.stderr


def test_a_model_is_exported_once_and_whole(qkv, trained: Path, tmp_path: Path):
    result = qkv("export", trained, "--to", "ctranslate2", "--out", tmp_path / "engine", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["largest_difference"] < 1e-4
    assert {"model.bin", "config.json", "parity.json"} < {
        path.name for path in (tmp_path / "engine").iterdir()
    }
    again = qkv("export", trained, "--to", "ctranslate2", "--out", tmp_path / "engine")
    assert again.exit_code == 1
    assert "engine" in again.stderr
