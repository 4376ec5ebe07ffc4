"""Workers: processes that share out the items, and nothing else changed."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from tests.decode.test_translator import SENTENCES, SOURCE, TARGET, luong, transformer

from qkv import QkvError, watch
from qkv.decode import translator as module
from qkv.decode.config import SearchConfig
from qkv.decode.translator import Translator
from qkv.decode.workers import in_workers


def test_items_are_shared_out_and_come_back_in_order():
    def work(item: int) -> tuple[int, int, int, bool]:
        time.sleep(0.01)
        return item * item, os.getpid(), torch.get_num_threads(), torch.is_inference_mode_enabled()

    with torch.inference_mode():
        found = in_workers(work, range(9), 2)
    assert [square for square, *_ in found] == [item * item for item in range(9)]
    pids = {pid for _, pid, *_ in found}
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert {(threads, inference) for *_, threads, inference in found} == {(1, True)}


def test_one_item_or_one_worker_stays_here():
    for items, workers in ((range(1), 4), (range(5), 1)):
        assert set(in_workers(lambda _: os.getpid(), items, workers)) == {os.getpid()}
    assert in_workers(len, [], 2) == []


def test_what_goes_wrong_is_raised_here_and_the_rest_is_left(tmp_path: Path):
    def work(item: int) -> None:
        if item == 1:
            raise QkvError("the second is wrong: leave it out")
        time.sleep(0.05)
        (tmp_path / str(item)).touch()

    with pytest.raises(QkvError, match="the second is wrong"):
        in_workers(work, range(50), 2)
    assert len(list(tmp_path.iterdir())) < 10


def test_a_worker_that_dies_is_told():
    with pytest.raises(QkvError, match=r"1 of 4 batches were lost .* perhaps for want of memory"):
        in_workers(lambda item: os.kill(os.getpid(), signal.SIGKILL) if item == 2 else item, range(4), 2)


@pytest.mark.parametrize("make", [transformer, luong])
@pytest.mark.parametrize(
    "config", [SearchConfig(beam=3, maximum=6), SearchConfig(beam=1, temperature=1.0, maximum=6)]
)
def test_workers_change_no_translation(make, config: SearchConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LEAST", 30)
    translator = Translator(make(), SOURCE, TARGET, config)
    alone = translator.translate_into(SENTENCES, ["de", "fr"])
    translator.workers = 2
    shared: list[int] = []
    monkeypatch.setattr(
        module, "in_workers", lambda *given: shared.append(len(given[1])) or in_workers(*given)
    )
    assert translator.translate_into(SENTENCES, ["de", "fr"]) == alone
    assert shared[0] > 2


def test_who_watches_sees_all_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LEAST", 30)
    translator = Translator(transformer(), SOURCE, TARGET, SearchConfig(beam=2, maximum=5))
    translator.workers = 2
    plain = translator.translate(SENTENCES, "de")
    with watch(translator.model) as seen:
        assert translator.translate(SENTENCES, "de") == plain
    assert sum(len(call) for call in seen.calls("encoder.0.own")) == len(SENTENCES)
