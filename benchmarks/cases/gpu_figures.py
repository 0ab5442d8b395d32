"""Measures what a GPU does, figure by figure: each is printed as a line of JSON as soon as it is known.

Stages: `machine` (copies, products, the cost of a call), `kernels` (single operations beside the bandwidth of a copy),
`steps` (training steps of the models) and `gpt2` (GPT-2's shape in bfloat16). With --stand-in they run in miniature on
the stand-in of tests/gpu: for what they do on the host, not for figures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.cases import models
from benchmarks.library import Library

GPT2 = {"vocabulary": 50304, "width": 768, "layers": 12, "heads": 12}
H100_PEAK = 989e12  # FLOP/s of bfloat16 products, as its maker states them; an H200 has the same
ORDER = ("gpt", "lstm", "mlp", "tiny", "residual_cnn", "long_gpt", "cnn", "wide_mlp")  # the most telling first

Figure = tuple[str, str, float]  # what, unit, value
Stage = Callable[[Library, "Sizes"], Iterator[Figure]]


class Sizes:
    """How much is done: on a device, or in miniature on the stand-in."""

    def __init__(self, stand_in: bool) -> None:
        self.stand_in = stand_in
        self.copied = 1 << 12 if stand_in else 1 << 28  # bytes of an array that is copied
        self.product = 16 if stand_in else 8192
        self.calls = 3 if stand_in else 200
        self.rows, self.width = (4, 32) if stand_in else (16_384, 4096)
        self.repeats = 1 if stand_in else 5
        self.steps_s = 0.0 if stand_in else 1.0
        self.models = ("tiny",) if stand_in else ORDER
        self.gpt2 = {"vocabulary": 16, "width": 8, "layers": 1, "heads": 2} if stand_in else GPT2
        self.tokens, self.batch, self.gpt2_steps = (4, 2, 1) if stand_in else (1024, 16, 20)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which stage, and on what."""
    parser.add_argument("stage", choices=sorted(STAGES))
    parser.add_argument("--stand-in", action="store_true", help="in miniature, on the stand-in for CuPy")
    parser.add_argument("--cubins", metavar="FOLDER", help="kernels that were compiled beforehand (ours only)")


def run(library: Library, args: argparse.Namespace) -> None:
    """Print each figure of the stage."""
    if args.stand_in:
        _install_stand_in()
    if args.cubins and library.name == "resilin":
        importlib.import_module("resilin.core.kernels.cuda.prebuilt").use(Path(args.cubins))
    for what, unit, value in STAGES[args.stage](library, Sizes(args.stand_in)):
        print(json.dumps({"figure": what, "unit": unit, "value": value, "library": library.name}), flush=True)


def _install_stand_in() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "gpu"))
    patch = importlib.import_module("pytest").MonkeyPatch()
    module = importlib.import_module("cupy_standin").make_module()
    importlib.import_module("standin_device").install(patch, module)


def _seconds(torch: Any, work: Callable[[], Any], calls: int, repeats: int) -> float:
    """Of one call: the median of `repeats`, each of so many calls in a row, after one that compiles."""
    work()
    torch.cuda.synchronize()
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begin) / calls)
    return statistics.median(found)


def machine(library: Library, sizes: Sizes) -> Iterator[Figure]:
    """Bandwidth of copies, products, and what a call costs the host."""
    torch = library.torch
    yield f"device: {torch.cuda.get_device_name()}", "B", float(torch.cuda.get_device_properties(0).total_memory)
    source = torch.zeros(sizes.copied // 4, device="cuda")
    took = _seconds(torch, source.clone, 4, sizes.repeats)
    yield f"copy of {sizes.copied} B", "GB/s", 2 * sizes.copied / took / 1e9
    for dtype in ("bfloat16", "float32"):
        a = torch.ones(sizes.product, sizes.product, device="cuda", dtype=getattr(torch, dtype))
        took = _seconds(torch, lambda a=a: a @ a, 4, sizes.repeats)
        yield f"product of {sizes.product}, {dtype}", "TFLOP/s", 2 * sizes.product**3 / took / 1e12
    small = torch.ones(64, device="cuda")
    layer = torch.nn.Linear(64, 64).to("cuda")
    calls: dict[str, Callable[[], Any]] = {
        "a + b of 64": lambda: small + small,
        "empty(64)": lambda: torch.empty(64, device="cuda"),
        "linear of 64": lambda: layer(small),
    }
    for what, work in calls.items():
        yield f"a call: {what}", "us", _seconds(torch, work, sizes.calls, sizes.repeats) * 1e6
    yield "loss.item() of a finished loss", "us", _seconds(torch, small.sum().item, sizes.calls, sizes.repeats) * 1e6


def kernels(library: Library, sizes: Sizes) -> Iterator[Figure]:
    """Operations that should take as long as their arrays take to be copied: GB/s of what they must read and write."""
    torch, functional = library.torch, library.torch.nn.functional
    for dtype in ("float32", "bfloat16"):
        x = torch.ones(sizes.rows, sizes.width, device="cuda", dtype=getattr(torch, dtype)).requires_grad_()
        one = sizes.rows * sizes.width * (4 if dtype == "float32" else 2)
        weight = torch.ones(sizes.width, device="cuda", dtype=x.dtype)
        target = torch.zeros(sizes.rows, dtype=torch.int64, device="cuda")
        forward: dict[str, tuple[float, Callable[[], Any]]] = {
            "layer_norm": (2, lambda x=x, w=weight: functional.layer_norm(x, (sizes.width,), w, w)),
            "gelu": (2, lambda x=x: functional.gelu(x)),
            "softmax": (2, lambda x=x: functional.softmax(x, -1)),
            "dropout": (2, lambda x=x: functional.dropout(x, 0.1)),
            "cross_entropy": (1, lambda x=x, t=target: functional.cross_entropy(x, t)),
        }
        for what, (arrays, work) in forward.items():
            took = _seconds(torch, work, 4, sizes.repeats)
            yield f"{what}, {dtype}, forward", "GB/s", arrays * one / took / 1e9
            y = work()
            g = torch.ones_like(y)
            took = _seconds(
                torch, lambda y=y, x=x, g=g: torch.autograd.grad(y, x, g, retain_graph=True), 4, sizes.repeats
            )
            yield f"{what}, {dtype}, backward", "GB/s", (arrays + 1) * one / took / 1e9
    parameters = [torch.nn.Parameter(torch.ones(sizes.rows * sizes.width // 16, device="cuda")) for _ in range(4)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    took = _seconds(torch, optimizer.step, 4, sizes.repeats)
    yield "AdamW, float32", "GB/s", 7 * 4 * sum(p.numel() for p in parameters) / took / 1e9


def steps(library: Library, sizes: Sizes) -> Iterator[Figure]:
    """A training step of each model: the median, and the memory that it takes at most."""
    torch = library.torch
    for name in sizes.models:
        model = models.MODELS[name]
        torch.manual_seed(0)
        step = _step(torch, model.build(torch).to("cuda"), *(part.to("cuda") for part in model.batch(torch, 0)))
        for _ in range(2 if sizes.stand_in else 10):
            step()
        torch.cuda.reset_peak_memory_stats()
        samples, end = [], time.perf_counter() + sizes.steps_s
        while not samples or time.perf_counter() < end:
            begin = time.perf_counter()
            step()
            samples.append(time.perf_counter() - begin)
        yield f"step: {model.text}", "ms", statistics.median(samples) * 1e3
        yield f"peak memory: {model.text}", "B", float(torch.cuda.max_memory_allocated())


def _step(torch: Any, module: Any, x: Any, y: Any, autocast: bool = False) -> Callable[[], float]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            out = module(x)
            loss = torch.nn.functional.cross_entropy(out.view(-1, out.shape[-1]), y.view(-1))
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def gpt2(library: Library, sizes: Sizes) -> Iterator[Figure]:
    """GPT-2's shape under bfloat16 autocast, with the share of the device's products that it reaches."""
    torch = library.torch
    torch.manual_seed(0)
    module = models.gpt(sizes.tokens, **sizes.gpt2)(torch).to("cuda")
    count = sum(parameter.numel() for parameter in module.parameters())
    tokens = torch.randint(0, sizes.gpt2["vocabulary"], (sizes.batch, sizes.tokens + 1)).to("cuda")
    step = _step(torch, module, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), autocast=True)
    losses = [step() for _ in range(2)]
    samples = []
    for _ in range(sizes.gpt2_steps):
        begin = time.perf_counter()
        losses.append(step())
        samples.append(time.perf_counter() - begin)
    took = statistics.median(samples)
    attention = 12 * sizes.gpt2["layers"] * sizes.gpt2["width"] * sizes.tokens
    flops = (6 * count + attention) * sizes.batch * sizes.tokens
    yield f"GPT-2's shape, {count} parameters, {sizes.batch} x {sizes.tokens} tokens: step", "ms", took * 1e3
    yield "GPT-2's shape: share of the peak of an H100's products", "%", 100 * flops / took / H100_PEAK
    yield "GPT-2's shape: first loss", "", losses[0]
    yield "GPT-2's shape: last loss", "", losses[-1]
    yield "GPT-2's shape: peak memory", "B", float(torch.cuda.max_memory_allocated())


STAGES: dict[str, Stage] = {"machine": machine, "kernels": kernels, "steps": steps, "gpt2": gpt2}
