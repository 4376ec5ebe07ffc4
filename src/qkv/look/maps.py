"""Draw a weights map: rows are queries, columns keys, and darkness is weight.

Axes: T query length, S key length.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from qkv.errors import QkvError

SHADES = " ░▒▓█"


class Map(NamedTuple):
    """A map with the words that name its rows and columns."""

    title: str
    weights_TS: Tensor
    queries: Sequence[str]
    keys: Sequence[str]


def draw_text(map: Map) -> str:
    """The map as lines of text: each cell a shade and its weight in percent, below 1 % left blank."""
    _expect_words(map)
    left = max(len(query) for query in map.queries)
    widths = [max(len(key), 4) for key in map.keys]
    head = " ".join(f"{key:>{width}}" for key, width in zip(map.keys, widths, strict=True))
    lines = [map.title, f"{'':{left}} {head}"]
    for query, row in zip(map.queries, map.weights_TS.tolist(), strict=True):
        cells = (f"{_cell(weight):>{width}}" for weight, width in zip(row, widths, strict=True))
        lines.append(f"{query:>{left}} {' '.join(cells)}")
    return "\n".join(line.rstrip() for line in lines)


def save_picture(path: Path, maps: Sequence[Map]) -> Path:
    """Draw maps side by side into a PNG, SVG or PDF file, as its name says."""
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError:
        raise QkvError(f"drawing {path} needs matplotlib: pip install 'qkv[lab]'") from None
    widths = [max(2.5, 0.45 * len(map.keys)) for map in maps]
    height = 1.6 + 0.42 * max(len(map.queries) for map in maps)
    figure = Figure(figsize=(sum(widths) + 1.4 * len(maps), height), layout="constrained")
    panels = figure.subplots(1, len(maps), width_ratios=widths, squeeze=False)[0]
    for panel, map in zip(panels, maps, strict=True):
        _expect_words(map)
        image = panel.imshow(map.weights_TS.tolist(), cmap=colormaps["Blues"], vmin=0, vmax=1, aspect="auto")
        panel.set_title(map.title, fontsize=10)
        panel.set_xticks(range(len(map.keys)), map.keys, rotation=45, ha="right", rotation_mode="anchor")
        panel.set_yticks(range(len(map.queries)), map.queries)
        if map is maps[-1]:
            figure.colorbar(image, ax=panel, label="weight")
    figure.savefig(path, dpi=150)
    return path


def _cell(weight: float) -> str:
    if weight < 0.005:
        return ""
    return f"{SHADES[min(len(SHADES) - 1, int(weight * len(SHADES)))]}{round(100 * weight):3d}"


def _expect_words(map: Map) -> None:
    wanted = (len(map.queries), len(map.keys))
    if tuple(map.weights_TS.shape) != wanted:
        raise QkvError(
            f"map {map.title!r} has weights of shape {tuple(map.weights_TS.shape)}; {wanted} is wanted, "
            "one row a query word and one column a key word"
        )
