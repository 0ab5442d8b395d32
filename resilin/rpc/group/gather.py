"""Bring an object of every worker to every worker, through calls: what barriers and shutdown are made of.

The worker whose name comes first leads: it collects the objects, and sends them to the others. It alone looks out for
workers that are gone, and tells the others; these look out for it. So one that has heard all may leave.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from resilin._base.clock import Deadline
from resilin.distributed.wire.error_codec import copy_error
from resilin.distributed.work.future import Future
from resilin.errors import PeerLost, RpcError, RpcTimeout, UsageError
from resilin.rpc.agent.agent import Agent
from resilin.rpc.constants import DEFAULT_SHUTDOWN_TIMEOUT, UNSET_RPC_TIMEOUT

_MOST_FAILED = 64
_SHORTEST_WAIT_S = 0.001  # 0 would be without end


class _Round:
    """One gathering."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.complete: Future[dict[str, Any]] = Future()


class Gatherings:
    """The rounds that one worker takes part in."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._counts: dict[str, int] = {}  # guarded by _lock: rounds so far of each set of workers
        self._rounds: dict[str, _Round] = {}  # guarded by _lock
        self._failed: dict[str, Exception] = {}  # guarded by _lock: why rounds that this worker led ended early

    def reset(self) -> None:
        """Forget what was: a new group counts its rounds from the beginning."""
        with self._lock:
            self._counts, self._rounds, self._failed = {}, {}, {}

    def _round(self, name: str) -> _Round:
        with self._lock:
            return self._rounds.setdefault(name, _Round())

    def collect(self, name: str, worker: str, thing: Any, workers: frozenset[str]) -> None:
        """Take `thing` of `worker` for round `name`; the last one completes it."""
        with self._lock:
            if name in self._failed:  # it comes late
                raise copy_error(self._failed[name])
            round_ = self._round(name)
            if worker in round_.objects:
                raise RpcError(f"{worker} reported intent sequence id {name} twice.")
            round_.objects[worker] = thing
            if round_.objects.keys() == workers and not round_.complete.done():
                round_.complete.set_result(round_.objects)

    def spread(self, name: str, objects: dict[str, Any]) -> None:
        """Take the objects of all workers in round `name`."""
        complete = self._round(name).complete
        if complete.done():
            raise RpcError(f"Termination signal sequence id {name} got set twice.")
        complete.set_result(objects)

    def fail(self, name: str, error: BaseException) -> None:
        """End a round that cannot be completed."""
        complete = self._round(name).complete
        if not complete.done():
            complete.set_exception(error)

    def lost(self, worker: str, me: str, error: PeerLost) -> None:
        """Fail the rounds that wait for a worker that is gone: those that it leads, and those that `me` leads."""
        with self._lock:
            names = [
                name
                for name in self._rounds
                if worker in (workers := name.split(" ")[:-1]) and workers[0] in (worker, me)
            ]
        for name in names:
            self.fail(name, error)

    def gather(self, agent: Agent, thing: Any, names: Iterable[str] | None, timeout: float) -> dict[str, Any]:
        """See `api._all_gather`."""
        me = agent.me.name
        workers = frozenset(names or (info.name for info in agent.get_worker_infos()))
        if me not in workers or not all(isinstance(name, str) for name in workers):
            raise UsageError(f"expected names of workers, {me!r}, which gathers, among them, got {names!r:.200}")
        leader = min(workers)
        with self._lock:
            key = " ".join(sorted(workers))
            number = self._counts.get(key, 0)
            self._counts[key] = number + 1
        name = f"{key} {number}"
        limit = agent.timeout_s if timeout == UNSET_RPC_TIMEOUT else timeout
        wait = None if timeout in (UNSET_RPC_TIMEOUT, DEFAULT_SHUTDOWN_TIMEOUT) else timeout
        try:
            if me == leader:
                objects = self._lead(agent, name, thing, workers, wait, limit)
            else:
                agent.call(leader, _gather_to_leader, (name, me, thing, workers), None, limit)
                agent.uncount()
                complete = self._round(name).complete
                if not complete.settled_within(wait):
                    raise RpcTimeout(f"_all_gather: {leader} has not heard of all workers within {wait:.2f} seconds")
                objects = complete.value()
        finally:
            with self._lock:
                self._rounds.pop(name, None)
        return objects

    def _lead(
        self,
        agent: Agent,
        name: str,
        thing: Any,
        workers: frozenset[str],
        wait: float | None,
        limit: float,
    ) -> dict[str, Any]:
        self.collect(name, agent.me.name, thing, workers)
        others = workers - {agent.me.name}
        complete = self._round(name).complete
        try:
            for other in sorted(others - self._round(name).objects.keys()):
                agent.peers.reach(other)  # so that its end is noticed
            if not complete.settled_within(wait):
                missing = sorted(others - self._round(name).objects.keys())
                raise RpcTimeout(f"Followers {missing} timed out in _all_gather after {wait:.2f} seconds.")
            objects = complete.value()
        except (PeerLost, RpcTimeout) as error:
            with self._lock:
                self._failed[name] = error
                while len(self._failed) > _MOST_FAILED:
                    del self._failed[next(iter(self._failed))]
            for other in self._round(name).objects.keys() & others:  # those who wait for the others
                agent.call_async(other, _fail_at_followers, (name, error), None, limit)
            raise
        self._tell_all(agent, name, objects, others, limit)
        return objects

    def _tell_all(self, agent: Agent, name: str, objects: dict[str, Any], others: frozenset[str], limit: float) -> None:
        calls = {}
        for other in sorted(others):
            calls[other] = agent.call_async(other, _broadcast_to_followers, (name, objects), None, limit)
            agent.uncount()
        errors: list[tuple[str, Exception]] = []
        for other, call in calls.items():
            try:
                call.wait()
            except RuntimeError as error:
                errors.append((other, error))
        if errors:
            raise RpcError(
                f"Followers {[other for other, _ in errors]} timed out in _all_gather after {limit:.2f} seconds. "
                f"The first exception is {errors[0][1]}"
            )


gatherings = Gatherings()
"""Of this process."""


def _gather_to_leader(name: str, worker: str, thing: Any, workers: frozenset[str]) -> None:
    gatherings.collect(name, worker, thing, workers)


def _broadcast_to_followers(name: str, objects: dict[str, Any]) -> None:
    gatherings.spread(name, objects)


def _fail_at_followers(name: str, error: Exception) -> None:
    gatherings.fail(name, error)


def barrier(agent: Agent, deadline: Deadline) -> None:
    """Return when all workers have called it."""
    gatherings.gather(agent, None, None, _wait_of(deadline))


def _wait_of(deadline: Deadline) -> float:
    left = deadline.left()
    return DEFAULT_SHUTDOWN_TIMEOUT if left is None else max(left, _SHORTEST_WAIT_S)


def quiesce(agent: Agent, deadline: Deadline) -> None:
    """Return when no call is under way between any workers: each was idle in two rounds, and made no call between."""
    before: tuple[bool, int] | None = None
    while True:
        agent.wait_idle(deadline.left())
        told = gatherings.gather(agent, (agent.is_idle(), agent.sent), None, _wait_of(deadline))
        now = all(idle for idle, _ in told.values()), sum(sent for _, sent in told.values())
        if now[0] and now == before:
            return
        before = now
