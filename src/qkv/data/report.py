"""What was found while a corpus was read: counted by file and kind, with the first example of each."""

from collections import Counter
from dataclasses import dataclass, field

CLEANED = ("byte order mark", "Windows line ending")  # removed, the pair stays
# The whole pair, text or picture is left out.
SKIPPED = (
    "invalid UTF-8",
    "undecodable",
    "over-long",
    "NUL",
    "empty",
    "no label",
    "duplicate",
    "no picture",
    "damaged",
    "too many pixels",
)


@dataclass
class Finding:
    """How often something was found, and where first."""

    count: int
    line: int
    example: str


@dataclass
class Report:
    """The lines read of each file, the pairs kept, and what was cleaned or skipped; or the texts, or the pictures."""

    name: str
    what: str = "pairs"
    """What is kept or skipped."""
    place: str = "line"
    """What is read, and numbered."""
    lines: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)

    def add(self, file: str, kind: str, line: int, example: str = "") -> None:
        """Count one more `kind` in `file`; the first one's line and a piece of its text are kept."""
        assert kind in CLEANED or kind in SKIPPED
        if found := self.findings.get((file, kind)):
            found.count += 1
        else:
            self.findings[file, kind] = Finding(1, line, example[:60])

    def count(self, kind: str) -> int:
        """How often `kind` was found, in all files together."""
        return sum(finding.count for (_, found), finding in self.findings.items() if found == kind)

    @property
    def skipped(self) -> int:
        """How many pairs were left out."""
        return sum(self.count(kind) for kind in SKIPPED)

    def __str__(self) -> str:
        """One line for the corpus and one for each finding."""
        read = ", ".join(f"{file} {count:,} {self.place}s" for file, count in self.lines.items())
        return "\n".join(
            [
                f"{self.name}: {self.kept:,} {self.what} kept, {self.skipped:,} skipped ({read or 'nothing read'})"
            ]
            + [
                f"  {file}: {finding.count:,} × {kind} {'removed' if kind in CLEANED else 'skipped'}, first at {self.place} "
                f"{finding.line:,}" + (f": {finding.example!r}" if finding.example else "")
                for (file, kind), finding in self.findings.items()
            ]
        )
