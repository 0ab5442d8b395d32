"""`resilin status [JOB]`: the nodes and the generation of a running job."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from resilin.elastic.membership import scaling
from resilin.elastic.records import Generation, Node
from resilin.launcher import jobs, output
from resilin.launcher.jobs import Job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin status`."""
    jobs.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the job; RendezvousError (exit code 4) when there is no such job."""
    with jobs.opened(args) as (access, name):
        job = jobs.read(access, name)
    if args.json:
        output.show_json(as_json(job), indent=2)
    else:
        output.show(*lines(job))
    return 0


def as_json(job: Job) -> dict[str, object]:
    """The records of the job, for programs."""
    return {
        "job": job.name,
        "nodes": [asdict(node) for node in job.nodes],
        "leader": job.leader,
        "generation": _generation(job.generation) if job.generation else None,
        "closed": asdict(job.closed) if job.closed else None,
        "wanted": asdict(job.wanted),
        "slow": [asdict(slow) for slow in job.slow],
        "live": {node: asdict(live) for node, live in job.live.items()},
    }


def _generation(current: Generation) -> dict[str, object]:
    return {**asdict(current), "members": [member._asdict() for member in current.members]}


def headline(job: Job) -> str:
    """How the job is, in one line."""
    current = job.generation
    if job.closed is not None:
        return f"ended: {job.closed.outcome}, {job.closed.reason}"
    if current is None:
        return "no generation yet"
    return (
        f"generation {current.number} ({current.kind}): {jobs.many(len(current.members), 'worker')} on "
        f"{jobs.many(len(current.nodes), 'node')}, {jobs.many(current.restarts_used, 'restart')} used; {current.reason}"
    )


def notes(job: Job, node: Node) -> list[str]:
    """What is special about a node."""
    drained = scaling.is_drained(node, job.wanted)
    outside = job.generation is not None and node.id not in job.generation.nodes
    found = (
        ("leads", node.id == job.leader),
        ("leaving", node.leaving),
        (f"excluded ({node.excluded})", bool(node.excluded)),
        ("drained" if outside else "draining", drained),
        ("spare", outside and not drained and not node.excluded),
    )
    return [text for text, applies in found if applies]


def slow(job: Job) -> list[str]:
    """A line for each rank that the others wait for."""
    return [f"{each.sentence}, for {each.for_s:.0f} s" if each.for_s else each.sentence for each in job.slow]


def ranks(job: Job) -> dict[tuple[str, int, int], int]:
    """The rank of each member, by node, slot and incarnation."""
    members = job.generation.members if job.generation is not None else ()
    return {(m.node, m.slot, m.incarnation): m.rank for m in members}


def lines(job: Job) -> list[str]:
    """The job for people, node by node."""
    result = [headline(job)]
    if job.wanted.max_nodes:
        result.append(f"scaled to {jobs.size_of(job.wanted)}")
    known = ranks(job)
    for node in job.nodes:
        special = notes(job, node)
        result.append(f"node {node.id} ({node.host}, {node.address}){': ' if special else ''}{', '.join(special)}")
        for slot in node.slots:
            rank = known.get((node.id, slot.index, slot.incarnation))
            who = f"rank {rank}" if rank is not None else "no rank"
            result.append(f"  slot {slot.index}: {who}, {slot.state}{f', pid {slot.pid}' if slot.pid else ''}")
    return [*result, *slow(job)]
