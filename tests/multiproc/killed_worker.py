"""The program of test_killed_workers: trains a small network and kills itself where it is told to.

    killed_worker.py FOLDER STEPS [SITE:RANK:STEP ...]

A kill is SIGKILL to its own process (SIGTERM at the site "term"), once per job: a file in FOLDER remembers it. At the
site "timer" STEP means milliseconds after a generation began. Every process writes what it saw to FOLDER/<pid>: a line
"generation rank step" per committed step. In the end rank 0 writes its digest to FOLDER/result and every rank to
FOLDER/digest-<rank>. The word "plain" turns fixed shards off, "zero" divides the optimizer's state among the workers,
"device" moves the model to a simulated device; with "freeze" the kills are SIGSTOP, and a collective waits for 2 s;
"after:N" delays kills until N workers are up. With "preempt:one" or "preempt:all" a kill is SIGTERM to this worker's
agent, or to those of all workers ("preempt:one:twice": two), but for the site "loss", which is "forward".
Sites that begin with "at-" are moments of `resilin._base.fault_points`, with "in-" phases of
`resilin.distributed.wire.call_phases`.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

import resilin
from resilin import elastic, nn, optim
from resilin._base import fault_points
from resilin.ddp import DistributedDataParallel as DDP
from resilin.distributed.wire import call_phases
from resilin.elastic.worker.session import rank_at_work
from resilin.nn import functional as F
from resilin.zero.optimizer import ZeroRedundancyOptimizer

AGENT = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])  # the spawner's parent
SHARDS, SAMPLES, BATCH = 4, 124, 16
FOLDER, STEPS = Path(sys.argv[1]), int(sys.argv[2])
KILLS = {tuple(word.split(":")) for word in sys.argv[3:] if word.count(":") == 2 and not word.startswith("preempt:")}
UP = next((int(word[6:]) for word in sys.argv[3:] if word.startswith("after:")), 0)
PREEMPT = next((word.split(":")[1:] for word in sys.argv[3:] if word.startswith("preempt:")), [])
PLAIN, FREEZE, ZERO = (word in sys.argv[3:] for word in ("plain", "freeze", "zero"))
WHERE, BACKEND = ("sim:1", "cpu:gloo,sim:gloo") if "device" in sys.argv[3:] else ("cpu", None)
whole_state: dict[int, dict[str, object]] = {}  # of the optimizer, in the end


def maybe_die(site: str, step: int) -> None:
    """Die here if this is the place, and nobody died here before."""
    kill = (site, str(rank_at_work()), str(step))
    if kill not in KILLS:
        return
    while len(list(FOLDER.glob("up-*"))) < UP:
        time.sleep(0.01)  # polls other processes, which cannot tell us
    try:
        (FOLDER / "-".join(("killed", *kill))).touch(exist_ok=False)
    except FileExistsError:
        return
    if PREEMPT and site != "loss":
        agents = [AGENT] if PREEMPT[0] == "one" else [int(file.name[6:]) for file in FOLDER.glob("agent-*")]
        for pause_s in (0.2, 1.0) if "twice" in PREEMPT else (0.0,):  # two signals at one time are one
            for agent in agents:
                os.kill(agent, signal.SIGTERM)
            time.sleep(pause_s)
        return
    os.kill(os.getpid(), signal.SIGTERM if site == "term" else signal.SIGSTOP if FREEZE else signal.SIGKILL)


@elastic.run(timeout=2 if FREEZE else 60, backend=BACKEND)
def train(state: elastic.State) -> None:
    world = elastic.world()
    maybe_die("start", state.step)
    for site, _, milliseconds in KILLS:
        if site == "timer":  # anywhere, native code included
            timer = threading.Timer(int(milliseconds) / 1000, maybe_die, ("timer", int(milliseconds)))
            timer.daemon = True
            timer.start()
    model = DDP(state.model, None if WHERE == "cpu" else [WHERE], shards=None if PLAIN else SHARDS)
    rng = np.random.default_rng(0)
    x = resilin.from_numpy(rng.standard_normal((SAMPLES, 6)).astype(np.float32))
    y = resilin.from_numpy(rng.integers(0, 3, SAMPLES)).to(WHERE)
    hook = model.module.get_submodule("0").weight.register_hook(lambda g: maybe_die("backward", state.step))
    seen = (FOLDER / str(os.getpid())).open("a")
    while state.step < STEPS:
        for plan in state.sampler.steps():
            state.optimizer.zero_grad()
            if PLAIN:
                F.cross_entropy(model(x[plan.indices]), y[plan.indices]).backward()
            for shard in () if PLAIN else plan.shards:
                with model.shard(shard):
                    if len(shard):
                        maybe_die("forward", state.step)
                        maybe_die("loss", state.step)
                        F.cross_entropy(model(x[shard.indices]), y[shard.indices]).backward()
            maybe_die("reduced", state.step)
            state.optimizer.step()
            maybe_die("applied", state.step)
            maybe_die("term", state.step)
            state.scheduler.step()
            try:
                state.commit(plan)
            finally:  # also when a new world takes over at this boundary
                print(world.generation, world.rank, state.step, file=seen, flush=True)
            maybe_die("committed", state.step)
            if PREEMPT and world.world_size > 1 and any(FOLDER.glob("killed-*")):
                time.sleep(0.1)  # else training may be over before a busy agent hears of its signal
            if state.step == STEPS:
                break
    hook.remove()
    maybe_die("done", state.step)
    for rank in range(world.world_size if ZERO else 0):
        state.optimizer.consolidate_state_dict(to=rank)
        if rank == world.rank:
            whole_state.update(state.optimizer.state_dict()["state"])


def main() -> None:
    resilin.manual_seed(3)
    resilin.set_num_threads(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)).to(WHERE)
    optimizer = (
        ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, parameters_as_bucket_view=True, lr=0.01)
        if ZERO
        else optim.AdamW(model.parameters(), lr=0.01)
    )
    scheduler = optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.7)
    sampler = elastic.ElasticSampler(SAMPLES, BATCH, SHARDS, seed=2, drop_last=PLAIN)
    state = elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler)
    (FOLDER / f"agent-{AGENT}").touch()
    (FOLDER / f"up-{os.getpid()}").touch()
    fault_points.listen(lambda name: maybe_die(f"at-{name}", state.step))
    with call_phases.listening(lambda phase, what, group: maybe_die(f"in-{phase}", state.step)):
        train(state)
    fault_points.listen(None)
    digest = hashlib.sha256(repr((sampler.state_dict(), scheduler.state_dict())).encode())
    # as under PyTorch, buffers of plain mode are rank 0's before each forward and each rank's own after it
    values = dict(model.named_parameters()) if PLAIN else model.state_dict()
    for tree in (values, *(whole_state or optimizer.state_dict()["state"]).values()):
        for name, value in sorted(tree.items()):
            array = value.detach().cpu().numpy() if isinstance(value, resilin.Tensor) else np.asarray(value)
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    (FOLDER / f"digest-{elastic.world().rank}").write_text(digest.hexdigest())
    if elastic.world().rank == 0:
        (FOLDER / "result").write_text(digest.hexdigest())


if __name__ == "__main__":
    main()
