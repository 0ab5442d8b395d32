"""slow_worker.py FOLDER: each rank works for a while before each step's sum, rank 1 five times as long as the others.

It leaves the file FOLDER/begun and goes on until there is FOLDER/enough.
"""

import sys
import time
from pathlib import Path

import resilin as rs
from resilin import distributed as dist
from resilin import elastic

WORK_S, TIMES = 0.1, 5  # far from the limit of 1.5, which is blurred where all wait for a processor
FOLDER = Path(sys.argv[1])


@elastic.run
def train(state: elastic.State) -> None:
    end = rs.zeros(1)
    while not end.item():
        time.sleep(WORK_S * (TIMES if elastic.world().rank == 1 else 1))
        end = rs.tensor([float((FOLDER / "enough").exists())])
        dist.all_reduce(end)
        state.commit()
        (FOLDER / "begun").touch()


if __name__ == "__main__":
    train(elastic.State())
