"""Measure what a fused softmax saves beside one written out, for three sizes and for one and two threads.

    python examples/measure_softmax.py

Prints one table: a row for each way, a column for each size.
"""

from __future__ import annotations

import argparse
from itertools import product

import resilin
from resilin.utils.benchmark import Compare, Measurement, Timer

WAYS = {
    "written out": "e = resilin.exp(x - x.amax(-1, keepdim=True)); e / e.sum(-1, keepdim=True)",
    "softmax": "resilin.softmax(x, -1)",
}
SIZES = ((64, 64), (512, 512), (1024, 4096))


def measure(way: str, size: tuple[int, int], num_threads: int, seconds: float) -> Measurement:
    """The time of one way."""
    timer = Timer(
        WAYS[way],
        globals={"x": resilin.randn(*size)},
        label="softmax of rows",
        sub_label=way,
        description=f"{size[0]} x {size[1]}",
        num_threads=num_threads,
    )
    return timer.blocked_autorange(min_run_time=seconds)


def main() -> None:
    """Measure every way, and print the table."""
    parser = argparse.ArgumentParser(description="Measure softmax.")
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="how long each of the 12 measurements takes at least"
    )
    options = parser.parse_args()
    table = Compare([measure(*each, options.seconds) for each in product(WAYS, SIZES, (1, 2))])
    table.trim_significant_figures()
    table.highlight_warnings()
    table.print()


if __name__ == "__main__":
    main()
