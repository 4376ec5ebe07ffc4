"""The recipes to begin with on a corpus of some size: what is reasonable, and what to change first."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import tomli_w

from qkv.errors import choose

_CHARACTERS = 4.0  # of a token, on average: enough to plan with


@dataclass(frozen=True)
class Plan:
    """What suits a corpus."""

    preset: str
    vocabulary: int
    budget: int
    epochs: int
    warmup: int
    dropout: float


# For each preset: the fewest pairs that it is worth its time for, updates that it takes, and dropout.
_PRESETS = {
    "tiny": (0, 5_000, 0.3),
    "small": (150_000, 30_000, 0.2),
    "base": (2_000_000, 100_000, 0.1),
    "big": (math.inf, 300_000, 0.3),  # only when it is asked for
}
_VOCABULARIES = ((5_000, 1_000), (15_000, 4_000), (150_000, 8_000), (2_000_000, 16_000))


def plan(pairs: int, characters: float, preset: str | None = None) -> Plan:
    """What suits so many pairs of so many characters on their longer side."""
    fitting = [name for name, (least, _, _) in _PRESETS.items() if pairs >= least]
    name = preset or fitting[-1]
    _, updates, dropout = choose("preset", name, _PRESETS)
    vocabulary = next((size for most, size in _VOCABULARIES if pairs < most), 32_000)
    tokens = pairs * (characters / _CHARACTERS + 1)
    budget = 4096 if tokens < 1e7 else 8192
    while budget > 1024 and tokens / budget < 50:  # few sentences still make some steps an epoch
        budget //= 2
    an_epoch = max(1.0, tokens / budget)
    epochs = round(min(100, max(3, updates / an_epoch)))
    warmup = round(min(4000, max(10, epochs * an_epoch / 8)))
    return Plan(name, vocabulary, budget, epochs, warmup, dropout)


def starter(chosen: Plan, about: str, command: str, train: tuple[str, str], valid: tuple[str, str]) -> str:
    """A recipe in TOML with its remarks; `about` says what it was made from, `command` what to type."""
    return f"""\
# A recipe for translation, made by `qkv init` from {about}.
# Train:      {command}
# Look first: {command} --dry-run
# Everything that can be said here, with its meaning: qkv schema
# Paths are as seen from the directory in which `qkv train` runs.

task = "translate"
smoothing = 0.1             # label smoothing

[data]
# Several corpora can stand in the list, each with a weight; and for several languages, each with a tag = "de".
train = [{{ {_pair(train)} }}]
valid = [{{ {_pair(valid)} }}]

[tokens]
kind = "bpe"                # or word, character, bytes
size = {chosen.vocabulary:<20} # entries at most
joint = true                # one vocabulary for both languages; false where they share neither letters nor words

[batches]
budget = {chosen.budget:<18} # positions of a batch on each side: lower it if memory is short
longest = 256               # tokens; pairs with a longer sentence are left out, and counted

[model]
kind = "transformer"        # or luong, an RNN with attention
preset = "{chosen.preset}"{"":<{16 - len(chosen.preset)}} # tiny, small, base, big
dropout = {chosen.dropout:<17} # more for less data

[metrics]
tokenize = "13a"            # sacreBLEU's tokenizer: none if the text is tokenized already, zh, ja-mecab, char, …
lowercase = false
best_by = "bleu"            # or chrf (better for rich word forms), exact, loss

[search]
beam = 5

[train]
epochs = {chosen.epochs:<18} # the run ends with the first of epochs, steps and minutes
# minutes = 60
# patience = 8              # validations without a better score before it ends early
precision = "bf16"          # "fp32" where the processor has no fast bf16
average = {{ kind = "last", count = 3 }}  # the mean of the last epochs' weights is what is kept

[train.optimizer]
kind = "muon"               # or adamw, with a rate of about 1e-3
rate = 3e-3                 # lower both rates if the loss jumps
muon_rate = 0.02

[train.schedule]
kind = "linear"             # down to zero at the end of the run: a shorter run also ends well
warmup = {chosen.warmup:<18} # steps until the full rate
"""


# For each preset of an encoder: the fewest texts that it is worth its time for, and the passes over them.
_ENCODERS = {"tiny": (0, 12), "mini": (50_000, 8), "small": (500_000, 4), "base": (math.inf, 3)}


def text_starter(
    corpus: Mapping[str, object], texts: int, multiple: bool, preset: str | None, about: str, command: str
) -> tuple[str, str]:
    """A recipe for classifying texts, and the preset that suits so many of them."""
    fitting = [name for name, (least, _) in _ENCODERS.items() if texts >= least]
    name = preset or fitting[-1]
    _, epochs = choose("preset", name, _ENCODERS)
    warmup = min(1000, max(10, texts // 100))
    recipe = f"""\
# A recipe for classifying texts, made by `qkv init` from {about}.
# Train:      {command}
# Look first: {command} --dry-run
# Everything that can be said here, with its meaning: qkv schema classify_text
# Paths are as seen from the directory in which `qkv train` runs.

task = "classify_text"
multiple = {str(multiple).lower():<16} # whether a text may have several labels, or none
class_weights = "equal"     # balanced, where rare labels matter as much as common ones
token_dropout = 0.15        # share of tokens that are hidden in training: more for less data

[data]
train = [{{ {_table(corpus)} }}]
hold_out = 0.1              # validated on; or leave it out and name files: valid = [{{ source = "valid.tsv" }}]
# names = {{ "0" = "negative", "1" = "positive" }}  # what labels are called

[tokens]
kind = "bpe"                # or word, character, bytes
size = {8000 if texts >= 5000 else 2000:<20} # entries at most

[batches]
budget = {2048 if texts >= 20_000 else 1024:<18} # positions of a batch: lower it if memory is short
longest = 256               # tokens; longer texts lose their ends, and are counted

[model]
kind = "bert"               # or textcnn, a convolutional network
preset = "{name}"{"":<{16 - len(name)}} # tiny, mini, small, minilm, base
pool = "average"            # or max, class (the first token), attention
pooler = false
dropout = 0.3               # more for less data

[metrics]
best_by = "accuracy"        # or macro_f1, where labels are rare; loss

[train]
epochs = {epochs:<18} # the run ends with the first of epochs, steps and minutes
# patience = 4              # validations without a better score before it ends early

[train.optimizer]
rate = 5e-4                 # lower it if the loss jumps

[train.schedule]
kind = "linear"             # down to zero at the end of the run
warmup = {warmup:<18} # steps until the full rate
"""
    return recipe, name


def _table(values: Mapping[str, object]) -> str:
    """Keys and values as TOML on one line."""
    return ", ".join(
        tomli_w.dumps({key: value}, multiline_strings=False).strip() for key, value in values.items()
    )


def _pair(files: tuple[str, str]) -> str:
    """Two paths as TOML."""
    return _table(dict(zip(("source", "target"), files, strict=True)))
