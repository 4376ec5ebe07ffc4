"""Sorting pictures into classes: sets of pictures to batches, their loss, accuracy and F1, and a classifier.

Axes: B pictures of a batch, N pictures, L classes, C channels, Y and X height and width in pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

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
from qkv.data.report import Report
from qkv.decode.pictures import PictureClassifier
from qkv.errors import QkvError
from qkv.models import convnet, vit
from qkv.models.convnet import ConvNet, ConvNetConfig
from qkv.models.interface import ImageClassifier
from qkv.models.vit import ViT, ViTConfig
from qkv.recipe.config import from_tree
from qkv.recipe.training import TrainConfig
from qkv.store.bundle import Bundle
from qkv.store.transfer import transfer
from qkv.tasks.shared.labels import Labels, evaluation, output_rows, scores
from qkv.tasks.task import Asked, Epoch, Evaluation, Kind, Scores, Task

ModelConfig = Annotated[ViTConfig | ConvNetConfig, Field(discriminator="kind")]


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

    best_by: Literal["accuracy", "macro_f1", "loss"] = "accuracy"
    """By which score the best weights are chosen; macro_f1 is the mean over the classes, whatever their sizes."""


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
            before = start.recipe["data"]["classes"]
            self.notices.append(transfer(self._model, start, output_rows(images.classes, before)))

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
        classifier = PictureClassifier(self.model, self.config.images, self.images.classes)
        logits_NL = classifier.logits(self.valid.pixels_NCYX)
        return scores(logits_NL, self.valid.truth(), Labels(self.images.classes), self.config.metrics.best_by)

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


def evaluate(classifier: PictureClassifier, config: ClassifyImagesConfig, asked: Asked) -> Evaluation:
    """Classify some pictures and compare with their classes."""
    images, reports = _asked_for(config, asked)
    return evaluation(
        classifier.logits(images.pixels_NCYX),
        images.truth(),
        Labels(images.classes),
        best_by=config.metrics.best_by,
        unit="pictures",
        reports=reports,
    )


def _asked_for(config: ClassifyImagesConfig, asked: Asked) -> tuple[Images, list[Report]]:
    """The pictures to be scored on, by default those that training validated on."""
    if len(asked.data) > 2:
        raise QkvError(
            f"{len(asked.data)} files of data are given; a folder or file is wanted, or two: pictures and classes"
        )
    data = config.data
    rules, sets = replace(data.rules, strict=asked.strict or data.rules.strict), data.valid or data.train
    if asked.data:
        source, labels = [*asked.data, None][:2]
        assert source is not None
        sets = (ImageSet(source=source, labels=labels, **asked.reading),)
    images, reports, _ = read_images(sets, config.images, rules, data.classes)
    held_out = not asked.data and not data.valid
    return (images.split(data.hold_out)[1] if held_out else images), reports


def build(config: ViTConfig | ConvNetConfig) -> ImageClassifier:
    """The model of a config whose classes and sizes are known."""
    return ConvNet(config) if isinstance(config, ConvNetConfig) else ViT(config)


def load(bundle: Bundle) -> PictureClassifier:
    """The classifier of a finished model."""
    config = from_tree(ClassifyImagesConfig, bundle.recipe, str(bundle.path))
    model = build(config.model)
    model.load_state_dict(bundle.tensors)
    return PictureClassifier(model, config.images, config.data.classes, config.data.rules.most_pixels)


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
    evaluate=evaluate,
    settable=("metrics",),
    kept=("images",),
)
