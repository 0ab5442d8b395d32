"""`resilin ledger verify`: whether every sample of every epoch counted once, read from the ledgers of a job."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from resilin.elastic import ledger
from resilin.elastic.ledger import Entry, LedgerVerdict, Problem
from resilin.errors import UsageError
from resilin.launcher import exit_codes, output

_MOST_SAMPLES = 1 << 28  # whoever wrote the file says how many there are; a minute, and 4 GiB for one order of all
_SHOWN = 20  # samples that people are shown of one problem; --json has them all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin ledger`."""
    commands = parser.add_subparsers(dest="ledger_command", required=True, metavar="COMMAND")
    verify = commands.add_parser(
        "verify",
        help="check that every sample of every epoch counted once",
        description="Check that the steps in the ledgers of one job (RESILIN_LEDGER) count every sample of every epoch "
        "once. Several files are one ledger: those of nodes without a shared folder.",
        epilog="Returns 0 when every sample counted once, 1 when not, 2 when a file, or a line of one, cannot be read "
        "(such lines are named, and the others judged).",
    )
    verify.add_argument("path", nargs="+", help="a ledger")
    verify.add_argument(
        "--samples", type=int, metavar="N", help="samples of an epoch (default: what the ledger itself says)"
    )
    length = verify.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, default=0, metavar="N", help="also demand that training had N epochs")
    length.add_argument("--unfinished", action="store_true", help="the last epoch may have ended early")
    verify.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the verdict. UsageError (exit code 2) when a file cannot be read, or samples are not known."""
    if args.samples is not None and args.samples < 1:
        raise UsageError(f"--samples: expected at least 1, got {args.samples}")
    entries, unreadable = _read(args.path)
    verdict = ledger.verify(entries, args.samples, args.unfinished)
    problems = [*verdict.problems, *_absent_epochs(verdict, args.epochs)]
    named = _named(problems)
    if args.json:
        output.show_json(_as_json(verdict, named, unreadable), indent=2)
    else:
        output.show(*_lines(verdict, named, unreadable))
    return exit_codes.USAGE if unreadable else exit_codes.FAILED if problems else exit_codes.OK


def _read(paths: Sequence[str]) -> tuple[list[Entry], list[str]]:
    """All entries, and what is wrong with lines between them. A file without any entry is no ledger."""
    entries: list[Entry] = []
    unreadable: list[str] = []
    for path in paths:
        try:
            found, errors = ledger.sift(path)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
        if errors and not found:
            raise UsageError(f"{errors[0]}; is it the file of RESILIN_LEDGER?")
        entries += found
        unreadable += map(str, errors)
    return entries, unreadable


def _absent_epochs(verdict: LedgerVerdict, wanted: int) -> list[Problem]:
    """Epochs that `--epochs` asks for and of which there is nothing."""
    return [
        Problem(what="lost", text=f"epoch {epoch}: no step was committed, expected {wanted} epochs", epoch=epoch)
        for epoch in range(max(verdict.epochs, default=-1) + 1, wanted)
    ]


def _named(problems: Sequence[Problem]) -> list[tuple[Problem, list[int]]]:
    """Each problem with the samples at its positions, as far as that costs no more than the orders of _MOST_SAMPLES."""
    left = _MOST_SAMPLES
    named = []
    for problem in problems:
        samples: list[int] = []
        if problem.what in ("lost", "repeated") and 0 < problem.length <= left:
            from resilin.elastic import sample_ids  # loads numpy, which a ledger without fault does not need

            left -= problem.length
            samples = sample_ids.of(problem)
        named.append((problem, samples))
    return named


def _lines(verdict: LedgerVerdict, named: Sequence[tuple[Problem, list[int]]], unreadable: Sequence[str]) -> list[str]:
    judged = "WRONG" if named else "every sample once"
    lines = [f"{verdict.headline}: {judged}{', as far as the ledger can be read' if unreadable else ''}"]
    lines += [f"  {line} (left out)" for line in unreadable]
    for problem, samples in named:
        lines.append(f"  {problem}")
        if samples:
            more = f", and {len(samples) - _SHOWN} more" if len(samples) > _SHOWN else ""
            lines.append(f"    samples {', '.join(map(str, samples[:_SHOWN]))}{more}")
    return lines


def _as_json(
    verdict: LedgerVerdict, named: Sequence[tuple[Problem, list[int]]], unreadable: Sequence[str]
) -> dict[str, Any]:
    return {
        "ok": not named and not unreadable,
        "unreadable": list(unreadable),
        "steps": verdict.steps,
        "redone": verdict.redone,
        "epochs": {str(epoch): count for epoch, count in verdict.epochs.items()},
        "problems": [
            {
                "what": problem.what,
                "text": problem.text,
                "epoch": problem.epoch,
                "positions": [problem.start, problem.stop] if problem.stop else None,
                "samples": samples,
            }
            for problem, samples in named
        ],
    }
