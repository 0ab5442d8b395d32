"""The program of test_save_elastic: trains, goes on from the newest checkpoint, and saves behind training.

    resumed_worker.py FOLDER STEPS plain|zero [SIGNAL:STEP]

After that step rank 0 sends the signal (KILL, TERM) to the agent, once. The end's fingerprint goes to FOLDER/result.
"""

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

from resilin import checkpoint, elastic, optim
from resilin.checkpoint.local import LocalStorage
from resilin.ddp import DistributedDataParallel as DDP
from resilin.testing.chaos_job import backward, new_state, samples
from resilin.zero import ZeroRedundancyOptimizer

AGENT = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])  # the spawner's parent
SHARDS, SAMPLES, BATCH, EVERY = 4, 96, 16, 4
FOLDER, STEPS, KIND = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
SIGNAL, AT = sys.argv[4].split(":") if len(sys.argv) > 4 else ("", "-1")


class Slow(LocalStorage):
    """A disk on which each file takes a while: what is being written when the end comes is far from done."""

    def writing(self, name):
        threading.Event().wait(0.15)
        return super().writing(name)


@elastic.run(timeout=30)
def train(state):
    world = elastic.world()
    path = Slow(FOLDER / "run")
    if state.step == 0 and checkpoint.latest(path):
        loaded = checkpoint.load(path, state)
        (FOLDER / f"resumed-{world.rank}").write_text(str(loaded.step))
    model = DDP(state.model, shards=SHARDS)
    x, y = samples(SAMPLES)
    while state.step < STEPS:
        for plan in state.sampler.steps():
            state.optimizer.zero_grad()
            backward(model, plan, x, y)
            state.optimizer.step()
            state.best = state.step
            state.commit(plan)
            if state.step % EVERY == 0:
                checkpoint.save_async(path, state, step=state.step, keep_last=2)
            if state.step == int(AT) and world.rank == 0 and not (FOLDER / "struck").exists():
                (FOLDER / "struck").touch()
                os.kill(AGENT, getattr(signal, f"SIG{SIGNAL}"))
            if state.step == STEPS:
                break
    fingerprint = state.fingerprint()
    (FOLDER / f"result-{world.rank}").write_text(fingerprint)


def main():
    kind = partial(ZeroRedundancyOptimizer, optimizer_class=optim.AdamW) if KIND == "zero" else optim.AdamW
    sampler = elastic.ElasticSampler(SAMPLES, BATCH, SHARDS, seed=2)
    train(new_state(partial(kind, lr=0.01), sampler=sampler, best=0))


if __name__ == "__main__":
    main()
