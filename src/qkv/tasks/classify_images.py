"""Sorting pictures into classes: sets of pictures to batches, their loss, accuracy and confusions, and a classifier.

Axes: B pictures of a batch, N pictures, L classes, C channels, Y and X height and width in pixels.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor
from torch.nn import functional as F

from qkv.config import config
from qkv.data import draws
from qkv.data.augment import AugmentConfig
from qkv.data.image_batches import ImageBatch, ImageBatches, ImageBatchesConfig, Scale, measured
from qkv.data.image_sets import ImageRules, ImageSet
from qkv.data.images import Images, ImagesConfig, read_images
from qkv.data.picture import as_picture, fitted, read_picture
from qkv.data.report import Report
from qkv.errors import QkvError
from qkv.models import convnet, vit
from qkv.models.convnet import ConvNet, ConvNetConfig
from qkv.models.interface import ImageClassifier
from qkv.models.vit import ViT, ViTConfig
from qkv.recipe.config import from_tree
from qkv.recipe.training import TrainConfig
from qkv.store.bundle import Bundle
from qkv.tasks.task import Epoch, Kind, Scores, Task

ModelConfig = Annotated[ViTConfig | ConvNetConfig, Field(discriminator="kind")]
_BATCH = 256  # pictures classified at a time


@config
class DataConfig:
    """What to learn from, and what to validate on."""

    train: tuple[ImageSet, ...]
    """Sets of pictures to train on."""
    valid: tuple[ImageSet, ...] = ()
    """Sets to validate on; without any, and without `hold_out`, the last weights are the best."""
    hold_out: NonNegativeInt = 0
    """Pictures of the training sets to validate on instead: of each class its share, the same ones for every seed."""
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; none named: as folders or numbers name them."""
    rules: ImageRules = ImageRules()
    """What happens to faulty files."""


@config
class MetricsConfig:
    """How classes are scored."""

    best_by: Literal["accuracy", "f1", "loss"] = "accuracy"
    """By which score the best weights are chosen; f1 is the mean over the classes, whatever their sizes."""


@config
class ClassifyImagesConfig:
    """A recipe: everything that decides a classifier of pictures and its training."""

    task: Literal["classify_images"] = "classify_images"
    """What is trained."""
    data: DataConfig
    """What to learn from."""
    images: ImagesConfig = ImagesConfig()
    """What every picture is brought to."""
    augment: AugmentConfig = AugmentConfig()
    """How training pictures are changed at random."""
    batches: ImageBatchesConfig = ImageBatchesConfig()
    """How pictures become batches."""
    model: ModelConfig = ViTConfig()
    """The model, a kind with a preset and changes to it."""
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Label smoothing (Szegedy et al. 2016, section 7)."""
    metrics: MetricsConfig = MetricsConfig()
    """How classes are scored."""
    train: TrainConfig = TrainConfig()
    """How to train."""


class ClassifyingImages(Task[ImageBatch]):
    """Training a classifier of pictures."""

    def __init__(self, config: ClassifyImagesConfig, start: Bundle | None = None):
        data = config.data
        images, self.reports, prepared = read_images(data.train, config.images, data.rules, data.classes)
        self.valid: Images | None = None
        if data.valid:
            self.valid, reports, _ = read_images(data.valid, prepared, data.rules, images.classes)
            self.reports += reports
        elif data.hold_out:
            images, self.valid = images.split(data.hold_out)
        mean, deviation = measured(images)
        prepared = replace(prepared, mean=prepared.mean or mean, deviation=prepared.deviation or deviation)
        assert prepared.size is not None
        assert prepared.channels is not None
        model = replace(
            config.model, classes=len(images.classes), channels=prepared.channels, size=prepared.size
        )
        data = replace(data, classes=images.classes)
        self.config = config = replace(config, data=data, images=prepared, model=model)
        self.images, self.scale = images, Scale(prepared)
        self.batches = ImageBatches(images, config.batches, config.augment, self.scale, config.train.seed)
        self.notices = [*map(str, self.reports), _summary(images, self.valid), *_seen(images, self.valid)]
        torch.manual_seed(config.train.seed)
        self._model = build(config.model)
        if start:
            self._model.load_state_dict(start.tensors)

    @property
    def model(self) -> ImageClassifier:
        return self._model

    def epoch(self, number: int) -> Epoch[ImageBatch]:
        return self.batches.epoch(number)

    def targets(self, batch: ImageBatch) -> int:
        return len(batch.label_B)

    def loss(self, batch: ImageBatch) -> Tensor:
        logits_BL = self.model(batch.image_BCYX)
        logits_BL = logits_BL.to(torch.promote_types(logits_BL.dtype, torch.float32))
        first_B, other_B = (
            F.cross_entropy(logits_BL, label_B, reduction="none", label_smoothing=self.config.smoothing)
            for label_B in (batch.label_B, batch.other_B)
        )
        return torch.lerp(other_B, first_B, batch.share_B.to(first_B.dtype)).sum()

    def validate(self) -> Scores | None:
        if self.valid is None:
            return None
        found, best_by = (
            evaluate(Classifier(self.model, self.config), self.valid),
            self.config.metrics.best_by,
        )
        return Scores(found.values, best_by, more_is_better=best_by != "loss")

    def describe(self, batch: ImageBatch, rows: Sequence[int] = ()) -> str:
        chosen = [batch.rows[row] for row in rows] or batch.rows
        return ", ".join(self.images.places[int(row)] for row in chosen[:3])

    def digest(self) -> str:
        return self.images.digest()

    def look(self, batch: ImageBatch) -> Sequence[str]:
        B, C, Y, X = batch.image_BCYX.shape
        low, high = batch.image_BCYX.aminmax()
        found = [f"{B} pictures of {Y} x {X} pixels in {C} channels, from {low:.2f} to {high:.2f}"]
        for row in range(min(B, 2)):
            label, place = int(batch.label_B[row]), self.images.places[int(batch.rows[row])]
            found.append(f"{self.images.classes[label]}  ({place})")
        return found

    def tokenizers(self) -> Mapping[str, bytes]:
        return {}

    def card(self, facts: Mapping[str, str]) -> str:
        data = "\n".join(f"- {notice}" for notice in self.notices)
        kept = "\n".join(f"- {name}: {value}" for name, value in facts.items())
        return (
            f"# A classifier of pictures\n\nTrained by qkv. `qkv classify DIR PICTURE…` names their classes, `qkv info DIR` "
            f"describes it, and in Python `qkv.load(DIR).classify([...])`.\n\nClasses: {', '.join(self.images.classes)}\n\n"
            f"## Data\n\n{data}\n\n## Training\n\n{kept}\n"
        )


@dataclass(frozen=True)
class Answer:
    """What a classifier says of one picture."""

    name: str
    """The file, or which of the pictures."""
    best: list[tuple[str, float]]
    """Classes with their probabilities, the best first; none of a picture that cannot be used."""
    fault: str | None = None
    """Why it cannot be used."""


class Classifier:
    """A finished model: the classes of pictures in files or arrays."""

    def __init__(self, model: ImageClassifier, config: ClassifyImagesConfig):
        self.model, self.config, self.classes = model, config, config.data.classes
        self._scale = Scale(config.images)

    def classify(self, images: Iterable[Any] | Any, top: int = 5) -> list[list[tuple[str, float]]]:
        """For each picture its `top` best classes with their probabilities.

        A picture is the path of a file or an array of bytes, (height, width) or (height, width, channels). One that
        cannot be used is an error that names it; `stream` goes on without it.
        """
        if isinstance(images, (str, Path)) or getattr(images, "ndim", 4) < 4:
            images = [images]
        found = []
        for answer in self.stream(images, top):
            if answer.fault:
                raise QkvError(answer.fault)
            found.append(answer.best)
        return found

    def stream(self, images: Iterable[Any], top: int = 5) -> Iterator[Answer]:
        """The answers in order, as they are found, also for pictures that cannot be used."""
        if top < 1:
            raise QkvError(f"top is {top}; how many classes to name, 1 or more, is wanted")
        numbered = enumerate(images, 1)
        while some := list(islice(numbered, _BATCH)):
            named = [
                (str(one) if isinstance(one, (str, Path)) else f"picture {number}") for number, one in some
            ]
            read = [self._read(one, name) for (_, one), name in zip(some, named, strict=True)]
            usable = [pixels for pixels in read if isinstance(pixels, np.ndarray)]
            rows = iter(self.probabilities(np.stack(usable)) if usable else ())
            for name, pixels in zip(named, read, strict=True):
                if isinstance(pixels, str):
                    yield Answer(name, [], pixels)
                    continue
                values, labels = next(rows).topk(min(top, len(self.classes)))
                best = zip((self.classes[label] for label in labels.tolist()), values.tolist(), strict=True)
                yield Answer(name, list(best))

    @torch.inference_mode()
    def logits(self, pixels_NCYX: np.ndarray) -> Tensor:
        """Scores of each class for pictures of the model's size, as bytes; logits_NL."""
        self.model.eval()
        parts = [pixels_NCYX[start : start + _BATCH] for start in range(0, len(pixels_NCYX), _BATCH)]
        return torch.cat([self.model(self._scale(part)).float() for part in parts])

    def probabilities(self, pixels_NCYX: np.ndarray) -> Tensor:
        """Of each class for pictures of the model's size, as bytes; p_NL."""
        return self.logits(pixels_NCYX).softmax(-1)

    def read(self, image: Any, name: str = "the picture") -> np.ndarray:
        """A file or an array as the model's bytes; pixels_CYX."""
        c = self.config
        path = isinstance(image, (str, Path))
        image_YXC = read_picture(str(image), c.data.rules.most_pixels) if path else as_picture(image, name)
        assert c.images.size is not None
        assert c.images.channels is not None
        return fitted(image_YXC, c.images.size, c.images.channels, c.images.fit)

    def _read(self, image: Any, name: str) -> np.ndarray | str:
        """The same, or what is wrong with it."""
        try:
            return self.read(image, name)
        except QkvError as error:
            return str(error)


@dataclass(frozen=True)
class Evaluation:
    """How well a classifier does on some pictures."""

    classes: tuple[str, ...]
    confusion_LL: np.ndarray
    """How many pictures of each class (row) were taken for each (column)."""
    loss: float
    """Nats a picture."""

    @property
    def accuracy(self) -> float:
        """The share of pictures that are right, in percent."""
        return 100 * float(self.confusion_LL.trace() / self.confusion_LL.sum())

    def by_class(self) -> list[tuple[str, int, float, float, float]]:
        """Each class with its pictures, and precision, recall and F1 in percent; of what is never named they are 0."""
        right_L, true_L, named_L = (
            self.confusion_LL.diagonal(),
            self.confusion_LL.sum(1),
            self.confusion_LL.sum(0),
        )
        precision_L, recall_L = 100 * right_L / named_L.clip(1), 100 * right_L / true_L.clip(1)
        f1_L = 200 * right_L / (true_L + named_L).clip(1)
        columns = (true_L.tolist(), precision_L.tolist(), recall_L.tolist(), f1_L.tolist())
        return list(zip(self.classes, *columns, strict=True))

    @property
    def values(self) -> dict[str, float]:
        """The numbers by which models are compared; F1 is the mean over the classes that occur."""
        f1 = [f1 for _, count, _, _, f1 in self.by_class() if count]
        return {"accuracy": self.accuracy, "f1": sum(f1) / len(f1), "loss": self.loss}


def evaluate(classifier: Classifier, images: Images) -> Evaluation:
    """Classify pictures of the model's size and compare with their classes."""
    logits_NL, count = classifier.logits(images.pixels_NCYX), len(classifier.classes)
    loss = F.cross_entropy(logits_NL, torch.from_numpy(images.labels_N)).item()
    named_N = logits_NL.argmax(-1).numpy()
    pairs = np.bincount(images.labels_N * count + named_N, minlength=count * count)
    return Evaluation(classifier.classes, pairs.reshape(count, count), loss)


def read_sets(
    classifier: Classifier, sets: Sequence[ImageSet], strict: bool = False
) -> tuple[Images, list[Report]]:
    """Pictures as this classifier reads them, and what was found in their files."""
    c = classifier.config
    rules = replace(c.data.rules, strict=strict or c.data.rules.strict)
    images, reports, _ = read_images(sets, c.images, rules, classifier.classes)
    return images, reports


def read_valid(classifier: Classifier) -> tuple[Images, list[Report]]:
    """The pictures that its training validated on."""
    data = classifier.config.data
    if not data.valid and not data.hold_out:
        raise QkvError("the model was trained without validation data: name some with --data")
    images, reports = read_sets(classifier, data.valid or data.train)
    return (images if data.valid else images.split(data.hold_out)[1]), reports


def build(config: ViTConfig | ConvNetConfig) -> ImageClassifier:
    """The model of a config whose classes and sizes are known."""
    return ConvNet(config) if isinstance(config, ConvNetConfig) else ViT(config)


def load(bundle: Bundle) -> Classifier:
    """The classifier of a finished model."""
    config = from_tree(ClassifyImagesConfig, bundle.recipe, str(bundle.path))
    model = build(config.model)
    model.load_state_dict(bundle.tensors)
    return Classifier(model.eval(), config)


def _summary(images: Images, valid: Images | None) -> str:
    C, Y, X = images.pixels_NCYX.shape[1:]
    held = "" if valid is None else f", {len(valid):,} to validate on"
    return f"{len(images):,} pictures of {Y} x {X} in {C} channels and {len(images.classes)} classes to learn from{held}"


def _seen(images: Images, valid: Images | None) -> list[str]:
    """Whether what is validated on is learnt, too."""
    if valid is None:
        return []
    both = int(np.isin(draws.hashes(valid.pixels_NCYX), draws.hashes(images.pixels_NCYX)).sum())
    return [f"{both:,} of the pictures to validate on are learnt from, too, pixel by pixel"] if both else []


KIND = Kind(
    config=ClassifyImagesConfig,
    presets={"vit": vit.PRESETS, "convnet": convnet.PRESETS},
    files=lambda config: [path for one in (*config.data.train, *config.data.valid) for path in one.files],
    build=ClassifyingImages,
    load=load,
)
