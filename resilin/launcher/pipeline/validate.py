"""`resilin pipeline validate`: whether a schedule in a CSV file can be run, and what it keeps in memory."""

from __future__ import annotations

import argparse

from resilin.errors import UsageError
from resilin.launcher import exit_codes, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `validate`."""
    parser.add_argument("file", metavar="FILE", help="the CSV file, computations alone or with communication")
    parser.add_argument("--at-most", type=float, metavar="N", help="how many micro-batches a rank may keep in memory")
    parser.add_argument(
        "--synchronous", action="store_true",
        help="prove, too, that nothing deadlocks where a send waits until it is received",
    )  # fmt: skip
    parser.epilog = "Returns 0 when it can be run, 1 when it cannot, 2 when the file is no schedule."


def run(args: argparse.Namespace) -> int:
    """Print what was proved, or what is wrong, which returns 1. UsageError (exit code 2) for what is no schedule."""
    from resilin.pipeline.plan import communication, csv, gradient_order, simulate, validate  # numpy, around plans

    plan = csv.read(args.file)
    try:
        validate.validate(plan, in_order=False)
        ordered = gradient_order.in_order(plan)
        full = ordered if ordered.has_communication else communication.add_communication(ordered, args.synchronous)
        memory = validate.validate(full, synchronous=args.synchronous, microbatches_at_most=args.at_most)
    except UsageError as error:
        output.show(f"{args.file}: {error}")
        return exit_codes.FAILED
    kind = "with communication" if plan.has_communication else "computations alone"
    lines = [
        f"{args.file}: can be run: {plan.ranks} ranks, {plan.stages} stages, {plan.microbatches} micro-batches, {kind}",
        f"bubble {100 * simulate.simulate(full).bubble:.1f} % where F, I and W take equal time",
        f"micro-batches in memory at most, by rank: {' '.join(f'{held:g}' for held in memory.microbatches)}",
    ]
    if ordered != plan:
        lines.append("its gradients come in another order than micro-batches: those that are early wait for their turn")
    output.show(*lines)
    return exit_codes.OK
