"""A job to be disturbed: `elastic-run --nproc-per-node 2 -m resilin.testing.chaos_job FOLDER`.

Trains a small network with everything that can go wrong silently (batch norm, dropout, a schedule, optimizer state, a
sampler that crosses epochs) and writes a checkpoint to FOLDER every few steps, from which a job that starts again goes
on. Fixed shards: whatever happens to it, it ends with the same fingerprint. While workers are missing its steps take
longer, so that their replacements, too, have something to do before it ends.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import resilin
import resilin.elastic
import resilin.nn
import resilin.optim
from resilin._base.clock import SYSTEM
from resilin.ddp import DistributedDataParallel
from resilin.errors import UsageError
from resilin.nn import functional as F

SHARDS, SAMPLES, BATCH = 4, 124, 16
STEPS = 60
STEPS_PER_CHECKPOINT = 10
SLOWER = 5  # times, while workers are missing
TIMEOUT_S = 40.0  # the watchdog takes less, 33 s on the way into a world: what only this ends it has not named


def new_state(optimizer_of: Callable[[Any], Any], **named: Any) -> resilin.elastic.State:
    """The state to train: a small network with batch norm and dropout, its optimizer, a schedule, and `named`."""
    resilin.manual_seed(3)
    resilin.set_num_threads(1)
    model = resilin.nn.Sequential(
        resilin.nn.Linear(6, 16),
        resilin.nn.BatchNorm1d(16),
        resilin.nn.ReLU(),
        resilin.nn.Dropout(0.3),
        resilin.nn.Linear(16, 3),
    )
    optimizer = optimizer_of(model.parameters())
    scheduler = resilin.optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.7)
    return resilin.elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, **named)


def samples(count: int) -> tuple[Any, Any]:
    """Inputs of shape (count, 6) in float32 and classes of shape (count,) in int64, always the same."""
    rng = np.random.default_rng(0)
    x = resilin.from_numpy(rng.standard_normal((count, 6)).astype(np.float32))
    return x, resilin.from_numpy(rng.integers(0, 3, count))


def backward(model: DistributedDataParallel, plan: Any, x: Any, y: Any) -> None:
    """The gradients of this worker's shards of a step."""
    for shard in plan.shards:
        with model.shard(shard):
            F.cross_entropy(model(x[shard.indices]), y[shard.indices]).backward()


def save(state: resilin.elastic.State, checkpoint: Path) -> None:
    """Write the checkpoint, on one rank."""
    if resilin.elastic.world().rank == 0:
        resilin.save(state.state_dict(), checkpoint)


def check_saved(steps: int, checkpoint: Path) -> None:
    """UsageError unless the last checkpoint that was due has been written, whatever happened to the world there."""
    due = steps // STEPS_PER_CHECKPOINT * STEPS_PER_CHECKPOINT
    found = resilin.load(checkpoint)["step"] if checkpoint.exists() else 0
    if found != due:
        raise UsageError(f"{checkpoint}: expected the state of step {due}, found that of step {found}")


def train(state: resilin.elastic.State, steps: int, pace_s: float, workers: int, checkpoint: Path) -> None:
    """One generation: from the last commit to `steps`."""
    if resilin.elastic.world().world_size < workers:
        pace_s *= SLOWER
    model = DistributedDataParallel(state.model, shards=SHARDS)
    x, y = samples(SAMPLES)
    state.on_commit(every=STEPS_PER_CHECKPOINT, do=lambda state: save(state, checkpoint))
    while state.step < steps:
        for plan in state.sampler.steps():
            state.optimizer.zero_grad()
            backward(model, plan, x, y)
            SYSTEM.sleep(pace_s)  # a step as long as a real one, at none of its cost
            state.optimizer.step()
            state.scheduler.step()
            state.commit(plan)
            if state.step == steps:
                break


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="resilin.testing.chaos_job", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the checkpoint is")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps to train (default %(default)s)")
    parser.add_argument("--pace", type=float, default=0.02, help="seconds a step takes at least (default %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="as many as there should be (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="of the group (default %(default)g s)")
    args = parser.parse_args()
    sampler = resilin.elastic.ElasticSampler(SAMPLES, BATCH, SHARDS, seed=2)
    state = new_state(lambda parameters: resilin.optim.AdamW(parameters, lr=0.01), sampler=sampler)
    if not args.folder.is_dir():
        raise UsageError(f"{args.folder}: expected a folder for the checkpoint, make it first")
    checkpoint = args.folder / "checkpoint"
    if checkpoint.exists():
        state.load_state_dict(resilin.load(checkpoint))
    resilin.elastic.run(timeout=args.timeout)(train)(state, args.steps, args.pace, args.workers, checkpoint)
    if resilin.elastic.world().rank == 0:
        check_saved(args.steps, checkpoint)
        print(f"state sha256 {state.fingerprint()}", flush=True)


if __name__ == "__main__":
    main()
