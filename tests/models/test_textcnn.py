"""Kim's network, against equation 2 word by word."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.models.textcnn import TextCnn, TextCnnConfig

CONFIG = TextCnnConfig(vocabulary=11, labels=3, width=5, windows=(2, 3), features=7)


def test_by_hand():
    torch.manual_seed(0)
    model = TextCnn(CONFIG).double().eval()
    token = torch.randint(11, (2, 6))
    keep = torch.arange(6) < torch.tensor([6, 4])[:, None]
    for row, length in enumerate([6, 4]):
        best = []
        for window, convolution in zip((2, 3), model.convolutions, strict=True):
            x = torch.zeros(
                length + window - 1, 5, dtype=torch.float64
            )  # (window - 1) // 2 zeros before, the rest after
            before = (window - 1) // 2
            x[before : before + length] = model.embedding.table[token[row, :length]]
            grams = torch.stack(
                [x[start : start + window].T for start in range(length)]
            )  # one around each token
            best.append(
                torch.relu(torch.einsum("tew,few->tf", grams, convolution.weight) + convolution.bias).amax(0)
            )
        wanted = model.output(torch.cat(best))
        torch.testing.assert_close(model(token, keep)[row], wanted, rtol=0, atol=1e-12)


def test_what_cannot_be_is_said():
    with pytest.raises(QkvError, match="windows is empty"):
        TextCnnConfig(windows=())
    with pytest.raises(QkvError, match="tells no segments apart"):
        TextCnn(CONFIG).read(
            torch.ones(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 2)
        )
