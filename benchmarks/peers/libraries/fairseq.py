"""fairseq: its Transformer and its label-smoothed criterion, in training."""

import dataclasses
import functools
from argparse import Namespace

from torch import nn

PLAIN = dataclasses.dataclass


@functools.wraps(PLAIN)
def hashable(cls=None, /, **options):
    """Python 3.11 refuses defaults without a hash, of which fairseq's and hydra's settings are full: give them one."""
    if cls is None:
        return functools.partial(hashable, **options)
    return PLAIN(cls, **({"unsafe_hash": "__hash__" not in cls.__dict__} | options))


dataclasses.dataclass = hashable
import fairseq  # noqa: E402
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss  # noqa: E402
from fairseq.data import Dictionary  # noqa: E402
from fairseq.models.transformer import TransformerModel, base_architecture  # noqa: E402

dataclasses.dataclass = PLAIN
VERSION = f"fairseq {fairseq.__version__}"


class Trainer(nn.Module):
    """The loss of a batch, summed over its targets."""

    def __init__(self, sizes):
        super().__init__()
        self.smoothing = sizes["smoothing"]
        words = Dictionary(bos="<s>", pad="<pad>", eos="</s>", unk="<unk>")
        for number in range(len(words), sizes["vocabulary"]):
            words.add_symbol(f"t{number}")
        words.pad_index, self.pad = 0, 0
        options = Namespace(
            encoder_embed_dim=sizes["width"],
            encoder_ffn_embed_dim=sizes["hidden"],
            encoder_layers=sizes["encoder_layers"],
            encoder_attention_heads=sizes["heads"],
            decoder_layers=sizes["decoder_layers"],
            decoder_attention_heads=sizes["heads"],
            encoder_normalize_before=True,
            decoder_normalize_before=True,
            dropout=sizes["dropout"],
            share_all_embeddings=True,
            max_source_positions=sizes["length"],
            max_target_positions=sizes["length"],
        )
        base_architecture(options)
        self.model = TransformerModel.build_model(
            options, Namespace(source_dictionary=words, target_dictionary=words)
        )
        for name, weight in self.model.named_parameters():
            if name.endswith(("_weight", "_bias")):
                weight.requires_grad_(False)  # copies for another path, which training never takes

    def forward(self, source, keep_source, target, keep_target, label):
        out = self.model(source, keep_source.sum(1), target)
        log_probabilities = self.model.get_normalized_probs(out, log_probs=True)
        return label_smoothed_nll_loss(
            log_probabilities.flatten(0, 1), label.view(-1), self.smoothing, ignore_index=self.pad
        )[0]
