"""Columns and keys: one value out of a row of TSV, CSV or JSONL, or the sentence that says what the row has instead."""

import json
from collections.abc import Sequence
from typing import Any

from qkv.errors import QkvError


def expect_columns(where: str, cells: Sequence[str], wanted: int) -> None:
    """Refuse a row with fewer columns."""
    if len(cells) < wanted:
        raise QkvError(
            f"{where} has {len(cells)} columns; columns up to {wanted} are wanted: "
            "separate them with tabs, or set columns in the recipe (--columns of qkv evaluate)"
        )


def json_row(where: str, text: str) -> Any:
    """The value of a line of JSONL."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise QkvError(f"{where} is not JSON ({error}): write one object a line") from None


def json_value(where: str, row: Any, key: str, setting: str = "keys") -> Any:
    """What stands under a key; a dot leads into an object. `setting` is what the user would change."""
    found: Any = row
    for part in key.split("."):
        if not isinstance(found, dict) or part not in found:
            has = ", ".join(map(str, found)) if isinstance(found, dict) else type(found).__name__
            raise QkvError(f"{where} has no {key} (it has {has}): {_fix(setting)} to what it has")
        found = found[part]
    return found


def json_text(where: str, row: Any, key: str, setting: str = "keys") -> str:
    """The text that stands under a key."""
    found = json_value(where, row, key, setting)
    if not isinstance(found, str):
        raise QkvError(
            f"{where} has {found!r:.40} as {key}; text is wanted: {_fix(setting)}, or correct the line"
        )
    try:
        found.encode()
    except UnicodeEncodeError:
        raise QkvError(
            f"{where} has half a surrogate pair as {key}, which is no text: correct the line"
        ) from None
    return found


def _fix(setting: str) -> str:
    return f"set {setting} in the recipe (--{setting.replace('_', '-')} of qkv evaluate)"
