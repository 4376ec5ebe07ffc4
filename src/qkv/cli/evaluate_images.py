"""What `qkv evaluate` does with a classifier of pictures: accuracy, the classes one by one, and what is taken for what."""

from typing import TYPE_CHECKING, Any

import typer

from qkv.cli.options import print_json, say, table
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.tasks.classify_images import Classifier, Evaluation

_SHOWN = 20  # classes whose confusions fit on a screen


def evaluate_images(
    classifier: "Classifier",
    data: list[str] | None,
    keys: tuple[str, str] | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Classify a folder, an npz file, or pictures and classes in two files; by default what training validated on."""
    from qkv.data.image_sets import ImageSet
    from qkv.tasks.classify_images import evaluate, read_sets, read_valid

    if data is None:
        images, reports = read_valid(classifier)
    elif len(data) > 2:
        raise typer.BadParameter(
            f"--data was given {len(data)} times: once for a folder or file, twice for two files"
        )
    else:
        source, labels = [*data, None][:2]
        assert source is not None
        given: dict[str, Any] = {"keys": keys} if keys else {}
        named = ImageSet(source=source, labels=labels, **given)
        images, reports = read_sets(classifier, (named,), strict)
    for report in reports:
        if report.findings:
            say(str(report))
    found = evaluate(classifier, images)
    print_json(as_tree(found)) if as_json else print(as_text(found))


def refuse(given: dict[str, Any]) -> None:
    """What is about translations has no effect here."""
    for option, value in given.items():
        if value is not None:
            raise QkvError(
                f"--{option} is about translations, and this model classifies pictures: leave it out"
            )


def as_tree(found: "Evaluation") -> dict[str, Any]:
    """The result for a program."""
    by_class = {
        name: {"pictures": count, "precision": precision, "recall": recall, "f1": f1}
        for name, count, precision, recall, f1 in found.by_class()
    }
    confusion = {"classes": list(found.classes), "rows": found.confusion_LL.tolist()}
    return {"scores": found.values, "by_class": by_class, "confusion": confusion}


def as_text(found: "Evaluation") -> str:
    """The result for people: the scores, a row for each class, and for few classes what they were taken for."""
    scores = ", ".join(f"{name} {value:.2f}" for name, value in found.values.items())
    rows = [["", "pictures", "precision", "recall", "f1"]]
    for name, count, *values in found.by_class():
        rows.append([name, f"{count:,}", *(f"{value:.1f}" for value in values)])
    parts = [f"{found.confusion_LL.sum():,} pictures: {scores}", table(rows)]
    if len(found.classes) <= _SHOWN:
        confused = [["taken for", *found.classes]]
        for name, counts in zip(found.classes, found.confusion_LL.tolist(), strict=True):
            confused.append([name, *(f"{count:,}" if count else "·" for count in counts)])
        parts.append(table(confused))
    return "\n\n".join(parts)
