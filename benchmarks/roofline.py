"""How does the cost of training grow with length, width, vocabulary, batch and cores, and what limits each point?

    make bench-cost            (or: python benchmarks/roofline.py --axes length --cores 2)

Trains on drawn batches that are all of one length, through qkv's own loop. Beside the time stands what it is made of:
the operations of all products against the machine's measured bf16 peak, the bytes of all other kernels against its
measured bandwidth at their sizes, and the number of kernels against the time of one that does nothing.
"""

import argparse
import bisect
import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import (
    BENCHMARKS,
    Promise,
    Worker,
    earlier,
    facts_line,
    machine,
    markdown,
    promise,
    save,
    say,
    verdict,
)

PAGE = """# How does the cost of training grow, and what limits it?

Written by `python benchmarks/roofline.py --out docs/benchmarks/cost` (`make bench-cost`). Each axis is moved from the same
point: 4+4 layers, width 128 (twice that inside), n = 16, 8,000 tokens, 4,096 positions a batch, two cores. *Products* is
the time that the operations of all matrix products would take at the measured bf16 peak, *memory* that of the bytes of
all other kernels at the bandwidth measured for their sizes, *calls* that of as many kernels that do nothing: shares of the
time of a step, not of one another, and what is left is what these three do not explain. The largest of them limits the point.

![Roofline, and tokens a second along each axis](cost.png)
"""
BASE = {"width": 128, "length": 16, "vocabulary": 8000, "batch": 4096}
AXES = {
    "length": (16, 32, 64, 128, 256, 512),
    "width": (64, 128, 256, 512),
    "vocabulary": (1000, 8000, 32000),
    "batch": (512, 1024, 2048, 4096, 8192),
}
CLIFF = 3.0
"""The most by which tokens a second, times the operations of one, may fall between neighbours."""
PEAK = 0.35
"""Share of the bf16 peak that `small` aims at."""
SMALL = "small"


def specification(values: dict[str, int]) -> dict[str, Any]:
    width = values["width"]
    model = {"preset": "tiny", "width": width, "hidden": 2 * width}
    drawn = {
        "length": values["length"],
        "vocabulary": values["vocabulary"],
        "tokens": values["batch"],
        "count": 4,
    }
    return {"model": model, "drawn": drawn}


def measure(axes: Sequence[str], cores: Sequence[int]) -> dict[str, Any]:
    """Peaks and points for each number of cores."""
    found: dict[str, Any] = {"peaks": {}, "points": []}
    for count in cores:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, BENCHMARKS / "ours_cost.py"]
            with Worker(command, {}, Path(folder) / "log", threads=count) as worker:
                found["peaks"][str(count)] = worker.facts()["peaks"]
                seen: dict[tuple[int, ...], dict[str, Any]] = {}
                for axis in axes:
                    for value in AXES[axis]:
                        values = BASE | {axis: value}
                        key = tuple(values.values())
                        if key not in seen:
                            seen[key] = worker.ask(**specification(values))
                        found["points"].append(
                            explained(axis, value, count, seen[key], found["peaks"][str(count)])
                        )
                small = {
                    "model": {"preset": "small"},
                    "drawn": {"length": 16, "vocabulary": 8000, "count": 4},
                }
                answer = worker.ask(**small)
                found["points"].append(explained(SMALL, 256, count, answer, found["peaks"][str(count)]))
    return found


def explained(
    axis: str, value: int, cores: int, answer: dict[str, Any], peaks: dict[str, Any]
) -> dict[str, Any]:
    """A point with the shares of its time."""
    seconds = statistics.median(seconds for seconds, _ in answer["rounds"])
    targets = answer["rounds"][0][1]
    shares = {
        "products": answer["flops"] / peaks["bf16"] / seconds,
        "memory": sum(count / bandwidth(count, peaks) for count in answer["other_bytes"]) / seconds,
        "calls": answer["calls"] * peaks["call"] / seconds,
    }
    moved = answer["product_bytes"] + sum(answer["other_bytes"])
    found = {
        "axis": axis,
        "value": value,
        "cores": cores,
        "tokens_per_second": targets / seconds,
        "flops_per_second": answer["flops"] / seconds,
        "flops_per_token": answer["flops"] / targets,
        "intensity": answer["flops"] / moved,
        "shares": shares,
        "limit": max(shares, key=shares.__getitem__),
        "kernels": answer["calls"],
        "rounds": answer["rounds"],
    }
    say(f"{axis} {value}, {cores} cores: {found['tokens_per_second']:,.0f} tokens/s, {found['limit']}")
    return found


def bandwidth(count: int, peaks: dict[str, Any]) -> float:
    """That of the next larger size which was measured; of tiny ones, that of the smallest."""
    sizes = sorted(map(int, peaks["bandwidth"]))
    place = min(bisect.bisect_left(sizes, count), len(sizes) - 1)
    return peaks["bandwidth"][str(sizes[place])]


def table(data: dict[str, Any]) -> list[str]:
    heads = [
        "axis",
        "value",
        "cores",
        "tokens/s",
        "GFLOP/s",
        "of bf16 peak",
        "FLOP/byte",
        "products",
        "memory",
        "calls",
        "limited by",
    ]
    rows = [
        [
            point["axis"],
            f"{point['value']:,}",
            str(point["cores"]),
            f"{point['tokens_per_second']:,.0f}",
            f"{point['flops_per_second'] / 1e9:,.0f}",
            f"{100 * point['shares']['products']:.0f} %",
            f"{point['intensity']:.1f}",
            *(f"{100 * point['shares'][name]:.0f} %" for name in ("products", "memory", "calls")),
            point["limit"],
        ]
        for point in data["points"]
    ]
    lines = markdown(heads, rows)
    lines += [
        "",
        *markdown(["peak", *(f"{cores} cores" for cores in data["peaks"])], peak_rows(data["peaks"])),
    ]
    return lines


def peak_rows(peaks: dict[str, Any]) -> list[list[str]]:
    names = ("fp32 MKL", "fp32 oneDNN", "bf16")
    rows = [
        [f"{name}, GFLOP/s", *(f"{found[name] / 1e9:,.0f}" for found in peaks.values())] for name in names
    ]
    for size in next(iter(peaks.values()))["bandwidth"]:
        name = f"{2 * int(size) / 2**20:g} MiB copied, GB/s"
        rows.append([name, *(f"{found['bandwidth'][size] / 1e9:,.0f}" for found in peaks.values())])
    rows.append(
        ["a kernel that does nothing, µs", *(f"{1e6 * found['call']:.2f}" for found in peaks.values())]
    )
    return rows


def promises(data: dict[str, Any]) -> list[Promise]:
    """No cliff between neighbours, and the share of the peak."""
    found = []
    most = max(point["cores"] for point in data["points"])
    for axis in AXES:
        points = [point for point in data["points"] if point["axis"] == axis and point["cores"] == most]
        rates = [point["flops_per_second"] for point in points]
        if len(rates) > 1:
            falls = [one / other for one, other in pairwise(rates)]
            found.append(promise(f"{axis}: FLOP/s may fall between neighbours by", [max(falls)], CLIFF))
    found += [
        promise("small: share of the bf16 peak", [point["shares"]["products"]], PEAK, least=True)
        for point in data["points"]
        if point["axis"] == SMALL and point["cores"] == most
    ]
    return found


def draw(data: dict[str, Any], path: Path) -> None:
    """The roofline on the left, tokens a second along each axis on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(14, 6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.1))
    roofline(left.subplots(), data)
    for axes, axis in zip(right.subplots(2, 2).flat, AXES, strict=True):
        if not any(point["axis"] == axis for point in data["points"]):
            continue
        for cores in data["peaks"]:
            points = [p for p in data["points"] if p["axis"] == axis and p["cores"] == int(cores)]
            xs, ys = [p["value"] for p in points], [p["tokens_per_second"] for p in points]
            axes.plot(xs, ys, marker="o", label=f"{cores} cores")
        axes.set(xscale="log", yscale="log", xlabel=axis, ylabel="target tokens/s")
        axes.set_xticks(AXES[axis], [f"{value:,}" for value in AXES[axis]], fontsize=7)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def roofline(axes: Any, data: dict[str, Any]) -> None:
    most = max(data["peaks"], key=int)
    peaks = data["peaks"][most]
    xs = [2**power for power in range(-1, 13)]
    widths = {"1048576": "caches", "268435456": "memory"}
    for (size, name), style in zip(widths.items(), ("--", "-"), strict=True):
        slope = peaks["bandwidth"][size]
        ys = [min(x * slope, peaks["bf16"]) for x in xs]
        axes.plot(xs, ys, style, color="black", label=f"{name}, {slope / 1e9:,.0f} GB/s")
    for name in ("bf16", "fp32 oneDNN", "fp32 MKL"):
        axes.axhline(peaks[name], color="gray", linewidth=0.8)
        axes.text(
            xs[-1],
            peaks[name],
            f"{name} {peaks[name] / 1e9:,.0f} GFLOP/s",
            ha="right",
            va="bottom",
            fontsize=8,
        )
    for axis in (*AXES, SMALL):
        points = [p for p in data["points"] if p["axis"] == axis and p["cores"] == int(most)]
        axes.scatter(
            [p["intensity"] for p in points], [p["flops_per_second"] for p in points], s=24, label=axis
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="operations of products a byte of all kernels",
        ylabel="FLOP/s",
        title=f"training on {most} cores",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--axes", nargs="+", choices=AXES, default=[*AXES], metavar="AXIS", help=f"of {', '.join(AXES)}"
    )
    parser.add_argument("--cores", nargs="+", type=int, default=[1, 2], help="default 1 2")
    parser.add_argument("--table", action="store_true", help="measure nothing: draw and print what --out has")
    parser.add_argument("--out", type=Path, help="write PATH.json, PATH.md and PATH.png", metavar="PATH")
    options = parser.parse_args()
    before = earlier(options.out)
    data = before if options.table else measure(options.axes, options.cores)
    data["machine"] = before["machine"] if options.table else machine()
    if options.out and not options.table:
        data = merged(data, before)
    text = "\n".join([f"{facts_line(data['machine'])}.", "", *table(data), "", *verdict(promises(data))])
    print(text)
    if options.out:
        save(options.out, PAGE, text, data, promises(data))
        draw(data, options.out.with_suffix(".png"))


def merged(data: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """With earlier points of axes and cores that were not measured again."""

    def key(point: dict[str, Any]) -> tuple[Any, ...]:
        return ([*AXES, SMALL].index(point["axis"]), point["value"], point["cores"])

    points = {key(point): point for point in [*before.get("points", []), *data["points"]]}
    peaks = before.get("peaks", {}) | data["peaks"]
    return data | {
        "points": [points[place] for place in sorted(points)],
        "peaks": dict(sorted(peaks.items())),
    }


if __name__ == "__main__":
    main()
