"""A group of resilin over a transport that is chosen, which only its tests and these benchmarks can do."""

from __future__ import annotations

import argparse
import os

from benchmarks.library import Library
from resilin.distributed.group.process_group import ProcessGroup
from resilin.testing.ranks import join_from_environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which transport, and where ranks meet."""
    parser.add_argument("--transport", required=True, choices=("shm", "tcp"))
    parser.add_argument("--meet", required=True, help="a file that does not exist yet")


def join(library: Library, args: argparse.Namespace) -> ProcessGroup:
    """This rank's end of the group, with one thread to compute."""
    library.torch.set_num_threads(1)
    os.environ.update(TEST_TRANSPORT=args.transport, TEST_INIT_METHOD=f"file://{args.meet}")
    return join_from_environment()
