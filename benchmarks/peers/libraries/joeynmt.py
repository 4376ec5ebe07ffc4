"""JoeyNMT: its Transformer and its LSTM with Luong attention in training, its search with qkv's own weights."""

from importlib.metadata import version
from types import SimpleNamespace

import torch
from joeynmt.model import build_model
from joeynmt.search import beam_search, greedy
from joeynmt.vocabulary import Vocabulary
from torch import nn

from libraries.shared import END, PAD, START, UNK, in_batches

VERSION = f"JoeyNMT {version('joeynmt')}"
LIKE_QKV = {
    "tied_embeddings": True,
    "tied_softmax": True,
    "embed_initializer": "normal",
    "initializer": "xavier_uniform",
}


def vocabulary(size):
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    ids = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3, "sep_token": None, "lang_tags": []}
    found = Vocabulary([], SimpleNamespace(**names, **ids))
    for number in range(4, size):  # one by one it would look for each among all the others
        found._itos.append(f"t{number}")
        found._stoi[f"t{number}"] = number
    found.unk_index, found.pad_index, found.bos_index, found.eos_index = UNK, PAD, START, END
    return found


def transformer(sizes):
    def side(name):
        return {
            "type": "transformer",
            "num_layers": sizes[f"{name}_layers"],
            "num_heads": sizes["heads"],
            "hidden_size": sizes["width"],
            "ff_size": sizes["hidden"],
            "dropout": sizes["dropout"],
            "layer_norm": "pre",
            "embeddings": {"embedding_dim": sizes["width"], "scale": True, "dropout": sizes["dropout"]},
        }

    words = vocabulary(sizes["vocabulary"])
    config = LIKE_QKV | {"embed_init_weight": sizes["width"] ** -0.5}
    model = build_model(config | {"encoder": side("encoder"), "decoder": side("decoder")}, words, words)
    for name, module in model.named_modules():
        if name.endswith(("att.dropout", "pwff_layer.2")):  # where qkv has none: on weights and hidden values
            module.p = 0.0
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5
    return model


def recurrent(sizes):
    width, dropout = sizes["width"], sizes["dropout"]
    common = {
        "rnn_type": "lstm",
        "type": "recurrent",
        "dropout": dropout,
        "embeddings": {"embedding_dim": width, "scale": False, "dropout": dropout},
    }
    encoder = common | {
        "hidden_size": width // 2,
        "bidirectional": True,
        "num_layers": sizes["encoder_layers"],
    }
    decoder = common | {
        "hidden_size": width,
        "num_layers": sizes["decoder_layers"],
        "attention": "luong",
        "input_feeding": sizes["input_feeding"],
        "hidden_dropout": dropout,
    }
    words = vocabulary(sizes["vocabulary"])
    config = LIKE_QKV | {"embed_init_weight": width**-0.5}
    return build_model(config | {"encoder": encoder, "decoder": decoder}, words, words)


class Trainer(nn.Module):
    """The loss of a batch as its own trainer takes it, with its count of correct tokens."""

    make = staticmethod(transformer)

    def __init__(self, sizes):
        super().__init__()
        self.model = self.make(sizes)
        self.model.loss_function = ("crossentropy", sizes["smoothing"])
        rest = torch.tensor(sizes["smoothing"])
        # It minimises the divergence from the smoothed labels: less than the cross-entropy by their own entropy.
        self.entropy = float(-(1 - rest) * (1 - rest).log() - rest * (rest / (sizes["vocabulary"] - 2)).log())

    def forward(self, source, keep_source, target, keep_target, label):
        lengths, order = keep_source.sum(1).sort(descending=True)
        divergence, _, _, correct = self.model(
            return_type="loss",
            src=source[order],
            src_length=lengths,
            src_mask=keep_source[order].unsqueeze(1),
            trg_input=target[order],
            trg=label[order],
            trg_mask=keep_target[order].unsqueeze(1),
        )
        correct.item()
        return divergence + self.entropy * keep_target.sum()


class Recurrent(Trainer):
    """The same of the LSTM with Luong attention."""

    make = staticmethod(recurrent)


class Decoder:
    """Its search with qkv's weights."""

    def __init__(self, weights, sizes, mode):
        self.model = transformer(sizes).eval()
        theirs, given = self.model.state_dict(), dict(converted(weights, sizes))
        assert {name for name in theirs if not name.endswith(".pe")} == set(given)
        self.model.load_state_dict(given, strict=False)
        self.autocast = {"device_type": "cpu", "dtype": torch.bfloat16, "enabled": "bf16" in mode}

    @torch.inference_mode()
    def translate(self, sentences, beam, batch):
        found = [None] * len(sentences)
        for rows, source, keep in in_batches(sentences, batch):
            mask = keep.unsqueeze(1)
            lengths = keep.sum(1)
            with torch.autocast(**self.autocast):
                memory, last, _, _ = self.model(
                    return_type="encode", src=source, src_length=lengths, src_mask=mask
                )
            common = {
                "src_mask": mask,
                "max_output_length": 2 * source.shape[1] + 20,
                "model": self.model,
                "encoder_output": memory,
                "encoder_hidden": last,
                "autocast": self.autocast,
            }
            written = (
                beam_search(beam_size=beam, alpha=1.0, n_best=1, **common) if beam > 1 else greedy(**common)
            )[0]
            for row, tokens in zip(rows, written.tolist(), strict=True):
                found[row] = tokens
        return found


def converted(weights, sizes):
    """qkv's tensors by JoeyNMT's names."""
    table = weights["target_embedding.table"]
    for name in ("src_embed.lut", "trg_embed.lut", "decoder.output_layer"):
        yield f"{name}.weight", table
    inner = {"query": "q_layer", "key": "k_layer", "value": "v_layer", "out": "output_layer"}
    common = {
        "feedforward_norm": "feed_forward.layer_norm",
        "feedforward.up": "feed_forward.pwff_layer.0",
        "feedforward.down": "feed_forward.pwff_layer.3",
    }
    attentions = {
        "encoder": {"own": ("src_src_att", "layer_norm")},
        "decoder": {"own": ("trg_trg_att", "x_layer_norm"), "cross": ("src_trg_att", "dec_layer_norm")},
    }
    for side, found in attentions.items():
        names = dict(common)
        for ours, (attention, norm) in found.items():
            names |= {f"{ours}.{one}": f"{attention}.{other}" for one, other in inner.items()}
            names[f"{ours}_norm"] = norm
        for kind in ("weight", "bias"):
            yield f"{side}.layer_norm.{kind}", weights[f"{side}_norm.{kind}"]
            for layer in range(sizes[f"{side}_layers"]):
                for ours, theirs in names.items():
                    yield f"{side}.layers.{layer}.{theirs}.{kind}", weights[f"{side}.{layer}.{ours}.{kind}"]
