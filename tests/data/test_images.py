"""Sets of pictures: each format against what was written into it, and every fault named or counted.

Axes: N pictures, C channels, Y and X height and width in pixels.
"""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qkv.data.image_sets import DIGITS, DIGITS_TEST, ImageRules, ImageSet
from qkv.data.images import Images, ImagesConfig, read_images
from qkv.errors import QkvError

random = np.random.default_rng(0)
COLOURS_NYXC = random.integers(0, 256, (6, 5, 5, 3), dtype=np.uint8)
GREY_NYX = random.integers(0, 256, (6, 5, 7), dtype=np.uint8)
LABELS = [2, 0, 1, 0, 10, 2]


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def read(*sets: ImageSet, classes: tuple[str, ...] = (), **config: object) -> Images:
    return read_images(sets, ImagesConfig(**config), ImageRules(), classes)[0]


def folders(root: Path, **classes: list[np.ndarray]) -> ImageSet:
    for name, images in classes.items():
        (root / name).mkdir(parents=True)
        for number, image in enumerate(images):
            Image.fromarray(image).save(root / name / f"{number}.png")
    return ImageSet(source=str(root))


def as_folder(path: Path) -> ImageSet:
    return folders(path / "all", cat=[COLOURS_NYXC[1], COLOURS_NYXC[3]], dog=[COLOURS_NYXC[2]])


def as_npz(path: Path) -> ImageSet:
    np.savez(path / "a.npz", x=COLOURS_NYXC[1:4], y=np.array(["cat", "dog", "cat"]))
    return ImageSet(source=str(path / "a.npz"), keys=("x", "y"))


def as_idx(path: Path) -> ImageSet:
    (path / "images").write_bytes(idx(COLOURS_NYXC[1:4]))
    (path / "labels").write_bytes(gzip.compress(idx(np.array([0, 1, 0], np.uint8))))
    return ImageSet(source=str(path / "images"), labels=str(path / "labels"))


def as_rows(path: Path) -> ImageSet:
    for name, part in (("a.png", COLOURS_NYXC[1:3]), ("b.png", COLOURS_NYXC[3:4])):
        Image.fromarray(part.reshape(len(part), 25, 3)).save(path / name)
    (path / "labels.json").write_text("[0, 1, 0]")
    return ImageSet(source=(str(path / "a.png"), str(path / "b.png")), labels=str(path / "labels.json"))


@pytest.mark.parametrize("write", [as_folder, as_npz, as_idx, as_rows])
def test_each_format_gives_the_same_pictures(tmp_path: Path, write: Callable[[Path], ImageSet]):
    one = write(tmp_path)
    images = read(one, classes=("cat", "dog"))
    order = [0, 2, 1] if write is as_folder else [0, 1, 2]
    assert np.array_equal(images.pixels_NCYX, COLOURS_NYXC[1:4][order].transpose(0, 3, 1, 2))
    assert images.labels_N.tolist() == [[0, 1, 0][row] for row in order]
    assert images.classes == ("cat", "dog")
    assert all(Path(file).exists() for file in one.files)
    assert len(set(images.places)) == 3
    assert images.places[2].startswith(str(tmp_path))


def test_idx_as_mnist_has_it_is_grey_and_its_classes_are_numbers(tmp_path: Path):
    (tmp_path / "i").write_bytes(gzip.compress(idx(GREY_NYX)))
    (tmp_path / "l").write_bytes(idx(np.array(LABELS, np.uint8)))
    images = read(ImageSet(source=str(tmp_path / "i"), labels=str(tmp_path / "l")))
    assert np.array_equal(images.pixels_NCYX, GREY_NYX[:, None])
    assert images.classes == ("0", "1", "2", "10")
    assert [images.classes[label] for label in images.labels_N] == [str(label) for label in LABELS]


def test_all_become_as_the_first_or_as_configured(tmp_path: Path):
    one = folders(tmp_path / "a", a=[GREY_NYX[0]], b=[COLOURS_NYXC[0], COLOURS_NYXC[1]])
    assert read(one).pixels_NCYX.shape == (3, 1, 5, 7)
    assert read(one, channels=3).pixels_NCYX.shape == (3, 3, 5, 7)
    images, _, config = read_images([one], ImagesConfig(size=(3, 4)), ImageRules())
    assert images.pixels_NCYX.shape == (3, 1, 3, 4)
    assert (config.size, config.channels) == ((3, 4), 1)


def test_faulty_files_are_skipped_counted_and_named(tmp_path: Path):
    one = folders(tmp_path / "all", cat=[*COLOURS_NYXC], dog=[COLOURS_NYXC[0]])
    root = tmp_path / "all"
    whole = (root / "cat" / "0.png").read_bytes()
    (root / "cat" / "1.png").write_bytes(whole[: len(whole) // 2])
    (root / "cat" / "3.png").write_bytes(whole[:-30])
    (root / "cat" / "notes.txt").write_text("not a picture")
    (root / "cat" / ".hidden").write_text("nobody asks")
    (root / "dog" / "deeper").mkdir()
    (root / "dog" / "deeper" / "1.png").write_bytes(whole)
    images, (report,), _ = read_images([one], ImagesConfig(), ImageRules(most_pixels=25))
    assert len(images) == 6
    assert report.count("damaged") == 2
    assert report.count("no picture") == 1
    assert f"{root}: 6 pictures kept, 3 skipped ({root} 9 pictures)" in str(report)
    assert f"{root}: 2 × damaged skipped, first at picture 2: 'cat/1.png'" in str(report)
    Image.fromarray(np.zeros((5, 6, 3), np.uint8)).save(root / "dog" / "large.png")
    _, (report,), _ = read_images([one], ImagesConfig(), ImageRules(most_pixels=25))
    assert report.count("too many pixels") == 1
    with pytest.raises(QkvError, match=r"cat/1.png is damaged \("):
        read_images([one], ImagesConfig(), ImageRules(strict=True))
    with pytest.raises(
        QkvError,
        match=r"there are no pictures in .*all \(9 × too many pixels, first cat/0.png; 1 × no picture",
    ):
        read_images([one], ImagesConfig(), ImageRules(most_pixels=24))


def test_the_digits_are_scikit_learns_and_their_test_is_a_fifth_of_each():
    from sklearn.datasets import load_digits

    train, test = (read(ImageSet(source=name)) for name in (DIGITS, DIGITS_TEST))
    assert (len(train), len(test)) == (1438, 359)
    assert train.classes == test.classes == tuple("0123456789")
    values, labels = load_digits(return_X_y=True)
    mine = sorted(
        (one.tobytes(), label)
        for images in (train, test)
        for one, label in zip(images.pixels_NCYX, images.labels_N.tolist(), strict=True)
    )
    theirs = sorted(
        ((value * 255 / 16).round().astype(np.uint8).tobytes(), label)
        for value, label in zip(values, labels.tolist(), strict=True)
    )
    assert mine == theirs
    assert not {one.tobytes() for one in train.pixels_NCYX} & {one.tobytes() for one in test.pixels_NCYX}
    for label in range(10):
        assert (test.labels_N == label).sum() == pytest.approx((labels == label).sum() * 359 / 1797, abs=1)


def test_a_split_gives_every_picture_to_one_side():
    images = read(ImageSet(source=DIGITS))
    rest, held = images.split(100)
    assert (len(rest), len(held)) == (1338, 100)
    assert sorted(rest.places + held.places) == sorted(images.places)
    assert rest.digest() != images.digest() == read(ImageSet(source=DIGITS)).digest()
    row = images.places.index(held.places[7])
    assert np.array_equal(held.pixels_NCYX[7], images.pixels_NCYX[row])
    assert held.labels_N[7] == images.labels_N[row]


def test_the_digest_sees_every_pixel_and_every_class():
    images = Images(COLOURS_NYXC, np.array(LABELS), list("abcdef"), (*tuple("0123456789"), "10"))
    other = COLOURS_NYXC.copy()
    other[3, 2, 1, 0] ^= 1
    changed = [
        Images(other, images.labels_N, images.places, images.classes),
        Images(COLOURS_NYXC, images.labels_N[::-1].copy(), images.places, images.classes),
        Images(COLOURS_NYXC, images.labels_N, images.places, images.classes[1:]),
    ]
    assert len({images.digest(), *(one.digest() for one in changed)}) == 4


WRONG: list[tuple[str, dict[str, object], str]] = [
    ("no labels", {"source": "a", "format": "idx"}, "a is read as idx and has no labels: name the file"),
    ("labels of a folder", {"source": "a", "labels": "b", "format": "folder"}, "as folder, which has its own classes"),
    ("labels of the digits", {"source": "digits", "labels": "b"}, "as digits, which has its own classes"),
    ("keys of a folder", {"source": "a", "keys": ("a", "b")}, "keys are for npz, and a is read as folder"),
    ("nothing", {"source": ()}, "source is empty"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "said"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_set_that_cannot_be_is_refused(values: dict[str, object], said: str):
    with pytest.raises(QkvError, match=said):
        ImageSet(**values)


def test_names_alone_decide_the_format_wherever_the_recipe_is_read():
    assert ImageSet(source="pets").kind == "folder"
    assert ImageSet(source="pets.NPZ").kind == "npz"
    assert ImageSet(source="a.png", labels="b").kind == "rows"
    assert ImageSet(source=("a", "b"), labels="c").kind == "idx"
    assert ImageSet(source="digits").kind == ImageSet(source="digits-test").kind == "digits"


def broken(path: Path) -> list[tuple[ImageSet, str]]:
    """Sets that cannot be read, and what is said of each."""
    whole, labels = idx(GREY_NYX), idx(np.array(LABELS, np.uint8))
    files = {
        "short": whole[:-1], "long": whole + b"x", "text": b"hello, world", "empty": b"", "floats": whole[:2] + b"\x0d" + whole[3:],
        "gzip": gzip.compress(whole)[:-20], "flat": idx(GREY_NYX[:, :, 0]), "huge": whole[:4] + b"\xff" * 12,
        "labels": labels, "five": idx(np.array(LABELS[:5], np.uint8)), "square": idx(GREY_NYX[:, 0]),
        "a.json": b'{"a": 1', "b.json": b"[[1], [2]]", "c.npz": b"PK\x03\x04 and no more",
    }  # fmt: skip
    for name, content in files.items():
        (path / name).write_bytes(content)
    np.savez(path / "d.npz", pictures=GREY_NYX)
    np.savez(path / "e.npz", images=GREY_NYX / 255, labels=LABELS)
    np.savez(path / "f.npz", images=np.array([{}], dtype=object), labels=[1])
    np.savez(path / "g.npz", images=GREY_NYX, labels=np.array(LABELS) / 2)
    Image.fromarray(GREY_NYX[0]).save(path / "odd.png")
    (path / "full").write_bytes(whole)

    def pair(name: str, labels: str = "labels") -> ImageSet:
        return ImageSet(
            source=str(path / name), labels=str(path / labels), format="rows" if name == "odd.png" else "idx"
        )

    def one(name: str) -> ImageSet:
        return ImageSet(source=str(path / name))

    return [
        (pair("short"), r"short should hold 210 bytes and holds 209: fetch it again"),
        (pair("long"), r"should hold 210 bytes and holds 211"),
        (pair("huge"), r"should hold [\d,]{30,} bytes and holds 0: fetch"),
        (pair("text"), r"text is no idx file: name one"),
        (pair("empty"), r"empty is no idx file"),
        (pair("floats"), r"idx file of kind 0x0d; bytes, 0x08, are wanted"),
        (pair("gzip"), r"gzip is damaged gzip"),
        (pair("flat"), r"flat picture 1 is an array of shape \(5,\)"),
        (pair("full", "five"), r"full has 6 pictures, .*five 5 classes: name files that belong together"),
        (pair("full", "square"), r"array of uint8 of shape \(6, 7\); 6 numbers or names are wanted"),
        (pair("full", "a.json"), r"a.json is not a JSON list"),
        (pair("full", "b.json"), r"has 6 pictures, .*b.json 2 classes"),
        (pair("full", "none"), r"none cannot be read: No such file"),
        (pair("odd.png"), r"odd.png has rows of 7 pixels, which are no squares"),
        (one("c.npz"), r"c.npz is damaged, or no npz file"),
        (one("d.npz"), r"d.npz has no array 'images', but pictures: say which with keys"),
        (one("e.npz"), r"e.npz picture 1 is an array of float64; uint8"),
        (one("f.npz"), r"f.npz is damaged, or no npz file"),
        (one("g.npz"), r"g.npz are an array of float64 of shape \(6,\); 6 numbers"),
        (one("none.npz"), r"none.npz cannot be read: No such file"),
        (ImageSet(source=str(path)), r"holds no folders: put the pictures of each class"),
        (ImageSet(source=str(path / "none"), format="folder"), r"none is no folder: name one"),
    ]


def test_what_cannot_be_read_is_said(tmp_path: Path):
    for one, said in broken(tmp_path):
        with pytest.raises(QkvError, match=said) as error:
            read(one)
        assert "\n" not in str(error.value)


def test_a_class_that_was_not_learnt_is_named(tmp_path: Path):
    one = folders(tmp_path / "a", cat=[GREY_NYX[0]], dogs=[GREY_NYX[1]])
    with pytest.raises(
        QkvError, match=r"dogs/0.png is of class 'dogs', which is none of the 2 .*did you mean 'dog'\?"
    ):
        read(one, classes=("cat", "dog"))
    assert read(one, classes=("dogs", "fox", "cat")).labels_N.tolist() == [2, 0]
