"""CTranslate2: converted models say what ours say, token by token; what cannot be converted is named."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qkv.data.tokens import Tokens
from qkv.decode.config import SearchConfig
from qkv.decode.engine import Engine
from qkv.decode.translator import Translator
from qkv.errors import QkvError
from qkv.models.luong import Luong, LuongConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.store.ctranslate2 import export

LINES = [
    "ein kleiner hund läuft über die wiese",
    "zwei männer reden",
    "sie singt",
    "a dog runs over the meadow",
    "two men are talking",
    "she sings",
]
PLAIN = TransformerConfig(
    width=24, hidden=40, heads=3, encoder_layers=2, decoder_layers=1, positions="sinusoidal"
)
KINDS = {
    "pre-norm": PLAIN,
    "post-norm": replace(PLAIN, order="post", encoder_layers=1, decoder_layers=2),
    "gelu, rms": replace(PLAIN, activation="gelu", norm="rms"),
    "swiglu": replace(PLAIN, activation="swiglu", heads=1),
    "learned": replace(PLAIN, positions="learned", length=70),
    "no positions": replace(PLAIN, positions="none", order="post"),
    "untied": replace(PLAIN, tied="none"),
    "target tied": replace(PLAIN, tied="target"),
}


def vocabulary(tags: tuple[str, ...] = (), size: int = 300) -> Tokens:
    return Tokens.train(LINES, size=size, minimum=1, tags=tags)


def translator(config: TransformerConfig, tags: tuple[str, ...] = ()) -> Translator:
    """With random weights, large enough that what it says depends on what it reads."""
    target = vocabulary(tags)
    source = target if config.tied == "all" else vocabulary(size=280)
    torch.manual_seed(5)
    model = Transformer(replace(config, source_vocabulary=source.size, target_vocabulary=target.size))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return Translator(model, source, target, SearchConfig(maximum=19, stop="quick"))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("tags", [(), ("de", "fr")])
def test_the_engine_finds_what_our_search_finds(name: str, tags: tuple[str, ...], tmp_path: Path):
    ours = translator(KINDS[name], tags)
    proof = export(ours.model, ours.source, ours.target, tmp_path / "model")
    assert proof["largest_difference"] < 1e-4
    assert json.loads((tmp_path / "model" / "parity.json").read_text()) == proof
    engine = Engine(ours, tmp_path / "model", threads=1)
    for beam in (1, 4):
        config = replace(ours.config, beam=beam, n_best=beam)
        wanted = ours.search(LINES, tags or (None,), config)
        for mine, theirs in zip(wanted, engine.search(LINES, tags or (None,), config), strict=True):
            for one, other in zip(mine, theirs, strict=True):
                if one[0].finished and not other[0].finished:
                    continue  # at the maximum we prefer what has ended, the engine what scores best
                assert one[0].tokens == other[0].tokens
                assert one[0].text == other[0].text
                assert one[0].finished == other[0].finished
                assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=1e-4)


def test_int8_is_near_and_says_how_near(tmp_path: Path):
    ours = translator(PLAIN)
    before = copy.deepcopy(ours.model.state_dict())
    proof = export(ours.model, ours.source, ours.target, tmp_path / "model", int8=True)
    assert 1e-4 < proof["largest_difference"] < 1
    assert all(torch.equal(before[name], weight) for name, weight in ours.model.state_dict().items())
    files = [tmp_path / "model" / "model.bin", tmp_path / "full" / "model.bin"]
    export(ours.model, ours.source, ours.target, tmp_path / "full")
    assert files[0].stat().st_size < 0.75 * files[1].stat().st_size


@pytest.mark.parametrize(
    ("change", "named"),
    [({"positions": "rotary"}, "rotary"), ({"positions": "relative"}, "relative"), ({"groups": 1}, "groups")],
)
def test_what_the_engine_cannot_compute_is_named_and_nothing_written(change, named: str, tmp_path: Path):
    ours = translator(replace(PLAIN, **change))
    with pytest.raises(QkvError, match=named):
        export(ours.model, ours.source, ours.target, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_recurrent_model_stays_here(tmp_path: Path):
    tokens = vocabulary()
    model = Luong(LuongConfig(source_vocabulary=tokens.size, target_vocabulary=tokens.size, width=8))
    with pytest.raises(QkvError, match="luong"):
        export(model, tokens, tokens, tmp_path / "model")


def test_a_conversion_that_changes_the_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ours = translator(PLAIN)
    monkeypatch.setattr(
        "qkv.store.ctranslate2._norm", lambda theirs, norm: _wrong(theirs, norm), raising=True
    )
    with pytest.raises(QkvError, match=r"differs by .* nothing was written"):
        export(ours.model, ours.source, ours.target, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def _wrong(theirs, norm) -> None:
    theirs.gamma = norm.weight.detach().numpy() * 1.5
    theirs.beta = norm.bias.detach().numpy()


@pytest.mark.parametrize(
    "change",
    [{"coverage": 0.2}, {"normalize": "gnmt"}, {"stop": "exact"}, {"beam": 1, "temperature": 1.0}],
)
def test_what_the_engine_cannot_search_is_named(change, tmp_path: Path):
    ours = translator(PLAIN)
    export(ours.model, ours.source, ours.target, tmp_path / "model")
    name = list(change)[-1]
    with pytest.raises(QkvError, match=rf"search\.{name} {change[name]!r}"):
        Engine(ours, tmp_path / "model", threads=1).search(LINES, (None,), replace(ours.config, **change))
