"""Pictures in, labels out: a model that reads pictures, with the names of its classes.

Axes: N pictures, L classes, C channels, Y and X height and width in pixels.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from qkv.data.image_batches import Scale
from qkv.data.images import ImagesConfig
from qkv.data.picture import MOST_PIXELS, as_picture, fitted, read_picture
from qkv.decode.answer import Answer, Guess, expect_top, guesses
from qkv.errors import QkvError
from qkv.models.interface import ImageClassifier

_BATCH = 256  # pictures classified at a time


class PictureClassifier:
    """A finished model: the classes of pictures in files or arrays; what `qkv.load` returns for a model of pictures."""

    reads: ClassVar[Literal["lines", "files"]] = "files"
    """What its inputs are to the command line: lines of text, or paths of files such as images."""

    def __init__(
        self,
        model: ImageClassifier,
        images: ImagesConfig,
        labels: Sequence[str],
        most_pixels: int = MOST_PIXELS,
    ):
        """`images` says what each picture is brought to; a file with more than `most_pixels` is not decoded."""
        self.model, self.images, self.labels = model.eval(), images, tuple(labels)
        self._most_pixels, self._scale = most_pixels, Scale(images)

    def classify(self, images: Iterable[Any] | Any, top: int | None = None) -> list[list[Guess]]:
        """For each picture its `top` likeliest classes, the likeliest first; without `top` the likeliest one.

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

    def stream(self, images: Iterable[Any], top: int | None = None) -> Iterator[Answer]:
        """The answers in order, as they are found, also for pictures that cannot be used."""
        expect_top(top)
        numbered = enumerate(images, 1)
        while some := list(islice(numbered, _BATCH)):
            named = [
                (str(one) if isinstance(one, (str, Path)) else f"picture {number}") for number, one in some
            ]
            read = [self._read(one, name) for (_, one), name in zip(some, named, strict=True)]
            usable = [pixels for pixels in read if isinstance(pixels, np.ndarray)]
            best = iter(
                guesses(self.logits(np.stack(usable)), self.labels, multiple=False, top=top) if usable else ()
            )
            for name, pixels in zip(named, read, strict=True):
                yield Answer(name, [], pixels) if isinstance(pixels, str) else Answer(name, next(best))

    @torch.inference_mode()
    def logits(self, pixels_NCYX: np.ndarray) -> np.ndarray:
        """Scores of each class for pictures of the model's size, as bytes; logits_NL."""
        self.model.eval()
        parts = [pixels_NCYX[start : start + _BATCH] for start in range(0, len(pixels_NCYX), _BATCH)]
        return torch.cat([self.model(self._scale(part)).float() for part in parts]).numpy()

    def read(self, image: Any, name: str = "the picture") -> np.ndarray:
        """A file or an array as the model's bytes; pixels_CYX."""
        c, path = self.images, isinstance(image, (str, Path))
        image_YXC = read_picture(str(image), self._most_pixels) if path else as_picture(image, name)
        assert c.size is not None
        assert c.channels is not None
        return fitted(image_YXC, c.size, c.channels, c.fit)

    def _read(self, image: Any, name: str) -> np.ndarray | str:
        """The same, or what is wrong with it."""
        try:
            return self.read(image, name)
        except QkvError as error:
            return str(error)
