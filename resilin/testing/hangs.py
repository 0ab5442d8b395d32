"""Whether a rank that hangs is named: ranks as threads, their flight recorders read and judged as agents do.

found = hang(tmp_path, 3, COLLECTIVES["all_reduce"])          # rank 1 never calls it
assert found.verdict.ranks == (1,)

Each rank has a recorder of its own, as a process has, and all that one agent tells another goes through JSON. What is
not here: /proc, which says who is stopped or computes (every rank counts as idle), and the ending of a process.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from resilin._base import flight
from resilin._base.clock import SYSTEM, Deadline
from resilin._base.flight import SUFFIX, Recorder
from resilin._base.threads import OwnedThread
from resilin.distributed.api import collectives
from resilin.distributed.backends.base import METHODS
from resilin.distributed.group.default_group import get_world_size
from resilin.distributed.wire import flight_recorder, loader, shard_tree
from resilin.elastic.hangs import blame, stall_record
from resilin.elastic.hangs.blame import Verdict
from resilin.elastic.hangs.stall_record import Stall, Standing
from resilin.elastic.hangs.step_time import StepTime
from resilin.errors import UsageError
from resilin.testing.faults import FaultPlan
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks

LIMIT_S = 0.5  # of silence, in tests that do not try the real one
HUNG = 1  # the rank
SHARDS = 5
_LOOK_S = 0.02
_CAPACITY = 256
Make = Callable[[Any], Any]
"""Puts an array of numpy where the tensors of a backend live."""
Hanging = Callable[[int, Make], Any]
"""What every rank calls, but the one that hangs, which does so later; told its rank."""


def _sum_along_tree(rank: int, make: Make) -> None:
    plan = shard_tree.plan(SHARDS, get_world_size())
    collectives.tree_all_reduce({node: make(np.ones(4)) for node in plan.subtrees(rank)}, make(np.ones(4)), plan)


def _rows(make: Make, root: bool = True) -> list[Any] | None:
    return [make(np.ones(4)) for _ in range(get_world_size())] if root else None


COLLECTIVES: Mapping[str, Hanging] = {
    "barrier": lambda rank, make: collectives.barrier(),
    "all_reduce": lambda rank, make: collectives.all_reduce(make(np.ones(4))),
    "reduce": lambda rank, make: collectives.reduce(make(np.ones(4)), dst=0),
    "broadcast": lambda rank, make: collectives.broadcast(make(np.ones(4)), src=HUNG),
    "all_gather": lambda rank, make: collectives.all_gather(_rows(make) or [], make(np.ones(4))),
    "reduce_scatter": lambda rank, make: collectives.reduce_scatter(make(np.ones(4)), _rows(make) or []),
    "gather": lambda rank, make: collectives.gather(make(np.ones(4)), _rows(make, rank == 0), dst=0),
    "scatter": lambda rank, make: collectives.scatter(make(np.ones(4)), _rows(make, rank == HUNG), src=HUNG),
    "all_to_all": lambda rank, make: collectives.all_to_all(_rows(make) or [], _rows(make) or []),
    "tree_all_reduce": _sum_along_tree,
}
"""A call of each collective of a backend, in which others wait for rank HUNG."""
assert set(COLLECTIVES) == set(METHODS) - {"attach", "agree", "abort", "peer_left", "on_fd", "close"}


@dataclass(frozen=True, kw_only=True)
class Named:
    """What is said of a hang."""

    verdict: Verdict
    silent_s: float
    """Since the last call of any rank, when it was said."""
    at: tuple[str, ...]
    """By rank, the last call of its recorder."""


def judged(files: Sequence[Path]) -> Verdict:
    """What agents conclude of the flight recorders of all ranks of a job, in their order."""
    read = [flight.read(path) for path in files]
    workers = tuple(
        Standing(rank=rank, pid=one.pid, doing="idle", calls=stall_record.compact(one.calls), unread=one.damage)
        for rank, one in enumerate(read)
    )
    told = json.loads(json.dumps(asdict(Stall(generation=1, round=1, workers=workers))))
    return blame.judge(stall_record.from_json(told).workers, len(files))


def watch(files: Sequence[Path], pace: StepTime) -> Named:
    """Wait until no rank has made a call for as long as `pace` allows, and judge. UsageError when they never rest."""
    patience, last, since = Deadline(PATIENCE_S), -1, SYSTEM.monotonic()
    while not patience.passed():
        count, now = sum(flight.newest(path) for path in files if path.exists()), SYSTEM.monotonic()
        if count != last:
            last, since = count, now
        elif now - since >= pace.limits(begun=True).look:
            at = tuple(str(flight.read(path).calls[-1]) for path in files)
            return Named(verdict=judged(files), silent_s=SYSTEM.monotonic() - since, at=at)
        SYSTEM.sleep(_LOOK_S)
    raise UsageError(f"{files[0].parent}: ranks still make calls after {PATIENCE_S:g} s, expected that they hang")


def files_of(folder: Path, count: int) -> list[Path]:
    """Where `recorders` lets ranks write."""
    return [folder / f"{socket.gethostname()}_{rank}{SUFFIX}" for rank in range(count)]


@contextlib.contextmanager
def recorders(folder: Path, count: int) -> Iterator[list[Path]]:
    """Within the block each thread of `run_ranks` records into a file of its own, as a process would: the files."""
    files = files_of(folder, count)
    opened: dict[int, tuple[Recorder, Any]] = {}
    lock, before = threading.Lock(), flight_recorder._of_process

    def of_thread() -> tuple[Recorder, Any] | None:
        name = threading.current_thread().name.rpartition("rank-")[2]
        if not name.isdigit():
            return before()
        with lock:
            if int(name) not in opened:
                made = Recorder(files[int(name)], socket.gethostname(), _CAPACITY)
                opened[int(name)] = made, flight_recorder.native_flight(made) if loader.native is not None else None
            return opened[int(name)]

    flight_recorder._of_process = of_thread
    try:
        yield files
    finally:
        flight_recorder._of_process = before
        for made, native in opened.values():
            made.close()
            if native is not None:
                native.stop()


def hang(folder: Path, count: int, call: Hanging, **options: Any) -> Named:
    """`hangs` of one call."""
    (found,) = hangs(folder, count, {"it": call}, **options).values()
    return found


def hangs(
    folder: Path,
    count: int,
    calls: Mapping[str, Hanging],
    *,
    make: Make = np.asarray,
    pace: StepTime | None = None,
    comes: FaultPlan | None = None,
    **options: Any,
) -> dict[str, Named]:
    """For each of `calls` in turn: rank HUNG of one group of `count` ranks does not make it, and what is said of that.

    Afterwards it makes it, so that nothing is left waiting. `comes`: it makes it at once, and this plan freezes it
    there. `options` are those of `run_ranks`.
    """
    found: dict[str, Named] = {}
    arrived = threading.Barrier(count + 1)  # of the ranks and who watches
    said = {name: threading.Event() for name in calls}

    def rank_main(rank: int) -> None:
        try:
            for name, call in calls.items():
                collectives.barrier()
                arrived.wait(PATIENCE_S)
                if rank == HUNG and comes is None:
                    said[name].wait(PATIENCE_S)
                call(rank, make)
        except BaseException:
            arrived.abort()
            raise

    def watcher(files: Sequence[Path]) -> None:
        try:
            for name, event in said.items():
                arrived.wait(PATIENCE_S)
                found[name] = watch(files, pace or StepTime(LIMIT_S))
                event.set()
        finally:
            for event in said.values():
                event.set()
            if comes is not None:
                comes.thaw()

    with recorders(folder, count) as files:
        watching = OwnedThread("watch", lambda: watcher(files))
        run_ranks(count, rank_main, faults=comes, **options).results()
        watching.join(PATIENCE_S)
    return found
