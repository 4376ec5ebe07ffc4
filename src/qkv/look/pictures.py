"""Where a classifier looked in a picture: in the terminal, and as a page with every layer and head.

Axes: C channels, Y and X height and width in pixels, H heads, T queries, S keys, R rows and C columns of patches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from qkv.attention.watch import watch
from qkv.data.picture import fitted
from qkv.decode.answer import Guess, guesses
from qkv.decode.pictures import PictureClassifier
from qkv.errors import QkvError
from qkv.look.maps import SHADES, Map, draw_text
from qkv.look.page import filled, rounded, write
from qkv.models.vit import ViT

_LARGEST = 64  # pixels of a side on a page


@dataclass(frozen=True)
class PictureLook:
    """One picture, what it was taken for, and the weights of every attention between its patches."""

    name: str
    pixels_CYX: np.ndarray
    truth: str | None
    """Its class, where that is known."""
    best: list[Guess]
    grid: tuple[int, int]
    """Rows and columns of patches."""
    weights: dict[str, Tensor]
    """weights_HTS by the path of the attention; a class token stands in front, the probe of a pool is the only query."""
    chosen: str
    """The attention to begin with: that of the pool or, without one, of the last layer."""

    def heat(self, path: str) -> Tensor:
        """How much each patch was looked at, heads and queries averaged, or by the class token alone; weights_RC."""
        mean_TS = self.weights[path].mean(0)
        rows, columns = self.grid
        front = mean_TS.shape[1] - rows * columns  # class tokens, whose own weight is no place in the picture
        looked_S = (mean_TS[:front] if front else mean_TS).mean(0)
        return looked_S[front:].unflatten(0, self.grid)


def look(
    classifier: PictureClassifier, image: Any, name: str = "the picture", truth: str | None = None
) -> PictureLook:
    """Classify a picture, a file or an array, and see what each of its patches looked at."""
    model = classifier.model
    if not isinstance(model, ViT):
        raise QkvError(
            f"the model is a {type(model).__name__}, which attends to nothing: train one of kind 'vit'"
        )
    pixels_CYX = classifier.read(image, name)
    with watch(model) as seen:
        logits_1L = classifier.logits(pixels_CYX[None])
    (best,) = guesses(logits_1L, classifier.labels, multiple=False, top=3)
    weights = {path: weights_1HTS[0] for path, weights_1HTS in seen.items()}
    return PictureLook(name, pixels_CYX, truth, best, model.config.grid, weights, list(weights)[-1])


def draw(pixels_CYX: np.ndarray) -> list[str]:
    """A picture as lines of text, two shades a pixel; its brightest value is ink."""
    grey_YX = pixels_CYX.mean(0)
    low, high = grey_YX.min(), grey_YX.max()
    levels_YX = ((grey_YX - low) / max(high - low, 1) * (len(SHADES) - 1)).round().astype(int)
    return ["".join(2 * SHADES[level] for level in row) for row in levels_YX.tolist()]


def beside(blocks: Sequence[Sequence[str]], gap: int = 4) -> str:
    """Blocks of lines side by side."""
    height, widths = max(map(len, blocks)), [max(map(len, block)) for block in blocks]
    lines = []
    for number in range(height):
        cells = (block[number] if number < len(block) else "" for block in blocks)
        lines.append(
            (" " * gap).join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
        )
    return "\n".join(lines)


def draw_look(look: PictureLook) -> str:
    """A picture, and how much each of its patches was looked at, in the terminal."""
    rows, columns = look.grid
    _, Y, X = look.pixels_CYX.shape
    names = (
        [_span(number, Y // rows) for number in range(rows)],
        [_span(number, X // columns) for number in range(columns)],
    )
    return beside(
        [draw(look.pixels_CYX), draw_text(Map(look.chosen, look.heat(look.chosen), *names)).splitlines()]
    )


def save_page(path: Path, title: str, looks: Sequence[PictureLook]) -> Path:
    """Write a page that shows these pictures; one is chosen at a time."""
    if not looks:
        raise QkvError("there is nothing to show: give at least one picture")
    plain = "\n\n".join(f"{_title(look)}\n{draw_look(look)}" for look in looks)
    return write(path, filled("pictures.html", title, plain, [_tree(look) for look in looks]))


def _tree(look: PictureLook) -> dict[str, Any]:
    C, Y, X = look.pixels_CYX.shape
    scale = min(1.0, _LARGEST / max(Y, X))
    size = max(1, round(Y * scale)), max(1, round(X * scale))
    small_CYX = fitted(look.pixels_CYX.transpose(1, 2, 0), size, C, "stretch")
    rows, columns = look.grid
    return {
        "title": _title(look),
        "height": size[0],
        "width": size[1],
        "pixels": np.broadcast_to(small_CYX, (3, *size)).transpose(1, 2, 0).ravel().tolist(),
        "rows": rows,
        "columns": columns,
        "chosen": look.chosen,
        "maps": [
            {"path": path, "heads": [rounded(map) for map in weights_HTS.tolist()]}
            for path, weights_HTS in look.weights.items()
        ],
    }


def _title(look: PictureLook) -> str:
    label, probability = look.best[0]
    truth = "" if look.truth is None else ", rightly" if look.truth == label else f", and it is {look.truth}"
    return f"{look.name}: taken for {label} ({100 * probability:.1f} %){truth}"


def _span(number: int, length: int) -> str:
    """The pixels of a row or column of patches."""
    first = number * length
    return f"{first}–{first + length - 1}" if length > 1 else f"{first}"
