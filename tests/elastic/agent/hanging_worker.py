"""A program in which one rank stops making progress, once.

    hanging_worker.py HOW MARK [plain]

At step AT rank 1 leaves the file MARK and, as HOW says, is stopped, waits for a lock that it holds, has a thread that
keeps the interpreter's lock, or runs in a circle; `noise`: it waits for a lock, with a thread that writes a line now
and then; `work`: it computes for a while and goes on; `skip`: it leaves out a collective and waits elsewhere; `pause`:
rank 0 announces a pause and makes it. `early`: it is stopped at step EARLY already; `soon`: it waits for a lock, at a
step that comes a moment after the first one; `everybody`: every rank waits for a lock of its own; `inside`: it waits
for a lock in the handler of a signal that comes while it is inside a collective. With `plain` there is no
`@elastic.run`.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

import resilin as rs
from resilin import distributed as dist
from resilin import elastic

EARLY, STEPS, FOREVER_S = 1, 40, 1000
HOW, MARK, PLAIN = sys.argv[1], Path(sys.argv[2]), "plain" in sys.argv
AT = EARLY if HOW == "early" else 20


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


early = stop


def lock() -> None:
    mine = threading.Lock()
    mine.acquire()
    mine.acquire()


soon = everybody = lock


def inside() -> None:
    signal.signal(signal.SIGALRM, lambda *_: lock())
    signal.setitimer(signal.ITIMER_REAL, 0.5)


def noise() -> None:
    def live() -> None:
        while True:
            Path("/dev/null").write_text("alive\n")
            time.sleep(0.05)

    threading.Thread(target=live, daemon=True).start()
    lock()


def gil() -> None:
    threading.Thread(target=lambda: ctypes.PyDLL(None).sleep(FOREVER_S), daemon=True).start()
    while True:
        time.sleep(0.001)


def circle() -> None:
    while True:
        pass


def work() -> None:
    end = time.monotonic() + 6
    while time.monotonic() < end:
        sum(range(30_000))
        sorted(range(30_000))
        max(range(30_000))


def skip() -> None:
    time.sleep(FOREVER_S)


def pause() -> None:
    with elastic.long_pause("evaluation", at_most=60):
        time.sleep(4)


def step(number: int, rank: int, total: rs.Tensor) -> None:
    mark = MARK.with_name(f"{MARK.name}-{rank}") if HOW == "everybody" else MARK
    if number == AT and (rank == int(HOW != "pause") or HOW == "everybody") and not mark.exists():
        mark.touch()
        globals()[HOW]()
    elif number == AT and HOW == "inside":
        time.sleep(1.5)  # until the signal has come there
    dist.all_reduce(total)
    time.sleep(0.01)


@elastic.run
def train(state: elastic.State) -> None:
    total = rs.ones(8)
    while state.step < STEPS:
        step(state.step, elastic.world().rank, total)
        state.commit()


def train_plain() -> None:
    dist.init_process_group()
    total = rs.ones(8)
    for number in range(STEPS):
        step(number, dist.get_rank(), total)
        if HOW != "soon":
            time.sleep(0.1)  # an agent that looks now and then is to see several steps


if __name__ == "__main__":
    if PLAIN:
        train_plain()
    else:
        train(elastic.State(total=rs.tensor([0.0])))
    print("trained", flush=True)
