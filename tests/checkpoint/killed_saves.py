"""killed_saves.py FOLDER WORLD_SIZE VICTIM: saves in which rank VICTIM kills itself at call 0, 1, 2, ... of the disk.

One line per save: where, how the victim ended, what the other rank raised.
"""

import os
import signal
import sys
from pathlib import Path

from tripping import TrippedOs

import resilin
from resilin import checkpoint
from resilin.checkpoint import local
from resilin.errors import ResilinError
from resilin.testing.ranks import join_from_environment


def state(value):
    return {"big": resilin.full((300, 300), float(value)), "n": value, "small": resilin.full((3,), float(value))}


def rank_main(path, at, rank, world_size, victim):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "TEST_INIT_METHOD": f"file://{path}.meeting"}
    if world_size > 1:
        join_from_environment(timeout_s=10)
    tripped = TrippedOs(at, lambda: os.kill(os.getpid(), signal.SIGKILL))
    local.os = tripped
    if rank == victim:
        tripped.watch()
    try:
        checkpoint.save(path, state(2), step=2)
    except ResilinError as error:
        Path(f"{path}.{rank}").write_text(type(error).__name__)
    return 0


def main(folder, world_size, victim):
    for at in range(200):
        path = f"{folder}/{at}"
        checkpoint.save(path, state(1), step=1)
        children = []
        for rank in range(world_size):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    code = rank_main(path, at, rank, world_size, victim)
                finally:
                    os._exit(code)
            children.append(pid)
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        if ended[victim] == 0:
            return
        others = [Path(f"{path}.{rank}") for rank in range(world_size) if rank != victim]
        told = [name.read_text() if name.exists() else "nothing" for name in others]
        print(path, ended[victim], *(told or ["none"]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
