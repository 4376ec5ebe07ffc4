"""x-transformers: its encoder and decoder with tied tables, in training."""

from importlib.metadata import version

from torch import nn
from x_transformers import Decoder as Layers
from x_transformers import Encoder, TransformerWrapper

from libraries.shared import smoothed_loss

VERSION = f"x-transformers {version('x-transformers')}"


class Trainer(nn.Module):
    """The loss of a batch, summed over its targets."""

    def __init__(self, sizes):
        super().__init__()
        self.smoothing = sizes["smoothing"]

        def layers(kind, depth, **others):
            return kind(
                dim=sizes["width"],
                depth=depth,
                heads=sizes["heads"],
                attn_dim_head=sizes["width"] // sizes["heads"],
                attn_flash=True,
                attn_sublayer_dropout=sizes["dropout"],
                ff_mult=sizes["hidden"] / sizes["width"],
                ff_custom_activation=nn.ReLU(),
                ff_sublayer_dropout=sizes["dropout"],
                **others,
            )

        common = {
            "num_tokens": sizes["vocabulary"],
            "max_seq_len": sizes["length"],
            "emb_dropout": sizes["dropout"],
            "scaled_sinu_pos_emb": True,
        }
        encoder = layers(Encoder, sizes["encoder_layers"])
        self.encoder = TransformerWrapper(attn_layers=encoder, return_only_embed=True, **common)
        decoder = layers(Layers, sizes["decoder_layers"], cross_attend=True)
        self.decoder = TransformerWrapper(
            attn_layers=decoder,
            token_emb=self.encoder.token_emb,
            tie_embedding=True,
            tie_embedding_scale=1.0,  # with its own, 1/√width, it learns far slower than the others
            **common,
        )

    def forward(self, source, keep_source, target, keep_target, label):
        memory = self.encoder(source, mask=keep_source)
        logits = self.decoder(target, context=memory, context_mask=keep_source)
        return smoothed_loss(logits, label, keep_target, self.smoothing)
