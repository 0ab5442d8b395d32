"""`resilin trace why`: which rank, and what it did, made the others wait: of late ones and of those that hang."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import asdict

from resilin.launcher import output
from resilin.launcher.traces import files
from resilin.profiler.traces import blame, hang_causes
from resilin.profiler.traces.blame import OUTSIDE, Blame, Cause
from resilin.profiler.traces.hang_causes import Hang, HangCause

_LEAST_MS = 1.0
_AFTER_S = 5.0
_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin trace why`."""
    files.add_arguments(parser)
    parser.add_argument(
        "--least", type=_number, default=_LEAST_MS, metavar="MS",
        help=f"waits, of all waiting ranks together, that are told (default {_LEAST_MS:g} milliseconds)",
    )  # fmt: skip
    parser.add_argument(
        "--after", type=_number, default=_AFTER_S, metavar="SECONDS",
        help=f"how long a call of a running process may be open before it hangs (default {_AFTER_S:g})",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="tell every single wait, not just the longest ones")
    parser.epilog = "Returns 0 when no rank hangs, 1 when some do, 2 without traces."


def _number(text: str) -> float:
    with contextlib.suppress(ValueError):
        if (value := float(text)) >= 0:
            return value
    raise argparse.ArgumentTypeError(f"expected a number, 0 or more, got {text!r}")


def run(args: argparse.Namespace) -> int:
    """Print who made others wait, what hangs first; UsageError (exit code 2) without traces."""
    found = files.read(args)
    hang = hang_causes.find(found.ranks, int(args.after * 1e9))
    causes = Blame(found.ranks).causes(int(args.least * 1e6))
    totals = blame.totals(causes)
    if args.json:
        parts = {"hang": asdict(hang), "causes": [asdict(each) for each in causes], "totals": totals}
        output.show_json({**parts, "notes": found.notes}, indent=2)
    else:
        output.show(*_of_hang(hang))
        if causes:
            longest = sorted(causes, key=lambda each: -each.waited_ns)
            shown = causes if args.all else sorted(longest[:_SHOWN], key=lambda each: each.start_ns)
            output.show("who made others wait:", *(f"  {line}" for line in files.table(totals[:_SHOWN], left=("name",))), "")
            output.show("the waits:" if args.all else "the longest waits:", *(f"  {_line(each)}" for each in shown))
        else:
            output.show(f"no rank waited for another one for {args.least:g} ms")
        output.show(*found.notes)
    return 1 if hang.waits else 0


def _of_hang(hang: Hang) -> list[str]:
    lines = [f"HANGS: {_hanging(cause)}" for cause in hang.causes]
    if hang.cycle:
        lines.append(f"HANGS: ranks {', '.join(map(str, hang.cycle))} wait for one another")
    return lines + [
        f"  rank {wait.rank} waits for rank {', '.join(map(str, wait.waits_for)) or 'any'} in {wait.at}"
        for wait in hang.waits
    ]


def _hanging(cause: HangCause) -> str:
    state = {"running": "runs and", "killed": "was killed and", "ended": "has ended and", "unknown": ""}[cause.state]
    what = f"is in {cause.name}" if cause.name else f"is in no span; its last was {cause.last}" if cause.last else (
        "left no trace" if cause.state == "unknown" else "recorded nothing"
    )  # fmt: skip
    if cause.state in ("killed", "ended"):
        what = what.replace("is in", "was in", 1)
    waiting = ", ".join(map(str, cause.waiting))
    return f"rank {cause.rank} {state} {what}; for it wait ranks {waiting}".replace("  ", " ")


def _line(cause: Cause) -> str:
    what = f"no span (after {cause.after})" if cause.after else cause.name
    if cause.name == OUTSIDE and not cause.after:
        what = "no span"
    step = f"step {cause.step}: " if cause.step is not None else ""
    via = f", by way of rank {', '.join(map(str, cause.via))}" if cause.via else ""
    waiting = ", ".join(map(str, cause.waiting))
    return (
        f"{step}rank {cause.rank} was {cause.excess_ns / 1e6:.1f} ms longer in {what}{via}: rank {waiting} waited "
        f"{cause.waited_ns / 1e6:.1f} ms in {cause.at}"
    )
