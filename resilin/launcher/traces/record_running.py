"""`resilin trace record --seconds N JOB`: have the workers of a running job record for a while, and say who did.

The wish stands in the job's store; agents pass it on to their workers, and write what those answer while this command
watches. Training waits for nothing of it.
"""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Mapping
from typing import Any

from resilin._base.clock import SYSTEM, Deadline
from resilin.elastic import records
from resilin.elastic.records import Live, Recording
from resilin.errors import RendezvousClosed, RendezvousError, StoreError, UsageError
from resilin.launcher import jobs, output
from resilin.launcher.jobs import Access, Job

_POLL_S = 0.2
_ANSWER_S = 10.0  # beyond the recording itself: nodes write once a second, those of large jobs less often
_LISTENS_S = 2.0  # that a worker which has just been started may take until it listens
_WAITING = ("asked", "recording")
_SAID = {
    "asked": "did not answer: it may be stopped",
    "recording": "has not said that it is done; what there is: {}",
    "recorded": "{}",
    "failed": "cannot: {}",
    "ended": "has ended before it was done; what there is: {}",
    "deaf": "does not listen: its program does not use @elastic.run; start it with resilin trace record --out ...",
    "silent": "was not asked: nothing was heard of its node",
}


def run(args: argparse.Namespace, job: str) -> int:
    """Ask, wait and print. RendezvousError (exit code 4): no such job here; RendezvousClosed: it has ended."""
    if args.seconds > records.MOST_RECORDING_S:
        raise UsageError(f"--seconds: expected at most {records.MOST_RECORDING_S}, got {args.seconds:g}")
    args.job = job
    folder = os.fspath(args.out.resolve())
    with jobs.opened(args) as (access, name):
        before = jobs.read(access, name)
        if before.closed is not None:
            raise RendezvousClosed(f"job {name!r} has {before.closed.outcome} ({before.closed.reason})")
        jobs.watch(access, name)
        nbytes = args.megabytes << 20
        wish = Recording(id=secrets.token_hex(8), folder=folder, seconds=args.seconds, nbytes=nbytes)
        _write(access, name, wish)
        told = _followed(access, name, wish, before)
    workers = list(_workers(before, told))
    recorded = sum(worker["state"] == "recorded" for worker in workers)
    if args.json:
        output.show_json({"folder": folder, "workers": workers}, indent=2)
    else:
        lines = [f"rank {one['rank']} ({one['host']}, pid {one['pid']}) {one['said']}" for one in workers]
        read = f": resilin trace why {folder}" if recorded else ""
        output.show(*lines, f"{recorded} of {jobs.many(len(workers), 'worker')} recorded for {args.seconds:g} s{read}")
    return 0 if recorded == len(workers) else 1


def _write(access: Access, name: str, wish: Recording) -> None:
    key = records.Keys(name).recording
    there = next((kv.mod_revision for kv in access.range(key) if kv.key == key), 0)
    if not access.compare_and_put(key, there, records.to_bytes(wish)):
        raise StoreError(f"somebody else has just had job {name!r} record: try again when that is over")


def _followed(access: Access, name: str, wish: Recording, before: Job) -> Mapping[str, Live]:
    """What each node said last of it, once nobody is waited for, or time is up."""
    told: dict[str, Live] = {}
    asked = {node.id for node in before.nodes if any(slot.alive for slot in node.slots)}
    deadline, listening = Deadline(wish.seconds + _ANSWER_S), Deadline(min(_LISTENS_S, wish.seconds))
    while not deadline.passed():
        try:
            job = jobs.read(access, name)
        except (RendezvousError, StoreError, OSError):  # the job has ended meanwhile: what was heard stands
            break
        told |= {node: live for node, live in job.live.items() if live.recording == wish.id}
        states = [state for live in told.values() for _, _, state, _ in live.recorded]
        waiting = _WAITING if listening.passed() else (*_WAITING, "deaf")
        if asked <= told.keys() and not any(state in waiting for state in states):
            break
        SYSTEM.sleep(_POLL_S)
    return told


def _workers(job: Job, told: Mapping[str, Live]) -> list[dict[str, Any]]:
    """Every worker that was asked, or should have been, by rank."""
    found = []
    for node in job.nodes:
        if node.id in told:
            rows = list(told[node.id].recorded)
        else:
            rows = [(-1, slot.pid, "silent", "") for slot in node.slots if slot.alive]
        for rank, pid, state, text in rows:
            said = _SAID.get(state, state).format(text or "nothing")
            found.append(
                {
                    "rank": rank,
                    "node": node.id,
                    "host": node.host,
                    "pid": pid,
                    "state": state,
                    "text": text,
                    "said": said,
                }
            )
    return sorted(found, key=lambda one: (one["rank"], one["node"]))
