"""Asks the agents of each job for their world: its generation, and the workers that they have replaced within a pod.

No object of the cluster tells of these. One agent knows the generation; faults each knows of its own node, so all are
asked when it has changed, or when other pods are ready. What pods say is not trusted further than about their own job:
its size and its values are checked, and an answer that is odd counts as none.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc.aio

from resilin._base import host_port, log
from resilin._base.clock import SYSTEM, Clock
from resilin.operator import names
from resilin.operator.cache import Cache, Key
from resilin.operator.observed import PodView, WorkerFault, WorldView

_log = log.logger("operator")
_METHOD = "/resilin.agent.v1.Agent/World"
_TIMEOUT_S = 2.0
_MOST_BYTES = 256 << 10
_MOST_PODS = 64  # of one job that are asked for faults at once
_MOST_NUMBER = (1 << 31) - 1  # what the status has room for
_CAUSE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_AT_ONCE = 32


class AgentPoll:
    """Asks every `interval_s` seconds, and puts what is new into `cache`; `on_news` hears of which jobs."""

    def __init__(
        self, cache: Cache, on_news: Callable[[Key], None], interval_s: float, *, port: int = names.HEALTH_PORT,
        clock: Clock = SYSTEM,
    ) -> None:  # fmt: skip
        self._cache, self._on_news, self._interval_s, self._port, self._clock = cache, on_news, interval_s, port, clock
        self._channels: dict[str, grpc.aio.Channel] = {}  # by address: of the first pod of each job
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._asked: dict[Key, tuple[int, int, frozenset[str]]] = {}  # generation, restarts, uids of those who answered
        self._put_off: dict[Key, WorldView] = {}  # of jobs that were amid a recovery when they were asked last

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                jobs = self._cache.jobs
                await asyncio.gather(*(self._look(key) for key in jobs))
                await self._close_but({pods[0].address for key in jobs if (pods := self._ready(key))})
                for known in (self._asked, self._put_off):
                    for key in known.keys() - set(jobs):
                        del known[key]
        finally:
            await self._close_but(set())

    def _ready(self, key: Key) -> Sequence[PodView]:
        return self._cache.ready_workers(key)

    async def _look(self, key: Key) -> None:
        pods = self._ready(key)
        if not pods:
            return
        first = await self._ask(pods[0])
        able = frozenset(pod.uid for pod in pods[:_MOST_PODS])
        if first is None or self._asked.get(key) == (first.generation, first.restarts, able):
            return
        others = await asyncio.gather(*(self._ask(pod) for pod in pods[1:_MOST_PODS]))
        answers = [first, *(other for other in others if other is not None)]
        if len({answer.generation for answer in answers}) > 1:
            return  # it changes just now: the next time
        if any(answer.recovering for answer in answers) and not _same(self._put_off.get(key), first):
            self._put_off[key] = first  # so that it is told how long that took; a job that stays so is told of as it is
            return
        self._put_off.pop(key, None)
        self._asked[key] = first.generation, first.restarts, frozenset(answer.told_by for answer in answers)
        faults = tuple(fault for answer in answers for fault in answer.faults)
        world = WorldView(
            told_by=first.told_by, generation=first.generation, restarts=first.restarts, faults=faults
        )  # fmt: skip
        if self._cache.put_world(key, world):
            self._on_news(key)

    async def _ask(self, pod: PodView) -> WorldView | None:
        """What one agent says; None: nothing that is of use."""
        target = host_port.join(pod.address, self._port)
        channel = self._channels.get(pod.address)
        if channel is None:
            options = [("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.enable_http_proxy", 0)]
            channel = self._channels[pod.address] = grpc.aio.insecure_channel(target, options=options)
        async with self._gate:
            try:
                answer = await channel.unary_unary(_METHOD)(b"", timeout=_TIMEOUT_S)
                return read(answer, pod, self._clock.wall())
            except (grpc.aio.AioRpcError, ValueError) as error:
                said = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
                log.event(_log, logging.DEBUG, "an agent does not tell its world", pod=pod.name, error=said)
                return None

    async def _close_but(self, kept: set[str]) -> None:
        for address in [address for address in self._channels if address not in kept]:
            await self._channels.pop(address).close()


def _same(known: WorldView | None, told: WorldView) -> bool:
    """Whether a job is where it was when it was put off."""
    return known is not None and (known.told_by, known.generation, known.restarts) == (
        told.told_by,
        told.generation,
        told.restarts,
    )


def read(answer: bytes, pod: PodView, now: float) -> WorldView:
    """Return what an agent has said of its world. ValueError: it is not what agents say."""
    body = json.loads(answer)
    if not isinstance(body, dict) or not isinstance(body.get("faults"), list):
        raise ValueError("expected an object with generation, restarts and faults")
    faults = tuple(_fault(one, pod, now) for one in body["faults"])
    return WorldView(
        told_by=pod.uid, generation=_number(body, "generation"), restarts=_number(body, "restarts"),
        recovering=body.get("recovering") is True, faults=faults,
    )  # fmt: skip


def _fault(body: Any, pod: PodView, now: float) -> WorkerFault:
    if not isinstance(body, dict):
        raise ValueError("faults: expected objects")
    cause, message = body.get("cause"), body.get("message")
    if not isinstance(message, str) or not isinstance(cause, str):
        raise ValueError("faults: expected texts cause and message")
    return WorkerFault(
        number=_number(body, "number"), rank=_number(body, "rank"), pod=pod.name, uid=pod.uid,
        cause=cause if _CAUSE.fullmatch(cause) else "WorkerFailed", message=message,
        time=min(_seconds(body, "time"), now), lost_s=_seconds(body, "lost_s"),
    )  # fmt: skip


def _number(body: Mapping[str, Any], field: str) -> int:
    value = body.get(field)
    if type(value) is not int or not 0 <= value <= _MOST_NUMBER:
        raise ValueError(f"{field}: expected a whole number from 0 to {_MOST_NUMBER}")
    return value


def _seconds(body: Mapping[str, Any], field: str) -> float:
    value = body.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise ValueError(f"{field}: expected seconds")
    return float(value)
