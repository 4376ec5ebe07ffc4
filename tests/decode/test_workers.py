"""Threads: as many as torch may use, each with items of its own, and nothing else changed."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from tests.decode.test_translator import SENTENCES, SOURCE, TARGET, Translator, luong, transformer

from qkv import watch
from qkv.decode.config import SearchConfig
from qkv.decode.workers import in_threads


@pytest.fixture
def two() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_items_are_shared_out_and_come_back_in_order(two: None):
    seen: set[tuple[int, int, bool]] = set()

    def work(item: int) -> int:
        time.sleep(0.01 * (item % 2))
        seen.add((threading.get_ident(), torch.get_num_threads(), torch.is_inference_mode_enabled()))
        return item * item

    with torch.inference_mode():
        assert in_threads(work, range(9)) == [item * item for item in range(9)]
    assert len({thread for thread, _, _ in seen}) == 2
    assert {(threads, inference) for _, threads, inference in seen} == {(1, True)}
    assert torch.get_num_threads() == 2


def test_one_item_keeps_all_threads(two: None):
    assert in_threads(lambda _: (threading.get_ident(), torch.get_num_threads()), [0]) == [
        (threading.get_ident(), 2)
    ]
    assert in_threads(len, []) == []


def test_what_goes_wrong_is_raised_and_the_rest_is_left(two: None):
    done: list[int] = []

    def work(item: int) -> None:
        if item == 1:
            raise ValueError("the second")
        time.sleep(0.01)
        done.append(item)

    with pytest.raises(ValueError, match="the second"):
        in_threads(work, range(100))
    assert len(done) < 50
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("make", [transformer, luong])
@pytest.mark.parametrize(
    "config", [SearchConfig(beam=3, maximum=6), SearchConfig(beam=1, temperature=1.0, maximum=6)]
)
def test_threads_change_no_translation(make, config: SearchConfig, two: None):
    translator = Translator(make(), SOURCE, TARGET, config)
    together = translator.translate_into(SENTENCES, ["de", "fr"])
    torch.set_num_threads(1)
    assert translator.translate_into(SENTENCES, ["de", "fr"]) == together


def test_who_watches_sees_one_batch_after_the_other(two: None, monkeypatch: pytest.MonkeyPatch):
    """Threads would mix the calls of different batches."""
    translator = Translator(transformer(), SOURCE, TARGET, SearchConfig(beam=2, maximum=5))
    plain = translator.translate(SENTENCES, "de")
    monkeypatch.setattr("qkv.decode.translator.in_threads", None)
    with watch(translator.model) as seen:
        assert translator.translate(SENTENCES, "de") == plain
    assert len(seen.calls("encoder.0.own")) > 1
