"""A written directory is whole or not there, and each kind of damage is named."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.store.manifest import MANIFEST, remove, sweep, verify, write_directory


def write(path: Path) -> Path:
    with write_directory(path) as directory:
        (directory / "a.txt").write_text("alpha")
        (directory / "inner").mkdir()
        (directory / "inner" / "b.bin").write_bytes(bytes(range(256)))
    return path


def hidden(parent: Path) -> list[Path]:
    return [entry for entry in parent.iterdir() if entry.name.startswith(".")]


def test_what_was_written_is_there_and_proven(tmp_path: Path):
    path = write(tmp_path / "new" / "thing")
    assert (path / "a.txt").read_text() == "alpha"
    assert sorted(entry.name for entry in path.iterdir()) == [MANIFEST, "a.txt", "inner"]
    assert hidden(path.parent) == []
    verify(path)
    verify(path, ["a.txt"])


def test_nothing_is_visible_before_the_end(tmp_path: Path):
    with write_directory(tmp_path / "thing") as directory:
        (directory / "a").touch()
        assert not (tmp_path / "thing").exists()
        assert directory.parent == tmp_path  # a rename is atomic only within one file system
    assert (tmp_path / "thing").exists()


def test_the_manifest_holds_what_sha256sum_computes(tmp_path: Path):
    path = write(tmp_path / "thing")
    digest = subprocess.run(
        ["sha256sum", path / "inner" / "b.bin"], capture_output=True, text=True, check=True
    )
    assert digest.stdout.split()[0] in (path / MANIFEST).read_text()


def test_an_existing_target_is_refused_and_unharmed(tmp_path: Path):
    path = write(tmp_path / "thing")
    with pytest.raises(QkvError, match=r"thing exists, and is never overwritten: choose another name"):
        write(path)
    verify(path)


@pytest.mark.parametrize("filled", [True, False])
def test_a_target_that_appears_meanwhile_is_unharmed(tmp_path: Path, filled: bool):
    path = tmp_path / "thing"

    def write_while_it_appears() -> None:
        with write_directory(path) as directory:
            (directory / "mine").touch()
            path.mkdir()
            if filled:
                (path / "theirs").touch()

    with pytest.raises(QkvError, match="exists"):
        write_while_it_appears()
    assert [entry.name for entry in path.iterdir()] == ["theirs"] * filled
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_a_failed_block_leaves_nothing(tmp_path: Path, error: BaseException):
    with pytest.raises(type(error)), write_directory(tmp_path / "thing"):
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence(tmp_path: Path):
    with (
        pytest.raises(QkvError, match=r"thing could not be written \(No space left on device\)"),
        write_directory(tmp_path / "thing"),
    ):
        raise OSError(28, os.strerror(28))
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(QkvError, match=r"file/thing cannot be written \(.+\): choose a directory"):
        write(tmp_path / "file" / "thing")


def test_every_flipped_bit_is_found(tmp_path: Path):
    path = write(tmp_path / "thing")
    for file in [path / "a.txt", path / "inner" / "b.bin"]:
        good = file.read_bytes()
        for index in range(0, len(good), 3):
            file.write_bytes(good[:index] + bytes([good[index] ^ 1 << index % 8]) + good[index + 1 :])
            with pytest.raises(QkvError, match=f"damaged: {file.relative_to(path)} has changed;"):
                verify(path)
        file.write_bytes(good)
    verify(path)


def test_a_damaged_manifest_never_passes_for_another(tmp_path: Path):
    path = write(tmp_path / "thing")
    manifest = path / MANIFEST
    good = manifest.read_bytes()
    for index, byte in enumerate(good):
        manifest.write_bytes(good[:index] + bytes([byte ^ 1]) + good[index + 1 :])
        if not chr(byte).isspace():
            with pytest.raises(QkvError, match="is damaged"):
                verify(path)
    for length in range(len(good) - 2):
        manifest.write_bytes(good[:length])
        with pytest.raises(QkvError, match=f"damaged: {MANIFEST} cannot be read;"):
            verify(path)
    for other in (b"[]", b"7", b'{"a.txt": 3}', b'{"a.txt": {}}', b'{"a.txt": {"bytes": null}}'):
        manifest.write_bytes(other)
        with pytest.raises(QkvError, match=f"damaged: {MANIFEST} cannot be read;"):
            verify(path)


def test_all_damage_is_named_in_one_sentence(tmp_path: Path):
    path = write(tmp_path / "thing")
    (path / "a.txt").unlink()
    (path / "inner" / "b.bin").write_bytes(bytes(100))
    (path / "c").touch()
    with pytest.raises(QkvError) as raised:
        verify(path)
    assert str(raised.value) == (
        f"{path} is damaged: a.txt is missing, c does not belong to it, "
        "inner/b.bin is cut short (100 of 256 bytes); restore it from a copy"
    )
    with pytest.raises(QkvError, match=r"damaged: a\.txt is missing;"):
        verify(path, ["a.txt"])


def test_without_a_manifest_nothing_is_proven(tmp_path: Path):
    with pytest.raises(QkvError, match=f"damaged: {MANIFEST} is missing"):
        verify(tmp_path)


def test_a_removed_directory_is_gone(tmp_path: Path):
    remove(write(tmp_path / "thing"))
    assert list(tmp_path.iterdir()) == []


def hold(path: Path, ready: "multiprocessing.synchronize.Event") -> None:
    with write_directory(path) as directory:
        (directory / "half").touch()
        ready.set()
        time.sleep(60)


def test_remains_of_the_dead_are_swept_and_the_work_of_the_living_is_not(tmp_path: Path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    writer = context.Process(target=hold, args=(tmp_path / "thing", ready))
    writer.start()
    assert ready.wait(20)
    (theirs,) = hidden(tmp_path)
    (tmp_path / ".qkv-mine").mkdir()  # nothing of ours, whatever its name begins with
    sweep(tmp_path)
    assert (theirs / "half").exists()
    os.kill(writer.pid or 0, signal.SIGKILL)
    writer.join()
    assert (theirs / "half").exists()  # the rename was interrupted
    write(tmp_path / "other")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".qkv-mine", "other"]


def test_two_writers_of_one_place_do_not_mix(tmp_path: Path):
    code = (
        "import sys, pathlib; from qkv.store.manifest import write_directory\n"
        "with write_directory(pathlib.Path(sys.argv[1])) as d:\n"
        "    for n in range(50): (d / f'{sys.argv[2]}{n}').touch()\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path / "thing", name], stderr=subprocess.PIPE)
        for name in "ab"
    ]
    errors = [writer.communicate()[1].decode() for writer in writers]
    assert sorted(writer.returncode for writer in writers) == [0, 1]
    assert "QkvError" in "".join(errors)
    verify(tmp_path / "thing")
    assert len({entry.name[0] for entry in (tmp_path / "thing").iterdir()} - {"M"}) == 1
    assert hidden(tmp_path) == []
