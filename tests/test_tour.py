"""The tour runs as a newcomer runs it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_tour_goes_all_the_way_and_ends_with_a_picture(tmp_path: Path):
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "tour.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "tour.png").read_bytes().startswith(b"\x89PNG")
    assert re.findall(r"^(\d)\. ", run.stdout, re.MULTILINE) == list("12345")
    # The crossing: German says eight-and-twenty. Each of the two maps starts at "eight" and later looks at "twenty".
    maps = run.stdout.split("<s> twenty eight\n")[1:]
    assert len(maps) == 2
    for map in maps:
        rows = [line.split() for line in map.splitlines()[:15]]
        assert rows[0][0] == "a"
        assert rows[0][-1].endswith("100")
