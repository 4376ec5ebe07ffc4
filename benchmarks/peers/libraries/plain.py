"""nn.Transformer with embeddings, sinusoids and a tied output around it: what a user of PyTorch alone writes."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from libraries.shared import sinusoids, smoothed_loss

VERSION = f"torch {torch.__version__}"


class Trainer(nn.Module):
    """The loss of a batch, summed over its targets."""

    def __init__(self, sizes):
        super().__init__()
        self.width, self.smoothing = sizes["width"], sizes["smoothing"]
        self.embedding = nn.Embedding(sizes["vocabulary"], self.width)
        nn.init.normal_(self.embedding.weight, std=self.width**-0.5)
        self.transformer = nn.Transformer(
            self.width,
            sizes["heads"],
            sizes["encoder_layers"],
            sizes["decoder_layers"],
            sizes["hidden"],
            sizes["dropout"],
            batch_first=True,
            norm_first=True,
        )
        for (
            module
        ) in self.transformer.modules():  # dropout where qkv has it: on embeddings and branch outputs
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
                module.dropout.p = 0.0
        self.dropout = nn.Dropout(sizes["dropout"])
        self.register_buffer("positions", sinusoids(sizes["length"], self.width))

    def embed(self, tokens):
        x = self.embedding(tokens) * math.sqrt(self.width) + self.positions[: tokens.shape[1]]
        return self.dropout(x)

    def forward(self, source, keep_source, target, keep_target, label):
        hidden = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]),
            src_key_padding_mask=torch.zeros(source.shape).masked_fill(~keep_source, -math.inf),
            memory_key_padding_mask=torch.zeros(source.shape).masked_fill(~keep_source, -math.inf),
            tgt_is_causal=True,
        )
        logits = F.linear(hidden, self.embedding.weight)
        return smoothed_loss(logits, label, keep_target, self.smoothing)
