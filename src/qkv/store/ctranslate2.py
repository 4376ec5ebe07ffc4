"""CTranslate2: a Transformer in the files of another engine, which decodes it in fp32 or with int8 weights.

What the engine cannot compute is named before anything is written. The vocabulary is the model's own, so that ids
and the pieces in its files mean the same.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qkv.attention.heads import MultiHeadAttention
from qkv.blocks.layer import Layer
from qkv.data.tokens import END, START, UNK, Tokens
from qkv.errors import QkvError
from qkv.models.interface import Generator
from qkv.models.transformer import Transformer
from qkv.store.bundle import TOKENIZERS
from qkv.store.manifest import write_directory

POSITIONS = 1024
"""How many positions of a sinusoid are written: the engine reads a table, and refuses what is longer."""
SENTENCES, WRITTEN, TOLERANCE = 12, 16, 1e-3
"""Random sentences (into each language) that prove a conversion, tokens written of each, and nats that they may be off."""


def library() -> Any:
    """The engine, which is an extra."""
    try:
        import ctranslate2
    except ImportError:
        raise QkvError("CTranslate2 is not installed: pip install 'qkv[export]'") from None
    return ctranslate2


def expect_exportable(model: Generator) -> Transformer:
    """The model, if the engine can compute it; else one sentence says what it cannot."""
    if not isinstance(model, Transformer):
        raise QkvError(
            f"CTranslate2 cannot run model.kind {type(model).__name__.lower()!r}: only a transformer converts"
        )
    c = model.config
    if c.positions not in ("none", "sinusoidal", "learned"):
        raise QkvError(
            f"CTranslate2 cannot run model.positions {c.positions!r} in an encoder and a decoder: "
            "train with sinusoidal, learned or none to convert"
        )
    if c.groups not in (None, c.heads):
        raise QkvError(
            f"CTranslate2 cannot run model.groups {c.groups} in cross-attention: train with groups=none to convert"
        )
    return model


def export(
    model: Generator, source: Tokens, target: Tokens, path: Path, *, int8: bool = False
) -> dict[str, Any]:
    """Write a directory that `ctranslate2.Translator` reads, whole or not at all; returns its proof."""
    model = expect_exportable(model)
    converted = specification(model, source, target)
    converted.validate()
    converted.optimize("int8" if int8 else "float32")
    with write_directory(path) as directory:
        converted.save(str(directory))
        for name, tokens in zip(TOKENIZERS[1:], (source, target), strict=True):
            tokens.save(directory / name)
        proof = parity(model, source, target, directory, int8=int8)
        if not int8 and proof["largest_difference"] > TOLERANCE:
            raise QkvError(
                f"the converted model differs by {proof['largest_difference']:.2g} nats a token; up to {TOLERANCE} is "
                "wanted: nothing was written; report it with the model's recipe"
            )
        (directory / "parity.json").write_text(json.dumps(proof, indent=1) + "\n")
    return proof


def parity(
    model: Transformer, source: Tokens, target: Tokens, directory: Path, *, int8: bool
) -> dict[str, Any]:
    """How sure the two are of the same translations: nats a token, of random sentences into every language.

    The engine translates and says how sure it is; the model reads what the engine wrote.
    """
    engine = library().Translator(str(directory), compute_type="int8" if int8 else "float32", intra_threads=1)
    random, entries, names = np.random.default_rng(0), source.entries(), target.entries()
    id_of = {entry: number for number, entry in enumerate(names)}
    differences, tokens = [], 0
    for tag in target.tags or [None]:
        first = target.tag(tag)
        for length in range(1, SENTENCES + 1):
            read = random.integers(UNK, source.size, length).tolist()
            (found,) = engine.translate_batch(
                [[entries[index] for index in read]],
                [[names[first]]] if target.tags else None,
                beam_size=1,
                max_decoding_length=WRITTEN,
                min_decoding_length=0,
                return_scores=True,
            )
            written = [id_of[entry] for entry in found.hypotheses[0]]
            wanted = [*written, END] if len(written) < WRITTEN else written
            sure = _log_probabilities(model, [*read, END], [first, *wanted[:-1]], wanted)
            differences.append(abs(float(sure.mean()) - found.scores[0]))
            tokens += len(wanted)
    return {
        "sentences": len(differences),
        "tokens": tokens,
        "largest_difference": max(differences),
        "median_difference": float(np.median(differences)),
    }


@torch.no_grad()
def _log_probabilities(
    model: Transformer, read: list[int], given: list[int], wanted: list[int]
) -> np.ndarray:
    source_1S, wanted_T1 = torch.tensor([read]), torch.tensor(wanted).unsqueeze(-1)
    x_1TD = model(source_1S, torch.ones_like(source_1S, dtype=torch.bool), torch.tensor([given]))
    return model.logits(x_1TD)[0].log_softmax(-1).gather(-1, wanted_T1)[:, 0].numpy()


def specification(model: Transformer, source: Tokens, target: Tokens) -> Any:
    """The engine's description of the model, with its weights."""
    library()
    from ctranslate2.specs import common_spec, transformer_spec

    c = model.config
    activation = {
        "relu": common_spec.Activation.RELU,
        "gelu": common_spec.Activation.GELU,
        "swiglu": common_spec.Activation.SWISH,
    }
    found: Any = transformer_spec.TransformerSpec.from_config(
        (c.encoder_layers, c.decoder_layers),
        c.heads,
        pre_norm=c.order == "pre",
        activation=activation[c.activation],
        ffn_glu=c.activation == "swiglu",
        rms_norm=c.norm == "rms",
    )
    encoder, decoder = found.encoder, found.decoder
    encoder.embeddings[0].weight = _array(model.source_embedding.table)
    decoder.embeddings.weight = _array(model.target_embedding.table)
    decoder.projection.weight = _array(model.output_table)
    for side, positions in ((encoder, model.source_positions), (decoder, model.target_positions)):
        length = c.length if c.positions == "learned" else POSITIONS
        with torch.no_grad():
            side.position_encodings.encodings = _array(positions.embed(torch.zeros(1, length, c.width))[0])
    if c.order == "pre":
        _norm(encoder.layer_norm, model.encoder_norm)
        _norm(decoder.layer_norm, model.decoder_norm)
    for side, layers in ((encoder, model.encoder), (decoder, model.decoder)):
        for theirs, ours in zip(side.layer, layers, strict=True):
            _layer(theirs, ours)

    found.register_source_vocabulary(source.entries())
    names = target.entries()
    found.register_target_vocabulary(names)
    found.config.unk_token, found.config.bos_token = names[UNK], names[START]
    found.config.eos_token = names[END]
    # A model of several languages is told the first token of each sentence: the tag of its language.
    found.config.decoder_start_token = None if target.tags else names[START]
    found.config.add_source_eos = True
    found.config.layer_norm_epsilon = next(iter(model.decoder)).config.epsilon
    return found


def _layer(theirs: Any, ours: Layer) -> None:
    _norm(theirs.self_attention.layer_norm, ours.own_norm)
    _attention(theirs.self_attention.linear, ours.own, packed=("query", "key", "value"))
    if ours.config.cross:
        _norm(theirs.attention.layer_norm, ours.cross_norm)
        _attention(theirs.attention.linear, ours.cross, packed=("key", "value"))
    _norm(theirs.ffn.layer_norm, ours.feedforward_norm)
    feedforward = ours.feedforward
    if feedforward.gate is None:
        _linear(theirs.ffn.linear_0, feedforward.up)
    else:
        _linear(theirs.ffn.linear_0, feedforward.gate)
        _linear(theirs.ffn.linear_0_noact, feedforward.up)
    _linear(theirs.ffn.linear_1, feedforward.down)


def _attention(theirs: Sequence[Any], ours: MultiHeadAttention, packed: Sequence[str]) -> None:
    """What reads the same input is one product in the engine."""
    alone = [name for name in ("query", "key", "value") if name not in packed]
    for place, names in zip(theirs, [*([name] for name in alone), packed, ["out"]], strict=True):
        _linear(place, *(getattr(ours, name) for name in names))


def _linear(theirs: Any, *ours: nn.Linear) -> None:
    theirs.weight = np.concatenate([_array(linear.weight) for linear in ours])
    if ours[0].bias is not None:
        theirs.bias = np.concatenate([_array(linear.bias) for linear in ours])


def _norm(theirs: Any, ours: nn.Module) -> None:
    assert isinstance(ours, nn.LayerNorm | nn.RMSNorm)
    theirs.gamma = _array(ours.weight)
    if isinstance(ours, nn.LayerNorm):
        theirs.beta = _array(ours.bias)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy().copy()  # the library rounds in place
