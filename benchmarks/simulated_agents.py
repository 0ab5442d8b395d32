"""A node joins, leaves, is lost: how many messages and how much time does that cost a job of thousands of nodes?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

from benchmarks import harness
from benchmarks.harness import Options, Report, Row
from benchmarks.parts.taken import Taken
from resilin.testing.simulation.crowd import REAL, Cost, Crowd

SIZES = (10, 100, 1_000, 10_000)
CHANGES: dict[str, Callable[[Crowd], Any]] = {
    "join": lambda crowd: crowd.join(),
    "leave": lambda crowd: crowd.nodes[2].leave(),
    "loss": lambda crowd: crowd.nodes[3].crash(silently=True),
    "loss of the leader": lambda crowd: crowd.nodes[0].crash(silently=True),
}

METHOD = f"""`resilin.testing.simulation.crowd`: the real agents, rendezvous and store in simulated time, one worker a
node, a program that recovers in place, a network of 0.2 to 2 ms a message (now and then 200 ms). {REAL} nodes are
agents; the others are a record in the store and a watch. Where the program recovers in place, they say nothing, as the
agents of such nodes: the notes count what those agents wrote that neither led nor were the node in question. Where all
workers start again ("restart"), they write when those agents do. Each change meets a job of its own, just formed.
Messages: writes, and one event to each watcher for each write: all nodes where it is under `world/`, the leader where
it is a node's record; renewals of leases (three per time to live and node) are not among them.
Time: simulated, from the cause until every real worker has its new world; after a loss it holds
the rest of the lease (2 s here). CPU: processor time of this machine for one agent, and its share of the simulation."""


def benchmark(options: Options) -> Report:
    """Costs of four changes at each size."""
    report = Report(
        name="simulated_agents",
        question=(__doc__ or "").strip(),
        method=METHOD,
        ours="figure",
    )
    taken = Taken(options)
    sizes = SIZES[:2] if options.quick else SIZES
    for in_place, size, change in product((True, False), sizes, CHANGES):
        name = f"{'' if in_place else 'restart: '}{change}, {size:,} nodes"
        with harness.progress(name):
            taken.run(0, name, partial(_cost, size, in_place, change))
    costs = [Cost(**taken.results(name)[0]) for name in taken.names()]
    for cost in costs:
        what = f"{cost.change}, {cost.nodes:,} nodes"
        report.rows.append(Row(what=f"{what}: messages", unit="messages", ours=cost.messages))
        report.rows.append(Row(what=f"{what}: time", unit="ms", ours=cost.simulated_s * 1e3))
        report.rows.append(Row(what=f"{what}: CPU of one agent", unit="ms", ours=cost.cpu_s * 1e3))
    report.notes = [
        *(
            f"{cost.change}, {cost.nodes:,} nodes: {cost.writes} writes, {cost.follower_writes} of them by bystanders, "
            f"{cost.sent_bytes / max(1, cost.nodes) / 1e3:,.0f} kB of events to each node"
            for cost in costs
        ),
        "Messages and time grow with the number of nodes, not faster. Bytes do: the records of a generation and of the "
        "leader's roster name every node and go to every node.",
    ]
    report.data = {"costs": [asdict(cost) for cost in costs]}
    return report


def _cost(size: int, in_place: bool, change: str) -> dict[str, Any]:
    crowd = Crowd(size, in_place=in_place)
    try:
        return asdict(crowd.change(change if in_place else f"restart: {change}", lambda: CHANGES[change](crowd)))
    finally:
        crowd.close()


if __name__ == "__main__":
    sys.exit(harness.main(benchmark, resumable=True))
