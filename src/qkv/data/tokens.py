"""Tokens: the vocabulary, text into ids and back, in one file `tokenizer.json` that the tokenizers library reads.

Ids 0 to 3 are pad, start, end and unk, then come the tags (languages), then the pieces of text. Specials and tags
are entries of the vocabulary that no text can form: their names hold a space, which pieces never do (bytes are spelt
without it, words end at it, characters are single). So there is nothing to escape, and nothing to forge.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from qkv.config import config
from qkv.data.ragged import Ragged
from qkv.errors import QkvError, nearest

PAD, START, END, UNK = range(4)
SPECIALS = ("pad", "start", "end", "unk")

Kind = Literal["bpe", "word", "character", "bytes"]
_CHUNK = 10_000  # lines encoded at a time: enough for every core, little in memory
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]  # what the library calls them in its byte fallback


@config
class TokensConfig:
    """How text becomes tokens."""

    kind: Kind = "bpe"
    """bpe: pieces of words, of any text; word: what spaces separate, unknown ones become unk; character; bytes."""
    size: int = 8000
    """Entries of the vocabulary, at most: a small corpus gives fewer."""
    minimum: int = 2
    """A piece, word or character seen less often than this gets no entry of its own."""
    joint: bool = True
    """One vocabulary for source and target; false makes one for each."""
    lowercase: bool = False
    """Lower-case all text first, and so lose its capitals."""
    split: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of bpe's merged tokens that training takes apart again, others in each epoch: for small corpora."""

    def __post_init__(self) -> None:
        if self.split and self.kind != "bpe":
            raise QkvError(
                f"split is {self.split}, but only bpe merges tokens and kind is {self.kind!r}: set split=0"
            )


class Tokens:
    """A vocabulary: `encode` and `encode_all` text, `decode` ids.

    bpe, character and bytes return every text exactly as it was; word does for known words with single spaces between
    them. With `lowercase`, that is the lower-cased text.
    """

    pad, start, end, unk = PAD, START, END, UNK

    def __init__(self, tokenizer: Tokenizer, kind: Kind):
        self.kind, self._tokenizer = kind, tokenizer
        self.size = tokenizer.get_vocab_size(with_added_tokens=False)
        self.tags = _tags(tokenizer)
        self.notice: str | None = None
        """What training has to say about the size; none once it is loaded from a file."""

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        *,
        kind: Kind = "bpe",
        size: int = 8000,
        minimum: int = 2,
        tags: Sequence[str] = (),
        lowercase: bool = False,
    ) -> "Tokens":
        """The vocabulary of these lines, the same for the same lines; `notice` says when it is smaller than `size`."""
        names = [_name(special) for special in SPECIALS] + [_name(_checked(tag)) for tag in sorted(set(tags))]
        fixed = _fixed_pieces(kind)
        room = size - len(names) - len(fixed)
        if room < 1 and kind != "bytes":
            raise QkvError(
                f"size is {size}; a {kind} vocabulary needs {len(names) + len(fixed) + 1} at least, for {len(SPECIALS)} "
                f"specials, {len(names) - len(SPECIALS)} tags, {len(fixed)} bytes and a piece: set size = 500 or more"
            )
        blank = _blank(kind, lowercase)
        learnt, merges = _LEARN[kind](blank, lines, room, minimum)
        vocabulary = {piece: index for index, piece in enumerate([*names, *fixed, *learnt])}
        blank.model = _model(kind, vocabulary, merges)
        tokens = cls(blank, kind)
        if len(learnt) < room and kind != "bytes":
            tokens.notice = (
                f"the vocabulary has {tokens.size:,} entries, not {size:,}: "
                f"the text has no more pieces that occur at least {minimum} times"
            )
        return tokens

    def encode(self, line: str) -> np.ndarray:
        """The ids of one line, without start or end."""
        return self.encode_all([line])[0]

    def encode_all(self, lines: Iterable[str]) -> Ragged:
        """The ids of each line, on every core."""
        parts = []
        rest = iter(lines)
        while chunk := list(islice(rest, _CHUNK)):
            try:
                distinct = list(dict.fromkeys(chunk))  # a sentence with five translations is encoded once
                encodings = self._tokenizer.encode_batch_fast(distinct, add_special_tokens=False)
            except TypeError:
                raise QkvError(no_text(chunk)) from None
            ids = {line: encoding.ids for line, encoding in zip(distinct, encodings, strict=True)}
            parts.append(Ragged.of([ids[line] for line in chunk]))
        return Ragged.join(parts)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids up to the first end, without specials and tags; unk, where a word is lost, is shown."""
        return self.decode_all([ids])[0]

    def decode_all(self, sequences: Iterable[Iterable[int]]) -> list[str]:
        """The text of each sequence of ids."""
        return self._tokenizer.decode_batch(
            [self._textual(ids) for ids in sequences], skip_special_tokens=False
        )

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What each id stands for, readable: for looking at, not for decoding."""
        return [self._piece(int(index)) for index in ids]

    def entries(self) -> list[str]:
        """Every entry of the vocabulary, spelt as in its file: what other engines know tokens by."""
        return [self._tokenizer.id_to_token(index) or "" for index in range(self.size)]

    def merged(self) -> np.ndarray:
        """The two tokens that each was merged from, merged_L2; -1 for one that was not."""
        merged_L2 = np.full((self.size, 2), -1, dtype=np.int32)
        ids = self._tokenizer.get_vocab(with_added_tokens=False)
        merges = json.loads(self._tokenizer.to_str())["model"].get("merges", ())
        for left, right in reversed(merges):  # of several ways to one token, the first
            merged_L2[ids[left + right]] = ids[left], ids[right]
        return merged_L2

    def words(self, ids: Sequence[int]) -> list[int | None]:
        """The number of the word, counted by spaces, that each id belongs to; None for a space, a special or a tag."""
        numbers: list[int | None] = []
        word, between = -1, True
        for index in map(int, ids):
            piece = self._piece(index)
            if (index != UNK and index < len(SPECIALS) + len(self.tags)) or not piece.strip():
                numbers.append(None)
                between = True
                continue
            if between or piece[0].isspace() or self.kind == "word":
                word += 1
            numbers.append(word)
            between = False
        return numbers

    def tag(self, name: str | None) -> int:
        """The decoder's first token: the tag of a language, or start when there is none."""
        if name is None and not self.tags:
            return START
        if name in self.tags:
            return len(SPECIALS) + self.tags.index(name)
        if not self.tags:
            raise QkvError(f"tag {name!r} is unknown: this vocabulary has no tags, so give none")
        raise QkvError(
            f"the language is {name!r}; this vocabulary has tags {', '.join(self.tags)}: choose one{nearest(name or '', self.tags)}"
        )

    def save(self, path: Path) -> None:
        """Write `tokenizer.json`; the same vocabulary gives the same bytes."""
        path.write_text(self._tokenizer.to_str(pretty=True), "utf-8", newline="\n")

    @classmethod
    def load(cls, path: Path) -> "Tokens":
        """The vocabulary in a file that `save` wrote; any other is refused."""
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise QkvError(
                f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}"
            ) from None
        try:
            tokenizer = Tokenizer.from_str(text)
        except Exception:  # noqa: BLE001 - the library raises nothing narrower
            tokenizer = None
        kind = tokenizer and _recognised(tokenizer)
        if tokenizer is None or kind is None:
            raise QkvError(f"{path} is not a vocabulary of qkv: give a tokenizer.json that Tokens.save wrote")
        return cls(tokenizer, kind)

    def _textual(self, ids: Iterable[int]) -> list[int]:
        kept: list[int] = []
        for index in map(int, ids):
            if index == END:
                break
            if not 0 <= index < self.size:
                raise QkvError(
                    f"id {index} is not in this vocabulary of {self.size}: decode with the one that encoded"
                )
            if index == UNK or index >= len(SPECIALS) + len(self.tags):
                kept.append(index)
        return kept

    def _piece(self, index: int) -> str:
        piece = self._tokenizer.id_to_token(index) or ""
        if index < len(SPECIALS) + len(self.tags) or self.kind in ("word", "character"):
            return piece.replace(" ", "")
        return decoders.ByteLevel().decode([piece])


def _name(special: str) -> str:
    """A vocabulary entry that no text can form."""
    return f"⟨ {special} ⟩"


def _checked(tag: str) -> str:
    if tag in SPECIALS or not re.fullmatch(r"[\w-]+", tag):
        raise QkvError(
            f"tag is {tag!r}: use letters, digits, - and _, and none of {', '.join(SPECIALS)}, e.g. de"
        )
    return tag


def _tags(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The tags, recognised by the form of their entries, which no piece has."""
    tags = []
    for index in range(len(SPECIALS), tokenizer.get_vocab_size(with_added_tokens=False)):
        named = re.fullmatch(r"⟨ (.+) ⟩", tokenizer.id_to_token(index) or "")
        if not named:
            break
        tags.append(named[1])
    return tuple(tags)


def _fixed_pieces(kind: Kind) -> list[str]:
    """The pieces that are there whatever the text."""
    if kind == "character":
        return _BYTES
    return [] if kind == "word" else sorted(pre_tokenizers.ByteLevel.alphabet())


def _blank(kind: Kind, lowercase: bool) -> Tokenizer:
    """The way text is cut and put together again; what the cuts are called comes with the vocabulary."""
    tokenizer = Tokenizer(_model(kind, {}, []))
    steps: list[Any] = [normalizers.Lowercase()] if lowercase else []
    match kind:
        case "bpe":
            # A word at the start of a line gets the space that it has elsewhere, and so the same token. It is put
            # there always, also before a space, so that taking away exactly one gives the line back.
            steps.append(normalizers.Prepend(" "))
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        case "bytes":
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            tokenizer.decoder = decoders.ByteLevel()
        case "character":
            tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        case "word":
            tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _model(kind: Kind, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    if kind == "word":
        return models.WordLevel(vocabulary, unk_token=_name("unk"))
    return models.BPE(vocabulary, merges, byte_fallback=kind == "character")


_Learnt = tuple[list[str], list[tuple[str, str]]]


def _learn_bpe(blank: Tokenizer, lines: Iterable[str], room: int, minimum: int) -> _Learnt:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + room, min_frequency=minimum, initial_alphabet=alphabet, show_progress=False
    )
    blank.train_from_iterator(lines, trainer)
    learnt = json.loads(blank.to_str())["model"]
    pieces = sorted(learnt["vocab"], key=learnt["vocab"].get)
    return pieces[len(alphabet) :], [(left, right) for left, right in learnt["merges"]]


def _learn_words(blank: Tokenizer, lines: Iterable[str], room: int, minimum: int) -> _Learnt:
    trainer = trainers.WordLevelTrainer(vocab_size=room, min_frequency=minimum, show_progress=False)
    blank.train_from_iterator(lines, trainer)
    vocabulary = blank.get_vocab(with_added_tokens=False)
    return sorted(vocabulary, key=lambda word: vocabulary[word]), []


def _learn_characters(blank: Tokenizer, lines: Iterable[str], room: int, minimum: int) -> _Learnt:
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(blank.normalizer.normalize_str(line) if blank.normalizer else line)
    often = [character for character, count in counts.items() if count >= minimum]
    return sorted(often, key=lambda character: (-counts[character], character))[:room], []


def _learn_nothing(blank: Tokenizer, lines: Iterable[str], room: int, minimum: int) -> _Learnt:
    return [], []


_LEARN: dict[Kind, Callable[[Tokenizer, Iterable[str], int, int], _Learnt]] = {
    "bpe": _learn_bpe,
    "word": _learn_words,
    "character": _learn_characters,
    "bytes": _learn_nothing,
}


def _recognised(tokenizer: Tokenizer) -> Kind | None:
    """The kind whose way of cutting this is, if its specials are ours."""
    if [tokenizer.id_to_token(index) for index in range(len(SPECIALS))] != [_name(name) for name in SPECIALS]:
        return None
    blanks = ((kind, _blank(kind, lowercase)) for kind in get_args(Kind) for lowercase in (False, True))
    return next((kind for kind, blank in blanks if _way(blank) == _way(tokenizer)), None)


def _way(tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything in the file but the vocabulary."""
    content = json.loads(tokenizer.to_str())
    return content | {"model": content["model"] | {"vocab": None, "merges": None}}


def no_text(lines: Sequence[object]) -> str:
    """The sentence about the first of these that is no text."""
    for line in lines:
        if not isinstance(line, str):
            return f"{line!r:.40} is of type {type(line).__name__}: give lines of text"
        try:
            line.encode()
        except UnicodeEncodeError:
            return f"{line!r:.40} has half a surrogate pair, which is no text: decode its bytes as UTF-8"
    return "the lines are not text: give strings"
