"""Pictures with their classes in memory: all of one size, and from them those that are held out.

Axes: N pictures, L classes, C channels, Y and X height and width in pixels.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from qkv.config import config
from qkv.data import draws
from qkv.data.image_sets import ImageRules, ImageSet, Labelled, labelled
from qkv.data.picture import Fit, fitted
from qkv.data.report import Report
from qkv.errors import QkvError, nearest


@config
class ImagesConfig:
    """What every picture is brought to before a model reads it."""

    size: tuple[int, int] | None = None
    """Height and width in pixels; none: those of the first training picture."""
    channels: Literal[1, 3] | None = None
    """1 for grey, 3 for colours; none: as the first training picture has."""
    fit: Fit = "crop"
    """What happens to another shape: its middle is cut out, or all of it stretched."""
    mean: tuple[float, ...] | None = None
    """What is subtracted from each channel, which then goes from 0 to 1; none: the mean of the training pictures."""
    deviation: tuple[float, ...] | None = None
    """What each channel is divided by then; none: the standard deviation of the training pictures."""

    def __post_init__(self) -> None:
        if self.size is not None and min(self.size) < 1:
            raise QkvError(
                f"images.size is {self.size}; a height and a width in pixels are wanted, e.g. [32, 32]"
            )
        if self.deviation is not None and not all(0 < value < float("inf") for value in self.deviation):
            raise QkvError(f"images.deviation is {self.deviation}; numbers above 0 are wanted, one a channel")


@dataclass(frozen=True)
class Images:
    """Pictures of one size as bytes, their classes by number, and where each came from."""

    pixels_NCYX: np.ndarray
    labels_N: np.ndarray
    places: list[str]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels_N)

    def truth(self) -> np.ndarray:
        """Which class each of them has, truth_NL."""
        return np.arange(len(self.classes)) == self.labels_N[:, None]

    def take(self, rows: np.ndarray) -> "Images":
        """These of them."""
        places = [self.places[row] for row in rows.tolist()]
        return Images(self.pixels_NCYX[rows], self.labels_N[rows], places, self.classes)

    def split(self, count: int) -> tuple["Images", "Images"]:
        """All but `count`, and those: drawn by their pixels, from each class its share, the same ones each time."""
        held = draws.held_out(self.pixels_NCYX, self.labels_N, count)
        return self.take(np.flatnonzero(~held)), self.take(np.flatnonzero(held))

    def digest(self) -> str:
        """SHA-256 of all pixels and classes."""
        found = hashlib.sha256(json.dumps([self.classes, self.pixels_NCYX.shape]).encode())
        found.update(self.pixels_NCYX.data)
        found.update(self.labels_N.data)
        return found.hexdigest()


def read_images(
    sets: Sequence[ImageSet], config: ImagesConfig, rules: ImageRules, classes: Sequence[str] = ()
) -> tuple[Images, list[Report], ImagesConfig]:
    """All pictures of these sets, a report for each set, and the config with the size and channels that they have.

    `classes` are names in the order of numbers, if they are known.
    """
    found: list[Labelled] = []
    reports: list[Report] = []
    pixels: list[np.ndarray] = []
    for one in sets:
        report = Report(one.name, what="pictures", place="picture")
        reports.append(report)
        for item in labelled(one, report, rules):
            if config.size is None or config.channels is None:
                config = _as_first(config, item.image_YXC)
            assert config.size is not None
            assert config.channels is not None
            pixels.append(fitted(item.image_YXC, config.size, config.channels, config.fit))
            found.append(item._replace(image_YXC=_READ))
            report.kept += 1
    if not found:
        skipped = [
            f"{finding.count:,} × {kind}, first {finding.example}"
            for report in reports
            for (_, kind), finding in report.findings.items()
        ]
        raise QkvError(
            f"there are no pictures in {', '.join(one.name for one in sets)} ({'; '.join(skipped) or 'nothing read'}): "
            "name a folder or a file that has some"
        )
    labels_N, names = _numbered([item.label for item in found], [item.place for item in found], classes)
    return Images(np.stack(pixels), labels_N, [item.place for item in found], names), reports, config


_READ = np.empty((0, 0, 1), dtype=np.uint8)  # in place of pixels that are taken


def _as_first(config: ImagesConfig, image_YXC: np.ndarray) -> ImagesConfig:
    """What is not configured is as in the first picture."""
    (Y, X, C) = image_YXC.shape
    return replace(config, size=config.size or (Y, X), channels=config.channels or (1 if C == 1 else 3))


def _numbered(
    labels: Sequence[str], places: Sequence[str], classes: Sequence[str]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The number of each label; a label may be the name of a class or, if names are given, its number among them."""
    names = tuple(classes) or tuple(sorted(set(labels), key=_natural))
    numbers = {str(number): number for number in range(len(names))} | {
        name: number for number, name in enumerate(names)
    }
    for label, place in zip(labels, places, strict=True):
        if label not in numbers:
            raise QkvError(
                f"{place} is of class {label!r}, which is none of the {len(names)} that are known "
                f"({', '.join(names[:10])}): leave it out, or name it among data.classes{nearest(label, names)}"
            )
    return np.array([numbers[label] for label in labels], dtype=np.int64), names


def _natural(label: str) -> tuple[bool, int, str]:
    """Numbers by their size, then names."""
    return (not label.isdecimal(), int(label) if label.isdecimal() else 0, label)
