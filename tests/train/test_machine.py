"""What the machine is asked for, and what a run took of it."""

import ctypes
import platform
import sys
from types import SimpleNamespace

import pytest
from tests.train.toy import Rows

from qkv.train.machine import Cost, keep_memory
from qkv.train.state import Progress


def test_glibc_is_asked_to_keep_memory_and_others_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda what, value: asked.append((what, value)))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(sys, "platform", "linux")
    for libc, count in (("musl", 0), ("glibc", 2)):
        monkeypatch.setattr(platform, "libc_ver", lambda libc=libc: (libc, "2.36"))
        asked.clear()
        keep_memory()
        assert len(asked) == count
    assert {what for what, _ in asked} == {-3, -1}  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
    assert all(value >= 1 << 30 for _, value in asked)
    monkeypatch.setattr(sys, "platform", "darwin")
    asked.clear()
    keep_memory()
    assert not asked


def test_a_cost_in_words():
    assert str(Cost(90, 18_000, 1234)) == "1.5 minutes, 200 targets/s all in all, 1,234 MiB at the most"
    assert str(Cost(0, 0, 1)).startswith("0.0 minutes, 0 targets/s")


def test_the_cost_of_this_process_is_plausible():
    cost = Cost.of(Rows(), Progress(seconds=7.0, targets=3))
    assert (cost.seconds, cost.targets) == (7.0, 3)
    assert 50 < cost.mebibytes < 100_000
