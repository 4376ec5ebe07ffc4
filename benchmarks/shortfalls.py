"""What fell short, in all that the benchmarks last measured; `make bench` ends with it.

python benchmarks/shortfalls.py
"""

import json

from common import ROOT, Promise


def main() -> None:
    kept, short = 0, []
    for path in sorted((ROOT / "docs" / "benchmarks").glob("*.json")):
        data = json.loads(path.read_text())
        if isinstance(data, dict):
            found = [Promise(**one) for one in data.get("promises", [])]
            kept += sum(one.kept for one in found)
            short += [f"- {path.stem}: {one}" for one in found if not one.kept]
    print(f"{kept} of {kept + len(short)} promises kept" + (", not these:" if short else "."))
    print("\n".join(short))


if __name__ == "__main__":
    main()
