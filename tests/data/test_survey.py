"""A first look at a corpus, and the part of it that is held out."""

from pathlib import Path

import pytest

from qkv.data.survey import split, survey
from qkv.data.text import Corpus
from qkv.errors import QkvError


def corpus(folder: Path, pairs: list[tuple[str, str]]) -> Corpus:
    for name, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        (folder / name).write_text("\n".join(lines) + "\n", "utf-8")
    return Corpus(source=str(folder / "source"), target=str(folder / "target"))


def read(files: tuple[Path, Path]) -> list[tuple[str, str]]:
    return list(zip(*(file.read_text("utf-8").splitlines() for file in files), strict=True))


def test_it_counts_pairs_and_characters_of_what_is_kept(tmp_path: Path):
    found = survey(corpus(tmp_path, [("ab", "cde"), ("abcd", "f"), ("", "gh")]))
    assert (found.pairs, found.source_characters, found.target_characters) == (2, 3.0, 2.0)
    assert found.report.count("empty") == 1


def test_nothing_to_learn_from_is_refused(tmp_path: Path):
    with pytest.raises(QkvError, match="no pair is left"):
        survey(corpus(tmp_path, [("", "a")]))


@pytest.mark.parametrize(("pairs", "held"), [(20, 1), (100, 5), (30_000, 1000)])
def test_one_in_twenty_is_held_out_at_most_a_thousand(tmp_path: Path, pairs: int, held: int):
    every = [(f"s{number}", f"t{number}") for number in range(pairs)]
    train, valid = split(corpus(tmp_path, every), pairs, tmp_path / "parts")
    assert len(read(valid)) == held
    assert sorted(read(train) + read(valid)) == sorted(every)


def test_a_sentence_and_all_its_translations_are_on_one_side_always_the_same(tmp_path: Path):
    every = [(f"s{number // 2}", f"t{number}") for number in range(400)]
    train, valid = split(corpus(tmp_path, every), 400, tmp_path / "parts")
    assert not {source for source, _ in read(train)} & {source for source, _ in read(valid)}
    _, again = split(corpus(tmp_path, every), 400, tmp_path / "again")
    assert read(again) == read(valid)
    assert len(read(valid)) == 20


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path):
    folder = tmp_path / "parts"
    folder.mkdir()
    with pytest.raises(QkvError, match="cannot be made for the held-out part"):
        split(corpus(tmp_path, [(f"s{n}", "t") for n in range(40)]), 40, folder)
    assert list(folder.iterdir()) == []


def test_a_repeated_sentence_is_never_all_there_is(tmp_path: Path):
    every = [("same", f"t{number}") for number in range(40)]
    with pytest.raises(QkvError, match="too few different sentences"):
        split(corpus(tmp_path, every), 40, tmp_path / "parts")
    assert not (tmp_path / "parts").exists()
