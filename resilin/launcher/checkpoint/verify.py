"""`resilin checkpoint verify`: every byte against the hash that it was saved with."""

from __future__ import annotations

import argparse
import dataclasses

from resilin.launcher import exit_codes, output
from resilin.launcher.checkpoint.ls import size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `verify`."""
    parser.add_argument("path", help="a checkpoint, or a folder of them: all are verified")
    parser.add_argument("--step", type=int, metavar="N", help="only the checkpoint of this step")
    parser.add_argument("--json", action="store_true", help="print one JSON list")


def run(args: argparse.Namespace) -> int:
    """Print a line for each checkpoint, and what is wrong with it below, by file and tensor. 1 when anything is."""
    from resilin.checkpoint.tools import verify  # loads numpy, as all that reads checkpoints does

    verdicts = verify.verify_all(args.path, args.step)
    if args.json:
        output.show_json([dataclasses.asdict(verdict) for verdict in verdicts], indent=2)
    else:
        for verdict in verdicts:
            what = "DAMAGED" if verdict.files and verdict.problems else "TORN" if verdict.problems else "intact"
            what = "UNREADABLE" if verdict.unreadable else what
            read = (
                f", {verdict.tensors} tensors in {verdict.files} files, {size(verdict.nbytes)}" if verdict.files else ""
            )
            lines = [f"{verdict.path}: {what}{read}", *(f"  {problem.what}" for problem in verdict.problems)]
            output.show(*lines)
    return exit_codes.FAILED if any(verdict.problems for verdict in verdicts) else exit_codes.OK
