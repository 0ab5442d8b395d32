"""One rank of a pipeline as a process: says when it is in the pipeline, and kills itself at an action."""

import os
import signal

from pipelined import make_schedule

import resilin.distributed as dist
from resilin._base import env, fault_points
from resilin.errors import PeerLost
from resilin.testing.ranks import join_from_environment


def main() -> None:
    schedule, victim, action = env.require("KILL", "the test sets it").split(":")
    group = join_from_environment()
    rank = dist.get_rank()
    plan, _stages, batch = make_schedule("gpt", schedule, group.size(), rank, 4)
    x, y = batch()
    plan.step(x, target=y)
    left = [int(action)]

    def heard(name: str) -> None:
        if name == "pipeline" and rank == int(victim):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    fault_points.listen(heard)
    try:
        plan.step(x, target=y)
        dist.barrier()  # whose last messages were small has not waited for the other one: it hears here
    except PeerLost as error:
        print("lost", sorted(error.ranks), flush=True)
        return
    print("done", flush=True)


main()
