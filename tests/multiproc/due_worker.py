"""The program of test_killed_at_due_commits: the short loop, whose loader fetches ahead, with work due at commits.

    due_worker.py FOLDER STAGE [SITE:RANK:STEP:HOW ...]

STAGE: of zero.shard, 0 for DistributedDataParallel. HOW is "kill" (SIGKILL to its own process) or "leave" (SIGTERM);
each strikes once, a file in FOLDER remembers it. Every EVERY commits all ranks save a checkpoint behind training, and
write FOLDER/due-STEP-GENERATION-RANK-SIZE when it is on its way. In the end every rank writes its digest to
FOLDER/digest-RANK.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import resilin
from resilin import checkpoint, elastic, nn, optim, zero
from resilin.data import DataLoader, TensorDataset
from resilin.ddp import DistributedDataParallel as DDP
from resilin.nn import functional as F

SHARDS, SAMPLES, BATCH, EPOCHS, EVERY = 6, 45, 12, 4, 4  # 4 steps an epoch, the last of 9 samples
FOLDER, STAGE = Path(sys.argv[1]), int(sys.argv[2])
FAULTS = [tuple(fault.split(":")) for fault in sys.argv[3:]]


def at(site: str, step: int) -> None:
    """Do here what was asked for, if it did not happen before."""
    for where, rank, when, how in FAULTS:
        if (where, int(rank), int(when)) != (site, elastic.world().rank, step):
            continue
        try:
            (FOLDER / f"struck-{where}-{rank}-{when}").touch(exist_ok=False)
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGTERM)


def wait_for_victims(step: int) -> None:
    """Let replacements catch up while one that is to be killed later has not come back, or nobody would survive it."""
    size = elastic.world().world_size
    needed = [max(2, int(rank) + 1) for _, rank, when, how in FAULTS if how == "kill" and int(when) >= step]
    if size < max(needed, default=0):
        time.sleep(1.0)


def save(state: elastic.State) -> None:
    """The work that is due."""
    at("due", state.step)
    checkpoint.save_async(FOLDER / "saved", {"state": state}, step=state.step)
    at("saving", state.step)
    world = elastic.world()
    (FOLDER / f"due-{state.step}-{world.generation}-{world.rank}-{world.world_size}").touch()


def main() -> None:
    resilin.set_num_threads(1)
    resilin.manual_seed(3)
    net: Any = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    if STAGE:
        net = zero.shard(net, stage=STAGE, shards=SHARDS)
    optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    rng = np.random.default_rng(0)
    x = resilin.from_numpy(rng.standard_normal((SAMPLES, 6)).astype(np.float32))
    data = TensorDataset(x, resilin.from_numpy(rng.integers(0, 3, SAMPLES)))
    sampler = elastic.ElasticSampler(SAMPLES, BATCH, SHARDS, seed=2, in_rounds=bool(STAGE))
    loader = DataLoader(data, batch_sampler=sampler, num_workers=1)
    state = elastic.State(model=net, optimizer=optimizer, loader=loader)

    @elastic.run(timeout=60, state=state)
    def train() -> None:
        model = net if STAGE else DDP(net, shards=SHARDS)
        state.on_commit(every=EVERY, do=save)
        for step in elastic.steps(loader, epochs=EPOCHS):
            wait_for_victims(step.step)
            optimizer.zero_grad()
            for inputs, labels in step:
                at("forward", step.step)
                F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            at("applied", step.step)
        (FOLDER / f"digest-{elastic.world().rank}").write_text(state.fingerprint())

    train()


if __name__ == "__main__":
    main()
