"""`resilin trace FOLDER`: which rank is missing from which collective, read from the job's flight recorders."""

from __future__ import annotations

import argparse
import json
import os
import socket
from dataclasses import asdict
from pathlib import Path

from resilin._base import flight
from resilin._base.clock import SYSTEM
from resilin._base.flight import Flight
from resilin.errors import UsageError
from resilin.launcher import flights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin trace`."""
    parser.add_argument("folder", type=Path, help="a run's folder in --log-dir, or RESILIN_TRACE_DIR; alive or dead")
    parser.add_argument(
        "--calls", type=int, default=0, metavar="N", help="print the last N calls of every process, too"
    )
    parser.add_argument("--generations", action="store_true", help="report every generation, not just the last one")
    parser.add_argument("--json", action="store_true", help="print all that the files hold as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the report; UsageError (exit code 2) when there are no files, or one is none."""
    paths = sorted(args.folder.rglob(f"*{flight.SUFFIX}"))
    if not paths:
        raise UsageError(
            f"{args.folder}: no *{flight.SUFFIX} files: is it the folder of a run, or of RESILIN_TRACE_DIR?"
        )
    read = [flight.read(path) for path in paths]
    if args.json:
        print(json.dumps([_as_json(one) for one in read], indent=2))
        return 0
    now = SYSTEM.wall()
    found = flights.groups(read)
    newest = {group.name: max(other.generation for other in found if other.name == group.name) for group in found}
    for group in found:
        if args.generations or group.generation == newest[group.name]:
            print("\n".join(flights.report(group, now, _is_alive)))
    if args.calls > 0:
        for one in read:
            print(f"{one.path.name}: process {one.pid} on {one.host}, {one.recorded} calls")
            for call in one.calls[-args.calls :]:
                print(
                    f"  {call.group}/{call.generation} rank {call.rank}: {call} {call.state.name.lower()}, {call.line}"
                )
    return 0


def _as_json(one: Flight) -> dict[str, object]:
    calls = [{**asdict(call), "state": call.state.name.lower()} for call in one.calls]
    return {"path": str(one.path), "host": one.host, "pid": one.pid, "recorded": one.recorded, "calls": calls}


def _is_alive(one: Flight) -> bool | None:
    """Whether the process is there; None for one of another host."""
    if one.host != socket.gethostname():
        return None
    try:
        os.kill(one.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
