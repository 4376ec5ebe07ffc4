"""Does a sentence get the same translation alone as among others, and in bf16 as in fp32?

    python benchmarks/agreement.py runs/en-de ../shared/data/multi30k/val.en.gz --lines 300

Every line is translated in batches and alone. Where the tokens differ in fp32, the two must score within 1e-4 of one
another: a tie, which the order of a sum decides. For bf16 the rate of equal translations is reported.
"""

import argparse
import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

import qkv
from qkv.data.lines import read_lines
from qkv.decode.config import SearchConfig
from qkv.decode.translator import Translation, Translator

TIE = 1e-4


@dataclass(frozen=True)
class Agreement:
    """How two ways of translating the same lines compare."""

    lines: int
    same: int
    apart: float
    """The largest difference of scores among the lines whose tokens differ."""

    @classmethod
    def of(cls, one: Sequence[Translation], other: Sequence[Translation]) -> "Agreement":
        differing = [abs(a.score - b.score) for a, b in zip(one, other, strict=True) if a.tokens != b.tokens]
        return cls(len(one), len(one) - len(differing), max(differing, default=0.0))

    def __str__(self) -> str:
        rest = f", the others' scores up to {self.apart:.1e} apart" if self.same < self.lines else ""
        return f"{self.same} of {self.lines} the same ({100 * self.same / self.lines:.1f} %){rest}"


def together(translator: Translator, lines: Sequence[str], config: SearchConfig) -> list[Translation]:
    return [best[0] for best in translator.search(lines, (_language(translator),), config)[0]]


def alone(translator: Translator, lines: Sequence[str], config: SearchConfig) -> list[Translation]:
    return [together(translator, [line], config)[0] for line in lines]


def in_bf16(translator: Translator) -> Translator:
    model = copy.deepcopy(translator.model).bfloat16()
    return Translator(model, translator.source, translator.target, translator.config, translator.longest)


def _language(translator: Translator) -> str | None:
    return translator.languages[0] if translator.languages else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("file", help="lines to translate, also gzip")
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--beam", type=int, default=5)
    options = parser.parse_args()
    translator: Translator = qkv.load(options.run)
    lines = [line for line in islice(read_lines(options.file), options.lines) if line.strip()]
    config = SearchConfig(beam=options.beam)
    fp32, bf16 = together(translator, lines, config), together(in_bf16(translator), lines, config)
    found = Agreement.of(alone(translator, lines, config), fp32)
    print(f"fp32, alone and in batches:    {found}")
    print(f"bf16, alone and in batches:    {Agreement.of(alone(in_bf16(translator), lines, config), bf16)}")
    print(f"bf16 and fp32, in batches:     {Agreement.of(bf16, fp32)}")
    if found.apart > TIE:
        sys.exit(f"fp32 differs by more than a tie of {TIE}")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
