"""`resilin trace record --out FOLDER PROGRAM ...`: run a program whose processes record what they do."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from resilin._base import env, span_file, trace_ring
from resilin.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin trace record`."""
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER",
        help="where each process has a file of its own; it is made when it is not there, and nobody removes the files",
    )  # fmt: skip
    parser.add_argument(
        "--megabytes", type=int, default=trace_ring.DEFAULT_BYTES >> 20, metavar="N",
        help="memory and disk of each process; the newest spans stay (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="as in: elastic-run -n 4 train.py")
    parser.epilog = (
        "It sets RESILIN_RECORD_DIR and RESILIN_RECORD_BYTES, which may be set without it, too; each host "
        "has a folder of its own, or all share one. Read the files with resilin trace merge, analyse and why, while "
        "the processes run and afterwards. Returns what the program does."
    )


def run(args: argparse.Namespace) -> int:
    """Become the program. UsageError (exit code 2) when there is none, or the folder cannot be made."""
    words = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not words:
        raise UsageError(
            "trace record: expected a program to run, as in: resilin trace record --out traces elastic-run ..."
        )
    if not 1 <= args.megabytes <= span_file.MOST_BYTES >> 20:
        raise UsageError(f"--megabytes: expected 1 to {span_file.MOST_BYTES >> 20}, got {args.megabytes}")
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
    os.execve(program, words, env.snapshot(variables))
