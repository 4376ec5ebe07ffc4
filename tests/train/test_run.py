"""The directory of a run: begun once, gone on with only unchanged, and from the last good checkpoint."""

import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.train.test_loop import small, stopped_at
from tests.train.toy import changed, loop, same_bits

from qkv.errors import QkvError
from qkv.recipe.training import TrainConfig
from qkv.store import checkpoint
from qkv.train.run import FREE, Run, fingerprints

CONFIG = TrainConfig(epochs=7)


def begin(path: Path, *files: Path) -> Run:
    run = Run(path)
    run.expect_new()
    run.begin(CONFIG, fingerprints([*map(str, files)]), "digest")
    return run


def test_what_was_begun_is_known(tmp_path: Path):
    data = tmp_path / "a.en"
    data.write_text("abc")
    run = begin(tmp_path / "new" / "run", data)
    assert run.exists
    assert run.saved_recipe(TrainConfig) == CONFIG
    sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of FIPS 180-2, appendix B.1
    assert json.loads(run.data.read_text()) == {str(data): {"bytes": 3, "sha256": sha}}
    assert run.go_on(CONFIG, [str(data)]) == (None, [])


def test_a_run_is_never_begun_again(tmp_path: Path):
    run = begin(tmp_path / "run")
    with pytest.raises(QkvError, match=r"run is a run already: go on with --resume, or choose another"):
        run.expect_new()


def test_a_directory_with_anything_in_it_is_refused(tmp_path: Path):
    (tmp_path / "notes.txt").touch()
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(QkvError, match="exists and is no run: choose another directory with --out"):
            Run(path).expect_new()
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("last", ["data", "unfinished"])
def test_killed_as_it_began_a_run_is_begun_again(tmp_path: Path, last: str):
    run = Run(tmp_path / "run")
    run.expect_new()
    run.data.write_text('{"half')
    if last == "unfinished":
        run._unfinished.write_text("epochs = ")
    assert not run.exists
    begin(tmp_path / "run")
    assert run.go_on(CONFIG, []) == (None, [])
    assert sorted(entry.name for entry in run.path.iterdir()) == ["begun.json", "data.json", "recipe.toml"]


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(QkvError, match=r"file/run cannot be written: Not a directory: choose another --out"):
        Run(tmp_path / "file" / "run").expect_new()


def test_changes_of_the_recipe_are_named_each(tmp_path: Path):
    run = begin(tmp_path / "run")
    other = replace(CONFIG, seed=3, optimizer=replace(CONFIG.optimizer, rate=0.5))
    with pytest.raises(QkvError) as raised:
        run.go_on(other, [])
    assert "optimizer.rate was 0.001 and is 0.5; seed was 0 and is 3: take that back" in str(raised.value)


def test_what_changes_nothing_that_is_learnt_may_change(tmp_path: Path):
    from qkv.data.text import Corpus
    from qkv.tasks.translate import DataConfig, TranslateConfig

    config = TranslateConfig(data=DataConfig(train=(Corpus(source="numbers"),)))
    run = Run(tmp_path / "run")
    run.expect_new()
    run.begin(config, {}, "digest")
    other = replace(config, train=replace(config.train, checkpoint_minutes=1.0, tensorboard=True))
    assert run.go_on(other, []) == (None, [])
    assert len(FREE) == 2  # a new one needs a thought whether it decides any weight
    with pytest.raises(QkvError, match=r"data.train\[0\].limit was None and is 5"):
        run.go_on(replace(config, data=DataConfig(train=(Corpus(source="numbers", limit=5),))), [])


@pytest.mark.parametrize("change", ["content", "length", "another", "fewer", "gone"])
def test_changed_data_are_named(tmp_path: Path, change: str):
    one, other = tmp_path / "a.en", tmp_path / "a.de"
    one.write_text("abc")
    other.write_text("def")
    run = begin(tmp_path / "run", one, other)
    files = [one, other]
    if change == "content":
        other.write_text("dex")
    elif change == "length":
        other.write_text("def\n")
    elif change == "another":
        (tmp_path / "b.de").write_text("def")
        files[1] = tmp_path / "b.de"
    elif change == "fewer":
        files = [one]
    else:
        other.unlink()
    with pytest.raises(QkvError, match=r"a\.de") as raised:
        run.go_on(CONFIG, [*map(str, files)])
    assert "a.en" not in str(raised.value)
    assert ("cannot be read" if change == "gone" else "changed since it was begun") in str(raised.value)


def test_other_examples_from_the_same_files_are_named_and_other_circumstances_told(tmp_path: Path):
    """Of stdin there is no file to compare, and another version may read a file in another way."""
    run = begin(tmp_path / "run")
    assert run.expect_same("digest") == []
    with pytest.raises(QkvError, match=r"is not what it was begun with, though its files are the same"):
        run.expect_same("another")
    begun = json.loads(run.begun.read_text())
    run.begun.write_text(json.dumps(begun | {"threads": 99}))
    (notice,) = run.expect_same("digest")
    assert notice == f"going on, but not bit for bit: threads was 99 and is {begun['threads']}"


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path: Path):
    run = begin(tmp_path / "run")
    with run.alone(), pytest.raises(QkvError, match=r"another process is training .*run: wait"), run.alone():
        pass
    with run.alone():
        pass


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


FILES = [
    "model.safetensors", "optimizer.safetensors", "best.safetensors", "average.safetensors", "random.safetensors",
    "checkpoint.json", "MANIFEST.json",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """The weights of a run of two epochs."""
    task = small(changed(epochs=2))
    with tempfile.TemporaryDirectory() as path:
        loop(task, Path(path)).run()
    return task.model.state_dict()


@pytest.mark.parametrize(
    ("name", "damage"),
    [*((name, flip) for name in FILES), *((name, cut) for name in FILES), (FILES[0], Path.unlink)],
)
def test_from_a_damaged_checkpoint_a_run_goes_back_to_the_one_before(
    tmp_path: Path, whole: dict[str, Any], name: str, damage: Callable[[Path], None]
):
    config: Any = changed(epochs=2)
    assert stopped_at(small(config), tmp_path, 5)
    assert stopped_at(small(config), tmp_path, 7, resume=True)
    damage(tmp_path / "checkpoints" / "00000007" / name)
    found, (notice,) = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.step == 5
    said = (
        name if name != "MANIFEST.json" else r"(MANIFEST.json cannot be read|[\w.]+ (has changed|is missing))"
    )
    assert re.search(f"checkpoints/00000007 is damaged: {said}.*; set aside as 00000007.damaged", notice)
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 8  # 7 updates and a validation
    task = small(config)
    sitting = loop(task, tmp_path, resume=True)
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == found.facts["lines"] == 5
    sitting.run()
    assert same_bits(task.model.state_dict(), whole)
    assert (tmp_path / "checkpoints" / "00000007.damaged").is_dir()


def test_a_run_without_any_good_checkpoint_is_not_begun_anew_in_silence(tmp_path: Path):
    stopped_at(small(changed(checkpoint_minutes=1e-9)), tmp_path, 3)
    for step in (2, 3):
        cut(tmp_path / "checkpoints" / f"{step:08}" / "model.safetensors")
    with pytest.raises(
        QkvError, match=r"no checkpoint that training could go on from: .*00000003 .*00000002 "
    ):
        checkpoint.newest(tmp_path)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_a_full_disk_ends_a_run_in_one_sentence_and_harms_nothing(
    tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """Once there is room, it goes on from the checkpoint before."""
    config: Any = changed(epochs=2, checkpoint_minutes=1e-9)
    write = checkpoint.write_tensors

    def full(path: Path, tensors: Any) -> None:
        if "00000005" in str(path) and path.name == "average.safetensors":
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        write(path, tensors)

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    with pytest.raises(QkvError, match=r"00000005 could not be written \(No space left on device\)"):
        loop(small(config), tmp_path / "full").run()
    assert sorted(p.name for p in (tmp_path / "full" / "checkpoints").iterdir()) == ["00000003", "00000004"]
    monkeypatch.undo()
    task = small(config)
    loop(task, tmp_path / "full", resume=True).run()
    assert same_bits(task.model.state_dict(), whole)


def test_a_folder_is_its_files_and_their_names(tmp_path: Path):
    (tmp_path / "pets" / "cat").mkdir(parents=True)
    (tmp_path / "pets" / "cat" / "a.png").write_bytes(b"12345")
    (tmp_path / "pets" / "b.png").write_bytes(b"67")

    def facts() -> dict[str, object]:
        return fingerprints([str(tmp_path / "pets")])[str(tmp_path / "pets")]

    first = facts()
    assert first["bytes"] == 7
    assert facts() == first
    (tmp_path / "pets" / "b.png").write_bytes(b"68")
    second = facts()
    (tmp_path / "pets" / "b.png").rename(tmp_path / "pets" / "cat" / "b.png")
    assert len({str(found["sha256"]) for found in (first, second, facts())}) == 3
