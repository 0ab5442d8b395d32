"""Times what programs do by hand to the parameters of a large model: averages, clipping, an optimizer."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cases.wide_parts import values
from benchmarks.library import Library

THREADS = (1, 2)
COUNT, SHAPE = 20, (1024, 1024)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """For how long."""
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long to measure each")
    parser.add_argument("--side", type=int, default=SHAPE[0], help="rows and columns of a tensor")


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Samples in seconds of each update, and a sum of what it makes."""
    torch = library.torch
    samples: dict[str, list[float]] = {}
    sums: list[float] = []
    for threads in THREADS:
        torch.set_num_threads(threads)
        for what, make in UPDATES.items():
            torch.manual_seed(0)
            first = values(torch, (args.side, args.side), 1)
            parameters = [torch.nn.Parameter(first * (1 + i / COUNT)) for i in range(COUNT)]
            for parameter in parameters:
                parameter.grad = parameter.detach() * 0.01
            update, result = make(torch, parameters)
            update()
            sums.append(float(result().double().sum().item()))
            samples[f"{what}, {threads} thread{'s' * (threads > 1)}"] = _timed(update, args.seconds)
    return {"samples": samples, "losses": [], "outputs": sums}


def _timed(call: Callable[[], None], seconds: float) -> list[float]:
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return found


Update = tuple[Callable[[], None], Callable[[], Any]]  # what is timed, and what it makes


def _averages(torch: Any, parameters: list[Any]) -> Update:
    averages = [parameter.detach().clone() for parameter in parameters]

    def update() -> None:
        with torch.no_grad():
            for average, parameter in zip(averages, parameters, strict=True):
                average.mul_(0.999).add_(parameter, alpha=0.001)

    return update, lambda: averages[-1]


def _lerped(torch: Any, parameters: list[Any]) -> Update:
    averages = [parameter.detach().clone() for parameter in parameters]

    def update() -> None:
        with torch.no_grad():
            for average, parameter in zip(averages, parameters, strict=True):
                average.lerp_(parameter, 0.001)

    return update, lambda: averages[-1]


def _clipped(torch: Any, parameters: list[Any]) -> Update:
    def update() -> None:
        torch.nn.utils.clip_grad_value_(parameters, 0.005)

    return update, lambda: parameters[-1].grad


def _adam(torch: Any, parameters: list[Any]) -> Update:
    first = [torch.zeros_like(parameter) for parameter in parameters]
    second = [torch.zeros_like(parameter) for parameter in parameters]
    steps = [0]

    def update() -> None:
        steps[0] += 1
        scale, root = 1 - 0.9 ** steps[0], (1 - 0.999 ** steps[0]) ** 0.5
        with torch.no_grad():
            for parameter, m, v in zip(parameters, first, second, strict=True):
                m.mul_(0.9).add_(parameter.grad, alpha=0.1)
                v.mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
                parameter.addcdiv_(m, (v.sqrt() / root).add_(1e-8), value=-1e-3 / scale)

    return update, lambda: parameters[-1].detach()


UPDATES: dict[str, Callable[[Any, list[Any]], Update]] = {
    f"average of {COUNT} tensors of {SHAPE[0]} x {SHAPE[1]}, mul_ and add_": _averages,
    f"average of {COUNT} tensors of {SHAPE[0]} x {SHAPE[1]}, lerp_": _lerped,
    f"clip_grad_value_ of {COUNT} gradients": _clipped,
    f"Adam written by hand, {COUNT} tensors": _adam,
}
