"""A worker that makes random traffic among others until it is told to stop, or is killed.

    rpc_killed.py FD          # the other end of a pipe, from which it is told what to do (`Worker`, below)

It meets the others in a group without a size, so that another process can come in the place of one that was killed.
"""

from __future__ import annotations

import gc
import os
import random
import re
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin._base.clock import SYSTEM, Deadline
from resilin.core.machine import memory
from resilin.errors import PeerLost
from resilin.futures import Future

CALL_S = 20.0  # of any call: what takes longer hangs
SETTLE_S = 10.0  # until nothing may be left of a worker that was killed
SIZES = (1, 1, 1000, 1 << 18, 1 << 21)  # elements of float32

_kept: dict[int, Any] = {}
_open: list[Future[Any]] = []
_opened = threading.Lock()


# --- what is called ---


def add(a: Any, b: Any) -> Any:
    return a + b


def made(size: int, value: float) -> Any:
    return torch.full((size,), value)


def first_of(rref: Any) -> float:
    return float(rref.to_here()[0])


def through(to: str, a: int) -> int:
    return int(rpc.rpc_sync(to, add, args=(a, 1)))


def keep(slot: int, rref: Any) -> None:
    _kept[slot] = rref


def kept_first(slot: int) -> float | None:
    rref = _kept.get(slot)
    return None if rref is None else first_of(rref)


@rpc.functions.async_execution
def never() -> Future[Any]:
    """Answer when the traffic stops: who calls it hears of this worker's death by this call."""
    future: Future[Any] = Future()
    with _opened:
        _open.append(future)
    return future


# --- the calls ---


class Traffic:
    """Calls at random. What goes wrong with a call is noted; it is right where it names one that was killed."""

    def __init__(self, me: int, count: int, callers: int, seed: int) -> None:
        self._me, self._count = me, count
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.calls = 0
        self.lost: list[str] = []
        """Texts of the errors of lost workers."""
        self.wrong: list[str] = []
        """What else went wrong."""
        self.heard: dict[str, float] = {}
        """When the death of a worker was heard of, on the clock of all processes here."""
        self._watch()
        self._threads = [threading.Thread(target=self._run, args=(seed * 100 + n,)) for n in range(callers)]
        for thread in self._threads:
            thread.start()

    def _watch(self) -> None:
        for id in range(self._count):
            if id != self._me:
                name = f"worker{id}"
                rpc.rpc_async(name, never, timeout=0).when_done(
                    lambda done, name=name: (
                        self.heard.setdefault(name, SYSTEM.monotonic()) if done.exception() is not None else None
                    )
                )

    def _run(self, seed: int) -> None:
        dice = random.Random(seed)
        ways = (self._sync, self._tensor, self._many, self._remote, self._forward, self._hold, self._held, self._nested)
        while not self._stop.is_set():
            to, other = (f"worker{dice.randrange(self._count)}" for _ in range(2))
            way = dice.choice(ways)
            begun = SYSTEM.monotonic()
            try:
                way(dice, to, other)
            except PeerLost as error:
                with self._lock:
                    self.lost.append(str(error))
            except BaseException:  # noqa: BLE001 - all that a call can do wrong: told
                with self._lock:
                    took = SYSTEM.monotonic() - begun
                    self.wrong.append(f"{way.__name__} {to} {other} after {took:.3f} s: {traceback.format_exc()}")
            self.calls += 1

    def _sync(self, dice: random.Random, to: str, other: str) -> None:
        assert rpc.rpc_sync(to, add, args=(2, 3)) == 5

    def _tensor(self, dice: random.Random, to: str, other: str) -> None:
        size, value = dice.choice(SIZES), float(dice.randrange(100))
        got = rpc.rpc_sync(to, add, args=(torch.full((size,), value), 1.0))
        assert got.shape == (size,)
        assert float(got[0]) == float(got[-1]) == value + 1.0

    def _many(self, dice: random.Random, to: str, other: str) -> None:
        futures = [rpc.rpc_async(name, add, args=(n, 1)) for n in range(20) for name in (to, other)]
        errors = []
        for n, future in enumerate(futures):
            try:
                assert future.wait() == n // 2 + 1
            except PeerLost as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _remote(self, dice: random.Random, to: str, other: str) -> None:
        size, value = dice.choice(SIZES), float(dice.randrange(100))
        assert float(rpc.remote(to, made, args=(size, value)).to_here()[-1]) == value

    def _forward(self, dice: random.Random, to: str, other: str) -> None:
        value = float(dice.randrange(100))
        rref = rpc.remote(to, made, args=(dice.choice(SIZES), value))
        assert rpc.rpc_sync(other, first_of, args=(rref,)) == value

    def _hold(self, dice: random.Random, to: str, other: str) -> None:
        slot = dice.randrange(8)
        rpc.rpc_sync(other, keep, args=(slot, rpc.remote(to, made, args=(1000, float(slot)))))

    def _held(self, dice: random.Random, to: str, other: str) -> None:
        slot = dice.randrange(8)
        assert rpc.rpc_sync(to, kept_first, args=(slot,)) in (None, float(slot))

    def _nested(self, dice: random.Random, to: str, other: str) -> None:
        assert rpc.rpc_sync(to, through, args=(other, 4)) == 5

    def stop(self) -> list[str]:
        """End the threads; return the stacks of those that do not end."""
        self._stop.set()
        deadline = Deadline(CALL_S + 5.0)
        for thread in self._threads:
            thread.join(deadline.left())
        frames = sys._current_frames()
        return [
            "".join(traceback.format_stack(frames[thread.ident or 0])) for thread in self._threads if thread.is_alive()
        ]


# --- what a worker is told to do ---


def _counts() -> dict[str, int]:
    """What must be 0 where nothing is under way and nobody holds anything."""
    agent = rpc._get_current_rpc_agent()
    shown = {name: int(text) for name, text in rpc._get_debug_info().items()}
    del shown["agent.num_worker_threads"]
    return {**shown, "users": len(agent.rrefs._users), "callers": agent._blocking.waiting}


def _target(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:  # of the listing itself
        return ""


def _held_by_process() -> dict[str, int]:
    """What must not grow."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    links = [_target(number) for number in os.listdir("/proc/self/fd")]
    arenas = sum("memfd:resilin-arena" in link for link in links)
    pools = sum(thread.name.startswith(("resilin-rpc-call-", "resilin-rpc-reply-")) for thread in threading.enumerate())
    return {
        "descriptors": len(links) - arenas - sum(link.endswith("/pagemap") for link in links),  # one, once for all
        "arenas of others": arenas - memory.stats()["arenas"],
        "threads": len(os.listdir("/proc/self/task")) - pools,  # those come with the load, and are bounded
        "mappings of queues": sum("memfd:" in line and "rpc" in line for line in maps),
    }


class Worker:
    """Does what it is told, each word by the method of that name."""

    def __init__(self) -> None:
        self._id = -1
        self._traffic: Traffic | None = None
        self._before: dict[str, int] = {}

    def become(self, id: int, folder: str) -> int:
        """Join the group."""
        self._id = id
        self._before = _held_by_process()
        options = rpc.TensorPipeRpcBackendOptions(
            init_method=f"file://{folder}/store", rpc_timeout=CALL_S, num_worker_threads=32
        )
        rpc.init_rpc(f"worker{id}", rank=id, rpc_backend_options=options)
        return os.getpid()

    def reaches(self, pids: dict[str, int]) -> list[str]:
        """Call all others; return which are not the processes that they should be."""
        wrong = []
        for name, pid in pids.items():
            found = rpc.rpc_sync(name, os.getpid)
            if found != pid:
                wrong.append(f"{name} is {found}, not {pid}")
        return wrong

    def begin(self, count: int, callers: int, seed: int) -> None:
        """Begin the traffic, of so many threads; there is none without."""
        self._traffic = Traffic(self._id, count, callers, seed)

    def stop(self, dead: str) -> dict[str, Any]:
        """End the traffic, once it is known that one is dead; return what came of it."""
        traffic = self._traffic
        assert traffic is not None
        deadline = Deadline(SETTLE_S)
        while dead not in traffic.heard and not deadline.passed():
            SYSTEM.sleep(0.001)
        hung = traffic.stop()
        return {
            "calls": traffic.calls, "lost": traffic.lost, "wrong": traffic.wrong, "hung": hung, "heard": traffic.heard
        }  # fmt: skip

    def let_go(self) -> None:
        """Hold nothing any more."""
        self._traffic = None
        _kept.clear()
        with _opened:
            for future in _open:
                future.set_result(None)
            _open.clear()
        gc.collect()

    def left(self) -> dict[str, int]:
        """Return what is left of calls and references, which must be nothing."""
        deadline = Deadline(SETTLE_S)
        while any(_counts().values()) and not deadline.passed():
            SYSTEM.sleep(0.002)
        return {name: count for name, count in _counts().items() if count}

    def held(self) -> dict[str, int]:
        """Return what this process holds."""
        return _held_by_process()

    def end(self) -> dict[str, str]:
        """Leave the group; return what this process holds more than before it came."""
        rpc.shutdown()
        deadline = Deadline(SETTLE_S)
        while True:
            now = _held_by_process()
            more = {what: f"{self._before[what]} -> {now[what]}" for what in now if now[what] > self._before[what]}
            if not more or deadline.passed():
                return more
            SYSTEM.sleep(0.01)


def main() -> None:
    """Do what is asked for, until nobody can ask any more."""
    end, worker = Connection(int(sys.argv[1])), Worker()
    gc.freeze()  # what was imported need not be looked through after each turn
    with suppress(EOFError, OSError):
        while True:
            word, given = end.recv()
            method: Callable[..., Any] = getattr(worker, word)
            try:
                end.send((True, method(*given)))
            except Exception:  # noqa: BLE001 - told to the test
                end.send((False, traceback.format_exc()))


NAMED = re.compile(r"worker '(\w+)' \(id (\d+), host [\w.:-]+, pid (\d+)\)")

if __name__ == "__main__":
    import rpc_killed  # by whose name its functions travel

    rpc_killed.main()
