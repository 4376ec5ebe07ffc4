"""What the pages say is so: links lead somewhere, commands exist, Python examples run."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page) if language in languages]


def commands(page: str) -> list[str]:
    """The lines of shell blocks and the code spans of the text, without their comments."""
    shell = "\n".join(blocks(page, "sh", "bash", "console", ""))
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", page))
    return [line.split("#")[0].removeprefix("$ ").strip() for line in [*shell.splitlines(), *spans]]


def broken_links(page: str, folder: Path) -> Iterable[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page)):
        path = target.split("#")[0]
        if path and ":" not in path and not (folder / path).exists():
            yield target


def unknown_commands(page: str) -> Iterable[str]:
    for command in commands(page):
        word, *arguments = command.split() or [""]
        if word == "make":
            yield from (f"make {name}" for name in arguments if name.isalpha() and name not in TARGETS)
        elif word.startswith(("python", ".venv/bin/python", ".ci/")):
            files = [part for part in (word, *arguments) if part.endswith(".py") or part.startswith(".ci/")]
            yield from (command for name in files if not (ROOT / name).exists())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_commands_exist(page: Path):
    text = page.read_text("utf-8")
    assert [*broken_links(text, page.parent), *unknown_commands(text)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The blocks of one page, one after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    source = "\n".join(blocks(page.read_text("utf-8"), "python"))
    exec(compile(source, str(page), "exec"), {"__name__": "__main__"})


def test_the_checks_can_fail():
    assert list(broken_links("[a](nowhere.md) [b](README.md#top) [c](https://example.org)", ROOT)) == [
        "nowhere.md"
    ]
    page = "run `make tset` or:\n```sh\nmake test  # all of it\npython examples/nothing.py\n```\n"
    assert list(unknown_commands(page)) == ["python examples/nothing.py", "make tset"]
