"""Hugging Face transformers: Marian in training; Pegasus, Marian in pre-norm order, in decoding with qkv's own weights."""

import torch
import transformers
from torch import nn
from transformers import MarianConfig, MarianMTModel, PegasusConfig, PegasusForConditionalGeneration

from libraries.shared import END, PAD, START, in_batches, sinusoids, smoothed_loss

VERSION = f"transformers {transformers.__version__}"


def config_of(kind, sizes):
    return kind(
        vocab_size=sizes["vocabulary"],
        d_model=sizes["width"],
        encoder_layers=sizes["encoder_layers"],
        decoder_layers=sizes["decoder_layers"],
        encoder_attention_heads=sizes["heads"],
        decoder_attention_heads=sizes["heads"],
        encoder_ffn_dim=sizes["hidden"],
        decoder_ffn_dim=sizes["hidden"],
        dropout=sizes["dropout"],
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=sizes["length"],
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
    )


class Trainer(nn.Module):
    """The loss of a batch, summed over its targets; Marian takes a batch without label smoothing."""

    def __init__(self, sizes):
        super().__init__()
        self.smoothing = sizes["smoothing"]
        self.model = MarianMTModel(config_of(MarianConfig, sizes))

    def forward(self, source, keep_source, target, keep_target, label):
        out = self.model(
            input_ids=source, attention_mask=keep_source.long(), decoder_input_ids=target, use_cache=False
        )
        return smoothed_loss(out.logits, label, keep_target, self.smoothing)


class Decoder:
    """`generate` with qkv's weights."""

    def __init__(self, weights, sizes, mode):
        model = PegasusForConditionalGeneration(config_of(PegasusConfig, sizes))
        theirs = model.state_dict()
        given = dict(converted(weights, sizes))
        missing = {name for name in theirs if name not in given and "logits_bias" not in name}
        assert missing <= {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"}, missing
        model.load_state_dict(given, strict=False)
        model.tie_weights()
        self.model = (model.bfloat16() if "bf16" in mode else model).eval()

    @torch.inference_mode()
    def translate(self, sentences, beam, batch):
        found = [None] * len(sentences)
        for rows, source, keep in in_batches(sentences, batch):
            written = self.model.generate(
                input_ids=source,
                attention_mask=keep.long(),
                num_beams=beam,
                do_sample=False,
                length_penalty=1.0,
                max_new_tokens=2 * source.shape[1] + 20,
            )
            for row, tokens in zip(rows, written.tolist(), strict=True):
                found[row] = tokens[1:]
        return found


def converted(weights, sizes):
    """qkv's tensors by Pegasus' names."""
    table = weights["target_embedding.table"]
    for name in ("model.shared.weight", "lm_head.weight"):
        yield name, table
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
    for side in ("encoder", "decoder"):
        yield f"model.{side}.embed_tokens.weight", table
        yield f"model.{side}.embed_positions.weight", sinusoids(sizes["length"], sizes["width"])
        parts = {"feedforward.up": "fc1", "feedforward.down": "fc2", "feedforward_norm": "final_layer_norm"}
        for ours, theirs in (("own", "self_attn"), ("cross", "encoder_attn")):
            parts |= {f"{ours}.{one}": f"{theirs}.{other}" for one, other in names.items()}
            parts[f"{ours}_norm"] = f"{theirs}_layer_norm"
        for kind in ("weight", "bias"):
            yield f"model.{side}.layer_norm.{kind}", weights[f"{side}_norm.{kind}"]
            for layer in range(sizes[f"{side}_layers"]):
                for ours, theirs in parts.items():
                    if f"{side}.{layer}.{ours}.{kind}" in weights:
                        found = weights[f"{side}.{layer}.{ours}.{kind}"]
                        yield f"model.{side}.layers.{layer}.{theirs}.{kind}", found
