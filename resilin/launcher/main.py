"""`resilin`: the command line beside `elastic-run`. One file per subcommand, with `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from resilin._base import log
from resilin.launcher import arguments, doctor, exit_codes, status, store, trace

_COMMANDS = {
    "doctor": (doctor, "say what this machine and installation can do"),
    "status": (status, "show the nodes and the generation of a running job"),
    "store": (store, "serve the coordination store as a program of its own"),
    "trace": (trace, "say which rank is missing from which collective"),
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
    for name, (module, text) in _COMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + "."))
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    args = parser().parse_args(argv)

    def body() -> int:
        log.configure(arguments.log_level())
        return int(_COMMANDS[args.command][0].run(args))

    return exit_codes.guarded(f"resilin {args.command}", body)


if __name__ == "__main__":
    sys.exit(main())
