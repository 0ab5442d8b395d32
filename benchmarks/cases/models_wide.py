"""Times training and inference of one model, on one thread and on two."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from benchmarks.cases import wide_parts
from benchmarks.cases.wide_images import IMAGES
from benchmarks.cases.wide_parts import Wide
from benchmarks.cases.wide_sequences import SEQUENCES
from benchmarks.library import Library

WIDE = {**IMAGES, **SEQUENCES}
THREADS = (1, 2)
TRAINED, ASKED = 16, (1, 16)  # samples of a batch
COMPARED = 4  # losses of the first steps, which both libraries must agree in
CELLS = [*[f"inference, batch {size}" for size in ASKED], f"training, batch {TRAINED}"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to run and for how long."""
    parser.add_argument("--model", choices=sorted(WIDE), required=True)
    parser.add_argument("--seconds", type=float, default=0.5, help="about how long to measure each of six")
    parser.add_argument("--samples", type=int, default=3, help="at least so many of each")
    parser.add_argument("--autocast", action="store_true", help="bfloat16 where autocast allows it")
    parser.add_argument("--threads", type=int, choices=THREADS, help="on so many only")
    parser.add_argument("--cell", choices=CELLS, help="this alone")


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Samples in seconds of each cell, the first losses, and the mean of what inference gives.

    One model is asked first, on any number of threads, and then trained: making it takes longer than most cells.
    """
    torch, wide = library.torch, WIDE[args.model]
    torch.manual_seed(0)
    model = wide.build(torch)
    wide_parts.set_parameters(torch, model)
    samples: dict[str, list[float]] = {}
    losses: list[float] = []
    outputs: list[float] = []
    threads = [args.threads] if args.threads else THREADS
    for cell in [args.cell] if args.cell else CELLS:
        size = int(cell.split()[-1])
        call: Any = (_Step if cell.startswith("training") else _Question)(torch, wide, model, size, args.autocast)
        for number in threads:
            torch.set_num_threads(number)
            if number != threads[0]:
                call()
            elif cell.startswith("training"):
                losses = [call() for _ in range(COMPARED)]
            else:
                outputs.append(call())
            samples[f"{cell}, {number} thread{'s' * (number > 1)}"] = _timed(call, args)
    return {"samples": samples, "losses": losses, "outputs": outputs}


def _timed(call: Callable[[], float], args: argparse.Namespace) -> list[float]:
    found: list[float] = []
    end = time.perf_counter() + args.seconds
    while len(found) < args.samples or time.perf_counter() < end:
        begin = time.perf_counter()
        result = call()
        found.append(time.perf_counter() - begin)
    if not math.isfinite(result):
        raise SystemExit(f"{args.model}: {result} after {len(found)} calls")
    return found


def _casting(torch: Any, autocast: bool) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext()  # type: ignore[no-any-return]


class _Step:
    """Forward, backward and the optimizer's step, on a fixed batch."""

    def __init__(self, torch: Any, wide: Wide, model: Any, size: int, autocast: bool) -> None:
        self.torch, self.wide, self.model, self.autocast = torch, wide, model, autocast
        model.train()
        self.optimizers = [torch.optim.AdamW(group, lr=1e-4) for group in wide.groups(self.model)]
        self.inputs, self.target = wide.batch(torch, size)

    def __call__(self) -> float:
        total = 0.0
        for turn, optimizer in enumerate(self.optimizers):
            optimizer.zero_grad()
            with _casting(self.torch, self.autocast):
                loss = self.wide.loss(self.torch, self.model, self.inputs, self.target, turn)
            loss.backward()
            optimizer.step()
            total += loss.item()
        return total


class _Question:
    """Inference on a fixed batch."""

    def __init__(self, torch: Any, wide: Wide, model: Any, size: int, autocast: bool) -> None:
        self.torch, self.model, self.autocast = torch, model, autocast
        model.eval()
        self.inputs, _ = wide.batch(torch, size)

    def __call__(self) -> float:
        with self.torch.no_grad(), _casting(self.torch, self.autocast):
            out = self.model(*self.inputs)
        out = out[0] if isinstance(out, tuple) else out
        return float(out.float().abs().mean().item())
