"""The program of test_killed_workers_sharded: trains a module that is divided among the workers (ZeRO 2 and 3).

    sharded_worker.py FOLDER STEPS stage=2|3|0 [SITE:RANK:STEP ...]

Kills are those of killed_worker.py; with "node=N" the whole node of rank 0 is lost in step N. All workers compute the
same batch, with gradients of so few bits that their means are exact: so the bits are one worker's.
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
from resilin import dist, elastic, nn, optim, zero
from resilin._base import moments
from resilin.dist import phases

FOLDER, STEPS = base.FOLDER, base.STEPS
STAGE = next(int(word[6:]) for word in sys.argv if word.startswith("stage="))
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
    seen = (FOLDER / str(os.getpid())).open("a")
    base.maybe_die("start", state.step)
    while state.step < STEPS:
        for plan in state.sampler.steps():
            state.optimizer.zero_grad()
            x = np.random.default_rng(state.step).standard_normal((4, 6)).astype(np.float32)
            loss = state.model(resilin.from_numpy(x)).square().mean()
            base.maybe_die("forward", state.step)
            loss.backward()
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


def coarse(grad: resilin.Tensor) -> resilin.Tensor:
    """Sums of these over a few ranks are exact."""
    return resilin.round(grad * 4096) / 4096


whole: dict[str, dict[object, object]] = {}


def main() -> None:
    resilin.manual_seed(3)
    resilin.set_num_threads(1)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3))
    for param in net.parameters():
        param.register_hook(coarse)
    model = zero.shard(net, STAGE, buddies="alone" not in sys.argv) if STAGE else net
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.7)
    sampler = elastic.ElasticSampler(base.SAMPLES, base.BATCH, base.SHARDS, seed=2)
    state = elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler)
    (FOLDER / f"up-{os.getpid()}").touch()
    moments.listen(lambda name: base.maybe_die(f"at-{name}", state.step))
    with phases.listening(lambda phase, what, group: base.maybe_die(f"in-{phase}", state.step)):
        train(state)
    moments.listen(None)
    digest = hashlib.sha256(repr((sampler.state_dict(), scheduler.state_dict())).encode())
    for tree in (whole["model"], *whole["optimizer"].values()):
        for name, value in sorted(tree.items()):  # type: ignore[attr-defined]
            array = value.detach().numpy() if isinstance(value, resilin.Tensor) else np.asarray(value)
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    for name in (f"digest-{elastic.world().rank}", *(["result"] if elastic.world().rank == 0 else [])):
        Path(FOLDER / name).write_text(digest.hexdigest())


if __name__ == "__main__":
    main()
