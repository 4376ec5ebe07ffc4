"""One picture: every mode, every orientation, sizes against Pillow, and files that are damaged, huge or no pictures.

Axes: C channels, Y and X height and width in pixels.
"""

import random
import struct
import warnings
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qkv.data.picture import MOST_PIXELS, Unusable, as_picture, fitted, read_picture
from qkv.errors import QkvError

COLOURS_YXC = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
GREY_YX = COLOURS_YXC[..., 0]


def saved(image: Image.Image, path: Path, **options: object) -> str:
    image.save(path, **options)
    return str(path)


def test_colours_and_grey_come_as_they_are(tmp_path: Path):
    assert np.array_equal(read_picture(saved(Image.fromarray(COLOURS_YXC), tmp_path / "a.png")), COLOURS_YXC)
    assert np.array_equal(
        read_picture(saved(Image.fromarray(GREY_YX), tmp_path / "b.png")), GREY_YX[..., None]
    )


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"])
@pytest.mark.parametrize("ending", ["png", "tiff", "gif", "bmp", "jpg", "webp"])
def test_every_mode_of_every_format_is_grey_or_colours(tmp_path: Path, mode: str, ending: str):
    image = (
        Image.fromarray(GREY_YX.astype(np.uint16) * 257)
        if mode == "I;16"
        else Image.fromarray(COLOURS_YXC).convert(mode)
    )
    try:
        path = saved(image, tmp_path / f"a.{ending}")
    except (OSError, ValueError):
        pytest.skip("the format has no such mode")
    found = read_picture(path)
    assert found.dtype == np.uint8
    assert found.shape[:2] == (5, 7)
    assert found.shape[2] in (1, 3)
    if mode == "I;16" and ending in ("png", "tiff"):
        assert np.array_equal(found[..., 0], GREY_YX)


def test_what_is_transparent_lies_on_white(tmp_path: Path):
    layers = np.dstack([COLOURS_YXC, np.zeros((5, 7), np.uint8)])
    layers[0, 0, 3], layers[0, 1] = 255, (0, 0, 0, 51)  # seen, and a fifth of black
    found = read_picture(saved(Image.fromarray(layers), tmp_path / "a.png"))
    assert np.array_equal(found[0, 0], COLOURS_YXC[0, 0])
    assert found[0, 1].tolist() == [204, 204, 204]
    assert (found[1:] == 255).all()
    grey = np.dstack([GREY_YX, np.full((5, 7), 255, np.uint8)])
    assert np.array_equal(
        read_picture(saved(Image.fromarray(grey, "LA"), tmp_path / "b.png")), GREY_YX[..., None]
    )


# How the stored picture is to be shown, by the number of its orientation (EXIF 2.3, tag 0x0112).
UPRIGHT = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: x.swapaxes(0, 1)[:, ::-1],
    7: lambda x: x.swapaxes(0, 1)[::-1, ::-1],
    8: lambda x: x.swapaxes(0, 1)[::-1],
    9: lambda x: x,  # none of the eight: nothing to do
}


@pytest.mark.parametrize("number", UPRIGHT)
def test_a_picture_stands_as_its_orientation_says(tmp_path: Path, number: int):
    exif = Image.Exif()
    exif[0x0112] = number
    path = saved(Image.fromarray(COLOURS_YXC), tmp_path / "a.png", exif=exif)
    assert np.array_equal(read_picture(path), UPRIGHT[number](COLOURS_YXC))


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def claims(width: int, height: int) -> bytes:
    """A PNG that says it is so large, and holds nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(4001, 4000), (20_000, 6_000), (100_000, 100_000), (2**31 - 1, 2**31 - 1)])
def test_too_many_pixels_are_refused_before_they_are_decoded(tmp_path: Path, size: tuple[int, int]):
    path = tmp_path / "bomb.png"
    path.write_bytes(claims(*size))
    with pytest.raises(
        Unusable, match=f"pixels; at most {MOST_PIXELS:,} are read: make it smaller"
    ) as refused:
        read_picture(str(path))
    assert refused.value.fault == "too many pixels"
    path.write_bytes(claims(4000, 4000))  # exactly as many: what is missing shows when they are decoded
    with pytest.raises(Unusable) as refused:
        read_picture(str(path))
    assert refused.value.fault == "damaged"


@pytest.mark.parametrize("ending", ["png", "jpeg", "gif", "bmp", "webp", "tiff", "ppm"])
def test_a_file_cut_short_or_garbled_is_read_or_named_and_nothing_else(tmp_path: Path, ending: str):
    stream = BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.tile(COLOURS_YXC, (4, 4, 1))).save(
        stream, ending, **({} if ending in ("gif", "bmp", "ppm") else {"exif": exif})
    )
    whole, chance, path = stream.getvalue(), random.Random(1), tmp_path / f"a.{ending}"
    faults: dict[str, str] = {}
    for number in range(150):
        if number % 2:
            raw = bytearray(whole)
            for _ in range(chance.randint(1, 6)):
                raw[chance.randrange(len(raw))] = chance.randrange(256)
        else:
            raw = whole[: chance.randrange(len(whole))]
        path.write_bytes(raw)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                assert read_picture(str(path), 10**6).dtype == np.uint8
            except Unusable as error:
                faults[error.fault] = str(error)
    assert {"no picture", "damaged"} & set(faults)
    for sentence in faults.values():
        assert str(path) in sentence
        assert "\n" not in sentence


def test_what_is_no_picture_is_told_from_what_is_not_there(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a,b\n")
    (tmp_path / "b.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 5\n%%EndComments\n")
    for name in ("a.txt", "b.eps"):  # the second would start another program
        with pytest.raises(Unusable, match=f"{name} is no picture: give one of JPEG, PNG"):
            read_picture(str(tmp_path / name))
    with pytest.raises(QkvError, match=r"there is no .*c.png: name a file") as missing:
        read_picture(str(tmp_path / "c.png"))
    assert not isinstance(missing.value, Unusable)


def test_grey_has_the_brightness_that_pillow_gives():
    found = fitted(COLOURS_YXC, (5, 7), 1, "crop")
    assert found.shape == (1, 5, 7)
    wanted = np.asarray(Image.fromarray(COLOURS_YXC).convert("L")).astype(int)
    assert abs(found[0] - wanted).max() <= 1
    assert np.array_equal(fitted(GREY_YX[..., None], (5, 7), 3, "crop"), np.stack([GREY_YX] * 3))


@pytest.mark.parametrize("size", [(3, 4), (5, 11), (14, 13), (2, 7)])
def test_another_size_is_what_pillow_makes_of_it(size: tuple[int, int]):
    found = fitted(COLOURS_YXC, size, 3, "stretch")
    wanted = Image.fromarray(COLOURS_YXC).resize(size[::-1], Image.Resampling.BILINEAR)
    assert found.shape == (3, *size)
    assert abs(found.transpose(1, 2, 0) - np.asarray(wanted).astype(int)).max() <= 1


def test_a_crop_is_the_middle():
    wide = np.arange(4 * 10, dtype=np.uint8).reshape(4, 10, 1)
    assert np.array_equal(fitted(wide, (4, 4), 1, "crop")[0], wide[:, 3:7, 0])
    tall = wide.swapaxes(0, 1)
    assert np.array_equal(fitted(tall, (2, 4), 1, "crop")[0], tall[4:6, :, 0])
    half = fitted(np.repeat(np.repeat(wide[:, 3:7], 2, 0), 2, 1), (4, 4), 1, "crop")
    assert abs(half[0].astype(int) - wide[:, 3:7, 0]).max() <= 3


def test_a_thin_picture_stays_small_in_memory():
    thin = np.zeros((1, 1_000_000, 3), dtype=np.uint8)
    assert fitted(thin, (32, 32), 3, "crop").shape == (3, 32, 32)
    assert fitted(thin.swapaxes(0, 1), (32, 32), 3, "crop").shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((4, 4)), r"float64; uint8 from 0 to 255 is wanted: \(255 \* x\)"),
        (np.zeros((3, 4, 4), np.uint8), r"shape \(3, 4, 4\); \(height, width\)"),
        (np.zeros((0, 4), np.uint8), r"shape \(0, 4\)"),
        ("cat", "<U3; uint8"),
    ],
)
def test_an_array_that_is_no_picture_is_refused(array: object, said: str):
    with pytest.raises(QkvError, match=said):
        as_picture(array)
