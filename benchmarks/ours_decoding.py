"""qkv's side of the decoding benchmark: a worker, and what it writes for the others to translate with the same weights."""

import json
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from worker import Line

from qkv.cli.options import read_translator
from qkv.data.lines import read_lines
from qkv.data.tokens import END
from qkv.decode.translator import Translator
from qkv.models.transformer import Transformer
from qkv.store import ctranslate2


def write(translator: Translator, lines: list[str], folder: Path) -> None:
    """Weights, sizes, the sentences as ids, and the model in CTranslate2's form."""
    model = translator.model
    assert isinstance(model, Transformer)
    names = ("width", "hidden", "heads", "encoder_layers", "decoder_layers", "dropout")
    sizes = {name: getattr(model.config, name) for name in names}
    sizes |= {"vocabulary": model.config.target_vocabulary, "length": 1024, "smoothing": 0.1}
    (folder / "sizes.json").write_text(json.dumps(sizes))
    torch.save(model.state_dict(), folder / "weights.pt")
    ids = [[*found.tolist(), END] for found in map(translator.source.encode, lines)]
    (folder / "sentences.json").write_text(json.dumps(ids))
    ctranslate2.export(model, translator.source, translator.target, folder / "ctranslate2")
    (folder / "ctranslate2" / "entries.json").write_text(json.dumps(translator.source.entries()))


def main() -> None:
    """The worker of benchmarks/decode.py: text in, text out, as `qkv translate` does it."""
    line = Line()
    specification = line.specification
    _, translator = read_translator(Path(specification["run"]))
    lines = [text for text in islice(read_lines(specification["file"]), 1000) if text.strip()]
    write(translator, lines, Path(specification["folder"]))
    line.say(version="qkv", sentences=len(lines))
    while True:
        request = line.asked()
        config = replace(translator.config, beam=request["beam"], n_best=1, coverage=0.0)
        given = lines[: request["count"]]
        start, found, seconds = time.perf_counter(), [], []
        for part in ([one] for one in given) if request["alone"] else [given]:
            begin = time.perf_counter()
            found += [done.best[0][0].tokens for done in translator.stream(part, config=config)]
            seconds.append(time.perf_counter() - begin)
        took = time.perf_counter() - start
        line.say(seconds=took, each=seconds if request["alone"] else [], tokens=found)


if __name__ == "__main__":
    main()
