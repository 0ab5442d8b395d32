"""`resilin pipeline draw`: a schedule as text, SVG and CSV, with its bubble and what it keeps in memory."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from resilin.errors import UsageError
from resilin.launcher import exit_codes, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `draw`."""
    parser.add_argument(
        "schedule", metavar="SCHEDULE",
        help="GPipe, 1F1B, LoopedBFS, Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble or DualPipeV; or a file "
        "NAME.csv, as PyTorch writes it",
    )  # fmt: skip
    parser.add_argument("--ranks", type=int, metavar="N", help="how many ranks there are")
    parser.add_argument("--microbatches", type=int, metavar="N", help="how many micro-batches a step has")
    parser.add_argument(
        "--stages-per-rank", type=int, metavar="N",
        help="how many stages each rank has (default: 1, or 2 for schedules with several)",
    )  # fmt: skip
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the schedule's computations to a CSV file")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it to an SVG file")
    for name, what in (
        ("forward", "a forward (F)"),
        ("backward-input", "gradients of a stage's inputs (I)"),
        ("backward-weight", "gradients of its weights (W); I and W together are a backward (B)"),
    ):
        parser.add_argument(
            f"--{name}", type=_seconds, default=1.0, metavar="TIME", help=f"time of {what}, in any unit (default 1)"
        )
    parser.add_argument("--hop", type=_seconds, default=0.0, metavar="TIME", help="time between ranks (default 0)")


def run(args: argparse.Namespace) -> int:
    """Print the drawing and two lines below it. UsageError (exit code 2) for what is no schedule."""
    from resilin.pipeline.plan import bubble, csv, draw, generate, simulate, svg, validate  # numpy, around plans

    if args.schedule.lower().endswith(".csv"):
        plan = csv.read(args.schedule)
    elif args.ranks is None or args.microbatches is None:
        generate.schedule(args.schedule)
        raise UsageError("--ranks and --microbatches are needed, unless the schedule is a file NAME.csv")
    else:
        plan = generate.generate(args.schedule, args.ranks, args.microbatches, args.stages_per_rank)
    times = simulate.Times(
        forward=args.forward, backward_input=args.backward_input, backward_weight=args.backward_weight, hop=args.hop
    )
    memory = validate.validate(plan, in_order=False)
    timeline = simulate.simulate(plan, times)
    exact = None
    if plan.schedule and not args.hop:
        exact = bubble.formula(
            plan.schedule, plan.ranks, plan.microbatches, plan.stages // plan.ranks,
            forward=args.forward, backward_input=args.backward_input, backward_weight=args.backward_weight,
        )  # fmt: skip
    output.show(
        *draw.text(timeline).splitlines(),
        f"bubble {100 * timeline.bubble:.1f} %{'' if exact is None else f' (formula {100 * exact:.1f} %)'}, "
        f"time {timeline.total:g}",
        f"micro-batches in memory at most, by rank: {' '.join(f'{held:g}' for held in memory.microbatches)}",
    )
    if args.csv is not None:
        _write(args.csv, csv.dumps(plan.computations()))
    if args.svg is not None:
        _write(args.svg, svg.svg(timeline))
    return exit_codes.OK


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a time from 0, got {text}")
    return value
