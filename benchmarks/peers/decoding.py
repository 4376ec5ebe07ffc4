"""A library that translates with qkv's own weights: a worker of benchmarks/decode.py.

Run in the library's own environment with a specification: the library, its mode, the folder of what qkv wrote (weights,
sizes, the model for CTranslate2) and the sentences as ids. A mode is a precision and a number of sentences to a batch.
"""

import importlib
import json
import time
from pathlib import Path

from worker import Line, keep_memory

END = 2


def without_end(tokens):
    return tokens[: tokens.index(END)] if END in tokens else tokens


def main():
    line = Line()
    keep_memory()
    folder, mode = Path(line.specification["folder"]), line.specification["mode"]
    precision, batch = mode.rsplit(", ", 1)
    library = importlib.import_module(f"libraries.{line.specification['library']}")
    sizes = json.loads((folder / "sizes.json").read_text())
    if line.specification["library"] == "ctranslate2":
        decoder = library.Decoder(folder / "ctranslate2", precision)
    else:
        import torch

        if "medium" in precision:
            torch.set_float32_matmul_precision("medium")
        decoder = library.Decoder(torch.load(folder / "weights.pt", weights_only=True), sizes, precision)
    sentences = json.loads((folder / "sentences.json").read_text())
    line.say(version=library.VERSION)
    while True:
        request = line.asked()
        given = sentences[: request["count"]]
        start = time.perf_counter()
        if request["alone"]:
            found, seconds = [], []
            for sentence in given:
                begin = time.perf_counter()
                found += decoder.translate([sentence], request["beam"], 1)
                seconds.append(time.perf_counter() - begin)
        else:
            found, seconds = decoder.translate(given, request["beam"], int(batch)), []
        took = time.perf_counter() - start
        line.say(seconds=took, each=seconds, tokens=[without_end(tokens) for tokens in found])


if __name__ == "__main__":
    main()
