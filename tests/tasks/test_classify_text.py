"""Text classification: what it learns, what it is scored on, what it starts from, and what is wrong with data."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.errors import QkvError
from qkv.recipe.config import from_tree
from qkv.store import bundle
from qkv.tasks import task as tasks
from qkv.tasks.classify_text import KIND, ClassifyText, ClassifyTextConfig, disagreement, loss_of
from qkv.tasks.shared.labels import Labels
from qkv.tasks.task import Asked, resolved, starting
from qkv.train.progress import Display
from qkv.train.train import train

TOPICS = Path(__file__).with_name("topics.tsv")
TREE: dict[str, Any] = {
    "task": "classify_text",
    "data": {"train": [{"source": str(TOPICS)}], "hold_out": 0.2},
    "tokens": {"kind": "word", "minimum": 1},
    "batches": {"budget": 100, "longest": 20},
    "model": {"width": 12, "hidden": 20, "heads": 3, "layers": 2, "pool": "average", "dropout": 0.0},
    "train": {
        "epochs": 12,
        "precision": "fp32",
        "optimizer": {"rate": 0.02},
        "schedule": {"kind": "linear", "warmup": 10},
    },
}


def merged(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    both = {k: merged(tree[k], v) if isinstance(v, dict) and k in tree else v for k, v in changes.items()}
    return tree | both


def recipe(**changes: Any) -> ClassifyTextConfig:
    return resolved(merged(TREE, changes))


def trained(path: Path, **changes: Any) -> Path:
    return train(recipe(**changes), path, display=Display(quiet=True))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    return trained(tmp_path_factory.mktemp("classify") / "run").parent


def test_it_learns_and_says_so(model: Path):
    classifier = qkv.load(model)
    assert classifier.labels == ("food", "music", "weather")
    texts = ["so much rain again today", "", "I like cheese", "no harp , please"]
    found = classifier.classify(texts)
    assert [[one.label for one in each] for each in found] == [["weather"], [], ["food"], ["music"]]
    best = classifier.classify(texts, top=3)
    assert [[one.label for one in each][:1] for each in best] == [
        [one.label for one in each] for each in found
    ]
    for each in (best[0], best[2], best[3]):
        assert sum(one.probability for one in each) == pytest.approx(1)
        assert [one.probability for one in each] == sorted((one.probability for one in each), reverse=True)
    facts = bundle.read(model / "model").results
    assert facts["scores"]["accuracy"] > 80
    assert any("to beat on the validation data: majority accuracy" in notice for notice in facts["notices"])


def test_neighbours_and_windows_change_nothing(model: Path):
    classifier = qkv.load(model)
    texts = [line.split("\t")[0] for line in TOPICS.read_text().splitlines()]
    whole = classifier.logits(texts)
    alone = np.concatenate([classifier.logits([text]) for text in texts])
    np.testing.assert_allclose(whole, alone, atol=1e-5)
    windows = [one.best[0].label for one in classifier.stream(texts, window=4)]
    assert windows == [each[0].label for each in classifier.classify(texts)]


def test_vectors_are_what_the_output_reads_or_pools_of_the_tokens(model: Path):
    classifier = qkv.load(model)
    texts = ["so much rain", "I like cheese again today"]
    raw = classifier.embed(texts, normalise=False)
    assert raw.shape == (2, 12)
    wanted = classifier.model.output(torch.from_numpy(raw)).detach().numpy()
    np.testing.assert_allclose(wanted, classifier.logits(texts), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(classifier.embed(texts), axis=1), 1, atol=1e-6)
    token, keep = classifier.encode(texts[:1]).batch(np.array([0]), classifier.tokens)
    with torch.no_grad():
        x = classifier.model.read(token, keep)
    np.testing.assert_allclose(
        classifier.embed(texts, pool="average", normalise=False)[0], x[0].mean(0), atol=1e-6
    )
    np.testing.assert_allclose(classifier.embed(texts, pool="class", normalise=False)[0], x[0, 0], atol=1e-6)
    assert len(classifier.embed([])) == 0
    with pytest.raises(QkvError, match="pool is 'mean'; choose one of class, average, max"):
        classifier.embed(texts, pool="mean")
    for verb in (classifier.embed, classifier.classify):
        with pytest.raises(QkvError, match="texts is the text 'x': give a list"):
            verb("x")
    with pytest.raises(QkvError, match="top is 0"):
        classifier.classify(texts, top=0)


def test_the_evaluation_is_that_of_training_and_its_tables_add_up(model: Path):
    found = bundle.read(model / "model")
    config = from_tree(ClassifyTextConfig, found.recipe)
    result = KIND.evaluate(KIND.load(found), config, Asked())
    assert dict(result.scores["all"].values) == pytest.approx(found.results["scores"])
    confusion = np.array([row[1:] for row in result.tables["confusion"][1:]], dtype=int)
    assert confusion.sum() == result.counts["all"] == len(result.outputs)
    assert 100 * confusion.trace() / confusion.sum() == pytest.approx(result.scores["all"].values["accuracy"])
    assert set(result.scores) == {"all", "majority", "tf-idf"}


def test_the_held_out_texts_are_on_one_side(model: Path):
    task = ClassifyText(recipe())
    learnt, held = ({one.text for one in part.examples} for part in (task.train_set, task.valid_set))
    assert held
    assert not learnt & held
    assert len(learnt) + len(held) == len({line.split("\t")[0] for line in TOPICS.read_text().splitlines()})


def test_labels_can_be_renamed_and_ordered(tmp_path: Path):
    names = {"food": "eating"}
    task = ClassifyText(recipe(data={"names": names}, labels=["weather", "eating", "music"]))
    assert task.labels.names == ("weather", "eating", "music")
    row = next(n for n, one in enumerate(task.train_set.examples) if one.labels == ("eating",))
    assert task.train_set.truth_NC[row].tolist() == [False, True, False]


def test_losses_by_hand():
    logits = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]], dtype=torch.float64)
    truth = torch.tensor([[False, True, False], [True, False, False]])
    weight = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64)
    log = logits - logits.exp().sum(1, keepdim=True).log()
    one = Labels(("a", "b", "c"))
    assert loss_of(logits, truth, one).item() == pytest.approx(-(log[0, 1] + log[1, 0]).item())
    assert loss_of(logits, truth, one, weight).item() == pytest.approx(
        -(3 * log[0, 1] + 2 * log[1, 0]).item()
    )
    sign = torch.where(truth, 1.0, -1.0)
    lost = torch.log1p(torch.exp(-sign * logits))
    several = Labels(("a", "b", "c"), multiple=True)
    assert loss_of(logits, truth, several, weight).item() == pytest.approx((lost * weight).sum().item())


def test_disagreement_by_hand():
    one, other = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    p, q = one.softmax(1), other.softmax(1)
    wanted = ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2
    assert disagreement(one, other, Labels(("a", "b", "c"))).item() == pytest.approx(wanted.item())
    p, q = one.sigmoid(), other.sigmoid()
    wanted = sum((a * (a / b).log() + b * (b / a).log()).sum() for a, b in ((p, q), (1 - p, 1 - q))) / 2
    assert disagreement(one, other, Labels(("a", "b", "c"), True)).item() == pytest.approx(float(wanted))


def test_passes_that_agree_add_nothing_and_others_do():
    still = ClassifyText(recipe(agreement=3.0, model={"attention_dropout": 0.0, "output_dropout": 0.0}))
    batch = still.epoch(0)[0]
    still.model.train()
    loss = still.loss(batch).item()
    still.model.eval()
    assert loss == pytest.approx(still.loss(batch).item(), rel=1e-5)
    task = ClassifyText(recipe(agreement=3.0, model={"dropout": 0.5}))
    task.model.train()
    torch.manual_seed(7)
    one, other = (task.model(batch.token_BT, batch.keep_BT) for _ in range(2))
    assert not torch.equal(one, other)
    losses = [loss_of(logits, batch.truth_BC, task.labels) for logits in (one, other)]
    wanted = sum(losses) / 2 + 3 * disagreement(one, other, task.labels)
    torch.manual_seed(7)
    assert task.loss(batch).item() == pytest.approx(wanted.item(), rel=1e-5)


def test_tokens_are_dropped_in_training_alone_and_never_the_ends():
    task = ClassifyText(recipe(token_dropout=0.9))
    batch = task.epoch(0)[0]
    seen: list[torch.Tensor] = []
    task.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    task.model.train()
    task.loss(batch)
    task.model.eval()
    task.loss(batch)
    assert torch.equal(seen[1], batch.token_BT)
    changed = seen[0] != batch.token_BT
    assert (seen[0][changed] == task.tokens.unk).all()
    inner = batch.keep_BT.sum() - 2 * len(batch.rows)
    assert 0.7 < changed.sum() / inner <= 1


def test_several_labels_from_file_to_guess(tmp_path: Path):
    path = tmp_path / "a.txt"
    rows = [("x,y", "red blue"), ("x", "red"), ("y", "blue"), (",", "green")]
    path.write_text("".join(f"{labels} {text} {n}\n" for n in range(8) for labels, text in rows))
    done = trained(
        tmp_path / "run",
        data={"train": [{"source": str(path), "separator": ","}], "hold_out": 0.2},
        multiple=True,
        train={"epochs": 25},
    )
    classifier = qkv.load(done)
    found = classifier.classify(["red blue 3", "red 4", "green 1"])
    assert [sorted(one.label for one in each) for each in found] == [["x", "y"], ["x"], []]
    assert len(classifier.classify(["green 1"], top=2)[0]) == 2
    scores = bundle.read(done).results["scores"]
    assert {"accuracy", "macro_f1", "micro_f1"} <= set(scores)


@pytest.mark.parametrize("kind", ["masked", "classify_text"])
def test_it_starts_from_another_model(tmp_path: Path, kind: str):
    base = {k: v for k, v in TREE["model"].items() if kind == "classify_text" or k not in ("pool",)}
    other = merged(TREE, {"task": kind, "train": {"epochs": 1}}) | {"model": base}
    done = train(resolved(other), tmp_path / "first", display=Display(quiet=True))
    tree = {key: value for key, value in TREE.items() if key not in ("tokens", "model")}
    config = resolved(tree | {"model": {"dropout": 0.3}}, [f"train.start={tmp_path / 'first'}"])
    assert (config.model.width, config.model.layers, config.model.dropout) == (12, 2, 0.3)
    assert config.tokens.kind == "word"
    task = ClassifyText(config, starting(config))
    before = bundle.read(done)
    for name, tensor in task.model.state_dict().items():
        if name.startswith("bert.") or kind == "classify_text":
            assert torch.equal(tensor, before.tensors[name]), name
    told = task.notices[-2]
    assert f"from {done}: " in told
    assert ("2 new: output.weight, output.bias" in " ".join(told.split())) == (
        kind == "masked" and not config.model.pooler
    )
    assert str(done / bundle.WEIGHTS) in tasks.files(config)
    with pytest.raises(
        QkvError,
        match=r"tokens\.size is 300, but .*, from which training starts.*leave tokens\.size out",
    ):
        resolved(tree | {"tokens": {"size": 300}}, [f"train.start={done}"])
    with pytest.raises(QkvError, match=r"model\.preset is 'tiny', with width = 128.*leave model\.preset out"):
        resolved(tree | {"model": {"preset": "tiny"}}, [f"train.start={done}"])
    with pytest.raises(QkvError, match=r"is a bert for .*, and a textcnn is wanted"):
        resolved(tree | {"model": {"kind": "textcnn"}}, [f"train.start={done}"])


def test_labels_that_stay_keep_their_rows(model: Path, tmp_path: Path):
    path = tmp_path / "new.tsv"
    path.write_text("I like tea\tdrink\nno rain\tweather\nso much fog\tweather\nmilk\tdrink\n")
    tree = {"task": "classify_text", "data": {"train": [{"source": str(path)}]}, "batches": {"longest": 20}}
    config = resolved(tree, [f"train.start={model}"])
    task = ClassifyText(config, starting(config))
    before = bundle.read(model / "model")
    assert task.labels.names == ("drink", "weather")
    assert torch.equal(task.model.output.weight[1], before.tensors["output.weight"][2])


def write(path: Path, text: str) -> list[dict[str, str]]:
    path.write_text(text)
    return [{"source": str(path)}]


@pytest.mark.parametrize(
    ("train_text", "valid_text", "said"),
    [
        ("x\ta\ny\ta\n", "", r"all 2 examples of .*train\.tsv have the label 'a'"),
        ("x\ta\ny\tb\n", "z\tc\n", r"valid\.tsv line 1 has the label 'c', which no training example has"),
        ("\ta\n", "", r"there is no text left to train on: see what was skipped"),
        ("x\ta\ny\tb\n", "\tb\n", r"there is no text left to validate on"),
    ],
)
def test_what_is_wrong_with_data_is_said(tmp_path: Path, train_text: str, valid_text: str, said: str):
    data: dict[str, Any] = {"train": write(tmp_path / "train.tsv", train_text)}
    if valid_text:
        data["valid"] = write(tmp_path / "valid.tsv", valid_text)
    with pytest.raises(QkvError, match=said):
        ClassifyText(resolved({**TREE, "data": data}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batches": {"longest": 60}, "model": {"length": 50}}, r"set model\.length=60"),
        ({"smoothing": 0.1, "multiple": True}, r"smoothing is 0\.1, for texts with one label"),
        ({"data": {"valid": [{"source": str(TOPICS)}]}}, r"hold_out is 0\.2 though valid names data"),
    ],
)
def test_what_does_not_go_together_is_said(changes: dict[str, Any], said: str):
    with pytest.raises(QkvError, match=said):
        recipe(**changes)


def test_long_texts_are_cut_and_counted():
    task = ClassifyText(recipe(batches={"longest": 6}))
    assert any(
        "texts are longer than batches.longest = 6 tokens and lose their ends" in n for n in task.notices
    )
    assert (
        max(batch.token_BT.shape[1] for batch in map(task.epoch(0).__getitem__, range(len(task.epoch(0)))))
        == 6
    )


def test_the_order_and_the_weights_decide_the_loss():
    task = ClassifyText(recipe(class_weights={"food": 3.0}))
    plain = ClassifyText(recipe())
    assert task.digest() == plain.digest() != ClassifyText(recipe(tokens={"kind": "character"})).digest()
    batch = task.epoch(0)[0]
    task.model.eval()
    plain.model.eval()
    food = batch.truth_BC[:, 0]
    weights = torch.where(food, 3.0, 1.0)
    logits = plain.model(batch.token_BT, batch.keep_BT)
    lost = torch.nn.functional.cross_entropy(logits, batch.truth_BC.int().argmax(1), reduction="none")
    assert task.loss(batch).item() == pytest.approx((lost * weights).sum().item(), rel=1e-5)
    assert math.isfinite(replace(task.config, smoothing=0.1).smoothing)


def test_a_heading_that_was_taken_for_a_text_shows(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\nx,a\ny,b\nz,a\nw,b\n")
    task = ClassifyText(resolved({**TREE, "data": {"train": [{"source": str(path)}]}}))
    assert f"labels with one text only: 'label' ({path} line 1)" in task.notices


def test_a_rare_label_may_fall_to_what_is_held_out(tmp_path: Path):
    path = tmp_path / "a.tsv"
    rows = [
        f"{word}\t{'rare' if word == 'only' else word[0]}\n"
        for word in ("only", *(f"{a}{n}" for a in "xy" for n in range(40)))
    ]
    path.write_text("".join(rows))
    for share in (0.05, 0.5, 0.95):
        task = ClassifyText(resolved({**TREE, "data": {"train": [{"source": str(path)}], "hold_out": share}}))
        assert task.labels.names == ("rare", "x", "y")
