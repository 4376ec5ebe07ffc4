"""One picture: read from a file whatever is in it, turned upright, and brought to the size that a model reads.

Axes: Y and X height and width in pixels, C channels: 1 for grey, 3 for colours.
"""

import warnings
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional as F

from qkv.errors import QkvError

MOST_PIXELS = 16_000_000
# What people take pictures in; of the many others that Pillow knows, some start other programs.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")

Fit = Literal["crop", "stretch"]


class Unusable(QkvError):
    """A file without a usable picture; `fault` is its kind, as reports count it."""

    def __init__(self, fault: str, sentence: str):
        super().__init__(sentence)
        self.fault = fault


def read_picture(path: str, most: int = MOST_PIXELS) -> np.ndarray:
    """The picture of a file, upright as its EXIF orientation says, on white where it is transparent; image_YXC.

    Its size is known, and refused, before any of its pixels is decoded.
    """
    pillow, operations = _pillow()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Pillow warns of is refused here, or does not matter
        try:
            image = pillow.open(path, formats=_FORMATS)
        except pillow.DecompressionBombError:
            raise Unusable("too many pixels", _too_large(path, "far too many", most)) from None
        except FileNotFoundError:
            raise QkvError(f"there is no {path}: name a file with a picture") from None
        except OSError as error:
            if error.errno:
                raise QkvError(f"{path} cannot be read: {error.strerror}") from None
            raise Unusable("no picture", f"{path} is no picture: give one of {', '.join(_FORMATS)}") from None
        except Exception as error:  # noqa: BLE001 - a hostile file makes it raise anything
            raise Unusable("damaged", _damaged(path, error)) from None
        with image:
            width, height = image.size
            if width * height > most:
                raise Unusable("too many pixels", _too_large(path, f"{width:,} x {height:,}", most))
            try:
                return _pixels(operations.exif_transpose(image))
            except Exception as error:  # noqa: BLE001 - as above
                raise Unusable("damaged", _damaged(path, error)) from None


def as_picture(array: Any, name: str = "the picture") -> np.ndarray:
    """An array of bytes (Y,X), (Y,X,1) or (Y,X,3), checked; image_YXC."""
    array = np.asarray(array)
    if array.dtype != np.uint8:
        raise QkvError(
            f"{name} is an array of {array.dtype}; uint8 from 0 to 255 is wanted: (255 * x).round().astype('uint8'), "
            "if it goes from 0 to 1"
        )
    image_YXC = array[..., None] if array.ndim == 2 else array
    if image_YXC.ndim != 3 or image_YXC.shape[2] not in (1, 3) or not image_YXC.size:
        raise QkvError(
            f"{name} is an array of shape {array.shape}; (height, width), or with 1 or 3 channels behind, is wanted"
        )
    return image_YXC


def fitted(image_YXC: np.ndarray, size: tuple[int, int], channels: int, fit: Fit) -> np.ndarray:
    """A picture of this size and so many channels, its middle or all of it stretched; image_CYX."""
    image_YXC = _recoloured(image_YXC, channels)
    height, width = size
    if image_YXC.shape[:2] != size:
        if fit == "crop":  # first cut, then resized: the other order could make a thin picture enormous
            image_YXC = _middle(image_YXC, height / width)
        image_1CYX = torch.from_numpy(image_YXC.copy()).permute(2, 0, 1)[None]
        image_YXC = (
            F.interpolate(image_1CYX, size, mode="bilinear", antialias=True)[0].permute(1, 2, 0).numpy()
        )
    return np.ascontiguousarray(image_YXC.transpose(2, 0, 1))


def _middle(image_YXC: np.ndarray, slope: float) -> np.ndarray:
    """The largest part around the middle whose height is `slope` times its width."""
    Y, X = image_YXC.shape[:2]
    rows, columns = max(1, min(Y, round(X * slope))), max(1, min(X, round(Y / slope)))
    top, left = (Y - rows) // 2, (X - columns) // 2
    return image_YXC[top : top + rows, left : left + columns]


def _recoloured(image_YXC: np.ndarray, channels: int) -> np.ndarray:
    """Grey as three equal channels, or colours as the brightness that ITU-R 601 gives them."""
    if image_YXC.shape[2] == channels:
        return image_YXC
    if channels == 3:
        return np.repeat(image_YXC, 3, axis=2)
    grey_YX = image_YXC.astype(np.int32) @ np.array([299, 587, 114], dtype=np.int32)
    return ((grey_YX + 500) // 1000).astype(np.uint8)[..., None]


def _pixels(image: Any) -> np.ndarray:
    """Of an opened picture in any mode, grey if it is; image_YXC."""
    if image.mode.startswith("I"):  # 16 bits a pixel
        return (np.asarray(image).astype(np.int64).clip(0, 65535) // 257).astype(np.uint8)[..., None]
    grey = image.mode in ("1", "L", "LA")
    if image.has_transparency_data:
        pillow, _ = _pillow()
        above = image.convert("RGBA")
        image = pillow.alpha_composite(pillow.new("RGBA", above.size, "white"), above)
    return as_picture(image.convert("L" if grey else "RGB"))


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise QkvError("reading pictures needs Pillow: pip install 'qkv[vision]'") from None
    return Image, ImageOps


def _too_large(path: str, size: str, most: int) -> str:
    return f"{path} has {size} pixels; at most {most:,} are read: make it smaller"


def _damaged(path: str, error: Exception) -> str:
    return f"{path} is damaged ({str(error)[:100] or type(error).__name__}): save it again"
