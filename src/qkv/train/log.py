"""What a run writes down: one JSON object a line, cut back to the checkpoint when a run is resumed."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from qkv.errors import QkvError


class Log:
    """`log.jsonl` of a run; each line is complete in its file before the run goes on."""

    def __init__(self, path: Path, keep: int = 0):
        """Keep the first lines, those that a checkpoint knows of; a killed run may have left more, or half a line."""
        kept = path.read_text("utf-8").splitlines(keepends=True)[:keep] if keep and path.exists() else []
        temporary = path.with_suffix(".tmp")
        with _one_sentence(path):
            temporary.write_text("".join(kept), "utf-8")
            temporary.replace(path)
        self._path, self.lines = path, len(kept)

    def write(self, record: Mapping[str, object]) -> None:
        """Add a line."""
        with _one_sentence(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.lines += 1


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # a full disk, say
        raise QkvError(
            f"{path} could not be written ({error.strerror}): make room, then go on from the last checkpoint "
            "with --resume"
        ) from None


def read(path: Path) -> list[dict[str, object]]:
    """All complete records of a log; a killed run may have left half a line."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
