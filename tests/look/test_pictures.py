"""Where a classifier looked in a picture: the right attention, in the terminal and on a page that asks for nothing.

Axes: H heads, T queries, S keys, R rows and C columns of patches.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.look.test_page import EVIL, Reader, data

from qkv.data.images import ImagesConfig
from qkv.decode.pictures import PictureClassifier
from qkv.errors import QkvError
from qkv.look.pictures import PictureLook, beside, draw, draw_look, look, save_page
from qkv.models.convnet import ConvNet, ConvNetConfig
from qkv.models.vit import ViT, ViTConfig

SIZES = {"classes": 3, "channels": 3, "size": (4, 6)}
PIXELS_YXC = np.random.default_rng(1).integers(0, 256, (4, 6, 3), dtype=np.uint8)


def classifier(pool: str = "average", kind: str = "vit") -> PictureClassifier:
    torch.manual_seed(0)
    config = ViTConfig(**SIZES, patch=2, width=12, hidden=20, heads=3, layers=2, pool=pool)
    model = ViT(config) if kind == "vit" else ConvNet(ConvNetConfig(**SIZES, width=4, blocks=(1,)))
    images = ImagesConfig(size=(4, 6), channels=3, mean=(0.5,) * 3, deviation=(0.3,) * 3)
    return PictureClassifier(model, images, ("cat", "dog", EVIL))


@pytest.mark.parametrize(
    ("pool", "chosen"),
    [("average", "encoder.1.own"), ("class", "encoder.1.own"), ("attention", "pool.attention")],
)
def test_what_decided_is_shown_first(pool: str, chosen: str):
    found = look(classifier(pool), PIXELS_YXC, "it")
    assert found.chosen == chosen
    assert found.grid == (2, 3)
    weights_HTS = found.weights[chosen]
    heat_RC = found.heat(chosen)
    mean_TS = weights_HTS.mean(0)
    wanted = {"average": mean_TS.mean(0), "class": mean_TS[0, 1:], "attention": mean_TS[0]}[pool]
    torch.testing.assert_close(heat_RC.flatten(), wanted)
    assert heat_RC.shape == (2, 3)
    assert found.best == classifier(pool).classify(PIXELS_YXC, top=3)[0]
    assert np.array_equal(found.pixels_CYX, PIXELS_YXC.transpose(2, 0, 1))


def test_a_model_that_attends_to_nothing_is_refused():
    with pytest.raises(
        QkvError, match="the model is a ConvNet, which attends to nothing: train one of kind 'vit'"
    ):
        look(classifier(kind="convnet"), PIXELS_YXC)


def test_a_picture_is_drawn_by_its_brightness():
    pixels = np.array([[[0, 255], [128, 64]]], dtype=np.uint8)
    assert draw(pixels) == ["  ██", "▒▒░░"]
    assert draw(np.full((3, 1, 2), 9, np.uint8)) == ["    "]


def test_blocks_stand_side_by_side():
    assert beside([["ab", "c"], ["d"]], gap=2) == "ab  d\nc"


def test_the_map_stands_beside_its_picture():
    found = look(classifier(), PIXELS_YXC)
    first, head, *rows = draw_look(found).splitlines()
    assert first.endswith("encoder.1.own")
    assert head.split()[-3:] == ["0–1", "2–3", "4–5"]
    percent = [int(number) for row in rows for number in re.findall(r"\d+(?= |$)", row.split("–", 1)[1][1:])]
    wanted = [round(100 * weight) for weight in found.heat(found.chosen).flatten().tolist()]
    assert percent == wanted


def test_the_page_is_whole_and_holds_everything(tmp_path: Path):
    found = look(classifier("class"), PIXELS_YXC, EVIL, truth="dog")
    text = save_page(tmp_path / "page.html", EVIL, [found, found]).read_text("utf-8")
    read = Reader(text)
    assert read.texts["title"] == read.texts["h1"] == [EVIL]
    assert len(read.texts["script"]) == 2
    assert not re.search(r"https?:|@import|url\(", text)
    assert "default-src 'none'" in text
    tree, _ = data(text)
    assert [one["path"] for one in tree["maps"]] == ["encoder.0.own", "encoder.1.own"]
    for one, weights_HTS in zip(tree["maps"], found.weights.values(), strict=True):
        torch.testing.assert_close(torch.tensor(one["heads"]), weights_HTS, rtol=0, atol=6e-5)
    assert (tree["height"], tree["width"], tree["rows"], tree["columns"]) == (4, 6, 2, 3)
    assert tree["pixels"] == PIXELS_YXC.flatten().tolist()
    assert tree["title"].startswith(f"{EVIL}: taken for ")
    assert tree["title"].endswith(", and it is dog") == (found.best[0][0] != "dog")


def test_large_and_grey_pictures_become_small_and_grey_on_the_page(tmp_path: Path):
    found = look(classifier(), PIXELS_YXC)
    grey = np.repeat(np.repeat(np.arange(6, dtype=np.uint8)[None, None] * 40, 100, 1), 50, 2)
    large = PictureLook(found.name, grey, None, found.best, (2, 3), found.weights, found.chosen)
    (tree,) = data(save_page(tmp_path / "page.html", "t", [large]).read_text("utf-8"))
    assert (tree["height"], tree["width"]) == (21, 64)
    pixels = np.array(tree["pixels"]).reshape(21, 64, 3)
    assert (pixels[..., 0] == pixels[..., 2]).all()


def test_nothing_to_show_is_refused(tmp_path: Path):
    with pytest.raises(QkvError, match="give at least one picture"):
        save_page(tmp_path / "page.html", "t", [])


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_the_program_of_the_page_shows_the_same_weights(tmp_path: Path):
    """Its own functions, run without a browser: what is drawn first is what `heat` says."""
    for pool in ("average", "class", "attention"):
        found = look(classifier(pool), PIXELS_YXC)
        text = save_page(tmp_path / "page.html", "t", [found]).read_text("utf-8")
        content, program = Reader(text).texts["script"]
        function = re.search(r"function heat\(.*?\n}\n", program, re.DOTALL)
        assert function
        code = (
            f"const looks = {content}; let look = looks[0];\n{function[0]}\n"
            "const map = look.maps.find((one) => one.path === look.chosen);\n"
            "console.log(JSON.stringify([heat(map, -1, -1), heat(map, 1, 2)]));"
        )
        shown = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=True).stdout
        whole, one = (torch.tensor(values) for values in json.loads(shown))
        torch.testing.assert_close(whole, found.heat(found.chosen).flatten(), rtol=0, atol=1e-4)
        weights_TS = found.weights[found.chosen][1]
        front = weights_TS.shape[1] - 6
        row = weights_TS[0 if len(weights_TS) == 1 else front + 2]
        torch.testing.assert_close(one, row[front:], rtol=0, atol=1e-4)
        (tmp_path / "program.js").write_text(program, "utf-8")
        subprocess.run(["node", "--check", tmp_path / "program.js"], check=True)
