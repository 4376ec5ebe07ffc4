"""A tour of attention: one function, many uses, and a look at what each one looks at.

    make tour        (or: python examples/tour.py)

Everything below is `attend`: what differs is where queries, keys and values come from.
"""

import math
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
from num2words import num2words
from torch import Tensor, nn
from torch.nn import functional as F

from qkv import Attend, attend, masks, watch, weights
from qkv.attention.heads import AttentionConfig
from qkv.attention.positions import Learned
from qkv.attention.scores import Cosine, General
from qkv.blocks.feedforward import FeedForwardConfig
from qkv.blocks.layer import Layer, LayerConfig
from qkv.blocks.pool import AttentionPool
from qkv.look.maps import Map, draw_text, save_picture

PICTURE = Path("tour.png")
WIDTH = 64
START, END = "<", ">"


def main() -> None:
    start = time.perf_counter()
    torch.manual_seed(0)
    panels = [self_attention()]
    averages_to_hard()
    numbers = Numbers()
    panels.append(attention_pooling(numbers))
    panels.append(
        translation(
            "4. Cross-attention: a Transformer decoder reads English, writes German",
            numbers,
            Decoder(numbers),
        )
    )
    panels.append(
        translation("5. Luong attention: a recurrent decoder does the same", numbers, LuongDecoder(numbers))
    )
    print(f"\nAll four maps as a picture: {save_picture(PICTURE, panels)}")
    print(
        f"The whole tour took {time.perf_counter() - start:.0f} s. Next: read src/qkv/attention/attend.py, the equation."
    )


def self_attention() -> Map:
    """Words of one sentence look for words that are spelt like them."""
    title("1. Self-attention: queries, keys and values are the same words")
    words = ["her", "favourite", "color", "and", "his", "favorite", "colour"]
    x_TK = torch.stack([spelling(word) for word in words])
    other = ~masks.window(0)  # every word but itself
    map = Map("self: spelling", weights(x_TK, x_TK, score=Cosine(), beta=10, allow=other), words, words)
    print("Keys are counts of letter pairs; no word may look at itself.\n")
    print(draw_text(map))
    return map


def averages_to_hard() -> None:
    """One query, five keys: β turns the plain average into a hard choice."""
    title("2. The scale β: from the plain average (0) to hard attention (inf)")
    words = ["color", "colossal", "collar", "flour", "tree"]
    query, keys = spelling("colour")[None], torch.stack([spelling(word) for word in words])
    lengths = torch.tensor([[float(len(word))] for word in words])
    print("Who is most like 'colour'? The value of each key is its length.\n")
    print("    β  " + "".join(f"{word:>10}" for word in words) + "    attend")
    for beta in (0, 2, 5, 20, math.inf):
        row = weights(query, keys, score=Cosine(), beta=beta)[0]
        looked_up = attend(query, keys, lengths, score=Cosine(), beta=beta).item()
        print(
            f"{beta:5}  " + "".join(f"{100 * weight:9.0f}%" for weight in row.tolist()) + f"{looked_up:10.2f}"
        )


class Numbers:
    """The numbers 1 to 99 in English words and German letters, by num2words; every seventh is never trained on."""

    def __init__(self) -> None:
        self.sources = [["<s>", *num2words(n).replace("-", " ").split()] for n in range(1, 100)]
        self.targets = [START + num2words(n, lang="de") + END for n in range(1, 100)]
        self.words = sorted({word for words in self.sources for word in words})
        self.letters = sorted({letter for text in self.targets for letter in text})
        self.held_out = torch.arange(1, 100) % 7 == 0

    def source(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """Word ids and which of them are real."""
        longest = max(len(words) for words in self.sources)
        ids = torch.tensor(
            [
                [self.words.index(w) for w in self.sources[r]] + [0] * (longest - len(self.sources[r]))
                for r in rows
            ]
        )
        lengths = torch.tensor([len(self.sources[r]) for r in rows])
        return ids, torch.arange(longest) < lengths[:, None]

    def target(self, rows: list[int]) -> Tensor:
        """Letter ids; what follows the end is padding with ends."""
        longest = max(len(text) for text in self.targets)
        return torch.tensor(
            [[self.letters.index(c) for c in self.targets[r].ljust(longest, END)] for r in rows]
        )


def attention_pooling(numbers: Numbers) -> Map:
    """A learned probe learns where the answer stands."""
    title("3. Attention pooling (MAP): one learned query asks 'is the number odd?'")
    embed, pool, head = (
        nn.Embedding(len(numbers.words), WIDTH),
        AttentionPool(AttentionConfig(width=WIDTH, heads=1)),
        nn.Linear(WIDTH, 1),
    )
    ids, keep = numbers.source(list(range(99)))
    odd = (torch.arange(1, 100) % 2).float()
    train = ~numbers.held_out
    model = nn.ModuleList([embed, pool, head])
    for _ in fitting(model, steps=60):
        F.binary_cross_entropy_with_logits(
            head(pool(embed(ids[train]), keep[train]))[:, 0], odd[train]
        ).backward()
    with torch.no_grad(), watch(model) as seen:
        right = (head(pool(embed(ids), keep))[:, 0] > 0) == odd.bool()
    print(
        f"Right on {int(right[numbers.held_out].sum())} of {int(numbers.held_out.sum())} numbers it never saw. Where the probe looks:\n"
    )
    chosen = [6, 27, 48, 76]  # 7, 28, 49, 77: all held out
    map = Map(
        "MAP: is it odd?",
        seen["1.attention"][chosen, 0, 0],
        [str(r + 1) for r in chosen],
        ["start", "first word", "second word"],
    )
    print(draw_text(map))
    return map


class Decoder(nn.Module):
    """A Transformer decoder layer; keys and values of `cross` come from the English words."""

    def __init__(self, numbers: Numbers):
        super().__init__()
        self.words, self.letters = (
            nn.Embedding(len(numbers.words), WIDTH),
            nn.Embedding(len(numbers.letters), WIDTH),
        )
        self.places, self.order = Learned(length=32, width=WIDTH), Learned(length=8, width=WIDTH)
        attention = AttentionConfig(width=WIDTH, heads=1)
        self.layer = Layer(
            LayerConfig(
                attention=attention, feedforward=FeedForwardConfig(width=WIDTH, hidden=128), cross=True
            )
        )
        self.out = nn.Linear(WIDTH, len(numbers.letters))
        self.path = "layer.cross"

    def forward(self, source_BS: Tensor, keep_BS: Tensor, target_BT: Tensor) -> Tensor:
        """Return the logits of each next letter."""
        memory_BSD = self.order.embed(self.words(source_BS))
        x_BTD = self.places.embed(self.letters(target_BT))
        return self.out(
            self.layer(x_BTD, memory_BSD, allow=masks.causal(), cross_allow=masks.padding(keep_BS))
        )


class LuongDecoder(nn.Module):
    """Luong et al. 2015: one head, score `general`, queries from one recurrent network and keys from another."""

    def __init__(self, numbers: Numbers):
        super().__init__()
        self.words, self.letters = (
            nn.Embedding(len(numbers.words), WIDTH),
            nn.Embedding(len(numbers.letters), WIDTH),
        )
        self.encoder = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.attend = Attend(score=General(WIDTH), beta=1.0)
        self.combine, self.out = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, len(numbers.letters))
        self.path = "attend"

    def forward(self, source_BS: Tensor, keep_BS: Tensor, target_BT: Tensor) -> Tensor:
        """Return the logits of each next letter."""
        keys_B1SD = self.encoder(self.words(source_BS))[0].unsqueeze(1)
        states_BTD = self.decoder(self.letters(target_BT))[0]
        context_B1TD = self.attend(
            states_BTD.unsqueeze(1), keys_B1SD, keys_B1SD, allow=masks.padding(keep_BS)
        )
        return self.out(torch.tanh(self.combine(torch.cat([context_B1TD.squeeze(1), states_BTD], -1))))


def translation(name: str, numbers: Numbers, model: Decoder | LuongDecoder) -> Map:
    """Train on six numbers of seven, write the seventh, and show where each letter looked."""
    title(name)
    train = [r for r in range(99) if not numbers.held_out[r]]
    (ids, keep), target = numbers.source(train), numbers.target(train)
    for _ in fitting(model, steps=200):
        logits = model(ids, keep, target[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten()).backward()
    held_out = [r for r in range(99) if numbers.held_out[r]]
    written = write(numbers, model, held_out)
    right = sum(text == numbers.targets[r] for text, r in zip(written, held_out, strict=True))
    print(
        f"Right on {right} of {len(held_out)} numbers it never saw, such as {written[3][1:-1]}. Writing 28:\n"
    )
    row = 27
    ids, keep = numbers.source([row])
    text = write(numbers, model, [row])[0]
    target = torch.tensor([[numbers.letters.index(letter) for letter in text]])
    with torch.no_grad(), watch(model, model.path) as seen:
        model(ids, keep, target[:, :-1])
    map = Map(name.split(":")[0][3:], seen[model.path][0, 0], text[1:], numbers.sources[row])
    print(draw_text(map))
    return map


@torch.no_grad()
def write(numbers: Numbers, model: nn.Module, rows: list[int]) -> list[str]:
    """Greedy: the likeliest letter again and again."""
    ids, keep = numbers.source(rows)
    target = torch.full((len(rows), 1), numbers.letters.index(START))
    for _ in range(max(map(len, numbers.targets))):
        target = torch.cat([target, model(ids, keep, target)[:, -1:].argmax(-1)], dim=1)
    texts = ["".join(numbers.letters[i] for i in row) for row in target.tolist()]
    return [text.split(END)[0] + END for text in texts]


def fitting(model: nn.Module, steps: int) -> Iterator[int]:
    """Steps of AdamW around a loop body that computes gradients, with progress on a terminal."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(steps):
        yield step
        optimiser.step()
        optimiser.zero_grad()
        if sys.stderr.isatty():
            print(
                f"\rtraining {step + 1}/{steps} ",
                end="" if step + 1 < steps else "\r" + 30 * " " + "\r",
                file=sys.stderr,
            )


def spelling(word: str) -> Tensor:
    """Counts of the word's letter pairs, its ends included."""
    counts, padded = torch.zeros(27, 27), f"{{{word}{{"
    for one, two in pairwise(padded):
        counts[(ord(one) - 97) % 27, (ord(two) - 97) % 27] += 1
    return counts.flatten()


def title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}")


if __name__ == "__main__":
    main()
