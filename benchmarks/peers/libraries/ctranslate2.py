"""CTranslate2 with the model that qkv exports; its precision says how many workers of how many threads, too."""

import json

import ctranslate2

VERSION = f"CTranslate2 {ctranslate2.__version__}"


class Decoder:
    """Precision is such as `int8 2×1`: 8 bits, two workers of one thread."""

    def __init__(self, folder, precision):
        kind, threads = precision.split()
        workers, each = map(int, threads.split("×"))
        self.engine = ctranslate2.Translator(
            str(folder),
            compute_type={"fp32": "float32"}.get(kind, kind),
            inter_threads=workers,
            intra_threads=each,
        )
        names = json.loads((folder / "entries.json").read_text())
        self.names, self.id_of = names, {name: number for number, name in enumerate(names)}

    def translate(self, sentences, beam, batch):
        # It adds the end of a source itself, and sorts by length.
        pieces = [[self.names[number] for number in sentence[:-1]] for sentence in sentences]
        found = self.engine.translate_batch(
            pieces, beam_size=beam, length_penalty=1.0, max_batch_size=batch, max_decoding_length=256
        )
        return [[self.id_of[piece] for piece in one.hypotheses[0]] for one in found]
