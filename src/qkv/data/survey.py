"""A first look at a corpus: how much there is and of what length, and a part of it held out for validation."""

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from heapq import nsmallest
from pathlib import Path

from qkv.data.labelled import LabelledCorpus, read_examples
from qkv.data.report import Report
from qkv.data.text import Corpus, Pair, Rules, read_pairs
from qkv.errors import QkvError

_HELD_OUT = 1000  # sentences at most: enough to tell models apart, little to translate after each epoch
_SHARE = 20  # of a small corpus one sentence in so many


@dataclass(frozen=True)
class Survey:
    """What is in a corpus."""

    pairs: int
    source_characters: float
    """Of a sentence, on average."""
    target_characters: float
    report: Report


def survey(corpus: Corpus, rules: Rules = Rules()) -> Survey:
    """Read the corpus once."""
    report, source, target = Report(corpus.name), 0, 0
    for pair in read_pairs(corpus, report, rules):
        source += len(pair.source)
        target += len(pair.target)
    if not report.kept:
        raise QkvError(
            f"{report}: no pair is left to learn from, so give files with sentences and translations"
        )
    return Survey(report.kept, source / report.kept, target / report.kept, report)


@dataclass(frozen=True)
class TextSurvey:
    """What is in a corpus of texts with labels."""

    texts: int
    characters: float
    """Of a text, on average."""
    labels: Counter[str]
    """How many texts have each."""
    multiple: bool
    """Whether a text has several labels, or none."""
    report: Report


def survey_texts(corpus: LabelledCorpus, rules: Rules = Rules(longest=100_000)) -> TextSurvey:
    """Read the corpus once."""
    report, characters, multiple = Report(corpus.name, what="texts"), 0, False
    labels: Counter[str] = Counter()
    for example in read_examples(corpus, report, rules):
        characters += len(example.text)
        labels.update(example.labels)
        multiple = multiple or len(example.labels) != 1
    if len(labels) < 2 - multiple:
        raise QkvError(
            f"{report}: texts with at least two labels are wanted, and it has {', '.join(labels) or 'none'}: each line is a "
            "label, a space and the text, or name a TSV, CSV or JSONL file or a folder with a folder for each label"
        )
    return TextSurvey(report.kept, characters / report.kept, labels, multiple, report)


def split(
    corpus: Corpus, pairs: int, folder: Path, rules: Rules = Rules()
) -> tuple[tuple[Path, Path], tuple[Path, Path]]:
    """Write the pairs of a corpus into new files in a new folder: (source, target) to train on, and to validate on.

    Which part is held out is decided by a hash of the source, so that no sentence is on both sides.
    """
    wanted = min(_HELD_OUT, pairs // _SHARE)
    if not wanted:
        raise QkvError(
            f"{corpus.name} has {pairs} pairs, too few to hold some out: give sentences to validate on with --valid"
        )
    digests = (_digest(pair) for pair in read_pairs(corpus, Report(corpus.name), rules))
    highest = nsmallest(wanted, digests)[-1]
    if all(_digest(pair) <= highest for pair in read_pairs(corpus, Report(corpus.name), rules)):
        raise QkvError(
            f"{corpus.name} has too few different sentences to hold some out: give sentences to validate on with --valid"
        )
    paths = [folder / f"{part}.{side}.txt" for part in ("train", "valid") for side in ("source", "target")]
    try:
        folder.mkdir(parents=True)
        files = [path.open("x", encoding="utf-8", newline="\n") for path in paths]
    except OSError as error:
        raise QkvError(
            f"{folder} cannot be made for the held-out part ({error.strerror}): name another recipe with --out, or "
            "give sentences to validate on with --valid"
        ) from None
    with ExitStack() as stack:
        train, train_target, valid, valid_target = map(stack.enter_context, files)
        for pair in read_pairs(corpus, Report(corpus.name), rules):
            held = _digest(pair) <= highest
            (valid if held else train).write(pair.source + "\n")
            (valid_target if held else train_target).write(pair.target + "\n")
    return (paths[0], paths[1]), (paths[2], paths[3])


def _digest(pair: Pair) -> bytes:
    return blake2b(pair.source.encode(), digest_size=8).digest()
