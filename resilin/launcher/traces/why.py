"""`resilin trace why`: which rank, and what it did, made the others wait: of late ones and of those that hang."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

from resilin.launcher import output
from resilin.launcher.traces import files

_LEAST_MS = 1.0
_AFTER_S = 5.0
_SHOWN = 10
_FEW = 12  # ranks that a line names; --json gives all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin trace why`."""
    files.add_arguments(parser)
    parser.add_argument(
        "--least", type=files.number, default=_LEAST_MS, metavar="MS",
        help=f"waits, of all waiting ranks together, that are told (default {_LEAST_MS:g} milliseconds)",
    )  # fmt: skip
    parser.add_argument(
        "--after", type=files.number, default=_AFTER_S, metavar="SECONDS",
        help=f"how long a call of a running process may be open before it hangs (default {_AFTER_S:g})",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="tell every single wait, not just the longest ones")
    parser.epilog = "Returns 0 when no rank hangs, 1 when some do, 2 without traces."


def run(args: argparse.Namespace) -> int:
    """Print who made others wait, what hangs first; UsageError (exit code 2) without traces."""
    times = (int(args.least * 1e6), int(args.after * 1e9), int(args.last * 1e9))
    found = files.reports().why(args.traces, *times)
    hang, causes = found["hang"], found["causes"]
    if args.json:
        output.show_json(found, indent=2)
        return 1 if hang["waits"] else 0
    lines = _of_hang(hang)
    if causes:
        longest = sorted(causes, key=lambda each: -each["waited_ns"])[:_SHOWN]
        shown = causes if args.all else sorted(longest, key=lambda each: each["start_ns"])
        totals = files.table(found["totals"][:_SHOWN], left=("name",))
        lines += ["who made others wait:", *(f"  {line}" for line in totals), ""]
        lines += ["the waits:" if args.all else "the longest waits:", *(f"  {_line(each)}" for each in shown)]
    else:
        lines.append(f"no rank waited for another one for {args.least:g} ms")
    output.show(*lines, *found["notes"])
    return 1 if hang["waits"] else 0


def _of_hang(hang: Mapping[str, Any]) -> list[str]:
    lines = [f"HANGS: {_hanging(cause)}" for cause in hang["causes"]]
    if hang["cycle"]:
        lines.append(f"HANGS: ranks {_numbers(hang['cycle'])} wait for one another")
    return lines + [
        f"  rank {wait['rank']} waits for rank {_numbers(wait['waits_for']) or 'any'} in {wait['at']}"
        for wait in hang["waits"]
    ]


def _hanging(cause: Mapping[str, Any]) -> str:
    state, name, last = cause["state"], cause["name"], cause["last"]
    over = state in ("killed", "ended")
    be = "was" if over else "is"
    what = f"{be} in {name}" if name else f"{be} in no span; its last was {last}" if last else "recorded nothing"
    said = {"running": "runs and ", "killed": "was killed and ", "ended": "has ended and "}.get(state, "")
    if state == "unknown" and not name and not last:
        what = "left no trace"
    return f"rank {cause['rank']} {said}{what}; rank {_numbers(cause['waiting'])} waits for it"


def _line(cause: Mapping[str, Any]) -> str:
    what = f"no span (after {cause['after']})" if cause["after"] else cause["name"]
    step = f"step {cause['step']}: " if cause["step"] is not None else ""
    via = f", by way of rank {_numbers(cause['via'])}" if cause["via"] else ""
    return (
        f"{step}rank {cause['rank']} was {cause['excess_ns'] / 1e6:.1f} ms longer in {what}{via}: rank "
        f"{_numbers(cause['waiting'])} waited {cause['waited_ns'] / 1e6:.1f} ms in {cause['at']}"
    )


def _numbers(ranks: Collection[int]) -> str:
    more = f" and {len(ranks) - _FEW} more" if len(ranks) > _FEW else ""
    return ", ".join(map(str, islice(ranks, _FEW))) + more
