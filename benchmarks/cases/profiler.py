"""Times operations and training steps while a profile is off, on, and on with shapes. The modes take turns."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cases import models
from benchmarks.library import Library

MODES: dict[str, dict[str, bool] | None] = {"off": None, "on": {}, "shapes": {"record_shapes": True}}
CALLS = 1000  # of an operation, in a block
STEPS = {"tiny": 10, "gpt": 1}  # of a model, in a block


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long to measure."""
    parser.add_argument("--what", choices=("op", *STEPS), required=True)
    parser.add_argument("--blocks", type=int, required=True, help="for each mode")


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds per call or step, a sample a block and mode; events that a profile told of, per call or step."""
    torch = library.torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    call, count = _operation(torch) if args.what == "op" else _step(torch, args.what)
    samples: dict[str, list[float]] = {mode: [] for mode in MODES}
    events = 0
    for block in range(args.blocks + 1):
        for mode, options in MODES.items():
            taken, profile = _block(torch, call, count, options)
            if block:  # the first warms up
                samples[mode].append(taken)
            elif mode == "on" and profile is not None:
                events = len(profile.events())  # which takes longer than all else: once
    if not events:
        raise SystemExit(f"{args.what}: the profile told of no event")
    return {"samples": samples, "events": events / count}


def _block(torch: Any, call: Callable[[], Any], count: int, options: dict[str, bool] | None) -> tuple[float, Any]:
    """Seconds per call, and the profile, if there was one. What starts and ends it is not timed."""
    profile = None
    if options is not None:
        profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options)
        profile.start()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    taken = (time.perf_counter() - begin) / count
    if profile is not None:
        profile.stop()
    return taken, profile


def _operation(torch: Any) -> tuple[Callable[[], Any], int]:
    a, b = torch.ones(8, 8), torch.ones(8, 8)
    return lambda: a + b, CALLS


def _step(torch: Any, name: str) -> tuple[Callable[[], Any], int]:
    model = models.MODELS[name].build(torch)
    x, target = models.MODELS[name].batch(torch, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        y = model(x)
        torch.nn.functional.cross_entropy(y.reshape(-1, y.shape[-1]), target.reshape(-1)).backward()
        optimizer.step()

    return step, STEPS[name]
