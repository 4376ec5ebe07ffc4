"""The tour runs as a newcomer runs it, and prints what the README says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_tour_ends_with_a_picture_and_prints_what_the_readme_shows(tmp_path: Path):
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "tour.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "tour.png").read_bytes().startswith(b"\x89PNG")
    shown = (ROOT / "README.md").read_text("utf-8").split("```text\n")[1].split("```")[0]
    headings = [line for line in shown.splitlines() if line[:1].isdigit()]
    assert headings
    assert all(heading in run.stdout for heading in headings)
    # The crossing: German says eight-and-twenty. Each of the two maps starts at "eight" and later looks at "twenty".
    for map in run.stdout.split("<s> twenty eight\n")[1:]:
        rows = [line.split() for line in map.splitlines()[:15]]
        assert rows[0][0] == "a"
        assert rows[0][-1].endswith("100")
