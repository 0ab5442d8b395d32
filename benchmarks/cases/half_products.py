"""Times matrix products of 16-bit floats beside those of float32."""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.library import Library

# M rows, K depth, N columns
SHAPES = ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (64, 1024, 1024), (1, 1024, 1024))
KINDS = ("bfloat16", "float16", "float32")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long to measure, on how many threads."""
    parser.add_argument("--seconds", type=float, default=0.3, help="per product")
    parser.add_argument("--threads", type=int, default=1)


def name_of(shape: tuple[int, int, int], kind: str, turned: bool) -> str:
    """What a product is called in the results."""
    M, K, N = shape
    return f"{M} x {K} by {K} x {N}{', as in linear' if turned else ''}, {kind}"


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each product; the types in turn, call by call."""
    torch = library.torch
    torch.set_num_threads(args.threads)
    found: dict[str, list[float]] = {}
    for shape in SHAPES:
        for turned in (False, True):
            found.update(_products(torch, shape, turned, args.seconds))
    return {"samples": found}


def _products(torch: Any, shape: tuple[int, int, int], turned: bool, seconds: float) -> dict[str, list[float]]:
    M, K, N = shape
    torch.manual_seed(0)
    a, b = torch.randn(M, K), torch.randn(N, K) if turned else torch.randn(K, N)
    pairs = {}
    for kind in KINDS:
        dtype = getattr(torch, kind)
        pairs[kind] = (a.to(dtype), b.to(dtype).t() if turned else b.to(dtype))
    exact = (a @ (b.t() if turned else b)).sum().item()
    scale = (M * N * K) ** 0.5
    for kind, (left, right) in pairs.items():
        error = abs((left @ right).float().sum().item() - exact)
        assert error < 0.1 * scale, f"{kind}: the sum of the product is {error} off"
    calls = max(1, int(2e8 / (2 * M * N * K)))  # a sample of 2 ms or more
    found: dict[str, list[float]] = {name_of(shape, kind, turned): [] for kind in pairs}
    end = time.perf_counter() + seconds * len(pairs)
    while time.perf_counter() < end:
        for kind, (left, right) in pairs.items():
            begin = time.perf_counter()
            for _ in range(calls):
                left @ right
            found[name_of(shape, kind, turned)].append((time.perf_counter() - begin) / calls)
    return found
