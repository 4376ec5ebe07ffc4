"""Classifying pictures: the loss and the scores by hand, and a classifier of files and arrays that says what it cannot use.

Axes: B pictures, N pictures, L classes, C channels, Y and X height and width in pixels.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.data.images import Images
from qkv.decode import pictures
from qkv.decode.pictures import PictureClassifier
from qkv.errors import QkvError
from qkv.recipe.recipe import resolve
from qkv.store import bundle
from qkv.tasks.classify_images import KIND, ClassifyingImages
from qkv.tasks.task import Asked, load, resolved
from qkv.train.machine import Cost
from qkv.train.state import Progress
from qkv.train.train import write_model

N = 24
PIXELS_NYXC = np.random.default_rng(0).integers(0, 256, (N, 4, 6, 3), dtype=np.uint8)
CLASSES = ("cat", "dog", "fox")
MODEL = {"kind": "vit", "patch": 2, "width": 12, "hidden": 20, "heads": 3, "layers": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A picture for each row, in the folder of its class."""
    root = tmp_path / "pets"
    for row, pixels in enumerate(PIXELS_NYXC):
        path = root / CLASSES[row % 3] / f"{row:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return root


def task(folder: Path, **parts: Any) -> ClassifyingImages:
    tree = {"data": {"train": [{"source": str(folder)}]}, "model": MODEL} | parts
    return ClassifyingImages(resolve(KIND.config, tree, KIND.presets))


@pytest.fixture
def classifier(folder: Path, tmp_path: Path) -> PictureClassifier:
    made = task(folder, data={"train": [{"source": str(folder)}], "hold_out": 6})
    return load(write_model(made, tmp_path / "model", Progress(), Cost(1.0, 2, 3)))


def test_what_the_data_decide_is_written_into_the_recipe(folder: Path):
    config = task(folder).config
    assert config.data.classes == CLASSES
    assert (config.images.size, config.images.channels) == ((4, 6), 3)
    assert (config.model.size, config.model.channels, config.model.classes) == ((4, 6), 3, 3)
    np.testing.assert_allclose(config.images.mean, (PIXELS_NYXC / 255.0).mean((0, 1, 2)), rtol=0, atol=1e-12)
    assert KIND.files(config) == [str(folder)]


def test_mean_and_deviation_are_of_what_is_learnt_from_alone(folder: Path):
    part = task(folder, data={"train": [{"source": str(folder)}], "hold_out": 6})
    assert part.valid is not None
    held = set(part.valid.places)
    rows = [row for row in range(N) if not any(place.endswith(f"/{row:02}.png") for place in held)]
    assert len(rows) == 18
    np.testing.assert_allclose(
        part.config.images.mean, (PIXELS_NYXC[rows] / 255.0).mean((0, 1, 2)), rtol=0, atol=1e-12
    )
    assert "18 pictures of 4 x 6 in 3 channels and 3 classes to learn from, 6 to validate on" in part.notices


def test_pictures_that_are_validated_on_and_learnt_are_counted(folder: Path):
    found = task(folder, data={"train": [{"source": str(folder)}], "valid": [{"source": str(folder)}]})
    assert f"{N} of the pictures to validate on are learnt from, too, pixel by pixel" in found.notices


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("mixup", [0.0, 0.5])
def test_the_loss_is_that_of_both_classes_by_their_shares(folder: Path, smoothing: float, mixup: float):
    made = task(folder, smoothing=smoothing, augment={"mixup": mixup})
    made.model.eval()
    batch = made.epoch(0)[0]
    with torch.no_grad():
        log_p = made.model(batch.image_BCYX).double().log_softmax(-1)
        got = made.loss(batch).item()
    wanted = 0.0
    for row in range(N):
        share = batch.share_B[row].item()
        target = torch.full((3,), smoothing / 3, dtype=torch.float64)
        target[batch.label_B[row]] += (1 - smoothing) * share
        target[batch.other_B[row]] += (1 - smoothing) * (1 - share)
        wanted -= (target * log_p[row]).sum().item()
    assert got == pytest.approx(wanted, abs=1e-3)


def softmax(logits_NL: np.ndarray) -> np.ndarray:
    e_NL = np.exp(logits_NL.astype(np.float64))
    return e_NL / e_NL.sum(1, keepdims=True)


def test_evaluation_counts_what_is_taken_for_what(
    classifier: PictureClassifier, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pictures, "_BATCH", 5)  # more than one batch, the last one smaller
    found = KIND.evaluate(classifier, task(folder).config, Asked([str(folder)]))
    p_NL = softmax(classifier.logits(PIXELS_NYXC.transpose(0, 3, 1, 2)))
    truth_N, guess_N = [row % 3 for row in range(N)], p_NL.argmax(1).tolist()
    right = sum(truth == guess for truth, guess in zip(truth_N, guess_N, strict=True))
    f1 = [
        2 * sum(truth == guess == label for truth, guess in zip(truth_N, guess_N, strict=True))
        / (truth_N.count(label) + guess_N.count(label))
        for label in range(3)
    ]  # fmt: skip
    lost = [-math.log(p_L[label]) for label, p_L in zip(truth_N, p_NL, strict=True)]
    assert found.scores["all"].values == pytest.approx(
        {"accuracy": 100 * right / N, "macro_f1": 100 * sum(f1) / 3, "loss": sum(lost) / N}
    )
    assert (found.counts, found.unit, [report.kept for report in found.reports]) == (
        {"all": N},
        "pictures",
        [N],
    )
    pairs = [(CLASSES[truth], CLASSES[guess]) for truth, guess in zip(truth_N, guess_N, strict=True)]
    assert found.tables["confusion"][1:] == [
        [row, *(str(pairs.count((row, column))) for column in CLASSES)] for row in CLASSES
    ]
    assert [row[:2] for row in found.tables["by label"][1:]] == [[name, "8"] for name in CLASSES]
    # in the order of the data: folder by folder
    assert found.outputs == [CLASSES[guess_N[row]] for label in range(3) for row in range(label, N, 3)]


def test_what_was_held_out_is_found_again(classifier: PictureClassifier, folder: Path):
    made = task(folder, data={"train": [{"source": str(folder)}], "hold_out": 6})
    assert made.valid is not None
    made.model.load_state_dict(classifier.model.state_dict())
    validated, found = made.validate(), KIND.evaluate(classifier, made.config, Asked())
    assert validated is not None
    assert found.counts == {"all": 6}
    assert found.scores["all"].values == pytest.approx(validated.values)
    assert len(found.outputs) == 6


@pytest.mark.parametrize("kind", ["vit", "convnet"])
def test_a_model_for_other_classes_is_a_start(folder: Path, tmp_path: Path, kind: str):
    model = MODEL if kind == "vit" else {"kind": "convnet", "width": 4, "blocks": [1, 1]}
    start = write_model(task(folder, model=model), tmp_path / "model", Progress(), Cost(1.0, 2, 3))
    for name in ("dog", "owl"):
        (tmp_path / "new" / name).mkdir(parents=True)
        Image.fromarray(PIXELS_NYXC[0]).save(tmp_path / "new" / name / "0.png")
    tree = {
        "task": "classify_images",
        "data": {"train": [{"source": str(tmp_path / "new")}]},
        "train": {"start": str(start)},
    }
    before, config = bundle.read(start), resolved(tree)
    made = ClassifyingImages(config, before)
    assert made.config.data.classes == ("dog", "owl")
    assert made.config.images.mean == pytest.approx(before.recipe["images"]["mean"])
    weights = made.model.state_dict()
    assert torch.equal(weights["output.weight"][0], before.tensors["output.weight"][1])
    same = [name for name in weights if not name.startswith("output.")]
    assert all(torch.equal(weights[name], before.tensors[name]) for name in same)
    assert made.notices[-1].endswith("; 2 resized: output.weight, output.bias")
    with pytest.raises(QkvError, match=r"images.channels is 1, but .* was made with 3, and keeps it"):
        resolved(tree | {"images": {"channels": 1}})


def test_files_arrays_and_single_ones_are_classified_alike(classifier: PictureClassifier, folder: Path):
    paths = [folder / CLASSES[row % 3] / f"{row:02}.png" for row in range(7)]
    of_files, of_arrays = classifier.classify(paths, top=2), classifier.classify(list(PIXELS_NYXC[:7]), top=2)
    assert of_files == of_arrays == classifier.classify(PIXELS_NYXC[:7], top=2)
    assert [len(best) for best in of_files] == [2] * 7
    for one in (str(paths[3]), PIXELS_NYXC[3]):
        (alone,) = classifier.classify(one, top=2)
        assert [label for label, _ in alone] == [label for label, _ in of_files[3]]
        assert [p for _, p in alone] == pytest.approx([p for _, p in of_files[3]], abs=1e-6)
    assert classifier.classify(paths) == [best[:1] for best in of_files]
    (everything,) = classifier.classify(paths[0], top=99)
    assert {label for label, _ in everything} == set(CLASSES)
    assert sum(p for _, p in everything) == pytest.approx(1, abs=1e-5)
    assert [p for _, p in everything] == sorted((p for _, p in everything), reverse=True)
    (p_L,) = softmax(classifier.logits(PIXELS_NYXC[:1].transpose(0, 3, 1, 2)))
    assert everything[0] == (CLASSES[int(p_L.argmax())], pytest.approx(p_L.max(), abs=1e-5))


def test_other_sizes_and_grey_ones_are_brought_to_what_it_reads(classifier: PictureClassifier):
    large = np.repeat(np.repeat(PIXELS_NYXC[0], 3, 0), 3, 1)
    assert classifier.read(large).shape == (3, 4, 6)
    assert len(classifier.classify(np.zeros((9, 5), np.uint8))) == 1


def test_what_cannot_be_used_is_named_and_the_others_are_classified(
    classifier: PictureClassifier, folder: Path
):
    bad = folder / "bad.png"
    bad.write_bytes((folder / "cat" / "00.png").read_bytes()[:60])
    images = [folder / "cat" / "00.png", bad, np.zeros((4, 6)), PIXELS_NYXC[0]]
    answers = list(classifier.stream(images, top=1))
    assert [answer.source for answer in answers] == [str(images[0]), str(bad), "picture 3", "picture 4"]
    assert [answer.fault is None for answer in answers] == [True, False, False, True]
    assert "bad.png is damaged" in (answers[1].fault or "")
    assert "picture 3 is an array of float64" in (answers[2].fault or "")
    assert answers[0].best == answers[3].best
    with pytest.raises(QkvError, match=r"bad\.png is damaged"):
        classifier.classify(images)
    with pytest.raises(QkvError, match="top is 0"):
        classifier.classify(images[0], top=0)
    assert classifier.classify([]) == []


def test_the_card_names_the_classes(folder: Path, tmp_path: Path):
    path = write_model(task(folder), tmp_path / "model", Progress(), Cost(1.0, 2, 3))
    assert "Classes: cat, dog, fox" in (path / "README.md").read_text("utf-8")
    assert bundle.read(path).recipe["data"]["classes"] == list(CLASSES)


def test_a_patch_that_does_not_divide_says_what_to_change(folder: Path):
    with pytest.raises(
        QkvError,
        match=r"4 x 6 pixels do not divide into patches of 4: set another model.patch, or images.size",
    ):
        task(folder, model=MODEL | {"patch": 4})


def test_a_class_that_is_only_validated_on_is_refused(folder: Path, tmp_path: Path):
    other = tmp_path / "other" / "owl"
    other.mkdir(parents=True)
    Image.fromarray(PIXELS_NYXC[0]).save(other / "0.png")
    with pytest.raises(QkvError, match="is of class 'owl', which is none of the 3 that are known"):
        task(folder, data={"train": [{"source": str(folder)}], "valid": [{"source": str(other.parent)}]})


def test_the_examples_of_a_batch_can_be_looked_at(folder: Path):
    made = task(folder)
    batch = made.epoch(0)[0]
    shape, first, second = made.look(batch)
    assert shape.startswith("24 pictures of 4 x 6 pixels in 3 channels, from -")
    assert f"({folder}" in first
    assert first.split()[0] == Path(made.describe(batch, [0])).parent.name
    assert second != first
    assert made.targets(batch) == N


def test_an_images_object_of_another_order_keeps_its_classes(folder: Path):
    images = task(folder).images
    order = np.array([5, 3, 3])
    taken = images.take(order)
    assert isinstance(taken, Images)
    assert taken.places == [images.places[5], images.places[3], images.places[3]]
    assert taken.labels_N.tolist() == images.labels_N[order].tolist()
