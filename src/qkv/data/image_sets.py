"""Where pictures and their classes come from: folders, npz, idx, rows of a PNG, or the embedded digits."""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from math import isqrt, prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from qkv.config import config
from qkv.data import draws
from qkv.data.picture import MOST_PIXELS, Unusable, as_picture, read_picture
from qkv.data.report import Report
from qkv.errors import QkvError

DIGITS, DIGITS_TEST = "digits", "digits-test"
_KEYS = ("images", "labels")
_TESTED = 5  # of the digits of each class, one in so many is for the end


@config
class ImageSet:
    """Where pictures and their classes come from."""

    source: str | tuple[str, ...]
    """A folder with one folder for each class, a file, several files one after the other, or the embedded `digits` and
    `digits-test`, which they leave out; gzip is recognised by its content."""
    labels: str | None = None
    """idx and rows: the file with the classes, idx or a JSON list."""
    format: Literal["auto", "folder", "npz", "idx", "rows"] = "auto"
    """How `source` is written; auto goes by names: .npz is npz, with labels .png is rows (each row of pixels one square
    picture) and anything else idx, without labels it is a folder."""
    keys: tuple[str, str] = _KEYS
    """npz: the names of the arrays with pictures (N, height, width) or (N, height, width, channels), and classes."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise QkvError("source is empty: name a folder or a file with pictures")
        if self.kind in ("idx", "rows") and self.labels is None:
            raise QkvError(
                f"{self.name} is read as {self.kind} and has no labels: name the file with the classes"
            )
        if self.kind not in ("idx", "rows") and self.labels is not None:
            raise QkvError(f"{self.name} is read as {self.kind}, which has its own classes: leave labels out")
        if self.kind != "npz" and self.keys != _KEYS:
            raise QkvError(f"keys are for npz, and {self.name} is read as {self.kind}: leave them out")

    @property
    def sources(self) -> tuple[str, ...]:
        """The folders or files."""
        return (self.source,) if isinstance(self.source, str) else self.source

    @property
    def kind(self) -> str:
        """The format, once auto is decided."""
        if self.format != "auto":
            return self.format
        if self.sources in ((DIGITS,), (DIGITS_TEST,)):
            return DIGITS
        ending = Path(self.sources[0]).suffix.lower()
        if ending == ".npz":
            return "npz"
        if self.labels is None:
            return "folder"
        return "rows" if ending == ".png" else "idx"

    @property
    def name(self) -> str:
        """How messages name the set."""
        first, *rest = self.sources
        return f"{first} and {len(rest)} more" if rest else first

    @property
    def files(self) -> list[str]:
        """What it reads: what must not change between a run and its resumption."""
        named = [*self.sources, *([self.labels] if self.labels else [])]
        return named if self.kind != DIGITS else []


@config
class ImageRules:
    """What is done about files that training is better without; every skip is counted in the report."""

    most_pixels: int = MOST_PIXELS
    """A file with more pixels is skipped, before they are decoded."""
    strict: bool = False
    """Make each skip an error that names the file."""


class Labelled(NamedTuple):
    """A picture of any size, its class as it was found, and its place for messages."""

    image_YXC: np.ndarray
    label: str
    place: str


def labelled(one: ImageSet, report: Report, rules: ImageRules) -> Iterator[Labelled]:
    """The pictures of a set in order, one at a time; what is read and skipped is counted."""
    return _READERS[one.kind](one, report, rules)


def _folder(one: ImageSet, report: Report, rules: ImageRules) -> Iterator[Labelled]:
    for root in one.sources:
        if not Path(root).is_dir():
            raise QkvError(
                f"{root} is no folder: name one that holds a folder for each class, or with an idx file its labels"
            )
        folders = sorted(
            path for path in Path(root).iterdir() if path.is_dir() and not path.name.startswith(".")
        )
        if not folders:
            raise QkvError(
                f"{root} holds no folders: put the pictures of each class into a folder of its name"
            )
        for folder in folders:
            for path in sorted(folder.rglob("*")):
                if path.name.startswith(".") or not path.is_file():
                    continue
                report.lines[root] += 1
                try:
                    yield Labelled(read_picture(str(path), rules.most_pixels), folder.name, str(path))
                except Unusable as error:
                    if rules.strict:
                        raise
                    report.add(root, error.fault, report.lines[root], str(path.relative_to(root)))


def _npz(one: ImageSet, report: Report, rules: ImageRules) -> Iterator[Labelled]:
    for path in one.sources:
        try:
            # Opened here, as numpy leaves a file open that it cannot read.
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                missing = [key for key in one.keys if key not in arrays]
                if missing:
                    raise QkvError(
                        f"{path} has no array {missing[0]!r}, but {', '.join(arrays)}: say which with keys = [images, labels]"
                    )
                images, labels = (arrays[key] for key in one.keys)
        except OSError as error:
            raise QkvError(f"{path} cannot be read: {error.strerror or 'it is no npz file'}") from None
        except QkvError:
            raise
        except Exception as error:  # noqa: BLE001 - numpy and zipfile raise many kinds
            raise QkvError(
                f"{path} is damaged, or no npz file ({error}): write it with numpy.savez"
            ) from None
        yield from _paired(path, images, labels, path, report)


def _idx(one: ImageSet, report: Report, rules: ImageRules) -> Iterator[Labelled]:
    images = [read_idx(path) for path in one.sources]
    yield from _several(one, images, report)


def _rows(one: ImageSet, report: Report, rules: ImageRules) -> Iterator[Labelled]:
    sheets = []
    for path in one.sources:
        sheet_NPC = read_picture(path, rules.most_pixels)
        side = isqrt(sheet_NPC.shape[1])
        if side * side != sheet_NPC.shape[1]:
            raise QkvError(
                f"{path} has rows of {sheet_NPC.shape[1]} pixels, which are no squares: name a folder of pictures, or "
                "a PNG whose every row is one square picture"
            )
        sheets.append(sheet_NPC.reshape(len(sheet_NPC), side, side, -1))
    yield from _several(one, sheets, report)


def _several(one: ImageSet, arrays: Sequence[np.ndarray], report: Report) -> Iterator[Labelled]:
    """The pictures of several files, whose classes stand in one."""
    assert one.labels is not None
    labels, total = _labels(one.labels), sum(map(len, arrays))
    if len(labels) != total:
        raise QkvError(
            f"{one.name} has {total:,} pictures, {one.labels} {len(labels):,} classes: name files that belong together"
        )
    start = 0
    for path, array in zip(one.sources, arrays, strict=True):
        yield from _paired(path, array, labels[start : start + len(array)], one.labels, report)
        start += len(array)


def _paired(path: str, images: Any, labels: Any, named: str, report: Report) -> Iterator[Labelled]:
    """The pictures of an array (N,Y,X) or (N,Y,X,C) with their classes."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iuU" or len(labels) != len(images):
        raise QkvError(
            f"the classes in {named} are an array of {labels.dtype} of shape {labels.shape}; {len(images):,} numbers or "
            "names are wanted, one a picture"
        )
    for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True), 1):
        report.lines[path] += 1
        place = f"{path} picture {number}"
        yield Labelled(as_picture(image, place), str(label), place)


def _labels(path: str) -> np.ndarray:
    """Classes in a file of their own."""
    if not path.endswith(".json"):
        return read_idx(path)
    try:
        return np.asarray(json.loads(Path(path).read_text("utf-8")))
    except OSError as error:
        raise QkvError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise QkvError(
            f"{path} is not a JSON list of classes ({error}): write one number or name a picture"
        ) from None


def read_idx(path: str) -> np.ndarray:
    """The array of bytes in an idx file, as MNIST has it; gzip is recognised by its content."""
    try:
        raw = Path(path).read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
    except OSError as error:  # damaged gzip is one, too
        raise QkvError(f"{path} cannot be read: {error.strerror or error}") from None
    except (EOFError, ValueError) as error:
        raise QkvError(f"{path} is damaged gzip ({error}): fetch or compress it again") from None
    axes = raw[3] if len(raw) > 3 else 0
    if raw[:2] != b"\0\0" or not 1 <= axes <= 4 or len(raw) < 4 + 4 * axes:
        raise QkvError(f"{path} is no idx file: name one, a folder of pictures, an .npz, or a .png of rows")
    if raw[2] != 0x08:
        raise QkvError(
            f"{path} is an idx file of kind {raw[2]:#04x}; bytes, 0x08, are wanted: write it as uint8"
        )
    shape = np.frombuffer(raw, ">u4", axes, 4).tolist()
    rest = len(raw) - 4 - 4 * axes
    if rest != prod(shape):
        raise QkvError(f"{path} should hold {prod(shape):,} bytes and holds {rest:,}: fetch it again")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _digits(one: ImageSet, report: Report, rules: ImageRules) -> Iterator[Labelled]:
    """scikit-learn's 1,797 digits of 8 x 8 pixels in 17 shades, without their test part or that alone."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise QkvError("the embedded digits come with scikit-learn: pip install 'qkv[vision]'") from None
    values_NP, label_N = load_digits(return_X_y=True)
    pixels_NYX = np.round(values_NP * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    tested_N = draws.held_out(pixels_NYX, label_N, len(pixels_NYX) // _TESTED)
    (name,) = one.sources
    for row in np.flatnonzero(tested_N == (name == DIGITS_TEST)).tolist():
        report.lines[name] += 1
        yield Labelled(pixels_NYX[row][..., None], str(label_N[row]), f"{name} picture {report.lines[name]}")


_READERS: dict[str, Callable[[ImageSet, Report, ImageRules], Iterator[Labelled]]] = {
    "folder": _folder,
    "npz": _npz,
    "idx": _idx,
    "rows": _rows,
    DIGITS: _digits,
}
