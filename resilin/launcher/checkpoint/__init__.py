"""`resilin checkpoint`: checkpoints and weights at rest. A subcommand is a file of its own, `checkpoint_<name>.py`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from resilin.launcher.checkpoint import convert, diff, ls, verify

_COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int], str]] = {
    "ls": (ls.add_arguments, ls.run, "list the checkpoints in a folder"),
    "verify": (
        verify.add_arguments,
        verify.run,
        "compare every byte with the hash it was saved with",
    ),
    "diff": (diff.add_arguments, diff.run, "say what differs between two states"),
    "convert": (convert.add_arguments, convert.run, "write a state in another form"),
}
_PATHS = """\
A path may be a URL that fsspec knows, as s3://BUCKET/FOLDER (pip install 'resilin[s3]'); S3's credentials and address
are found where its own tools find them (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...).

exit codes:
  0  done, and nothing is wrong
  1  something is torn, damaged, unreadable, refused because it is no plain state, or differs
  2  wrong usage, or nothing is there
  3  the storage cannot be reached or used
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="checkpoint_command", required=True, metavar="COMMAND")
    for name, (declare, _, text) in _COMMANDS.items():
        made = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=_PATHS,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        declare(made)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; its exit code."""
    return _COMMANDS[args.checkpoint_command][1](args)
