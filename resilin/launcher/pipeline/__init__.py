"""`resilin pipeline`: schedules of pipelines, before anything runs. A subcommand is a file of its own."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from resilin.launcher.pipeline import draw, validate

_COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int], str]] = {
    "draw": (draw.add_arguments, draw.run, "draw a schedule, and say its bubble and memory"),
    "validate": (validate.add_arguments, validate.run, "prove that a schedule in a CSV file can be run"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="pipeline_command", required=True, metavar="COMMAND")
    for name, (declare, _, text) in _COMMANDS.items():
        declare(commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + "."))


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; its exit code."""
    return _COMMANDS[args.pipeline_command][1](args)
