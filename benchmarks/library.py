"""Gives a case the library it shall use, and runs one case as the main program of a worker."""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Library:
    """One side of a comparison: PyTorch's names, whoever implements them."""

    name: str
    version: str
    torch: Any
    """The top module: tensors, `nn`, `optim`, `manual_seed`, `set_num_threads`."""
    dist: Any
    """The module with `init_process_group` and the collectives."""
    data: Any
    """The module with `DataLoader`."""
    backend: str
    """What `init_process_group` is called with."""
    ddp: Callable[..., Any]
    """Wraps a module; keyword arguments are passed on."""
    comm_hooks: Any
    """The package of communication hooks, with a module for each kind."""
    zero: Callable[..., Any]
    """`ZeroRedundancyOptimizer`."""
    shard: Any = None
    """`resilin.zero.shard`; None where it is not compared."""
    checkpoint: Any = None
    """`save(path, state)`, `load(path, state)` and `save_async(path, state)`, whose result has `wait()`."""
    rpc: Any = None
    """`resilin.distributed.rpc`, or `torch.distributed.rpc`."""
    pipelining: Any = None
    """`resilin.distributed.pipelining`, or `torch.distributed.pipelining`."""
    memory: Any = None
    """What says how much memory tensors take; None where a library has nothing like it."""
    elastic: Any = None
    """`resilin.elastic`; None where a library has nothing like it."""


class Later:
    """A module that is loaded when a case asks for something of it: the other cases must not pay for it."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)


def rank() -> int:
    """This process's rank, from the launcher's environment."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Number of processes, from the launcher's environment."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def main(library: Library, argv: Sequence[str]) -> None:
    """Run the case named by the first argument; rank 0 prints its result as one line of JSON."""
    case = importlib.import_module(f"benchmarks.cases.{argv[0]}")
    parser = argparse.ArgumentParser(prog=argv[0])
    case.add_arguments(parser)
    result = case.run(library, parser.parse_args(argv[1:]))
    if result is not None and rank() == 0:
        print(json.dumps({"library": library.name, "version": library.version, **result}), flush=True)
