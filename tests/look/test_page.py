"""The page: one well-formed file that asks for nothing, in which whatever was translated stays text."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from qkv.errors import QkvError
from qkv.look.cross import Look
from qkv.look.page import page, save_page

EVIL = "</script><script>alert(1)</script> & <!-- \"' {{data}} \u2028"
VOID = {"meta", "br", "hr", "img", "input", "link"}


def example(source: str = "twenty eight", paths: int = 2, heads: int = 3) -> Look:
    """Random weights of 3 pieces that look at 2 and the end."""
    weights = {f"decoder.{layer}.cross": torch.rand(heads, 4, 3).softmax(-1) for layer in range(paths)}
    return Look(
        source,
        "achtundzwanzig",
        "de",
        ["twenty", "eight", "⟨end⟩"],
        ["acht", "und", source, "⟨end⟩"],
        weights,
    )


class Reader(HTMLParser):
    """Checks that elements close in order, and collects what they hold."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def data(text: str) -> list[dict]:
    return json.loads(Reader(text).texts["script"][0])


def test_the_page_is_whole_and_asks_for_nothing():
    text = page("A title", [example()])
    read = Reader(text)
    assert read.texts["title"] == read.texts["h1"] == ["A title"]
    assert not [value for name, value in read.attributes if name in ("src", "href", "action")]
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", text)
    assert "{{" not in text
    assert "default-src 'none'" in text


def test_every_layer_and_head_is_in_it():
    look = example()
    (tree,) = data(page("t", [look]))
    assert [one["path"] for one in tree["maps"]] == list(look.weights)
    assert tree["chosen"] == look.sharpest
    for one, weights_HTS in zip(tree["maps"], look.weights.values(), strict=True):
        torch.testing.assert_close(torch.tensor(one["heads"]), weights_HTS, rtol=0, atol=6e-5)


def test_whatever_is_translated_stays_text():
    text = page(EVIL, [example(EVIL), example("other")])
    read = Reader(text)
    assert len(read.texts["script"]) == 2, "the data and the program, and nothing that came out of them"
    assert read.texts["title"] == read.texts["h1"] == [EVIL]
    first, second = data(text)
    assert first["source"] == first["queries"][2] == EVIL
    assert second["source"] == "other"
    assert EVIL in "".join(read.texts["pre"])


def test_nothing_to_show_and_nowhere_to_write_are_refused(tmp_path: Path):
    with pytest.raises(QkvError, match="give at least one translation"):
        page("t", [])
    with pytest.raises(
        QkvError, match=r"page.html cannot be written: No such file or directory: give another"
    ):
        save_page(tmp_path / "none" / "page.html", "t", [example()])
    assert Reader(save_page(tmp_path / "page.html", "t", [example()]).read_text("utf-8")).texts["h1"] == ["t"]


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs a browser")
def test_a_browser_draws_it(tmp_path: Path):
    look = example("x<b>y")
    path = save_page(tmp_path / "page.html", "t", [look, example()])
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
    ]
    run = subprocess.run(
        ["chromium", *flags, f"--user-data-dir={tmp_path / 'user'}", "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    drawn = Reader(run.stdout)
    assert drawn.texts["h2"][0] == f"{look.sharpest}, mean of 3 heads"
    assert drawn.texts["th"][:7] == [*look.keys, *look.queries]
    percent = [
        str(int(100 * weight + 0.5)) for weight in look.mean(look.sharpest).weights_TS.flatten().tolist()
    ]
    assert drawn.texts["td"] == percent
    assert len(drawn.texts["option"]) == 2
    assert sum(name == "aria-pressed" for name, _ in drawn.attributes) == 2 * (1 + 3)
