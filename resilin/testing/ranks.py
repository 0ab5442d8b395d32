"""Ranks for tests: as threads of this process with one group, or as real processes.

outcome = run_ranks(3, step, 5)          # step(rank, 5) on three threads; dist.get_rank() works in each
outcome.values, outcome.errors           # by rank
outcome.results()                        # the values, or the first error raised here
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from resilin._base import env
from resilin._base.threads import OwnedThread
from resilin.core import rng
from resilin.core.machine import memory
from resilin.distributed.backends.registry import BackendConfig
from resilin.distributed.connections.listener import Endpoint, Listener
from resilin.distributed.group.default_group import set_default_group, use_group
from resilin.distributed.group.process_group import ProcessGroup, connect
from resilin.distributed.stores import FileStore
from resilin.errors import UsageError
from resilin.testing.faults import FaultPlan, Killed
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S

TRANSPORTS = ("shm", "unix", "tcp", "hosts")


@dataclass
class Outcome:
    """What each rank returned or raised."""

    values: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)

    def results(self) -> list[Any]:
        """The values in rank order; raises the error that came first in time."""
        for error in self.errors.values():
            raise error
        return [self.values[rank] for rank in sorted(self.values)]


def listener(transport: str = "shm", rank: int = 0, secret: str | None = None) -> Listener:
    """A listener that keeps its groups to one transport: shared memory, Unix streams, or TCP on loopback.

    "hosts" pretends that ranks 0 and 1, 2 and 3, ... are on hosts of their own: shared memory inside, TCP between.
    """
    if transport not in TRANSPORTS:
        raise UsageError(f"transport {transport!r}: expected one of {TRANSPORTS}")
    made = Listener(unix=transport != "tcp", shm=transport in ("shm", "hosts"), secret=secret)
    if transport == "hosts":
        made.endpoint = replace(made.endpoint, host=f"{made.endpoint.host}-{rank // 2}")
    return made


def run_ranks(
    count: int,
    fn: Callable[..., Any],
    *args: Any,
    transport: str = "shm",
    timeout_s: float = 20.0,
    group_name: str = "test",
    abort: bool = True,
    faults: FaultPlan | None = None,
    backend: str | Callable[[int], str] | None = None,
    told: Callable[[int, Endpoint], Endpoint] = lambda rank, endpoint: endpoint,
    **kwargs: Any,
) -> Outcome:
    """Call `fn(rank, *args, **kwargs)` on `count` threads that form one group, each thread's default group.

    Each draws random numbers on its own, as a process would, from where this thread's stream stands.
    `timeout_s` is the limit of every collective. A rank that raises aborts the group, so that the others do not wait
    for it; `abort=False` leaves them to their own errors. Groups and listeners are closed afterwards.
    `backend` is the group's backend string, or a function that gives each rank its own.
    `told(rank, endpoint)` is what the others are told of a rank's endpoint: that of a relay before it, say.
    `faults` strike where the plan says; a rank it kills has neither value nor error.
    """
    # the secret is the listeners' from the start: one of the environment is another job's
    listeners = [listener(transport, rank, SECRET) for rank in range(count)]
    endpoints = [told(rank, each.endpoint).describe() for rank, each in enumerate(listeners)]
    outcome = Outcome()
    groups: dict[int, ProcessGroup] = {}
    in_place: list[ProcessGroup] = []  # of those, as of one that shrank
    finished = threading.Barrier(count)

    def rank_main(rank: int) -> None:
        memory.install()
        with contextlib.nullcontext() if faults is None else faults.watching(rank):
            run_rank(rank)
        finished.wait(timeout_s * 3)

    def run_rank(rank: int) -> None:
        try:
            group = connect(
                listeners[rank],
                endpoints,
                rank,
                group_name=group_name,
                generation=1,
                secret=SECRET,
                timeout_s=timeout_s,
                backends=BackendConfig(backend(rank) if callable(backend) else backend),
            )
            groups[rank] = group
            with use_group(group) as current, rng.using(rng.default_generator().clone_state()):
                try:
                    outcome.values[rank] = fn(rank, *args, **kwargs)
                finally:
                    in_place.extend(filter(None, [current()]))
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - a thread's top: reported in the outcome
            outcome.errors[rank] = error
            if abort and rank in groups:
                groups[rank].abort(error)

    threads = [OwnedThread(f"rank-{rank}", lambda rank=rank: rank_main(rank)) for rank in range(count)]  # type: ignore[misc]
    for thread in threads:
        thread.join(timeout_s * 4)
    for group in [*in_place, *groups.values()]:
        group.close()
    for each in listeners:
        each.close()
    return outcome


def join_from_environment(timeout_s: float = 20.0) -> ProcessGroup:
    """In a process of `start_ranks`: form a group over TEST_TRANSPORT and make it the default group."""
    rank, size = env.get_int("RANK", 0) or 0, env.get_int("WORLD_SIZE", 1) or 1
    here = listener(env.get("TEST_TRANSPORT", "shm") or "shm", rank)
    path = env.require("TEST_INIT_METHOD", "start_ranks sets it").removeprefix("file://")
    with FileStore(path, timeout=timeout_s) as store:
        store.set(str(rank), here.describe())
        endpoints = [value.decode() for value in store.multi_get([str(peer) for peer in range(size)])]
        group = connect(here, endpoints, rank, group_name="test", generation=1, timeout_s=timeout_s)
    set_default_group(group)
    return group


class RankProcess:
    """One rank as a real process running `source` with `python -c` (behind `prefix`); its output is captured."""

    def __init__(self, source: str, overrides: Mapping[str, str], prefix: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", source],
            env=env.snapshot(overrides),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def read_line(self) -> str:
        """The next line it prints; blocks."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def finish(self, timeout_s: float = PATIENCE_S) -> tuple[int, str, str]:
        """Wait for its end: exit code (negative for a signal), rest of its output, errors."""
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def __enter__(self) -> RankProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def start_ranks(count: int, source: str, directory: str, **overrides: str) -> list[RankProcess]:
    """Start `count` processes that can call `init_process_group(INIT, rank, world)`; see the variables set here.

    The source finds RANK, WORLD_SIZE and TEST_INIT_METHOD (a file:// in `directory`) in its environment.
    """
    return [
        RankProcess(
            source,
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(count),
                "TEST_INIT_METHOD": f"file://{directory}/rendezvous",
                "RESILIN_SECRET": SECRET,
                **overrides,
            },
        )
        for rank in range(count)
    ]
