"""What a translator looked at: the weights that decoding used, merged into pieces that can be read."""

import pytest
import torch

from qkv.attention.watch import watch
from qkv.data.tokens import END, Tokens
from qkv.decode.config import SearchConfig
from qkv.decode.translator import Translator
from qkv.errors import QkvError
from qkv.look.cross import Look, look, readable
from qkv.models.luong import Luong, LuongConfig
from qkv.models.transformer import Transformer, TransformerConfig

LINES = ["fünf und drei", "drei und fünf", "dreiunddreißig"]


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return Tokens.train(LINES, size=300, minimum=1, tags=["de", "fr"])


def translator(tokens: Tokens, kind: str) -> Translator:
    sizes = {"source_vocabulary": tokens.size, "target_vocabulary": tokens.size, "width": 20}
    model = (
        Transformer(TransformerConfig(**sizes, hidden=28, heads=2, encoder_layers=1, decoder_layers=3))
        if kind == "transformer"
        else Luong(
            LuongConfig(**sizes, encoder_layers=1, decoder_layers=1, input_feeding=True, self_attention=True)
        )
    )
    return Translator(model, tokens, tokens, SearchConfig(beam=2, maximum=7, minimum=3))


@pytest.mark.parametrize(
    ("kind", "paths", "heads"),
    [("transformer", [f"decoder.{layer}.cross" for layer in range(3)], 2), ("luong", ["attention"], 1)],
)
def test_every_head_that_looks_at_the_source_is_there_and_no_weight_is_lost(
    tokens: Tokens, kind: str, paths: list[str], heads: int
):
    seen = look(translator(tokens, kind), LINES[0], "fr")
    assert list(seen.weights) == paths
    assert seen.keys[-1] == seen.queries[-1] == "⟨end⟩"
    assert "".join(seen.keys[:-1]) == LINES[0].replace(" ", "")
    for weights_HTS in seen.weights.values():
        assert weights_HTS.shape == (heads, len(seen.queries), len(seen.keys))
        torch.testing.assert_close(weights_HTS.sum(-1), torch.ones(heads, len(seen.queries)))


def test_the_weights_are_those_of_the_model(tokens: Tokens):
    asked = translator(tokens, "transformer")
    best = asked.search(LINES[:1], ("de",))[0][0][0]
    source = torch.tensor([[*asked.source.encode(LINES[0]).tolist(), END]])
    target = torch.tensor([[tokens.tag("de"), *best.tokens]])
    with watch(asked.model, "decoder.1.cross") as seen, torch.no_grad():
        asked.model(source, torch.ones_like(source, dtype=torch.bool), target)
    weights = asked.weights(LINES[0], best, "de")
    torch.testing.assert_close(weights["decoder.1.cross"], seen["decoder.1.cross"][0])
    mean = torch.stack([one.mean(0) for one in weights.values()]).mean(0)
    torch.testing.assert_close(asked.maps(LINES[0], best, "de"), mean)


def test_bytes_of_a_character_and_lone_spaces_are_merged(tokens: Tokens):
    bare = Tokens.train(["a"], kind="bytes")
    ids = [*bare.encode("ü  ß").tolist(), END]
    assert readable(bare, ids) == (["ü", "ß", "⟨end⟩"], [[0, 1], [2, 3, 4, 5], [6]])
    assert readable(bare, bare.encode("a ").tolist()) == (["a", "␣"], [[0], [1]])
    names, places = readable(tokens, [tokens.tag("de"), *tokens.encode("ŝ").tolist()[:-1], END])
    assert (names[0], names[-1]) == ("⟨de⟩", "⟨end⟩")
    assert [place for group in places for place in group] == list(range(len(places[-2]) + 2))


def test_merged_weights_by_hand(tokens: Tokens):
    from qkv.look.cross import _merged

    weights_HTS = torch.tensor([[[0.1, 0.2, 0.7], [0.3, 0.5, 0.2]]])
    merged = _merged(weights_HTS, rows=[[0, 1]], columns=[[0, 1], [2]])
    torch.testing.assert_close(merged, torch.tensor([[[0.55, 0.45]]]))


def test_the_sharpest_attention_is_the_one_that_decides():
    even, sure = torch.full((2, 3, 4), 0.25), torch.eye(4)[:3].expand(2, 3, 4)
    # Heads that are sure of different things are, on average, not.
    torn = torch.stack([torch.eye(4)[:3], torch.eye(4)[1:]])
    seen = Look("", "", None, list("abcd"), list("efg"), {"even": even, "torn": torn, "sure": sure})
    assert seen.sharpest == "sure"
    assert seen.mean("torn").title == "torn, mean of 2 heads"
    torch.testing.assert_close(seen.mean("torn").weights_TS[0], torch.tensor([0.5, 0.5, 0.0, 0.0]))


def test_a_blank_sentence_is_refused(tokens: Tokens):
    with pytest.raises(QkvError, match="the sentence is '  ': give one with words in it"):
        look(translator(tokens, "transformer"), "  ", "de")
