"""Runs the operator: watches fill the cache and the queue, workers take turns of jobs, one leader at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from resilin._base import log
from resilin._base.clock import SYSTEM, Clock
from resilin.errors import ClusterError
from resilin.operator import names
from resilin.operator.agents import AgentPoll
from resilin.operator.api import Api, Raw
from resilin.operator.cache import SURROUNDINGS, Cache, Key
from resilin.operator.engine import Engine
from resilin.operator.leader import Election
from resilin.operator.metrics import Metrics
from resilin.operator.queue import WorkQueue
from resilin.operator.watch import Followed, Reflector

_log = log.logger("operator")


@dataclass(frozen=True, kw_only=True)
class OperatorOptions:
    """How the operator runs."""

    namespace: str | None = None
    """The one that it cares for; None: all."""
    nodes: bool = True
    """Whether it may see nodes (cluster-wide rights): else a lost node shows only by pods that do not end."""
    pod_groups: bool = False
    """Whether the cluster has the Workload API."""
    workers: int = 8
    """Turns that go on at once."""
    resync_s: float = 600.0
    """Everything is looked at and read anew so often, whatever watches say."""
    agents_s: float = 5.0
    """How often agents are asked for their world; 0: never."""
    own_namespace: str = ""
    """Where the operator itself runs; empty: outside of the cluster."""
    silent_s: float = 400.0
    """A watch that has said nothing for so long has not done what it should: three of its durations and a little."""


class Controller:
    """One process of the operator, as long as it leads. Run `run()`.

    may_write: asked before each write; false once this process may not be the only one that leads.
    """

    def __init__(
        self, api: Api, options: OperatorOptions, metrics: Metrics, clock: Clock = SYSTEM, *,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self._options = options
        self._clock = clock
        self._metrics = metrics
        kinds = SURROUNDINGS | {"PodGroup"} if options.pod_groups else SURROUNDINGS
        self.cache = Cache(kinds, options.own_namespace)
        self.engine = Engine(api, self.cache, metrics, clock, may_write=may_write)
        self.queue: WorkQueue[Key] = WorkQueue()
        self._reflectors = [Reflector(api, what, metrics, clock) for what in self._followed()]

    def _followed(self) -> Iterable[Followed]:
        namespace = self._options.namespace
        ours = names.JOB  # a selector: objects that have the label
        for kind, selector in ((names.KIND, ""), *((kind, ours) for kind in ("Pod", *sorted(self.cache.kinds)))):
            yield Followed(
                kind=kind,
                namespace=namespace,
                selector=selector,
                on_list=self._on_list(kind),
                on_event=self._on_event(kind),
            )
        if self._options.nodes:
            yield Followed(
                kind="Node", namespace=None, selector="", on_list=self._on_nodes, on_event=self._on_node
            )  # fmt: skip

    def _on_list(self, kind: str) -> Callable[[Sequence[Raw], int], None]:
        def take(items: Sequence[Raw], version: int) -> None:
            for key in self.cache.replace(kind, (_kinded(kind, raw) for raw in items), version):
                self.queue.add(key)

        return take

    def _on_event(self, kind: str) -> Callable[[str, Raw], None]:
        def take(event: str, raw: Raw) -> None:
            before = self._generation(raw) if kind == names.KIND else None
            key = self.cache.remove(kind, raw) if event == "DELETED" else self.cache.put(kind, raw)
            if key is not None:  # a change by people may mend what is being waited out
                self.queue.add(key, urgent=kind == names.KIND and before != self._generation(raw))

        return take

    def _generation(self, raw: Raw) -> int | None:
        """The generation of a job's spec as it is known."""
        known = self.cache.job((raw["metadata"]["namespace"], raw["metadata"]["name"]))
        return None if known is None else known["metadata"].get("generation")

    def _on_nodes(self, items: Sequence[Raw], version: int) -> None:
        there = {raw["metadata"]["name"] for raw in items}
        self.cache.nodes = self.cache.nodes if self.cache.nodes is not None else {}
        for name in [name for name in self.cache.nodes or () if name not in there]:
            self._on_node_gone(name)
        for raw in items:
            self._on_node("MODIFIED", raw)

    def _on_node(self, event: str, raw: Raw) -> None:
        if event == "DELETED":
            self._on_node_gone(raw["metadata"]["name"])
            return
        name, changed = self.cache.put_node(raw)
        if changed:
            for key in self.cache.on_node(name):
                self.queue.add(key)

    def _on_node_gone(self, name: str) -> None:
        self.cache.remove_node(name, self._clock.wall())
        for key in self.cache.on_node(name):
            self.queue.add(key)

    # ------------------------------------------------------------------------------------------------ running

    async def run(self) -> None:
        """Work until cancelled. Whatever fails for good ends it with that error."""
        try:
            async with asyncio.TaskGroup() as group:
                for reflector in self._reflectors:
                    group.create_task(reflector.run())
                for reflector in self._reflectors:  # decisions need to know everything
                    await reflector.synced.wait()
                log.event(_log, logging.INFO, "all watches are in step", jobs=len(list(self.cache.jobs)))
                for _ in range(self._options.workers):
                    group.create_task(self._work())
                group.create_task(self._resync())
                if self._options.agents_s:
                    group.create_task(AgentPoll(self.cache, self.queue.add, self._options.agents_s).run())
        finally:
            self.queue.close()

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            began = self._clock.monotonic()
            try:
                after_s = await self.engine.turn(key)
            except ClusterError as error:
                self._metrics.turn(self._clock.monotonic() - began, ok=False)
                wait_s = self.queue.retry(key, error.retry_after_s or 0.0)
                log.event(
                    _log, logging.INFO, "a turn is tried again", job="/".join(key), error=str(error), after_s=wait_s
                )  # fmt: skip
            except Exception as error:  # noqa: BLE001 - a worker's top: one job must not stop the others
                self._metrics.turn(self._clock.monotonic() - began, ok=False)
                self.queue.retry(key)
                log.event(_log, logging.ERROR, "a turn failed", job="/".join(key), exc_info=error)
                await self._tell_of(key, error)
            else:
                self._metrics.turn(self._clock.monotonic() - began, ok=True)
                self.queue.succeeded(key)
                if after_s is not None:
                    self.queue.add_after(key, after_s)
            finally:
                self.queue.done(key)

    async def _tell_of(self, key: Key, error: Exception) -> None:
        try:
            await self.engine.tell_of(key, error)
        except ClusterError as refused:
            log.event(_log, logging.INFO, "nor can that be told", job="/".join(key), error=str(refused))

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._options.resync_s)
            self.resync()

    def resync(self) -> None:
        """Look at every job, and read it anew."""
        self._metrics.resynced()
        self.engine.doubt_everything()
        for key in self.cache.jobs:
            self.queue.add(key)

    def update_gauges(self) -> None:
        """Write what is measured at the moment into the metrics."""
        self._metrics.gauges["jobs"] = len(list(self.cache.jobs))
        self._metrics.gauges["queue_length"] = len(self.queue)
        self._metrics.gauges["watch_silence_seconds"] = max(one.silence_s for one in self._reflectors)

    @property
    def is_ready(self) -> bool:
        """Whether everything has been listed."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    @property
    def is_healthy(self) -> bool:
        """Whether no watch has been silent for too long. Those that do not run yet, as long as another process leads,
        are not."""
        return all(reflector.silence_s < self._options.silent_s for reflector in self._reflectors)


def _kinded(kind: str, raw: Raw) -> Raw:
    """Items of lists come without their kind; what is written back needs it."""
    if kind != names.KIND or "kind" in raw:
        return raw
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, **raw}


async def lead_and_run(election: Election | None, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run what `run` returns while this process leads; without `election` at once. Returns when it leads no more."""
    if election is None:
        await run()
        return
    await election.lead()
    working, losing = asyncio.create_task(run()), asyncio.create_task(election.lost())
    try:
        await asyncio.wait((working, losing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        losing.cancel()
        working.cancel()
        try:
            for task in (working, losing):
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        finally:
            await election.release()
