"""Checkpoints: whole or not there, the newest good one found, damage named, and only a few kept."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.store import checkpoint
from qkv.store.checkpoint import FACTS, load, newest, prove, save
from qkv.store.manifest import MANIFEST, write_directory


def groups(step: int) -> dict[str, dict[str, Tensor]]:
    table = torch.full((3, 5), float(step))
    return {"model": {"a": table, "b": table, "c": torch.tensor(step)}, "empty": {}}


def saved(run: Path, *steps: int, keep: int = 2) -> list[str]:
    for step in steps:
        save(run, step, groups(step), {"loss": 1 / 3, "step": step, "list": [1, None]}, keep=keep)
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_what_was_saved_comes_back(tmp_path: Path):
    saved(tmp_path, 1234)
    found, notices = newest(tmp_path)
    assert found is not None
    assert notices == []
    assert (found.step, found.facts) == (1234, {"loss": 1 / 3, "step": 1234, "list": [1, None]})
    assert found.tensors.keys() == {"model", "empty"}
    assert found.tensors["model"]["a"].data_ptr() == found.tensors["model"]["b"].data_ptr()  # tied again
    assert torch.equal(found.tensors["model"]["a"], torch.full((3, 5), 1234.0))
    assert found.tensors["empty"] == {}
    files = {path.name for path in (tmp_path / "checkpoints" / "00001234").iterdir()}
    assert files == {MANIFEST, FACTS, "model.safetensors", "empty.safetensors"}  # nothing else, and no pickle


def test_the_newest_few_are_kept(tmp_path: Path):
    assert saved(tmp_path, 1, 2, 9, 10) == ["00000009", "00000010"]
    assert saved(tmp_path, 11, keep=1) == ["00000011"]
    assert saved(tmp_path, 12, 99_999_999, 100_000_000, keep=3) == ["00000012", "100000000", "99999999"]
    assert newest(tmp_path)[0].step == 100_000_000  # by number, not by name


def test_a_step_is_saved_once_and_never_overwritten(tmp_path: Path):
    saved(tmp_path, 7)
    before = (tmp_path / "checkpoints" / "00000007" / MANIFEST).read_bytes()
    for step in (7, 6):
        with pytest.raises(
            QkvError, match=rf"already has a checkpoint of step 7, and step {step} is not after it"
        ):
            saved(tmp_path, step)
    assert (tmp_path / "checkpoints" / "00000007" / MANIFEST).read_bytes() == before


def test_where_there_is_none_there_is_none(tmp_path: Path):
    assert newest(tmp_path) == (None, [])
    (tmp_path / "checkpoints").mkdir()
    assert newest(tmp_path) == (None, [])


def cut(run: Path, step: int) -> Path:
    path = run / "checkpoints" / f"{step:08}"
    (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-1])
    return path


def test_damaged_ones_are_named_set_aside_and_the_one_before_is_used(tmp_path: Path):
    saved(tmp_path, 1, 2, 3, 4, keep=4)
    cut(tmp_path, 4)
    cut(tmp_path, 3)
    found, notices = newest(tmp_path)
    assert found is not None
    assert found.step == 2
    assert len(notices) == 2
    for step, notice in zip((4, 3), notices, strict=True):
        assert f"checkpoints/{step:08} is damaged: model.safetensors is cut short" in notice
        assert notice.endswith(f"set aside as {step:08}.damaged")
    assert newest(tmp_path)[1] == []  # said once
    assert "00000003" in saved(tmp_path, 3)  # and training can write that step again
    cut(tmp_path, 3)
    assert newest(tmp_path)[0].step == 2
    assert "00000003.damaged" in saved(tmp_path, 5)  # the older one has given way


def test_when_all_are_damaged_nothing_is_touched(tmp_path: Path):
    saved(tmp_path, 1, 2)
    paths = [cut(tmp_path, step) for step in (1, 2)]
    with pytest.raises(
        QkvError, match=r"no checkpoint that training could go on from: .*00000002 is.*00000001 is"
    ):
        newest(tmp_path)
    assert all(path.is_dir() for path in paths)


def test_leftovers_of_a_killed_process_are_swept(tmp_path: Path):
    saved(tmp_path, 1)
    with write_directory(tmp_path / "checkpoints" / "00000002") as hidden:
        name = hidden.name
    left = tmp_path / "checkpoints" / name
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    (left / MANIFEST).touch()
    (tmp_path / "checkpoints" / "00000002").rename(tmp_path / "elsewhere")
    assert newest(tmp_path)[0].step == 1
    assert not left.exists()


def test_a_failed_save_leaves_the_others_alone(tmp_path: Path):
    before = saved(tmp_path, 1, 2)
    with pytest.raises(QkvError, match="JSON does not give back"):
        save(tmp_path, 3, groups(3), {"bad": (1, 2)})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before


def test_another_format_and_no_checkpoint_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    saved(tmp_path, 1)
    monkeypatch.undo()
    with pytest.raises(QkvError, match="has format 2, and this qkv knows 1: install the newer one"):
        load(tmp_path / "checkpoints" / "00000001")
    with pytest.raises(QkvError, match="is no checkpoint: give a directory such as checkpoints/00001234"):
        load(tmp_path / "checkpoints" / "00000009")


def test_the_facts_are_json_that_people_can_read(tmp_path: Path):
    saved(tmp_path, 5)
    facts = json.loads((tmp_path / "checkpoints" / "00000005" / FACTS).read_text())
    assert facts.pop("facts") == {"loss": 1 / 3, "step": 5, "list": [1, None]}
    assert facts == {"format": 1, "step": 5, "groups": ["model", "empty"]}


def test_a_damaged_one_says_how_to_go_on_without_it(tmp_path: Path):
    saved(tmp_path, 1)
    path = cut(tmp_path, 1)
    with pytest.raises(
        QkvError, match=f"or go on from the checkpoint before it: qkv train --resume --out {tmp_path}$"
    ):
        load(path)
    with pytest.raises(
        QkvError, match=r": restore one from a copy, or begin another run with another --out$"
    ):
        newest(tmp_path)
    prove(path, ["empty.safetensors"])  # that one is whole
