"""Times tensors that come and go, and training, with CPU memory from the arenas or from malloc."""

from __future__ import annotations

import argparse
import contextvars
import gc
import resource
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cases import models
from benchmarks.cases.models import Model
from benchmarks.cases.train_step import memory_of_process
from benchmarks.library import Library

KIB, MIB = 1 << 10, 1 << 20
SIZES = {
    "4 KiB": 4 * KIB,
    "64 KiB": 64 * KIB,
    "1 MiB": MIB,
    "16 MiB": 16 * MIB,
    "64 MiB": 64 * MIB,
}
HELD = 8  # tensors that are alive at once
TRAINED = ("gpt", "long_gpt", "residual_cnn", "mlp")
WARM_UP = 5
SAMPLE_S = 1e-3  # a sample is of so many calls that it takes about this long, or of one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, with which memory, for how long."""
    parser.add_argument("--model", choices=TRAINED, help="train it; else tensors come and go")
    parser.add_argument("--malloc", action="store_true", help="memory from numpy's own allocator, not from arenas")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds and page faults of each thing that is measured, and what training takes at most."""
    library.torch.set_num_threads(1)
    # The arenas are numpy's allocator in the context of the main thread; an empty one has numpy's own.
    context = contextvars.Context() if args.malloc else contextvars.copy_context()
    case = _train if args.model else _come_and_go
    return context.run(case, library, args)


def _check(library: Library, tensor: Any, args: argparse.Namespace) -> None:
    is_in_arena = library.memory.locate(tensor.detach().numpy()) is not None
    assert is_in_arena is not args.malloc, f"in an arena: {is_in_arena}, with malloc: {args.malloc}"


def _come_and_go(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    torch, found = library.torch, {}
    for name, size in SIZES.items():
        x = torch.zeros(size // 4)
        _check(library, x, args)
        assert (x + 1).sum().item() == size // 4

        def one(x: Any = x) -> None:
            x + 1

        def many(x: Any = x) -> None:
            held = [x + 1 for _ in range(HELD)]
            held.clear()

        found[f"{name}, one at a time"] = _measure(one, args.seconds)
        found[f"{name}, {HELD} at once"] = _measure(many, args.seconds, HELD)
    return {"found": found}


def _train(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    model = models.MODELS[args.model]
    figures, stats = _trained(library, model, args)
    gc.collect()
    library.memory.empty_cache()
    return {"found": {model.text: figures}, "stats": stats, "after": library.memory.stats()}


def _trained(library: Library, model: Model, args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, int]]:
    """The figures of a step, and what the allocator says while all of it is alive."""
    torch = library.torch
    torch.manual_seed(0)
    before = memory_of_process("VmRSS")
    module = model.build(torch)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    x, y = model.batch(torch, 0)
    losses = []

    def step() -> None:
        optimizer.zero_grad()
        out = module(x)
        loss = torch.nn.functional.cross_entropy(out.view(-1, out.shape[-1]), y.view(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    figures = _measure(step, args.seconds)
    _check(library, max((p.grad for p in module.parameters()), key=lambda grad: grad.numel()), args)
    assert losses[-1] < losses[0], f"{args.model}: the loss did not fall: {losses[0]} -> {losses[-1]}"
    return {**figures, "peak_bytes": memory_of_process("VmHWM") - before}, library.memory.stats()


def _measure(call: Callable[[], None], seconds: float, parts: int = 1) -> dict[str, Any]:
    """Samples in seconds, and page faults, of one of a call's `parts`."""
    begin = time.perf_counter()
    for _ in range(WARM_UP):
        call()
    calls = max(1, int(SAMPLE_S * WARM_UP / (time.perf_counter() - begin)))
    samples: list[float] = []
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    end = time.perf_counter() + seconds
    while not samples or time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        samples.append((time.perf_counter() - begin) / calls / parts)
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - faults
    return {"samples": samples, "faults": faults / (len(samples) * calls * parts)}
