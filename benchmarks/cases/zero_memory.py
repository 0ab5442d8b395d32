"""Counts the bytes that a rank ever holds at most in training, with its state divided or not.

D width, L layers
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from benchmarks.library import Library, rank, world_size
from resilin import zero
from resilin.core.machine import memory

WIDTH, LAYERS, ROWS = 400, 8, 2  # few rows: activations are next to nothing
STATES = 4  # of each parameter: itself, its gradient, and AdamW's two means
STEPS = 4
SHARDS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is divided."""
    parser.add_argument("--way", choices=WAYS, required=True)


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """The most bytes on any rank, and what the parameters and the largest units take."""
    torch = library.torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    library.dist.init_process_group(library.backend)
    x = torch.randn(ROWS, WIDTH)
    before = memory.stats()["allocated"]
    model = torch.nn.Sequential(*(_block(torch) for _ in range(LAYERS)))
    sizes = [sum(param.numel() * param.element_size() for param in block.parameters()) for block in model]
    wrapped = WAYS[args.way](library, model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-4)
    sampler = library.elastic.ElasticSampler(STEPS * SHARDS, SHARDS, SHARDS, in_rounds=True)
    for plan in sampler.steps(rank(), world_size()):
        optimizer.zero_grad()
        for block in map(wrapped.shard, plan.shards) if "shards" in args.way else [nullcontext()]:
            with block:
                (wrapped(x) ** 2).mean().backward()
        optimizer.step()
    held = torch.zeros(world_size(), dtype=torch.float64)
    held[rank()] = float(memory.stats()["peak"] - before)
    library.dist.all_reduce(held)
    library.dist.destroy_process_group()
    return {"peak_bytes": max(held.tolist()), "parameter_bytes": sum(sizes), "unit_bytes": sorted(sizes)[-2:]}


def _block(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, 3 * WIDTH),
        nn.Linear(3 * WIDTH, WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, 3 * WIDTH),
        nn.Linear(3 * WIDTH, WIDTH),
    )


def _undivided(library: Library, model: Any) -> Any:
    return library.ddp(model)


def _stage_2(library: Library, model: Any, shards: int | None = None) -> Any:
    return zero.shard(model, stage=2, bucket_cap_mb=4, shards=shards)


def _stage_3(library: Library, model: Any, shards: int | None = None) -> Any:
    return zero.shard(model, stage=3, units=list(model), shards=shards)


WAYS: dict[str, Callable[[Library, Any], Any]] = {
    "undivided": _undivided,
    "stage 2": _stage_2,
    "stage 3": _stage_3,
    f"stage 2, {SHARDS} shards": partial(_stage_2, shards=SHARDS),
    f"stage 3, {SHARDS} shards": partial(_stage_3, shards=SHARDS),
}
