"""`resilin`: the command line beside `elastic-run`. A subcommand is what declares its options, and what runs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from resilin._base import log
from resilin.launcher import (
    arguments,
    chaos,
    checkpoint,
    doctor,
    exit_codes,
    k8s,
    ledger,
    pipeline,
    rpc,
    sizes,
    status,
    store,
    top,
    trace,
    traces,
)

_COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int], str]] = {
    "chaos": (chaos.add_arguments, chaos.run, "run a job under faults and compare how it ends"),
    "checkpoint": (checkpoint.add_arguments, checkpoint.run, "list, verify, compare and convert checkpoints"),
    "doctor": (doctor.add_arguments, doctor.run, "say what this machine and installation can do"),
    "drain": (sizes.add_drain_arguments, sizes.drain, "let a node's workers finish their step and end; it stays idle"),
    "k8s": (k8s.add_arguments, k8s.run, "print manifests for Kubernetes, or leave as a pod does"),
    "ledger": (ledger.add_arguments, ledger.run, "check that every sample of a job counted once"),
    "pipeline": (pipeline.add_arguments, pipeline.run, "draw and check schedules of pipelines"),
    "rpc": (rpc.add_arguments, rpc.run, "show which workers of a running job wait for which calls"),
    "scale": (sizes.add_scale_arguments, sizes.scale, "change how many nodes of a running job take part"),
    "status": (status.add_arguments, status.run, "show the nodes and the generation of a running job"),
    "store": (store.add_arguments, store.run, "serve the coordination store as a program of its own"),
    "top": (top.add_arguments, top.run, "watch the workers of a running job"),
    "trace": (trace.add_arguments, trace.run, "say which rank is missing from which collective"),
    **traces.COMMANDS,
}


def parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    result = argparse.ArgumentParser(
        prog="resilin",
        description="Tools beside elastic-run, which starts jobs.",
        epilog=exit_codes.HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (declare, _, text) in _COMMANDS.items():
        declare(commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + "."))
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    args = parser().parse_args(traces.joined(sys.argv[1:] if argv is None else argv))

    def body() -> int:
        log.configure(arguments.log_level())
        return _COMMANDS[args.command][1](args)

    return exit_codes.guarded(f"resilin {args.command}", body)


if __name__ == "__main__":
    sys.exit(main())
