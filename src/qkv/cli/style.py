"""How translations are written: plain lines, columns, n-best lists, alignments, or JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.decode.translator import Line, Translation, Translator

_BETWEEN = " ||| "


@dataclass(frozen=True)
class Style:
    """What of each translation is written."""

    translator: "Translator"
    languages: Sequence[str | None]
    align: bool = False
    many: bool = False
    """Whether several translations of a line may be written, each with its score."""

    def text(self, line: "Line") -> Iterator[str]:
        """Lines of text."""
        if not self.many:
            columns = [
                _BETWEEN.join([_plain(best[0]), *self._pharaoh(line, best[0], language)])
                for best, language in zip(line.best, self.languages, strict=True)
            ]
            # Between columns a tab separates, so within one it cannot stay.
            yield columns[0] if len(columns) == 1 else "\t".join(text.replace("\t", " ") for text in columns)
            return
        for best, language in zip(line.best, self.languages, strict=True):
            head = [str(line.number - 1), *([language or ""] if len(self.languages) > 1 else [])]
            for one in best:
                links = self._pharaoh(line, one, language)
                yield _BETWEEN.join([*head, _plain(one), f"{one.score:.6g}", *links])

    def objects(self, line: "Line") -> Iterator[str]:
        """One JSON object."""
        from qkv.recipe.config import json_text

        found = [
            self._object(line, one, language)
            for best, language in zip(line.best, self.languages, strict=True)
            for one in best
        ]
        value: dict[str, Any] = {"line": line.number, "source": line.source, "translations": found}
        if line.flagged:
            value["flagged"] = line.flagged
        yield json_text(value)

    def _object(self, line: "Line", one: "Translation", language: str | None) -> dict[str, Any]:
        value: dict[str, Any] = {
            "to": language,
            "text": one.text,
            "score": one.score,
            "finished": one.finished,
        }
        if self.align:
            value["alignment"] = self._links(line, one, language)
        return value

    def _pharaoh(self, line: "Line", one: "Translation", language: str | None) -> list[str]:
        if not self.align:
            return []
        return [" ".join(f"{source}-{target}" for source, target in self._links(line, one, language))]

    def _links(self, line: "Line", one: "Translation", language: str | None) -> list[tuple[int, int]]:
        return self.translator.alignment(line.source, one, language)


def _plain(one: "Translation") -> str:
    """The text on one line, as one line comes out for each that went in; a model of bytes can write a line feed."""
    return one.text.replace("\n", " ")
