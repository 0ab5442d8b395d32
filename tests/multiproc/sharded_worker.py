"""The program of test_killed_workers_sharded: trains a module that is divided among the workers (ZeRO 2 and 3).

    sharded_worker.py FOLDER STEPS stage=2|3|0 [shards] [SITE:RANK:STEP ...]

Kills are those of killed_worker.py, and "between", two shards of a step; with "node=N" the whole node of rank 0 is lost
in step N. All workers compute the same batch, with gradients of so few bits that their means are exact: so the bits are
one worker's. With "shards" they are without that: the batch is cut in fixed shards, with dropout and batch norm, and
stage 0 is DistributedDataParallel.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import killed_worker as base
import numpy as np

import resilin
from resilin import distributed as dist
from resilin import elastic, nn, optim, zero
from resilin._base import fault_points
from resilin.data import StepPlan
from resilin.ddp import DistributedDataParallel as DDP
from resilin.distributed.wire import call_phases

FOLDER, STEPS = base.FOLDER, base.STEPS
STAGE = next(int(word[6:]) for word in sys.argv if word.startswith("stage="))
FIXED = "shards" in sys.argv
BATCH = 20 if FIXED else base.BATCH  # of 124 samples: the epoch's last step has shards without samples
NODE = next((int(word[5:]) for word in sys.argv if word.startswith("node=")), None)  # the step at which rank 0's dies


def maybe_lose_the_node(step: int) -> None:
    """SIGKILL for everything on the node of rank 0, this process included, once."""
    if step != NODE or elastic.world().rank:
        return
    try:
        (FOLDER / "killed-node").touch(exist_ok=False)
    except FileExistsError:
        return
    here = [int(file.name.rpartition("-")[2]) for file in FOLDER.glob(f"member-{base.AGENT}-*")]
    doomed = [base.AGENT, os.getppid(), *(pid for pid in here if pid != os.getpid()), os.getpid()]
    for pid in doomed:  # the agent first: it tells nobody
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@elastic.run(timeout=60)
def train(state: elastic.State) -> None:
    world = elastic.world()
    (FOLDER / f"member-{base.AGENT}-{os.getpid()}").touch()
    if isinstance(state.model, zero.ShardedModule) and world.world_size == 4 and NODE is not None:
        nodes = dist.default_group().topology.hosts()
        seats = state.model.reconfigurable.seats()
        assert all((rank in nodes[0]) != (seats[2][rank] in nodes[0]) for rank in range(4)), (nodes, seats)
        (FOLDER / "buddies-elsewhere").touch()
    with (FOLDER / f"began-{os.getpid()}").open("a") as began:
        print(world.generation, state.step, file=began)
    seen = (FOLDER / str(os.getpid())).open("a")
    base.maybe_die("start", state.step)
    model = state.model if STAGE or not FIXED else DDP(state.model, shards=base.SHARDS)
    while state.step < STEPS:
        for plan in state.sampler.steps():
            state.optimizer.zero_grad()
            compute(model, plan, state.step)
            base.maybe_die("reduced", state.step)
            state.optimizer.step()
            base.maybe_die("applied", state.step)
            maybe_lose_the_node(state.step)
            base.maybe_die("term", state.step)
            state.scheduler.step()
            try:
                state.commit(plan)
            finally:  # also when a new world takes over at this boundary
                print(world.generation, world.rank, state.step, file=seen, flush=True)
            base.maybe_die("committed", state.step)
            if state.step == STEPS:
                break
    base.maybe_die("done", state.step)
    whole.update(model=state.model.state_dict())
    sharded = zero.OptimizerState(state.model, state.optimizer) if STAGE else state.optimizer
    whole.update(optimizer=sharded.state_dict()["state"])


def compute(model: nn.Module, plan: StepPlan, step: int) -> None:
    """Forward and backward of one step."""
    if not FIXED:
        x = np.random.default_rng(step).standard_normal((4, 6)).astype(np.float32)
        loss = model(resilin.from_numpy(x)).square().mean()
        base.maybe_die("forward", step)
        loss.backward()
        return
    x = np.random.default_rng(0).standard_normal((base.SAMPLES, 6)).astype(np.float32)
    for shard in plan.shards:
        with model.shard(shard):
            if len(shard):
                loss = model(resilin.from_numpy(x[shard.indices])).square().mean()
                base.maybe_die("forward", step)
                loss.backward()
        base.maybe_die("between", step)


def coarse(grad: resilin.Tensor) -> resilin.Tensor:
    """Sums of these over a few ranks are exact."""
    return resilin.round(grad * 4096) / 4096


whole: dict[str, dict[object, object]] = {}


def main() -> None:
    resilin.manual_seed(3)
    resilin.set_num_threads(1)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3))
    if FIXED:
        net.insert(3, nn.Dropout(0.3))
    for param in () if FIXED else net.parameters():
        param.register_hook(coarse)
    fixed = base.SHARDS if FIXED else None
    model = zero.shard(net, STAGE, buddies="alone" not in sys.argv, shards=fixed) if STAGE else net
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.7)
    in_rounds = FIXED and STAGE > 0
    sampler = elastic.ElasticSampler(base.SAMPLES, BATCH, base.SHARDS, seed=2, in_rounds=in_rounds)
    state = elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler)
    (FOLDER / f"up-{os.getpid()}").touch()
    fault_points.listen(lambda name: base.maybe_die(f"at-{name}", state.step))
    with call_phases.listening(lambda phase, what, group: base.maybe_die(f"in-{phase}", state.step)):
        train(state)
    fault_points.listen(None)
    digest = hashlib.sha256(repr((sampler.state_dict(), scheduler.state_dict())).encode())
    for tree in (whole["model"], *whole["optimizer"].values()):
        for name, value in sorted(tree.items()):  # type: ignore[attr-defined]
            array = value.detach().numpy() if isinstance(value, resilin.Tensor) else np.asarray(value)
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    for name in (f"digest-{elastic.world().rank}", *(["result"] if elastic.world().rank == 0 else [])):
        Path(FOLDER / name).write_text(digest.hexdigest())


if __name__ == "__main__":
    main()
