"""Times single operations on tiny tensors, where the call costs more than the arithmetic."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from benchmarks.library import Library

CALLS = 200  # calls per sample: enough that the clock's own cost vanishes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long to measure."""
    parser.add_argument("--samples", type=int, default=30, help="samples per operation")


def operations(torch: Any) -> dict[str, Callable[[], Any]]:
    """Named calls. The tensors are of 64 float32 elements, or of 8 x 8."""
    F = torch.nn.functional
    a, b = torch.ones(8, 8), torch.ones(8, 8)
    w = torch.ones(8, 8, requires_grad=True)
    bias = torch.ones(8, requires_grad=True)
    target = torch.zeros(8, dtype=torch.int64)

    def train() -> None:
        w.grad = bias.grad = None
        F.cross_entropy(F.relu(F.linear(a, w, bias)), target).backward()

    return {
        "a + b": lambda: a + b,
        "a + 1": lambda: a + 1,
        "a += b": lambda: a.add_(b),
        "a.exp()": lambda: a.exp(),
        "a @ b": lambda: a @ b,
        "a.sum()": lambda: a.sum(),
        "a.sum(1)": lambda: a.sum(1),
        "a.reshape(64)": lambda: a.reshape(64),
        "a[1:3]": lambda: a[1:3],
        "a.softmax(1)": lambda: a.softmax(1),
        "cat((a, b))": lambda: torch.cat((a, b)),
        "zeros(8, 8)": lambda: torch.zeros(8, 8),
        "w * b, recorded": lambda: w * b,
        "linear, recorded": lambda: F.linear(a, w, bias),
        "(w * b).sum().backward()": lambda: (w * b).sum().backward(),
        "linear, relu, cross entropy, backward": train,
    }


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds per call: `args.samples` samples per operation."""
    library.torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    for name, call in operations(library.torch).items():
        for _ in range(CALLS):  # warm-up
            call()
        found[name] = [_sample(call) for _ in range(args.samples)]
    return {"samples": found}


def _sample(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begin) / CALLS
