"""Language modelling: plain text to windows, their loss, perplexity and bits per character, and a writer.

Axes: B windows, T tokens of each, N positions of a batch, D width, L vocabulary.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from qkv.blocks.crossentropy import cross_entropy
from qkv.config import config
from qkv.data.lines import STDIN
from qkv.data.prose import Documents, Prose, Texts, read_texts
from qkv.data.tokens import Tokens, TokensConfig
from qkv.data.windows import WindowBatch, Windows, WindowsConfig
from qkv.decode.writer import Writer, WritingConfig
from qkv.errors import QkvError
from qkv.models import lm
from qkv.models.interface import Generator, no_source
from qkv.models.lm import LanguageModel, LanguageModelConfig
from qkv.recipe.config import from_tree
from qkv.recipe.training import TrainConfig
from qkv.store.bundle import TOKENIZERS, Bundle, Savable
from qkv.tasks.task import Epoch, Kind, Scores, Task

Share = Annotated[float, Field(ge=0, lt=1)]


@config
class ProseConfig:
    """What to learn from, and what to validate on."""

    train: tuple[str, ...]
    """Files of text; `-` is stdin, and gzip is recognised by its content."""
    valid: tuple[str, ...] = ()
    """Files to validate on."""
    held_out: Share = 0.0
    """Where there are none: the last share of each file's characters, which is then not trained on."""
    documents: Documents = "none"
    """none: all files are one running text. Else each document begins anew, and the model learns where it ends: each
    file, each line, or each paragraph, which blank lines separate."""

    def __post_init__(self) -> None:
        if self.valid and self.held_out:
            raise QkvError(
                f"data.valid names files, and data.held_out is {self.held_out}: validate on one of the two"
            )


@config
class LanguageConfig:
    """A recipe: everything that decides a language model and its training."""

    task: Literal["language"] = "language"
    """What is trained."""
    data: ProseConfig
    """What to learn from."""
    tokens: TokensConfig = TokensConfig()
    """How text becomes ids."""
    windows: WindowsConfig = WindowsConfig()
    """How text becomes batches, and how it is read in evaluation."""
    model: LanguageModelConfig = LanguageModelConfig()
    """The model, a preset and changes to it."""
    writing: WritingConfig = WritingConfig()
    """How texts go on."""
    train: TrainConfig = TrainConfig()
    """How to train."""

    def __post_init__(self) -> None:
        if not self.tokens.joint:
            raise QkvError("tokens.joint is false, but a language model has one vocabulary: leave it out")
        if self.windows.stride and self.windows.stride > self.model.length:
            raise QkvError(
                f"windows.stride is {self.windows.stride}, but a window has {self.model.length} tokens (model.length): "
                "lower it, or some tokens would not count"
            )


class Language(Task[WindowBatch]):
    """Training a language model."""

    def __init__(self, config: LanguageConfig, start: Bundle | None = None):
        c = config
        if not c.data.train:  # as in the recipe of a model that was trained elsewhere
            raise QkvError("data.train is empty: name at least one file of text")
        text = read_texts(c.data.train)
        valid: Texts | None = None
        if c.data.valid:
            valid = read_texts(c.data.valid)
        elif c.data.held_out:
            text, valid = text.split(c.data.held_out)
        tokens = _vocabulary(text, c.tokens, start)
        self.config = c = replace(c, model=replace(c.model, vocabulary=tokens.size))
        self.prose = Prose(tokens, c.data.documents)
        self.windows = Windows(
            self.prose.stream(text.texts), c.model.length, c.windows.budget, seed=c.train.seed
        )
        self.valid = None if valid is None else self.prose.stream(valid.texts)
        if self.valid is not None and len(self.valid) < 2:
            raise QkvError(
                f"there is nothing to validate on: data.held_out = {c.data.held_out} of {text.characters:,} characters "
                "is too little, so raise it, or name files in data.valid"
            )
        self.valid_characters = valid.characters if valid else 0
        held = f"the last {self.valid_characters:,} characters are held out" if c.data.held_out else None
        self.reports = [*text.notices, *(valid.notices if valid else ()), *([held] if held else [])]
        self.notices = [*self.reports, *([tokens.notice] if tokens.notice else [])]
        torch.manual_seed(c.train.seed)
        self._model = LanguageModel(c.model)
        if start:
            self._model.load_state_dict(start.tensors)

    @property
    def model(self) -> Generator:
        return self._model

    def epoch(self, number: int) -> Epoch[WindowBatch]:
        return self.windows.epoch(number)

    def targets(self, batch: WindowBatch) -> int:
        return batch.label_BT.numel()

    def loss(self, batch: WindowBatch) -> Tensor:
        x_BTD = self.model(*no_source(len(batch.starts)), batch.tokens_BT)
        return cross_entropy(x_BTD.flatten(0, 1), self.model.output_table, batch.label_BT.flatten())

    def validate(self) -> Scores | None:
        if self.valid is None:
            return None
        length, stride = self.config.model.length, self.config.windows.stride or self.config.model.length
        writer = Writer(self.model, self.prose, length, stride)
        found = writer.surprise_of(self.valid, self.valid_characters)
        values = {"loss": found.loss, "perplexity": found.perplexity, "bits": found.bits}
        signatures = {
            "loss": f"nats a token, {found.tokens:,} tokens in windows of {length} every {stride}",
            "bits": f"a character, {found.characters:,} characters",
        }
        return Scores(values, "loss", more_is_better=False, signatures=signatures)

    def describe(self, batch: WindowBatch, rows: Sequence[int] = ()) -> str:
        starts = batch.starts[list(rows)] if rows else batch.starts
        spans = ", ".join(f"{start:,} to {start + self.windows.length:,}" for start in starts[:3].tolist())
        return f"tokens {spans} of the training text"

    def digest(self) -> str:
        return hashlib.sha256(self.windows.stream.tobytes()).hexdigest()

    def look(self, batch: WindowBatch) -> Sequence[str]:
        rows, length = batch.tokens_BT.shape
        found = [f"{rows} windows of {length} tokens, {self.targets(batch):,} targets"]
        for row in range(min(rows, 2)):
            pieces = self.prose.tokens.pieces(batch.tokens_BT[row].tolist())
            found.append("·".join(pieces) + f"  (from token {batch.starts[row]:,} on)")
        return found

    def vocabulary(self) -> Mapping[str, int]:
        return {"text": self.prose.tokens.size}

    def tokenizers(self) -> Mapping[str, Savable]:
        return {TOKENIZERS[0]: self.prose.tokens}

    def card(self, facts: Mapping[str, str]) -> str:
        data = "\n".join(f"- {report}" for report in self.reports)
        kept = "\n".join(f"- {name}: {value}" for name, value in facts.items())
        return (
            "# A language model\n\nTrained by qkv. `qkv generate DIR PROMPT` goes on with a text, `qkv info DIR` describes "
            "the model, and in Python there are `qkv.load(DIR).generate(prompt)` and `.perplexity(text)`.\n\n"
            f"## Data\n\n{data}\n\n## Training\n\n{kept}\n"
        )


def _vocabulary(text: Texts, config: TokensConfig, start: Bundle | None) -> Tokens:
    """That of the model to start from, or a new one of the training text."""
    if start:
        return Tokens.load(start.tokenizers[TOKENIZERS[0]])
    lines = (line for whole in text.texts for line in whole.split("\n"))
    return Tokens.train(
        lines, kind=config.kind, size=config.size, minimum=config.minimum, lowercase=config.lowercase
    )


def load(bundle: Bundle) -> Writer:
    """The writer of a finished model."""
    c = from_tree(LanguageConfig, bundle.recipe, str(bundle.path))
    model = LanguageModel(c.model)
    model.load_state_dict(bundle.tensors)
    prose = Prose(Tokens.load(bundle.tokenizers[TOKENIZERS[0]]), c.data.documents)
    return Writer(model, prose, c.model.length, c.windows.stride, c.writing)


KIND = Kind(
    config=LanguageConfig,
    presets={"lm": lm.PRESETS},
    files=lambda config: [path for path in (*config.data.train, *config.data.valid) if path != STDIN],
    build=Language,
    load=load,
)
