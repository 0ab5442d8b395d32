"""Trains a small model for ever and notes every commit; somebody else kills workers meanwhile.

One line per event, appended to a file that all workers share:

    enter|action|commit  rank  world_size  generation  pid  step  time.monotonic()

`enter`: a worker begins or resumes training in a generation. `action`: its first of a pipeline there. CLOCK_MONOTONIC
is the same for all processes of a host.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from benchmarks.library import Later, Library, rank, world_size

SAMPLES, FEATURES, CLASSES, BATCH = 4096, 64, 10, 64
MICROBATCHES = 8  # of the pipeline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to note the events, and how to come back."""
    parser.add_argument("--events", required=True, metavar="FILE")
    parser.add_argument("--shards", type=int, default=2, help="the size of the largest world there is work for")
    parser.add_argument("--divided", action="store_true", help="parameters and state are divided (ZeRO stage 3)")
    parser.add_argument("--stages", action="store_true", help="the model is a pipeline of two stages")
    parser.add_argument("--restart", action="store_true", help="be a program that its launcher restarts")


class Notes:
    """The shared file; one `write` per event."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, kind: str, rank: int, world: int, generation: int, step: int) -> None:
        """Note an event that happens now."""
        os.write(self._fd, f"{kind} {rank} {world} {generation} {os.getpid()} {step} {time.monotonic()}\n".encode())


def run(library: Library, args: argparse.Namespace) -> None:
    """In place where the library can, else as a program that its launcher restarts."""
    library.torch.set_num_threads(1)
    library.torch.manual_seed(0)
    notes = Notes(args.events)
    nn = library.torch.nn
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, CLASSES))
    optimizer = library.torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = library.torch.randn(SAMPLES, FEATURES), library.torch.randint(0, CLASSES, (SAMPLES,))
    if args.stages:
        _in_stages(library, notes, x, y)
    elif args.divided:
        _divided(library, notes, args.shards, model, x, y)
    elif library.elastic and not args.restart:
        _in_place(library, notes, args.shards, model, optimizer, x, y)
    else:
        _restarted(library, notes, model, optimizer, x, y)


def _in_place(library: Library, notes: Notes, shards: int, model: Any, optimizer: Any, x: Any, y: Any) -> None:
    elastic, cross_entropy = library.elastic, library.torch.nn.functional.cross_entropy
    sampler = elastic.ElasticSampler(SAMPLES, BATCH * shards, shards=shards)
    state = elastic.State(model=model, optimizer=optimizer, sampler=sampler)

    @elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> None:
        world = elastic.world()
        who = world.rank, world.world_size, world.generation
        notes.add("enter", *who, step=state.sampler.step)
        parallel = library.ddp(state.model, shards=shards)
        while True:
            for plan in state.sampler.steps():
                optimizer.zero_grad()
                for shard in plan.shards:
                    with parallel.shard(shard):
                        cross_entropy(parallel(x[shard.indices]), y[shard.indices]).backward()
                optimizer.step()
                try:
                    state.commit(plan)
                finally:  # a commit that ends by WorldChanged has committed
                    notes.add("commit", *who, step=plan.step)

    train(state)


def _divided(library: Library, notes: Notes, shards: int, model: Any, x: Any, y: Any) -> None:
    elastic, cross_entropy = library.elastic, library.torch.nn.functional.cross_entropy
    sharded = Later("resilin.zero").shard(model, 3)
    optimizer = library.torch.optim.AdamW(sharded.parameters(), lr=1e-3)
    sampler = elastic.ElasticSampler(SAMPLES, BATCH * shards, shards=shards)
    state = elastic.State(model=sharded, optimizer=optimizer, sampler=sampler)

    @elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> None:
        world = elastic.world()
        who = world.rank, world.world_size, world.generation
        notes.add("enter", *who, step=state.sampler.step)
        while True:
            for plan in state.sampler.steps():
                optimizer.zero_grad()
                cross_entropy(sharded(x[plan.indices]), y[plan.indices]).backward()
                optimizer.step()
                try:
                    state.commit(plan)
                finally:  # a commit that ends by WorldChanged has committed
                    notes.add("commit", *who, step=plan.step)

    train(state)


def _in_stages(library: Library, notes: Notes, x: Any, y: Any) -> None:
    elastic, nn, pipelining = library.elastic, library.torch.nn, library.pipelining
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, CLASSES))
    pipe = pipelining.pipeline(model, (), split_spec={"2": pipelining.SplitPoint.BEGINNING})
    stages = pipelining.ElasticPipeline(pipe, MICROBATCHES, nn.functional.cross_entropy)
    optimizer = library.torch.optim.AdamW(stages.parameters(), lr=1e-3)
    sampler = elastic.ElasticSampler(SAMPLES, BATCH * MICROBATCHES)
    state = elastic.State(model=stages, optimizer=optimizer, sampler=sampler)
    fault_points = Later("resilin._base.fault_points")

    @elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> None:
        world = elastic.world()
        who = world.rank, world.world_size, world.generation
        notes.add("enter", *who, step=state.sampler.step)

        def heard(name: str) -> None:
            if name == "pipeline":
                fault_points.listen(None)
                notes.add("action", *who, step=state.sampler.step)

        fault_points.listen(heard)
        while True:
            for plan in state.sampler.steps(stages.replica, stages.replicas):
                optimizer.zero_grad()
                stages.step(x[plan.indices], target=y[plan.indices], return_outputs=False)
                optimizer.step()
                try:
                    state.commit(plan)
                finally:  # a commit that ends by WorldChanged has committed
                    notes.add("commit", *who, step=plan.step)

    train(state)


def _restarted(library: Library, notes: Notes, model: Any, optimizer: Any, x: Any, y: Any) -> None:
    """No checkpoint is written or read, which makes the restart faster than a real one."""
    cross_entropy = library.torch.nn.functional.cross_entropy
    library.dist.init_process_group(library.backend)
    who = rank(), world_size(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    notes.add("enter", *who, step=0)
    parallel = library.ddp(model)
    step = 0
    while True:
        start = (step * world_size() + rank()) * BATCH % SAMPLES
        optimizer.zero_grad()
        cross_entropy(parallel(x[start : start + BATCH]), y[start : start + BATCH]).backward()
        optimizer.step()
        notes.add("commit", *who, step=step)
        step += 1
