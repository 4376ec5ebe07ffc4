"""A model's directory: all of it comes back, damage is named, and what only looks like one is told apart."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from qkv.data.tokens import Tokens
from qkv.errors import QkvError
from qkv.store import bundle
from qkv.store.bundle import CARD, FACTS, TOKENIZERS, WEIGHTS, read, save
from qkv.store.manifest import MANIFEST, verify

RECIPE = {"task": "x", "beta": float("inf"), "clip": None, "model": {"width": 12, "betas": [0.9, 0.98]}}


def saved(path: Path, names: tuple[str, ...] = TOKENIZERS[:1]) -> Path:
    table = torch.randn(3, 5)
    tensors = {"out": table, "in": table, "norm": torch.ones(5, dtype=torch.bfloat16)}
    tokens = {name: f"tokens of {name}".encode() for name in names}
    return save(path, task="x", recipe=RECIPE, tensors=tensors, tokenizers=tokens, card="# A card é\n")


@pytest.mark.parametrize("names", [TOKENIZERS[:1], TOKENIZERS[1:], ()])
def test_what_was_saved_comes_back(tmp_path: Path, names: tuple[str, ...]):
    path = saved(tmp_path / "new" / "model", names)
    found = read(path)
    assert (found.path, found.task, found.recipe) == (path, "x", RECIPE)
    assert found.versions["torch"] == str(torch.__version__)
    assert {name: file.read_bytes() for name, file in found.tokenizers.items()} == {
        name: f"tokens of {name}".encode() for name in names
    }
    assert found.tensors["in"].data_ptr() == found.tensors["out"].data_ptr()
    assert found.tensors["norm"].dtype == torch.bfloat16
    assert (path / CARD).read_text("utf-8") == "# A card é\n"
    assert {file.name for file in path.iterdir()} == {FACTS, WEIGHTS, CARD, MANIFEST, *names}
    verify(path)


def test_a_vocabulary_writes_itself(tmp_path: Path):
    tokens = Tokens.train(["one two", "two three"], kind="word", minimum=1)
    path = save(tmp_path / "m", task="x", recipe={}, tensors={}, tokenizers={TOKENIZERS[0]: tokens}, card="")
    again = Tokens.load(read(path).tokenizers[TOKENIZERS[0]])
    assert again.encode("two one").tolist() == tokens.encode("two one").tolist()


def test_an_existing_model_is_never_overwritten(tmp_path: Path):
    path = saved(tmp_path / "model")
    before = (path / WEIGHTS).read_bytes()
    with pytest.raises(QkvError, match="exists, and is never overwritten"):
        saved(path)
    assert (path / WEIGHTS).read_bytes() == before


@pytest.mark.parametrize("name", [FACTS, WEIGHTS, TOKENIZERS[0]])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, damage: str):
    file = saved(tmp_path / "model") / name
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "cut":
        file.write_bytes(content[:-1])
    else:
        file.unlink()
    says = {"flipped": "has changed", "cut": "is cut short", "gone": "is missing"}[damage]
    with pytest.raises(QkvError, match=f"model is damaged: {name} {says}"):
        read(tmp_path / "model")


def test_the_card_may_be_edited_and_files_added(tmp_path: Path):
    path = saved(tmp_path / "model")
    (path / CARD).write_text("# Mine\n")
    (path / "notes.txt").write_text("mine")
    assert read(path).task == "x"


def test_without_a_manifest_nothing_is_believed(tmp_path: Path):
    (saved(tmp_path / "model") / MANIFEST).unlink()
    with pytest.raises(QkvError, match=r"MANIFEST\.json is missing"):
        read(tmp_path / "model")


class Trap:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def test_a_pickle_in_place_of_the_weights_is_never_opened(tmp_path: Path):
    """Not even one that a forged manifest vouches for."""
    path = saved(tmp_path / "model", ())
    (path / WEIGHTS).write_bytes(pickle.dumps(Trap()))
    (path / MANIFEST).unlink()
    entries = {name: bundle_entry(path / name) for name in (FACTS, WEIGHTS, CARD)}
    (path / MANIFEST).write_text(json.dumps(entries))
    with pytest.raises(Exception, match=r"(?i)header|deserializ"):
        read(path)


def bundle_entry(file: Path) -> dict[str, object]:
    import hashlib

    return {"bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def test_a_newer_format_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bundle, "FORMAT", 2)
    saved(tmp_path / "model")
    monkeypatch.undo()
    with pytest.raises(
        QkvError, match=r"has format 2, written by qkv .*, and this qkv .* knows 1: pip install --upgrade"
    ):
        read(tmp_path / "model")


@pytest.mark.parametrize(
    ("mark", "what"),
    [("checkpoint.json", "a checkpoint"), ("checkpoints/", "a run"), ("config.json", "a Hugging Face model"),
     ("model.bin", "a CTranslate2 model")],
)  # fmt: skip
def test_what_only_looks_like_a_model_is_told(tmp_path: Path, mark: str, what: str):
    place = tmp_path / "thing"
    place.mkdir()
    (place / mark).mkdir() if mark.endswith("/") else (place / mark).touch()
    with pytest.raises(QkvError, match=f"thing is no model directory of qkv but looks like {what}[ ,]"):
        read(place)


def test_what_is_no_model_at_all_is_one_sentence(tmp_path: Path):
    saved(tmp_path / "models" / "model-a")
    saved(tmp_path / "models" / "model-b")
    (tmp_path / "empty").mkdir()
    for path, wanted in (
        ("models/model-x", r"there is no .*model-x: give a model directory; did you mean '.*model-[ab]'\?"),
        ("nowhere/model", r"there is no .*nowhere/model: give a model directory$"),
        ("models/model-a/qkv.json", r"qkv.json is a file; a model is a directory"),
        ("models", r"models is no model, but .*model-a and .*model-b are: give that"),
        ("empty", r"empty is no model directory \(it has no qkv.json\): give one that qkv wrote"),
    ):
        with pytest.raises(QkvError, match=wanted):
            read(tmp_path / path)
