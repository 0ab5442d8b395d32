"""`resilin rpc [JOB]`: which workers of a running job wait for which calls, and whether they wait in a cycle."""

from __future__ import annotations

import argparse
from typing import Any

from resilin.errors import RendezvousError, UsageError
from resilin.launcher import output
from resilin.launcher.rpc import debug_client, wait_for_graph
from resilin.launcher.rpc.debug_client import RpcWorker

_LIMIT_S = 2.0
_AFTER_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin rpc`."""
    parser.add_argument(
        "job", nargs="?", default=None,
        help="the job's name (--rdzv-id); may be left out when workers of one job run here",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=_seconds, default=_LIMIT_S, metavar="SECONDS",
        help=f"how long workers may take to answer (default {_LIMIT_S:g})",
    )  # fmt: skip
    parser.add_argument(
        "--after", type=_seconds, default=_AFTER_S, metavar="SECONDS",
        help="how long a call that comes back to the worker that waits for it is normal; longer is told "
        f"(default {_AFTER_S:g})",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = (
        "Returns 0 when nothing is wrong, 1 when workers wait in a cycle, or one did not answer, 4 when "
        "no worker of the job runs on this machine under this user."
    )


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= debug_client.LONGEST_S:
        raise argparse.ArgumentTypeError(f"expected seconds from 0 to {debug_client.LONGEST_S:g}, got {text!r}")
    return found


def run(args: argparse.Namespace) -> int:
    """Print what waits; RendezvousError (exit code 4) when no worker of the job runs here."""
    found = debug_client.of_job(args.job)
    silent = [each for each in found if isinstance(each, debug_client.Silent)]
    answering = [each for each in found if isinstance(each, RpcWorker)]
    try:
        jobs = sorted({each.job for each in answering})
        if len(jobs) > 1:
            raise UsageError(f"RPC workers of several jobs run here, say which one: {', '.join(map(repr, jobs))}")
        if not found:
            what = "no RPC worker" if args.job is None else f"no RPC worker of job {args.job!r}"
            raise RendezvousError(
                f"{what} of this user runs on this machine: ask where one runs, in its container if it has one"
            )
        groups = [_of_group(group, answering, args) for group in dict.fromkeys(each.group for each in answering)]
    finally:
        for each in answering:
            each.close()
    told = {worker.get("pid") for group in groups for worker in group["workers"]}
    unheard = [each.text for each in silent if each.pid not in told]
    if args.json:
        output.show_json({"job": jobs[0] if jobs else args.job, "groups": groups, "silent": unheard}, indent=2)
    else:
        output.show(*(line for group in groups for line in _lines(group)), *unheard)
    return 1 if unheard or any(group["cycle"] or group["unheard"] for group in groups) else 0


def _of_group(name: str, answering: list[RpcWorker], args: argparse.Namespace) -> dict[str, Any]:
    """What one group of workers waits for, asked at the first of its workers here that answers."""
    errors = []
    for client in answering:
        if client.group != name:
            continue
        try:
            workers = client.waits(args.timeout)
        except debug_client.Unanswered as error:
            errors.append(str(error))
            continue
        return {
            "group": name,
            "workers": workers,
            "cycle": wait_for_graph.endless(workers),
            "comes_back": wait_for_graph.coming_back(workers, args.after),
            "unheard": [each["worker"] for each in workers if "error" in each],
        }
    return {"group": name, "workers": [], "cycle": [], "comes_back": [], "unheard": errors}


def _lines(group: dict[str, Any]) -> list[str]:
    workers = group["workers"]
    lines = [wait_for_graph.sentence("a cycle that only timeouts end", group["cycle"])] if group["cycle"] else []
    lines += [wait_for_graph.sentence("a call comes back to who waits for it", each) for each in group["comes_back"]]
    if not workers:
        return [*lines, *group["unheard"]]
    for worker in workers:
        lines += _of_worker(worker, wait_for_graph.Calls(workers))
    return lines


def _of_worker(worker: dict[str, Any], calls: wait_for_graph.Calls) -> list[str]:
    if "error" in worker:
        return [f"{worker['worker']}: {worker['error']}"]
    busy = sum(each["thread"] for each in worker["runs"])
    lines = [
        f"{worker['worker']} ({worker['host']}, pid {worker['pid']}): waits for {len(worker['waits'])}, runs "
        f"{len(worker['runs'])} with {busy} of {worker['threads']} threads"
    ]
    for wait in worker["waits"]:
        within = calls.run_of(worker, wait["within"])
        inside = f", in {within['function']} for {within['from']}" if within else ""
        state = "" if calls.is_begun(worker, wait) is not False else ", not begun there"
        blocked = "" if wait["blocks"] else ", nobody waits"
        lines.append(f"  waits for {wait['to']}: {wait['function']}, {_age(wait)}{state}{inside}{blocked}")
    for run in worker["runs"]:
        how = "" if run["thread"] else ", no thread: its future or its references are awaited"
        lines.append(f"  runs for {run['from']}: {run['function']}, {_age(run)}{how}")
    return lines


def _age(call: dict[str, Any]) -> str:
    return f"{call['age_s']:.1f} s"
