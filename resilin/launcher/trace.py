"""`resilin trace`: which rank is missing from which collective, read from the jobs' flight recorders."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from resilin._base import flight, flight_folder, private_files
from resilin._base.clock import SYSTEM
from resilin._base.flight import Flight
from resilin._base.private_files import NotOurs
from resilin.elastic.hangs import flight_analysis
from resilin.elastic.hangs.flight_analysis import Group, Wait
from resilin.errors import UsageError
from resilin.launcher import flight_report, output
from resilin.launcher.flight_report import Verdict

_AFTER_S = 5.0
_NAMED = 20  # groups in the error that one is not there
_FEW = 8  # groups in step: a job with hundreds of them has something to say of one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin trace`."""
    parser.add_argument(
        "folder", type=Path, nargs="*",
        help="runs' folders in --log-dir, or RESILIN_TRACE_DIR, of one host or several; or files. Default: where this "
        "user's programs leave their files when nobody names a folder",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="report every job and generation, not just the newest")
    parser.add_argument("--group", action="append", default=[], metavar="NAME", help="report this group; repeatable")
    parser.add_argument("--ranks", type=_numbers, default=(), metavar="N,N-N", help="show these ranks of a group only")
    parser.add_argument(
        "--after", type=_seconds, default=_AFTER_S, metavar="SECONDS",
        help=f"how long a wait is normal; longer is STUCK (default {_AFTER_S:g})",
    )  # fmt: skip
    parser.add_argument(
        "--calls", type=_count, default=0, metavar="N", help="print the last N calls of each process, too"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each rank, with its host and process")
    parser.add_argument("--json", action="store_true", help="print the findings and all that the files hold as JSON")
    parser.epilog = (
        "Returns 0 when nothing is wrong, 1 when a group is STUCK, FAILED or DISAGREEs, 2 without files or without a "
        "group of --group. What ranks spent their time on is told by resilin trace record, merge, analyse, view and "
        "why; a folder of such a name is written with a dot: ./record."
    )


def run(args: argparse.Namespace) -> int:
    """Print the report, worst group first. UsageError (exit code 2) without a file or a group that was asked for."""
    read, notes = _read(args.folder or [_own_folder()])
    now = SYSTEM.wall()
    jobs = flight_analysis.jobs(flight_analysis.groups(read))
    chosen = jobs if args.all else [job for i, job in enumerate(jobs) if i == 0 or _lives(job)]
    left_out = len(jobs) - len(chosen)
    found = [group for job in chosen for group in (job if args.all else flight_analysis.newest(job))]
    _check_names(args.group, found, left_out)
    found = [group for group in found if not args.group or group.name in args.group]
    _check_ranks(args.ranks, found)
    ring = flight_analysis.cycle(found, now - args.after)
    judged = sorted(found, key=lambda group: _rank(group, found, now, args.after))
    if args.json:
        output.show_json(_as_json(judged, ring, read, notes, now, args.after), indent=2)
    else:
        lines = [flight_report.deadlock(ring)] if ring else []
        lines += _report(judged, found, now, args) + notes
        if left_out:
            lines.append(f"older jobs in these files: {left_out}, shown with --all")
        lines += _calls(read, args)
        output.show(*lines)
    bad = ring or any(flight_report.verdict(group, now, args.after) >= Verdict.FAILED for group in found)
    return 1 if bad else 0


def _own_folder() -> Path:
    """The folder of this user's files. UsageError when another user may have put files there."""
    place = flight_folder.default()
    try:
        private_files.check_own_folder(place, others_may_read=True)
    except FileNotFoundError:
        pass  # told with what is expected there
    except NotOurs as error:
        raise UsageError(str(error)) from None
    return place


def _check_names(wanted: Sequence[str], found: Sequence[Group], left_out: int) -> None:
    """UsageError where a group is asked for that is not there: which are."""
    names = sorted({group.name for group in found})
    missing = [name for name in wanted if name not in names]
    if missing:
        shown = ", ".join(map(repr, names[:_NAMED])) + (f" and {len(names) - _NAMED} more" if names[_NAMED:] else "")
        older = f"; older jobs in these files: {left_out}, looked into with --all" if left_out else ""
        raise UsageError(f"--group {missing[0]!r}: no such group is recorded; there are: {shown or 'none'}{older}")


def _check_ranks(wanted: Sequence[int], found: Sequence[Group]) -> None:
    """UsageError where a rank is asked for that no group has."""
    most = max((group.size for group in found), default=0)
    beyond = [rank for rank in wanted if rank >= most]
    if found and beyond:
        raise UsageError(f"--ranks {beyond[0]}: no such rank is recorded; groups have up to {most} ranks, from 0 on")


def _report(judged: Sequence[Group], found: Sequence[Group], now: float, args: argparse.Namespace) -> list[str]:
    if not judged:
        return ["no calls are recorded"]
    shown = [group for group in judged if flight_report.verdict(group, now, args.after) != Verdict.IN_STEP]
    quiet = judged[len(shown) :]  # the last, for the worst come first
    few = quiet if args.verbose or args.group else quiet[:_FEW]
    lines: list[str] = []
    for group in (*shown, *few):
        lines += flight_report.report(group, now, found, args.after, args.ranks, args.verbose)
    if len(few) < len(quiet):
        lines.append(f"IN STEP: {len(quiet) - len(few)} more groups, shown with --verbose")
    return lines


def _read(given: Sequence[Path]) -> tuple[list[Flight], list[str]]:
    """What can be read, and a line for what cannot."""
    paths: list[Path] = []
    for place in given:
        of_its_own = os.path.lexists(place) and not place.is_dir()
        paths += [place] if of_its_own else sorted(place.rglob(f"*{flight.SUFFIX}"))
    if not paths:
        where = ", ".join(map(str, given))
        raise UsageError(f"{where}: no *{flight.SUFFIX} files: is it the folder of a run, or of RESILIN_TRACE_DIR?")
    read, notes = [], []
    for path in dict.fromkeys(paths):
        try:
            one = flight.read(path)
        except (UsageError, OSError) as error:
            notes.append(f"not read: {error}")
            continue
        read.append(one)
        if one.damage:
            notes.append(f"{path}: {one.damage}")
    if not read:
        raise UsageError("\n".join(notes))
    return read, notes


def _lives(job: Sequence[Group]) -> bool:
    return any(member.flight.alive for group in job for member in group.members.values())


def _rank(group: Group, found: Sequence[Group], now: float, after_s: float) -> tuple[int, int, float]:
    """Worst first; where ranks are missing that wait in another group, the cause is likelier there."""
    busy = {m.flight.path for other in found if other is not group for r in other.waiting() for m in [other.members[r]]}
    follows = sum(group.members[rank].flight.path in busy for rank in group.missing())
    since = min((call.started for call in group.waiting().values()), default=now)
    return -flight_report.verdict(group, now, after_s), follows, since


def _calls(read: Sequence[Flight], args: argparse.Namespace) -> list[str]:
    lines = []
    for one in read if args.calls > 0 else ():
        lines.append(f"{one.path.name}: process {one.pid} on {one.host}, {one.recorded} calls")
        calls = [call for call in one.calls if not args.group or call.group in args.group]
        for call in calls[-args.calls :]:
            if not args.ranks or call.rank in args.ranks:
                whose = f"{call.group}/{call.generation} rank {call.rank}"
                lines.append(f"  {whose}: {call.within()} {call.state.name.lower()}, {call.line}")
    return lines


def _as_json(
    judged: Sequence[Group], ring: Sequence[Wait], read: Sequence[Flight], notes: Sequence[str],
    now: float, after_s: float,
) -> dict[str, Any]:  # fmt: skip
    return {
        "groups": [
            {
                "name": group.name,
                "generation": group.generation,
                "size": group.size,
                "verdict": flight_report.verdict(group, now, after_s).name.lower(),
                "headline": flight_report.headline(group, now, after_s),
                "sequence": group.frontier(),
                "arrived": sorted(group.here),
                "missing": group.missing(),
                "unknown": group.unknown(),
            }
            for group in judged
        ],
        "deadlock": [
            {
                "group": group.name,
                "generation": group.generation,
                "rank": rank,
                "call": call.within(),
                "waits_for": other,
            }
            for group, rank, other, call in ring
        ],
        "notes": list(notes),
        "files": [
            {
                "path": str(one.path),
                "host": one.host,
                "pid": one.pid,
                "job": one.job,
                "alive": one.alive,
                "stopped": one.stopped,
                "recorded": one.recorded,
                "calls": [{**asdict(call), "state": call.state.name.lower()} for call in one.calls],
            }
            for one in read
        ],
    }


def _seconds(text: str) -> float:
    """A time that a wait may take."""
    with contextlib.suppress(ValueError):
        if (value := float(text)) >= 0:
            return value
    raise argparse.ArgumentTypeError(f"expected seconds, 0 or more, got {text!r}")


def _count(text: str) -> int:
    """How many calls to show."""
    with contextlib.suppress(ValueError):
        if (value := int(text)) >= 0:
            return value
    raise argparse.ArgumentTypeError(f"expected a number of calls, 0 or more, got {text!r}")


def _numbers(text: str) -> tuple[int, ...]:
    """`0,2-5` as numbers."""
    result: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            result += range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected ranks as in 0,2-5, got {text!r}") from None
    return tuple(result)
