"""`python -m benchmarks`: run every benchmark, one after the other."""

from __future__ import annotations

import sys

from benchmarks import all_reduce, harness, install_size, recovery, shard_mode, startup, train_step

ALL = [startup, install_size, all_reduce, train_step, shard_mode, recovery]


def run_all() -> int:
    """Every benchmark with the same options; a failure does not stop the others, but the exit code."""
    if any(argument.startswith("--json") for argument in sys.argv[1:]):
        print("--json works with one benchmark at a time: python -m benchmarks.NAME --json FILE", file=sys.stderr)
        return 2
    return max(harness.main(module.benchmark) for module in ALL)


if __name__ == "__main__":
    sys.exit(run_all())
