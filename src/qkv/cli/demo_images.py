"""`qkv demo images`: train a Vision Transformer on handwritten digits, test it on others, and see where it looks."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.cli.demo_parts import suggested, title

if TYPE_CHECKING:
    import numpy as np

    from qkv.data.images import Images
    from qkv.decode.pictures import PictureClassifier

ABOUT = "Handwritten digits of 8 x 8 pixels, from scikit-learn: 1,438 to learn from, 359 others for the test."
PAGE = "attention.html"
_ROW = 4  # pictures side by side on a line of 80 characters
_LOOKED_AT = 20  # on the page


def shown(classifier: "PictureClassifier", out: Path, count: int) -> None:
    """Scores on held-out digits, some of them, the mistakes, and where the model looked."""
    from qkv.data.image_sets import DIGITS_TEST, ImageRules, ImageSet
    from qkv.data.images import read_images
    from qkv.look.pictures import draw_look, look, save_page

    digits = (ImageSet(source=DIGITS_TEST),)
    images, _, _ = read_images(digits, classifier.images, ImageRules(), classifier.labels)
    images = images.take(_spread(len(images), count))
    named = classifier.logits(images.pixels_NCYX).argmax(-1)
    wrong = (named != images.labels_N).nonzero()[0]
    right = 100 * (1 - len(wrong) / len(images))
    title(f"{len(images):,} digits that it never saw: {right:.1f} % right")
    print(_gallery(images, named, _spread(len(images), _ROW)))
    if len(wrong):
        title(f"Mistakes: {len(wrong):,} of {len(images):,}" + (", the first" if len(wrong) > _ROW else ""))
        print(_gallery(images, named, wrong[:_ROW]))
    else:
        print("\nNo mistakes.")

    looks = [
        look(classifier, images.pixels_NCYX[row].transpose(1, 2, 0), f"a {truth}", truth)
        for row in dict.fromkeys([*_spread(len(images), _LOOKED_AT).tolist(), *wrong.tolist()])
        for truth in [images.classes[images.labels_N[row]]]
    ]
    title(f"Where it looked in {looks[0].name}: in percent, rows and columns counted in pixels")
    print(draw_look(looks[0]))
    print(f"\nEvery layer and head: {save_page(out / PAGE, 'Where a classifier of digits looks', looks)}")
    title("Next")
    print(suggested(_next(out)))


def _gallery(images: "Images", named: "np.ndarray", rows: "np.ndarray | Sequence[int]") -> str:
    """Pictures side by side, each with what it was taken for below it."""
    from qkv.look.pictures import beside, draw

    blocks = []
    for row in rows:
        truth, taken = images.classes[images.labels_N[row]], images.classes[named[row]]
        says = f"taken for {taken}" + ("" if taken == truth else f", is {truth}")
        blocks.append([*draw(images.pixels_NCYX[row]), says])
    return beside(blocks, gap=3)


def _spread(total: int, count: int) -> "np.ndarray":
    """At most `count` of so many, evenly spread."""
    import numpy as np

    return np.unique(np.linspace(0, total - 1, min(total, count)).astype(int))


def _next(out: Path) -> list[tuple[str, str]]:
    return [
        (f"qkv evaluate {out} --data digits-test", "each class, and what is taken for what"),
        (f"qkv classify {out} PICTURE.png", "a picture of your own: light ink on dark paper, as these are"),
        (f"qkv info {out}", "what it is and how its training went"),
        (f"qkv train {out}/recipe.toml --set model.pool=class --out {out}-class", "change it"),
        ("qkv schema classify_images", "all that a recipe for folders of your own pictures can say"),
    ]
