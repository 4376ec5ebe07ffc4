"""Directories that are complete or not there at all, with a manifest that proves every file.

A directory is written beside its place under a hidden name, and becomes visible by one rename. Its manifest holds the
size and SHA-256 of each file. While it is written, a lock (which dies with the process) is held on the manifest, so
that the remains of a killed process can be told from the work of a live one.
"""

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from qkv.errors import QkvError

MANIFEST = "MANIFEST.json"


class Damaged(QkvError):
    """Some files are not what was written; `what` names them, without what to do about it."""

    def __init__(self, what: str, fix: str):
        super().__init__(f"{what}; {fix}")
        self.what = what


_UNFINISHED = re.compile(r"\.qkv-.*\.[0-9a-f]{16}\.unfinished")


@contextmanager
def write_directory(path: Path) -> Iterator[Path]:
    """Give a hidden directory to write files into; when the block ends well, it becomes `path`, proven and whole.

    If the block raises, or `path` exists by then, nothing stays. Remains of killed processes beside it are removed.
    """
    _refuse_existing(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        hidden, lock = _begin(path)
    except OSError as error:
        raise QkvError(
            f"{path} cannot be written ({error.strerror}): choose a directory where you may write"
        ) from None
    try:
        yield hidden
        _prove(hidden, lock)
        _refuse_existing(path)  # a rename would replace an empty directory
        hidden.rename(path)
        _flush(path.parent)
    except OSError as error:
        raise QkvError(
            f"{path} could not be written ({error.strerror or error}): nothing was left of it"
        ) from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)  # gone already, if all went well
        lock.close()


def verify(path: Path, names: Iterable[str] | None = None, *, fix: str = "restore it from a copy") -> None:
    """Raise one sentence that names whatever is wrong with these files of a directory, or with any of its files."""
    faults = _faults(path, None if names is None else set(names))
    if faults:
        raise Damaged(f"{path} is damaged: {', '.join(faults)}", fix)


def remove(path: Path) -> None:
    """Remove a directory so that a process killed meanwhile leaves no half of it under its name."""
    hidden = _hidden(path)
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)  # what resists, the next sweep tries again


def sweep(parent: Path) -> None:
    """Remove what killed processes left unfinished in `parent`; what a live one is writing stays."""
    for leftover in [entry for entry in parent.iterdir() if _UNFINISHED.fullmatch(entry.name)]:
        # Another process may remove it first; a file system without locks cannot tell us, so there all of it stays.
        with suppress(OSError), _open_manifest(leftover) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(leftover, ignore_errors=True)


def _begin(path: Path) -> tuple[Path, BinaryIO]:
    """A new hidden directory for `path` with its manifest open and locked."""
    while True:
        hidden = _hidden(path)
        hidden.mkdir()
        try:
            lock = _open_manifest(hidden)
        except FileNotFoundError:  # swept by another process before it was locked
            continue
        with suppress(OSError):  # a file system without locks: only the sweep needs them
            fcntl.flock(lock, fcntl.LOCK_EX)
        if hidden.exists():
            return hidden, lock
        lock.close()


def _hidden(path: Path) -> Path:
    return path.with_name(f".qkv-{path.name}.{secrets.token_hex(8)}.unfinished")


def _open_manifest(directory: Path) -> BinaryIO:
    return (directory / MANIFEST).open("ab")


def _refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise QkvError(f"{path} exists, and is never overwritten: choose another name, or move it away first")


def _prove(directory: Path, lock: BinaryIO) -> None:
    """Write the manifest, and flush every file to the disk before the rename can be."""
    files = _files(directory)
    entries = {name: _measure(file) for name, file in files.items()}
    lock.write((json.dumps(entries, indent=2) + "\n").encode())
    lock.flush()
    for entry in [
        directory / MANIFEST,
        *files.values(),
        *{file.parent for file in files.values()},
        directory,
    ]:
        _flush(entry)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(directory: Path) -> dict[str, Path]:
    """Every file but the manifest, by its path inside the directory."""
    files = {
        file.relative_to(directory).as_posix(): file
        for file in sorted(directory.rglob("*"))
        if file.is_file()
    }
    files.pop(MANIFEST, None)
    return files


def _measure(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def _faults(path: Path, names: set[str] | None) -> list[str]:
    try:
        entries = json.loads((path / MANIFEST).read_bytes())
        sizes = {name: int(entry["bytes"]) for name, entry in entries.items()}
    except FileNotFoundError:
        return [f"{MANIFEST} is missing"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return [f"{MANIFEST} cannot be read"]
    faults = []
    for name in sorted(entries.keys() | _files(path).keys() if names is None else names):
        file = path / name
        if not file.is_file():
            faults.append(f"{name} is missing")
        elif name not in entries:
            faults.append(f"{name} does not belong to it")
        elif (size := file.stat().st_size) < sizes[name]:
            faults.append(f"{name} is cut short ({size:,} of {sizes[name]:,} bytes)")
        elif _measure(file) != entries[name]:
            faults.append(f"{name} has changed")
    return faults
