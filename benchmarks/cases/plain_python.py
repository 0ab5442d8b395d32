"""A distributed program in plain Python: it imports neither library, and each "step" is a sleep of a millisecond.

`python benchmarks/cases/plain_python.py --events FILE` under a launcher; notes what `recovery` notes.
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import count

from benchmarks.cases.recovery import Notes
from benchmarks.library import rank, world_size


def main() -> None:
    """Step until somebody ends this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", required=True, metavar="FILE")
    notes = Notes(parser.parse_args().events)
    who = rank(), world_size(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    notes.add("enter", *who, step=0)
    for step in count():
        time.sleep(1e-3)
        notes.add("commit", *who, step=step)


if __name__ == "__main__":
    main()
