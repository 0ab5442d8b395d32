"""`resilin trace record --out FOLDER`: run a program whose processes record, or have a running job do it."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from resilin._base import env, span_file, trace_ring
from resilin.errors import UsageError
from resilin.launcher.traces import files, record_running


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin trace record`."""
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER",
        help="needed: where each process has a file of its own; it is made when it is not there, and nobody removes "
        "the files",
    )  # fmt: skip
    parser.add_argument(
        "--megabytes", type=int, default=trace_ring.DEFAULT_BYTES >> 20, metavar="N",
        help="memory and disk of each process; the newest spans stay (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=files.number, metavar="N",
        help="have the workers of a job that runs record for so long; PROGRAM is its name then (--rdzv-id), and may be "
        "left out when one job runs here",
    )  # fmt: skip
    parser.add_argument(
        "--endpoint", metavar="URL",
        help="with --seconds: the job's store, as in resilin status; default: ask an elastic-run of this machine",
    )  # fmt: skip
    parser.add_argument(
        "--secret-file", metavar="FILE", help="with --seconds: holds the job's secret (default: RESILIN_SECRET)"
    )
    parser.add_argument("--json", action="store_true", help="with --seconds: print one JSON object")
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM",
        help="as in: elastic-run -n 4 train.py; options of this command stand before a program",
    )  # fmt: skip
    parser.epilog = (
        "It sets RESILIN_RECORD_DIR and RESILIN_RECORD_BYTES, which may be set without it, too; each host "
        "has a folder of its own, or all share one. Read the files with resilin trace merge, analyse and why, while "
        "the processes run and afterwards. Returns what the program does; with --seconds 0 when all workers have "
        "recorded, 1 when some did not, who are named."
    )


def run(args: argparse.Namespace) -> int:
    """Become the program. UsageError (exit code 2) when there is none, or the folder cannot be made."""
    if args.out is None and len(args.program) > 1:
        args = _behind_the_job(args.program)
    if args.out is None:
        raise UsageError("trace record: expected --out FOLDER, before the program")
    words = args.program[1:] if args.program[:1] == ["--"] else args.program
    if args.seconds is not None:
        if not args.seconds:
            raise UsageError("trace record --seconds: expected more than 0")
        if len(words) > 1:
            raise UsageError(f"trace record --seconds: expected the name of one job, got {' '.join(words)!r}")
        _check_size(args.megabytes)
        return record_running.run(args, words[0] if words else "")
    if not words:
        raise UsageError(
            "trace record: expected a program to run, as in: resilin trace record --out traces elastic-run ..."
        )
    _check_size(args.megabytes)
    program = shutil.which(words[0])
    if program is None:
        raise UsageError(f"trace record: there is no program {words[0]!r}")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {args.out}: cannot be made: {error.strerror}") from None
    variables = {
        "RESILIN_RECORD_DIR": os.fspath(args.out.resolve()),
        "RESILIN_RECORD_BYTES": str(args.megabytes << 20),
    }
    return os.execve(program, words, env.snapshot(variables))


def _behind_the_job(words: Sequence[str]) -> argparse.Namespace:
    """The options of `JOB --out FOLDER --seconds N`; those of a program are its own: it stands last."""
    parser = argparse.ArgumentParser(prog="resilin trace record", add_help=False, exit_on_error=False)
    add_arguments(parser)
    try:
        args, unknown = parser.parse_known_args(words[1:])
    except argparse.ArgumentError as error:
        raise UsageError(f"trace record: {error}; expected --out FOLDER before the program") from None
    if args.seconds is None or unknown:
        raise UsageError("trace record: expected --out FOLDER before the program")
    args.program.insert(0, words[0])
    return args


def _check_size(megabytes: int) -> None:
    if not 1 <= megabytes <= span_file.MOST_BYTES >> 20:
        raise UsageError(f"--megabytes: expected 1 to {span_file.MOST_BYTES >> 20}, got {megabytes}")
