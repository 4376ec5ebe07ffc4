"""Killed at any moment, a run goes on to the very weights, scores and losses of the run that never was."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.train.toy import same_bits

from qkv.store import checkpoint
from qkv.store.bundle import read
from qkv.store.manifest import verify

KILLS = 5  # of each scenario
DRIVER = Path(__file__).with_name("kill.py")
SCENARIOS = [
    "ema, bf16",
    "muon, last, accumulated",
    "luong, early stop",
    "by steps, every checkpoint",
    "pictures, changed and mixed",
]


def log(run: Path) -> list[dict[str, Any]]:
    """All of it but the time, which no run has twice."""
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert all(row.pop("seconds") >= 0 for row in rows)
    return rows


@pytest.mark.parametrize(("seed", "name"), list(enumerate(SCENARIOS)), ids=SCENARIOS)
def test_killed_at_any_moment_a_run_goes_on_bit_for_bit(tmp_path: Path, seed: int, name: str):
    driver = subprocess.run(
        [sys.executable, DRIVER, tmp_path, name, str(seed), str(KILLS)], capture_output=True, text=True
    )
    assert driver.returncode == 0, driver.stderr
    done = json.loads(driver.stdout)
    print(*done["moments"], sep="\n")  # seen when something below fails
    assert len(done["moments"]) == KILLS
    whole, (last, _) = read(tmp_path / "whole" / "model"), checkpoint.newest(tmp_path / "whole")
    assert last is not None
    assert last.facts["finished"]
    if name == "luong, early stop":
        assert last.facts["epoch"] < 9
    for number in range(1, done["runs"] + 1):
        path = tmp_path / f"killed{number}"
        model, (again, notices) = read(path / "model"), checkpoint.newest(path)
        assert same_bits(whole.tensors, model.tensors)
        assert again is not None
        assert notices == []
        assert last.step == again.step
        assert last.tensors.keys() == again.tensors.keys()
        for group, tensors in last.tensors.items():
            assert same_bits(tensors, again.tensors[group]), group
        assert last.facts | {"seconds": 0} == again.facts | {"seconds": 0}
        assert log(tmp_path / "whole") == log(path)
        for name in whole.tokenizers:
            assert whole.tokenizers[name].read_bytes() == model.tokenizers[name].read_bytes()
        verify(path / "model")
        assert not [
            entry.name for entry in path.rglob("*") if "unfinished" in entry.name or "tmp" in entry.name
        ]
