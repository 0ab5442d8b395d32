"""Plays schedules: `python -m resilin.testing.simulation [--kind KIND] [--seed N [--trace]] [--first N --count N]`."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections import Counter

from resilin._base.clock import SYSTEM
from resilin.testing.simulation.schedule import KINDS, run


def main(argv: list[str] | None = None) -> int:
    """0: every invariant held; 1: the broken schedules were told."""
    parser = argparse.ArgumentParser(prog="python -m resilin.testing.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one schedule")
    parser.add_argument("--trace", action="store_true", help="tell what happens in it")
    parser.add_argument("--first", type=int, default=0, help="play schedules from this seed on")
    parser.add_argument("--count", type=int, default=1000, help="how many")
    parser.add_argument("--kind", choices=KINDS, default="any", help="what may go wrong")
    options = parser.parse_args(argv)
    kind = KINDS[options.kind]
    if options.seed is not None:
        result = run(options.seed, trace=options.trace, kind=kind)
        print(*result.story, sep="\n")
        print(result.broken or f"seed {result.seed}: {result.outcome}, {result.generations} generations")
        return 1 if result.broken else 0
    logging.getLogger("resilin").addHandler(logging.NullHandler())
    begin = SYSTEM.monotonic()
    outcomes: Counter[str] = Counter()
    broken = 0
    for seed in range(options.first, options.first + options.count):
        result = run(seed, kind=kind)
        outcomes[re.sub(r"\d+", "N", result.outcome)[:60]] += 1
        if result.broken:
            broken += 1
            print(f"seed {seed}: {result.broken}")
    for outcome, count in outcomes.most_common():
        print(f"{count:6}  {outcome}")
    seconds = SYSTEM.monotonic() - begin
    each = f"{seconds / options.count * 1e3:.1f} ms each"
    print(f"{options.count} schedules in {seconds:.1f} s ({each}), {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
