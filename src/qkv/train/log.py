"""What a run writes down: one JSON object a line, cut back to the checkpoint when a run is resumed."""

import json
from collections.abc import Mapping
from pathlib import Path


class Log:
    """`log.jsonl` of a run; each line is complete on disk before the run goes on."""

    def __init__(self, path: Path, keep: int = 0):
        """Keep the first lines, those that a checkpoint knows of; a killed run may have left more, or half a line."""
        kept = path.read_text("utf-8").splitlines(keepends=True)[:keep] if keep and path.exists() else []
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(kept), "utf-8")
        temporary.replace(path)
        self._path, self.lines = path, len(kept)

    def write(self, record: Mapping[str, object]) -> None:
        """Add a line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.lines += 1


def read(path: Path) -> list[dict[str, object]]:
    """All records of a log."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
