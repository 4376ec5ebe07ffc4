"""Install the libraries that the benchmarks compare with, each into its own environment under benchmarks/.peers.

    make bench-peers        (or: python benchmarks/peers/install.py joeynmt)

One that is there already, with the same requirements, is left alone. Versions are pinned in NAME.txt; torch is that of
constraints.txt and comes first, so that no library chooses another.
"""

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WITHOUT_TORCH = ("ctranslate2",)
TOOLS = ("Cython", "setuptools")
"""What has to be there before a library is built."""
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

    def run(*arguments: str) -> None:
        # READTHEDOCS is fairseq's own switch for an installation without its C extensions.
        subprocess.run([*pip, *arguments], check=True, env=os.environ | {"READTHEDOCS": "1"})

    if name not in WITHOUT_TORCH:
        run("-c", str(ROOT / "constraints.txt"), "torch", "setuptools")
    if tools := [line for line in requirements.splitlines() if line.startswith(TOOLS)]:
        run("--no-deps", "wheel", *tools)
    run("--no-deps", "--no-build-isolation", "-r", str(HERE / f"{name}.txt"))
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
