"""Kill workers at random moments of random traffic: nothing hangs, errors name the dead, nothing is left of them."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import extent
import pytest
import rpc_killed

from resilin._base.clock import SYSTEM

WORKERS = 3  # enough for a caller, an owner and a third that holds
ANSWER_S = 60.0
HEARD_P95_S = 0.25  # generous: it is about 10 ms where the cores are free

pytestmark = pytest.mark.multiproc


class Process:
    """A worker, or a spare that is to become one."""

    def __init__(self) -> None:
        self._end, theirs = Pipe()
        command = [sys.executable, rpc_killed.__file__, str(theirs.fileno())]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stderr=subprocess.DEVNULL,  # a worker logs every call that fails
            env={**os.environ, "RESILIN_SECRET": "", "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self.pid = self._process.pid

    def tell(self, word: str, *given: Any) -> None:
        """Have it do something."""
        self._end.send((word, given))

    def answer(self) -> Any:
        """What came of it."""
        assert self._end.poll(ANSWER_S), "a worker does not answer"
        done, answer = self._end.recv()
        assert done, answer
        return answer

    def kill(self) -> float:
        """Kill it; return when."""
        at = SYSTEM.monotonic()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        return at

    def close(self) -> None:
        """End it, in whatever state it is."""
        self._end.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Group:
    """Workers 0 to WORKERS - 1, and a spare."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._started: list[Process] = []
        self.workers = [self._start() for _ in range(WORKERS)]
        for id, worker in enumerate(self.workers):
            worker.tell("become", id, self._folder)
        for worker in self.workers:
            worker.answer()
        self._spare = self._start()

    def _start(self) -> Process:
        self._started.append(Process())
        return self._started[-1]

    def all(self, word: str, *given: Any, but: int = -1) -> dict[int, Any]:
        """Have all workers do something at once; what came of it, by their ids."""
        told = {id: worker for id, worker in enumerate(self.workers) if id != but}
        for worker in told.values():
            worker.tell(word, *given)
        return {id: worker.answer() for id, worker in told.items()}

    def pids(self) -> dict[str, int]:
        """The processes of the workers."""
        return {f"worker{id}": worker.pid for id, worker in enumerate(self.workers)}

    def replace(self, id: int) -> None:
        """Let a new process come in the place of a worker."""
        self.workers[id], self._spare = self._spare, self._start()
        self.workers[id].tell("become", id, self._folder)
        self.workers[id].answer()

    def close(self) -> None:
        """End all processes."""
        for process in self._started:
            process.close()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with contextlib.closing(Group(tmp_path_factory.mktemp("kills"))) as group:
        yield group


def killed(group: Group, dice: random.Random, callers: int = 2) -> list[float]:
    """Kill one worker amid the traffic of so many threads of each, and replace it; return how soon the others heard."""
    group.all("begin", WORKERS, callers, dice.randrange(1 << 20))
    SYSTEM.sleep(dice.uniform(0.0, 0.15))
    victim = dice.randrange(WORKERS)
    dead = group.workers[victim]
    at = dead.kill()
    amid = dice.random() < 0.25
    if amid:
        group.replace(victim)  # while the others call it
    else:
        SYSTEM.sleep(dice.uniform(0.0, 0.05))
    told = group.all("stop", f"worker{victim}", but=victim)
    for id, said in told.items():
        assert not said["hung"], said["hung"][0]
        assert not said["wrong"], f"worker {id}, of which {victim} was killed, amid: {amid}: {said['wrong'][0]}"
        for text in said["lost"]:
            named = set(rpc_killed.NAMED.findall(text))
            assert (f"worker{victim}", str(victim), str(dead.pid)) in named, text
        assert set(said["heard"]) == {f"worker{victim}"}, said["heard"]
    if not amid:
        group.replace(victim)
    group.all("reaches", group.pids())
    group.all("let_go")
    for id, left in group.all("left").items():
        assert not left, f"worker {id}, of which {victim} was killed: {left}"
    return [said["heard"][f"worker{victim}"] - at for said in told.values()]


@pytest.mark.parametrize("part", extent.short(range(10), of=[0]))
def test_whoever_is_killed_nothing_hangs_and_nothing_is_left(
    group: Group, turns: Callable[..., int], part: int
) -> None:
    dice = random.Random(70 + part)
    held: dict[int, tuple[int, dict[str, int]]] = {}  # of those that live: their process, and what it held at first
    for turn in range(turns(short=20, full=50)):
        killed(group, dice)
        for id, now in group.all("held").items():
            pid = group.workers[id].pid
            if id not in held or held[id][0] != pid:
                held[id] = pid, now
            for what, count in held[id][1].items():
                assert now[what] <= count + (4 if what == "threads" else 12), (  # their memory grows, too
                    f"worker {id} after {turn} turns: {what} grew from {count} to {now[what]}"
                )


def test_the_others_hear_of_a_death_at_once(group: Group, turns: Callable[..., int]) -> None:
    dice = random.Random(8)
    took = sorted(at for _ in range(turns(short=3, full=50)) for at in killed(group, dice, callers=0))
    p95 = took[int(len(took) * 0.95)]
    print(f"heard of: p50 {took[len(took) // 2] * 1e3:.1f} ms, p95 {p95 * 1e3:.1f} ms of {len(took)}")
    assert p95 < HEARD_P95_S


def test_the_living_hold_nothing_after_their_end(group: Group) -> None:
    killed(group, random.Random(9))
    for id, more in group.all("end").items():
        assert not more, f"worker {id} still holds {more} after its end"
