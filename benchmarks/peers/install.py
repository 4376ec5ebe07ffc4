"""Install the libraries that the benchmarks compare with, each into its own environment under benchmarks/.peers.

    make bench-peers        (or: python benchmarks/peers/install.py joeynmt)

One that is there already, with the same requirements, is left alone. Versions are pinned in NAME.txt; torch is that of
constraints.txt and comes first, so that no library chooses another.
"""

import argparse
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMES = sorted(path.stem for path in HERE.glob("*.txt"))


def install(name: str, folder: Path) -> None:
    requirements = (HERE / f"{name}.txt").read_text()
    stamp = folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == requirements:
        print(f"{name}: there already", file=sys.stderr)
        return
    print(f"{name}: installing …", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if "without torch" not in requirements:
        subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), "torch", "setuptools"], check=True)
    # What has to be built finds torch, and the tools that stand in the file before it.
    tools = [
        line
        for line in requirements.splitlines()
        if line.lower().startswith(("cython=", "numpy=", "setuptools="))
    ]
    if "# builds" in requirements:
        subprocess.run([*pip, "--no-deps", *tools, "wheel"], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-r", str(HERE / f"{name}.txt")], check=True)
    stamp.write_text(requirements)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)} (default: all)")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no library is called {', '.join(sorted(unknown))}: choose of {', '.join(NAMES)}")
    failed = []
    for name in options.names or NAMES:
        try:
            install(name, HERE.parent / ".peers" / name)
        except subprocess.CalledProcessError as error:
            failed.append(name)
            print(f"{name}: cannot be installed: {error}", file=sys.stderr)
    if failed:
        print(f"the benchmarks will say that they could not measure {', '.join(failed)}", file=sys.stderr)
    return 1 if len(failed) == len(NAMES) else 0


if __name__ == "__main__":
    sys.exit(main())
