"""`resilin k8s`: manifests for Kubernetes, and what pods run; nothing here speaks to a cluster.

A subcommand is a file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from resilin.launcher.k8s import crd, leave, render

_COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int], str]] = {
    "crd": (crd.add_arguments, crd.run, "print the CustomResourceDefinition of ElasticJob"),
    "leave": (leave.add_arguments, leave.run, "ask the agents of this container to leave, and wait until they have"),
    "render": (render.add_arguments, render.run, "print an ElasticJob that runs a command line of elastic-run"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="k8s_command", required=True, metavar="COMMAND")
    for name, (declare, _, text) in _COMMANDS.items():
        declare(commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + "."))


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; its exit code."""
    return _COMMANDS[args.k8s_command][1](args)
