"""Times all_reduce of tensors that the library made itself."""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.library import Library, rank

KIB = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Sizes and lengths of the run."""
    parser.add_argument("--sizes", required=True, help="bytes per tensor, separated by commas")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long to measure each size")


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Samples in seconds per size: `busy`, calls back to back; `spaced`, a short matrix product before each call."""
    library.torch.set_num_threads(1)
    library.dist.init_process_group(library.backend)
    sizes = [int(size) for size in args.sizes.split(",")]
    result: dict[str, Any] = {"busy": {}, "spaced": {}}
    for size in sizes:
        _check(library, size)
        result["busy"][size] = _measure(library, size, args.seconds, spacer=None)
        result["spaced"][size] = _measure(library, size, args.seconds, spacer=library.torch.randn(256, 256))
        _check(library, size)
    library.dist.destroy_process_group()
    return result


def _check(library: Library, size: int) -> None:
    """The whole result, element by element, against what every rank can compute alone."""
    torch, dist = library.torch, library.dist
    pattern = (torch.arange(size // 4) % 1000).to(torch.float32)
    mine = pattern * (dist.get_rank() + 1)
    dist.all_reduce(mine)
    world = dist.get_world_size()
    expected = pattern * (world * (world + 1) // 2)
    wrong = int((mine != expected).sum().item())
    if wrong:
        raise SystemExit(f"rank {rank()}: all_reduce of {size} bytes: {wrong} of {size // 4} elements are wrong")


def _measure(library: Library, size: int, seconds: float, spacer: Any) -> list[float]:
    """Duration of each call on this rank. All ranks make the same number of calls, agreed beforehand."""
    dist = library.dist
    tensor = library.torch.zeros(size // 4)  # sums of zeros stay zeros however many calls there are
    for _ in range(5):
        dist.all_reduce(tensor)
    calls = _agreed_calls(library, tensor, seconds, spacer)
    samples = []
    dist.barrier()
    for _ in range(calls):
        if spacer is not None:
            spacer @ spacer
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        samples.append(time.perf_counter() - begin)
    return samples


def _agreed_calls(library: Library, tensor: Any, seconds: float, spacer: Any) -> int:
    """Number of calls that fill about `seconds`, the same on every rank."""
    begin = time.perf_counter()
    for _ in range(5):
        if spacer is not None:
            spacer @ spacer
        library.dist.all_reduce(tensor)
    once = (time.perf_counter() - begin) / 5
    calls = library.torch.tensor([float(min(5000, max(20, seconds / once)))])
    library.dist.broadcast(calls, src=0)
    return int(calls.item())
