"""Attention maps as one HTML file that needs nothing else: every layer and head, with the weights under the pointer."""

import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.look.cross import Look
from qkv.look.maps import draw_text

_DIGITS = 4  # a weight is shown in tenths of a percent


def save_page(path: Path, title: str, looks: Sequence[Look]) -> Path:
    """Write a page that shows each of these translations; one is chosen at a time."""
    return write(path, page(title, looks))


def write(path: Path, text: str) -> Path:
    """Write the text of a page."""
    try:
        path.write_text(text, "utf-8", newline="\n")
    except OSError as error:
        raise QkvError(f"{path} cannot be written: {error.strerror}: give another file") from None
    return path


def page(title: str, looks: Sequence[Look]) -> str:
    """The page as text; whatever the sentences contain, they stay text in it."""
    if not looks:
        raise QkvError("there is nothing to show: give at least one translation")
    plain = "\n\n".join(draw_text(look.mean(look.sharpest)) for look in looks)
    return filled("page.html", title, plain, [_tree(look) for look in looks])


def filled(template: str, title: str, plain: str, data: Any) -> str:
    """A page of `look` with its title, what it shows without scripts, and its data."""
    parts = {"title": escape(title), "plain": escape(plain), "data": _script(data)}
    text = (files("qkv.look") / template).read_text("utf-8")
    # All at once: what is put in is not searched again.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], text)


def _tree(look: Look) -> dict[str, Any]:
    return {
        "source": look.source,
        "text": look.text,
        "language": look.language,
        "keys": look.keys,
        "queries": look.queries,
        "chosen": look.sharpest,
        "maps": [
            {"path": path, "heads": [rounded(rows) for rows in weights_HTS.tolist()]}
            for path, weights_HTS in look.weights.items()
        ],
    }


def rounded(rows: list[list[float]]) -> list[list[float]]:
    """Weights with as many digits as are shown."""
    return [[round(weight, _DIGITS) for weight in row] for row in rows]


def _script(value: Any) -> str:
    """JSON that cannot end the script element it stands in, nor begin a comment there."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
