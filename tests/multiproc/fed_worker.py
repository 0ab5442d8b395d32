"""The program of test_fed_workers: everything that a training loop may have, fed by a loader that fetches ahead.

    fed_worker.py FOLDER [SITE:RANK:STEP:HOW ...]

HOW is "kill" (SIGKILL to its own process) or "raise" (an exception, which ends a job that may not restart); each
strikes once, a file in FOLDER remembers it. Rank 0 saves the state at every commit to FOLDER/saved; a new job goes on
from there. In the end every rank writes its digest to FOLDER/digest-RANK.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

import resilin
from resilin import elastic, nn, optim
from resilin.data import DataLoader, ShardBatches, TensorDataset
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import ShardSums
from resilin.nn import functional as F
from resilin.optim import swa_utils

SHARDS, SAMPLES, BATCH, EPOCHS = 6, 45, 12, 4  # 4 steps an epoch, the last of 9 samples
FOLDER = Path(sys.argv[1])
FAULTS = [tuple(fault.split(":")) for fault in sys.argv[2:]]


def at(site: str, step: int) -> None:
    """End here if that was asked for, and did not happen before."""
    for where, rank, when, how in FAULTS:
        if (where, int(rank), int(when)) != (site, elastic.world().rank, step):
            continue
        try:
            (FOLDER / f"struck-{where}-{rank}-{when}").touch(exist_ok=False)
        except FileExistsError:
            continue
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError(f"told to stop {site} step {step}")


def save(state: elastic.State) -> None:
    """Keep the state on disk, whole at any moment."""
    resilin.save(state.state_dict(), FOLDER / "saving")
    (FOLDER / "saving").replace(FOLDER / "saved")


@elastic.run(timeout=60)
def train(state: elastic.State) -> None:
    model = DDP(state.model, shards=SHARDS)
    sums = ShardSums("loss", "correct", shards=SHARDS)
    rng = np.random.default_rng(0)
    x = resilin.from_numpy(rng.standard_normal((SAMPLES, 6)).astype(np.float32))
    data = TensorDataset(x, resilin.from_numpy(rng.integers(0, 3, SAMPLES)))
    loader = DataLoader(data, batch_sampler=ShardBatches(state.sampler), num_workers=1)
    while state.sampler.epoch < EPOCHS:
        batches = iter(loader)
        for plan in state.sampler.steps():
            for shard in plan.shards:
                with model.shard(shard):
                    if len(shard):
                        inputs, labels = next(batches)
                        at("forward", state.step)
                        out = model(inputs)
                        loss = F.cross_entropy(out, labels)
                        loss.backward()
                        sums.add(shard, loss=loss * len(shard), correct=(out.argmax(1) == labels).sum())
            at("reduced", state.step)
            totals = sums.reduce()
            nn.utils.clip_grad_norm_(state.model.parameters(), 1.0)
            state.optimizer.step()
            at("applied", state.step)
            state.optimizer.zero_grad()
            state.ema.update_parameters(state.model)
            state.losses.append(totals["loss"] / plan.size)
            state.correct += totals["correct"]
            state.noise += resilin.rand(1).item()
            if plan.ends_epoch:
                state.scheduler.step()
            try:
                state.commit(plan)
            finally:  # also when a new world takes over at this boundary
                if elastic.world().rank == 0:
                    save(state)
                at("committed", state.step)


def main() -> None:
    resilin.set_num_threads(1)
    resilin.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    state = elastic.State(
        model=model,
        optimizer=optimizer,
        scheduler=optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
        ema=swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.8)),
        sampler=elastic.ElasticSampler(SAMPLES, BATCH, SHARDS, seed=2),
        losses=[],
        correct=0.0,
        noise=0.0,
    )
    if (FOLDER / "saved").exists():
        state.load_state_dict(resilin.load(FOLDER / "saved"))
    train(state)
    (FOLDER / f"digest-{elastic.world().rank}").write_text(state.fingerprint())


if __name__ == "__main__":
    main()
