"""nn.Transformer with embeddings, sinusoids and a tied output around it: what a user of PyTorch alone writes."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from libraries.shared import END, PAD, START, in_batches, sinusoids, smoothed_loss

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


class Decoder:
    """A plain loop with a cache: keys and values concatenated at each step, beams reordered by `index_select`."""

    def __init__(self, weights, sizes, mode):
        self.dtype = torch.bfloat16 if "bf16" in mode else torch.float32
        self.w = {name: weight.to(self.dtype) for name, weight in weights.items()}
        self.width, self.heads, self.sizes = sizes["width"], sizes["heads"], sizes
        self.positions = sinusoids(sizes["length"], self.width).to(self.dtype)
        self.table = self.w["target_embedding.table"]

    def linear(self, name, x):
        return F.linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def norm(self, name, x):
        return F.layer_norm(x, (self.width,), self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def project(self, name, x):
        return self.linear(name, x).unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attend(self, name, x, k, v, mask=None):
        q = self.project(f"{name}.query", x)
        found = F.scaled_dot_product_attention(q, k, v, mask)
        return self.linear(f"{name}.out", found.transpose(1, 2).flatten(2))

    def feed(self, name, x):
        h = self.linear(f"{name}.feedforward.up", self.norm(f"{name}.feedforward_norm", x))
        return x + self.linear(f"{name}.feedforward.down", F.relu(h))

    def embed(self, tokens, offset=0):
        places = self.positions[offset : offset + tokens.shape[1]]
        return F.embedding(tokens, self.table) * math.sqrt(self.width) + places

    def encode(self, source, mask):
        x = self.embed(source)
        for layer in range(self.sizes["encoder_layers"]):
            name = f"encoder.{layer}"
            h = self.norm(f"{name}.own_norm", x)
            k, v = self.project(f"{name}.own.key", h), self.project(f"{name}.own.value", h)
            x = self.feed(name, x + self.attend(f"{name}.own", h, k, v, mask))
        return self.norm("encoder_norm", x)

    def step(self, tokens, own, cross, mask, place):
        x = self.embed(tokens, place)
        for layer in range(self.sizes["decoder_layers"]):
            name = f"decoder.{layer}"
            h = self.norm(f"{name}.own_norm", x)
            new = [self.project(f"{name}.own.{part}", h) for part in ("key", "value")]
            own[layer] = [torch.cat(pair, 2) for pair in zip(own[layer], new, strict=True)] if place else new
            x = x + self.attend(f"{name}.own", h, *own[layer])
            x = x + self.attend(f"{name}.cross", self.norm(f"{name}.cross_norm", x), *cross[layer], mask)
            x = self.feed(name, x)
        return F.linear(self.norm("decoder_norm", x[:, -1]), self.table).float()

    @torch.inference_mode()
    def translate(self, sentences, beam, batch):
        found = [None] * len(sentences)
        for rows, source, keep in in_batches(sentences, batch):
            for row, tokens in zip(rows, self.search(source, keep, beam), strict=True):
                found[row] = tokens
        return found

    def search(self, source, keep, beam):
        count, limit = len(source), 2 * source.shape[1] + 20
        mask = keep[:, None, None]
        memory = self.encode(source, mask).repeat_interleave(beam, 0)
        mask = mask.repeat_interleave(beam, 0)
        names = [f"decoder.{layer}.cross" for layer in range(self.sizes["decoder_layers"])]
        cross = [[self.project(f"{name}.{part}", memory) for part in ("key", "value")] for name in names]
        own = [[] for _ in names]
        written = torch.full((count * beam, 1), START)
        score = torch.tensor([0.0] + [-1e9] * (beam - 1)).repeat(count)
        ended, length = torch.zeros(count * beam, dtype=torch.bool), torch.zeros(count * beam)
        first = torch.arange(count)[:, None] * beam
        for place in range(limit):
            logp = self.step(written[:, -1:], own, cross, mask, place).log_softmax(-1)
            logp[ended] = -1e9  # what has ended stays as it is
            logp[ended, PAD] = 0.0
            total = (score[:, None] + logp).view(count, -1)
            best, index = total.topk(beam)
            rows = (first + index // logp.shape[1]).flatten()
            tokens, score = (index % logp.shape[1]).flatten(), best.flatten()
            written = torch.cat([written[rows], tokens[:, None]], 1)
            length = length[rows] + ~ended[rows]
            ended = ended[rows] | (tokens == END)
            if bool(ended.all()):
                break
            if beam > 1:
                own = [[part.index_select(0, rows) for part in layer] for layer in own]
        chosen = first[:, 0] + (score / length).view(count, beam).argmax(1)
        return written[chosen, 1:].tolist()
