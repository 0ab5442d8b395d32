"""A node joins, leaves, is lost: how many messages and how much time does that cost a job of thousands of nodes?"""

from __future__ import annotations

import sys
from dataclasses import asdict

from benchmarks import harness
from benchmarks.harness import Options, Report, Row
from resilin.testing.simulation.crowd import REAL, Cost, Crowd

SIZES = (10, 100, 1_000, 10_000)

METHOD = f"""`resilin.testing.simulation.crowd`: the real agents, rendezvous and store in simulated time, one worker a
node, a program that recovers in place, a network of 0.2 to 2 ms a message (now and then 200 ms). {REAL} nodes are
agents; the others are a record in the store and a watch. Where the program recovers in place, they say nothing, as the
agents of such nodes: the notes count what those agents wrote that neither led nor were the node in question. Where all
workers start again ("restart", up to 1,000 nodes), they write when those agents do.
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
    kinds = (True, False)
    costs = [cost for in_place in kinds for size in _sizes(options, in_place) for cost in _costs(size, in_place)]
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


def _sizes(options: Options, in_place: bool) -> tuple[int, ...]:
    largest = 2 if options.quick else len(SIZES) if in_place else 3  # 10,000 that restart are minutes of simulation
    return SIZES[:largest]


def _costs(size: int, in_place: bool) -> list[Cost]:
    crowd = Crowd(size, in_place=in_place)
    kind = "" if in_place else "restart: "
    try:
        return [
            crowd.change(f"{kind}join", crowd.join),
            crowd.change(f"{kind}leave", lambda: crowd.nodes[2].leave()),
            crowd.change(f"{kind}loss", lambda: crowd.nodes[3].crash(silently=True)),
            crowd.change(f"{kind}loss of the leader", lambda: crowd.nodes[0].crash(silently=True)),
        ]
    finally:
        crowd.close()


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
