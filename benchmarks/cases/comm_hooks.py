"""Trains a small GPT or the digits with one way of communicating: bytes, step time, and the loss that it ends with.

B batch, T time
"""

from __future__ import annotations

import argparse
import math
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from benchmarks.cases.models import gpt
from benchmarks.library import Library, rank, world_size

DIGITS = Path(__file__).resolve().parent.parent.parent / "examples" / "01-digits" / "digits.py"
CONTEXT, WIDTH, LAYERS, HEADS = 32, 64, 2, 4
BATCH = {"gpt": 16, "digits": 32}
HELD_OUT = 256  # windows of text
PERIOD = 10  # steps between two averages of parameters
SGD_RATE = 0.03
OUTER_RATE = 0.4  # of DiLoCo: the paper's 0.7 is for 500 inner steps; chosen for 10 of them

OPTIMIZERS: dict[str, Callable[[Any, Any], Any]] = {
    "adamw": lambda torch, params: torch.optim.AdamW(params, lr=2e-3),
    "sgd": lambda torch, params: torch.optim.SGD(params, lr=SGD_RATE, momentum=0.9),
}
SCHEDULES = ("constant", "cosine")
RATE_WARMUP, LAST_RATE = 30, 0.1  # of the cosine: steps of its rise, and where it ends
Wrap = Callable[[Library, Any, Any, int], Any]  # (library, the wrapped model, the optimizer, warm-up) -> optimizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to train, how, and for how long."""
    parser.add_argument("--model", choices=sorted(BATCH), required=True)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--schedule", choices=SCHEDULES, default="constant", help="of the learning rate")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--warmup", type=int, default=30, help="steps of plain averaging before compression starts")


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds per step on rank 0 and bytes per step, both after warm-up; loss on held-out data, the mean of ranks."""
    torch = library.torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    library.dist.init_process_group(library.backend)
    module, batches, held_out = _DATA[args.model](torch)
    start(torch, module)
    model = library.ddp(module)
    inner = OPTIMIZERS[args.optimizer](torch, model.parameters())
    optimizer = WAYS[args.way](library, model, inner, args.warmup)
    schedule = torch.optim.lr_scheduler.LambdaLR(inner, _factor(args.schedule, args.steps))
    counters = [model, getattr(optimizer, "averager", optimizer)]
    samples, before = [], 0.0
    for step in range(args.steps):
        if step == args.warmup:
            before = _bytes(counters)
        begin = time.perf_counter()
        optimizer.zero_grad()
        _loss(torch, model, *batches(step)).backward()
        optimizer.step()
        schedule.step()
        samples.append(time.perf_counter() - begin)
    with torch.no_grad():
        loss = torch.tensor([_loss(torch, module, *held_out).item()])
    library.dist.all_reduce(loss)
    library.dist.destroy_process_group()
    compressed = args.steps - args.warmup
    return {
        "samples": samples[args.warmup :],
        "loss": loss.item() / world_size(),
        "wire_bytes": (_bytes(counters) - before) / compressed,
        "parameters": sum(param.numel() for param in module.parameters()),
    }


def _factor(schedule: str, steps: int) -> Callable[[int], float]:
    """What the learning rate is multiplied by in each step."""
    if schedule == "constant":
        return lambda step: 1.0
    return lambda step: (
        min(1.0, (step + 1) / RATE_WARMUP)
        * (LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * step / steps)))
    )


def _bytes(counters: list[Any]) -> float:
    """What this rank has sent; 0 where the library does not count it."""
    model, averager = counters
    local = averager.traffic.wire_bytes if hasattr(averager, "traffic") else 0
    return float(model.stats()["traffic"]["wire_bytes"] + local) if hasattr(model, "stats") else 0.0


def _loss(torch: Any, model: Any, x: Any, y: Any) -> Any:
    out = model(x)
    return torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))


# ---------------------------------------------------------------------------------------------- data


def start(torch: Any, module: Any) -> None:
    """The same first values whatever the library: uniform as PyTorch's `Linear`, normal as its `Embedding`."""
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, torch.nn.Embedding):
                part.weight.copy_(torch.tensor(rng.standard_normal(tuple(part.weight.shape)).astype(np.float32)))
            elif isinstance(part, torch.nn.Linear):
                limit = part.in_features**-0.5
                for param in (part.weight, part.bias):
                    values = rng.uniform(-limit, limit, tuple(param.shape)).astype(np.float32)
                    param.copy_(torch.tensor(values))


def _gpt(torch: Any) -> tuple[Any, Callable[[int], Any], Any]:
    text = "\n".join(topics.values())
    characters = sorted(set(text))
    number = {c: i for i, c in enumerate(characters)}
    tokens = np.array([number[c] for c in text], np.int64)
    windows_BT = tokens[: len(tokens) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1)
    np.random.default_rng(0).shuffle(windows_BT)
    model = gpt(CONTEXT, len(characters), WIDTH, LAYERS, HEADS)(torch)

    def pairs(rows: Any) -> Any:
        return torch.tensor(windows_BT[rows, :-1]), torch.tensor(windows_BT[rows, 1:])

    return model, _sampled(len(windows_BT) - HELD_OUT, HELD_OUT, BATCH["gpt"], pairs), pairs(slice(0, HELD_OUT))


def _digits(torch: Any) -> tuple[Any, Callable[[int], Any], Any]:
    load = runpy.run_path(str(DIGITS))["load"]
    images, labels = load(train=True)
    nn = torch.nn
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )

    def pairs(rows: Any) -> Any:
        return torch.tensor(images[rows]), torch.tensor(labels[rows])

    tested = tuple(torch.tensor(array) for array in load(train=False))
    return model, _sampled(len(images), 0, BATCH["digits"], pairs), tested


def _sampled(count: int, first: int, batch: int, pairs: Callable[[Any], Any]) -> Callable[[int], Any]:
    """A batch of random rows, a function of (step, rank)."""
    return lambda step: pairs(first + np.random.default_rng([step, rank()]).integers(0, count, batch))


_DATA = {"gpt": _gpt, "digits": _digits}


# ---------------------------------------------------------------------------------------------- ways


def _plain(library: Library, model: Any, optimizer: Any, warmup: int) -> Any:
    return optimizer


def _hooked(module: str, hook: str, state: Callable[[Any, int], Any] | None = None) -> Wrap:
    def wrap(library: Library, model: Any, optimizer: Any, warmup: int) -> Any:
        hooks = getattr(library.comm_hooks, module)
        model.register_comm_hook(None if state is None else state(hooks, warmup), getattr(hooks, hook))
        return optimizer

    return wrap


def _power(rank: int, hook: str = "powerSGD_hook") -> Wrap:
    return _hooked("powerSGD_hook", hook, lambda hooks, warmup: hooks.PowerSGDState(None, rank, warmup))


def _local_sgd(library: Library, model: Any, optimizer: Any, warmup: int) -> Any:
    hooks, averaging = library.comm_hooks.post_localSGD_hook, library.torch.ddp.model_averaging
    model.register_comm_hook(hooks.PostLocalSGDState(None, None, warmup, False), hooks.post_localSGD_hook)
    return averaging.PostLocalSGDOptimizer(optimizer, averaging.PeriodicModelAverager(PERIOD, warmup))


def _diloco(library: Library, model: Any, optimizer: Any, warmup: int) -> Any:
    model.register_comm_hook(None, library.comm_hooks.debugging_hooks.noop_hook)

    def outer(params: Any) -> Any:
        made = library.torch.ddp.model_averaging.diloco.nesterov(params)
        made.param_groups[0]["lr"] = OUTER_RATE
        return made

    return library.torch.ddp.model_averaging.DiLoCoOptimizer(optimizer, PERIOD, outer)


WAYS: dict[str, Wrap] = {
    "plain averaging": _plain,
    "float16": _hooked("default_hooks", "fp16_compress_hook"),
    "bfloat16": _hooked("default_hooks", "bf16_compress_hook"),
    "PowerSGD rank 1": _power(1),
    "PowerSGD rank 2": _power(2),
    "PowerSGD rank 4": _power(4),
    "batched PowerSGD rank 1": _power(1, "batched_powerSGD_hook"),
    "8 bits per bucket": _hooked("quantization_hooks", "quantization_pertensor_hook"),
    "8 bits per 512": _hooked("quantization_hooks", "quantization_perchannel_hook"),
    "top 1 %": _hooked("topk_hook", "topk_hook", lambda hooks, warmup: hooks.TopKState(None, 0.01, warmup)),
    "1 bit": _hooked("onebit_hook", "onebit_hook", lambda hooks, warmup: hooks.OneBitState(None, warmup)),
    "local SGD, averaged every 10 steps": _local_sgd,
    "DiLoCo, outer step every 10": _diloco,
}
