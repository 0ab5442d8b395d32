"""Times the schedules of collectives over TCP, one by one, and collectives in shared memory.

Only resilin lets a schedule be chosen, and only from inside: its users get the one that costs least.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cases import transport
from benchmarks.library import Library
from resilin._base.clock import Deadline
from resilin.distributed.wire import schedules
from resilin.distributed.wire.reduce_op import ReduceOp

LIMIT_S = 60.0
ALL_REDUCE = {
    "doubling": schedules.doubling_all_reduce,
    "direct": schedules.direct_all_reduce,
    "halving": schedules.halving_all_reduce,
}
BROADCAST = {"binomial": schedules.binomial_broadcast, "chain": schedules.chain_broadcast}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where ranks meet, the sizes, and the length of the run."""
    transport.add_arguments(parser)
    parser.add_argument("--sizes", required=True, help="bytes per tensor, separated by commas")
    parser.add_argument("--seconds", type=float, required=True, help="about how long to measure each")


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Samples in seconds, by schedule (tcp) or collective (shm) and size; `barrier` has size 0."""
    group = transport.join(library, args)
    calls = _schedules if args.transport == "tcp" else _collectives
    samples = {"barrier": {"0": _measure(library, library.dist.barrier, args.seconds)}}
    for size in map(int, args.sizes.split(",")):
        for name, call in calls(library, group, size).items():
            samples.setdefault(name, {})[str(size)] = _measure(library, call, args.seconds)
    library.dist.destroy_process_group()
    return {"samples": samples}


def _schedules(library: Library, group: Any, size: int) -> dict[str, Callable[[], Any]]:
    """The data phase alone: what agreeing on the call costs is the row of the barrier."""
    rank, world, backend = group.rank(), group.size(), group._host
    flat = np.zeros(size // 4, np.float32)

    def walk(steps: Any, op: ReduceOp | None) -> Callable[[], Any]:
        return lambda: backend.run(steps, flat, op, Deadline(LIMIT_S))

    calls = {name: walk(schedule(rank, world), ReduceOp.SUM) for name, schedule in ALL_REDUCE.items()}
    return {**calls, **{name: walk(schedule(rank, world, 0), None) for name, schedule in BROADCAST.items()}}


def _collectives(library: Library, group: Any, size: int) -> dict[str, Callable[[], Any]]:
    torch, dist, world = library.torch, library.dist, group.size()
    whole, part = torch.zeros(size // 4 // world * world), torch.zeros(size // 4 // world)
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
    }


def _measure(library: Library, call: Callable[[], Any], seconds: float) -> list[float]:
    """Duration of each call on the rank that it takes longest; a barrier between any two."""
    torch, dist = library.torch, library.dist
    begin = time.perf_counter()
    for _ in range(3):
        call()
    wanted = torch.tensor([min(500.0, max(5.0, 3 * seconds / (time.perf_counter() - begin)))])
    dist.broadcast(wanted, 0)
    samples = []
    for _ in range(int(wanted.item())):
        dist.barrier()
        begin = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begin)
    longest = torch.tensor(samples, dtype=torch.float64)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return list(map(float, longest.tolist()))
