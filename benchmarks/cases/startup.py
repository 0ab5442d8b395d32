"""The smallest distributed program: form a group, sum one number, leave."""

from __future__ import annotations

import argparse

from benchmarks.library import Library


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing to choose."""


def run(library: Library, args: argparse.Namespace) -> None:
    """Form the group of the launcher's environment, check one all_reduce, leave."""
    library.dist.init_process_group(library.backend)
    ones = library.torch.ones(1)
    library.dist.all_reduce(ones)
    if ones.item() != library.dist.get_world_size():
        raise SystemExit(f"all_reduce of ones gave {ones.item()}, expected {library.dist.get_world_size()}")
    library.dist.destroy_process_group()
