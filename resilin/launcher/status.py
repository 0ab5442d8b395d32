"""`resilin status JOB`: the nodes and the generation of a running job, read from its store."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from resilin._base import env
from resilin.elastic import records
from resilin.elastic.records import Closed, Generation, Node
from resilin.errors import RendezvousError
from resilin.store.connect import connect, without_password

TIMEOUT_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin status`."""
    parser.add_argument("job", help="the job's name (--rdzv-id)")
    parser.add_argument(
        "--endpoint",
        required=True,
        metavar="URL",
        help="its store: embedded://host:port (or just host:port), etcd://host:port or file:///folder",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the job; RendezvousError (exit code 4) when the store knows no such job."""
    url = args.endpoint if "://" in args.endpoint else f"embedded://{args.endpoint}"
    prefix = f"/resilin/{args.job}/"
    with connect(url, env.get("RESILIN_SECRET"), TIMEOUT_S) as store:
        entries, _ = store.range(prefix)
    nodes = [(kv.create_revision, records.node(kv.key, kv.value)) for kv in entries if "/nodes/" in kv.key]
    if not nodes:
        raise RendezvousError(f"no node of a job {args.job!r} is registered at {without_password(url)}")
    ordered = [node for _, node in sorted(nodes, key=lambda pair: pair[0])]
    by_name = {kv.key.removeprefix(prefix): kv for kv in entries}
    current, closed = by_name.get("generation"), by_name.get("closed")
    show = _as_json if args.json else _as_text
    show(
        ordered,
        records.generation(current.key, current.value) if current else None,
        records.closed(closed.key, closed.value) if closed else None,
    )
    return 0


def _as_json(nodes: list[Node], current: Generation | None, closed: Closed | None) -> None:
    body = {
        "nodes": [asdict(node) for node in nodes],
        "generation": asdict(current) if current else None,
        "closed": asdict(closed) if closed else None,
    }
    print(json.dumps(body, indent=2))


def _as_text(nodes: list[Node], current: Generation | None, closed: Closed | None) -> None:
    if closed is not None:
        print(f"ended: {closed.outcome}, {closed.reason}")
    if current is None:
        print("no generation yet")
    else:
        print(
            f"generation {current.number} ({current.kind}): {len(current.members)} workers on "
            f"{len(current.nodes)} nodes, {current.restarts_used} restarts used; {current.reason}"
        )
    ranks = {(m.node, m.slot, m.incarnation): m.rank for m in current.members} if current else {}
    for place, node in enumerate(nodes):
        notes = [text for text, applies in (("leads", place == 0), ("leaving", node.leaving)) if applies]
        if current is not None and node.id not in current.nodes:
            notes.append("spare")
        print(f"node {node.id} ({node.host}, {node.address}){': ' if notes else ''}{', '.join(notes)}")
        for slot in node.slots:
            rank = ranks.get((node.id, slot.index, slot.incarnation))
            who = f"rank {rank}" if rank is not None else "no rank"
            print(f"  slot {slot.index}: {who}, {slot.state}{f', pid {slot.pid}' if slot.pid else ''}")
