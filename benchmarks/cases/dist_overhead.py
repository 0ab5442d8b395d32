"""Times all_reduce with and without its two companions: the comparison of calls between ranks, and the flight recorder.

Only resilin has them, and they are always on, so this reaches inside: no user can switch the comparison off.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.cases import transport
from benchmarks.library import Library

MODES = {"bare": (False, False), "compared": (True, False), "recorded": (False, True), "both": (True, True)}
SIZES = (1 << 10, 64 << 10)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where ranks meet, and the length of the run."""
    transport.add_arguments(parser)
    parser.add_argument("--blocks", type=int, required=True, help="of 100 calls, for each size and mode")


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Samples per size and mode: seconds per call, one for each block. Blocks of all modes take turns."""
    group = transport.join(library, args)
    switch = _Switch(group)
    samples: dict[str, dict[str, list[float]]] = {str(size): {mode: [] for mode in MODES} for size in SIZES}
    for size in SIZES:
        tensor = library.torch.zeros(size // 4)
        for block in range(args.blocks + 1):
            for mode, (compared, recorded) in MODES.items():
                library.dist.barrier()
                switch.turn(compared, recorded)
                taken = _block(library.dist, tensor)
                switch.turn(True, True)
                if block:  # the first warms up
                    samples[str(size)][mode].append(taken)
    library.dist.destroy_process_group()
    return {"samples": samples}


def _block(dist: Any, tensor: Any, calls: int = 100) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor)
    return (time.perf_counter() - begin) / calls


class _Switch:
    """Turns the comparison and the recorder of one group's end on and off; all ranks do so at the same call."""

    def __init__(self, group: Any) -> None:
        self._queue, self._log, self._backend = group._queue, group._queue._log, group._host
        shared = getattr(group._host, "_memory", None)
        self._segment = None if shared is None else shared.segment()
        if self._log is None:
            raise SystemExit("no flight recorder here: see the warning above")

    def turn(self, compared: bool, recorded: bool) -> None:
        """On or off."""
        self._queue._log = self._log if recorded else None
        if self._segment is not None:
            self._segment.compare = compared
        elif compared:
            vars(self._backend).pop("flow", None)
        else:
            self._backend.flow = self._unopened

    def _unopened(self, transfers: Any, op: Any, deadline: Any, opening: Any = None) -> None:
        type(self._backend).flow(self._backend, transfers, op, deadline)
