"""Elects one of several processes of the operator by a Lease: the others wait, and take over when it is silent.

Clocks of machines differ, so nobody compares the Lease's times with its own: a Lease that has not changed for its
duration, by the clock of who looks, is free. The leader gives up well before that when it cannot renew it, however
long a request to the server takes: each has what is left of that time, and no more.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from resilin._base import log
from resilin._base.clock import SYSTEM, Clock
from resilin.errors import ClusterError
from resilin.operator import timestamps
from resilin.operator.api import Api, Raw

_log = log.logger("operator")
_GIVE_UP = 2 / 3  # of the Lease's duration: what was sent until then has the rest of it to arrive


class Election:
    """Takes part as `identity`. `await lead()` returns once elected; `await lost()` when that is over."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        identity: str,
        *,
        name: str = "resilin-operator",
        lease_s: float = 15.0,
        renew_s: float = 2.0,
        clock: Clock = SYSTEM,
    ) -> None:
        self._api = api
        self._namespace, self._name, self.identity = namespace, name, identity
        self._lease_s, self._renew_s = lease_s, renew_s
        self._clock = clock
        self._seen: tuple[str, float] | None = None  # the Lease's version, and when it was first seen
        self._renewed = clock.monotonic() - lease_s  # when the last renewal that succeeded was begun
        self._held_by_other = False
        self.leads = False

    @property
    def may_write(self) -> bool:
        """Whether this process leads and nobody else can have taken the Lease yet, whatever was late here."""
        return self.leads and self._left() > 0

    async def lead(self) -> None:
        """Wait until this process is the leader."""
        while not await self._try(self._lease_s * _GIVE_UP):
            await asyncio.sleep(self._renew_s)
        self.leads = True
        log.event(_log, logging.INFO, "this process leads", identity=self.identity)

    async def lost(self) -> None:
        """Keep the Lease; return when another has it, or it could not be renewed for two thirds of its duration."""
        while (left := self._left()) > 0:
            await asyncio.sleep(min(self._renew_s, left))
            if not await self._try(self._left()) and self._held_by_other:
                break
        self.leads = False

    async def release(self) -> None:
        """Let another take over at once."""
        if not self.leads:
            return
        self.leads = False
        try:
            async with asyncio.timeout(max(0.0, self._left())):  # later it is free anyway
                lease = await self._api.get("Lease", self._namespace, self._name)
                if _spec_of(lease).get("holderIdentity") == self.identity:
                    await self._write(lease, holder="", duration_s=1.0)
        except (ClusterError, TimeoutError) as error:
            log.event(_log, logging.INFO, "the lease was not released", error=str(error) or "no answer in time")

    def _left(self) -> float:
        """Seconds until the leader gives up."""
        return self._renewed + self._lease_s * _GIVE_UP - self._clock.monotonic()

    async def _try(self, within_s: float) -> bool:
        """Take or renew the Lease once; whether this process has it, and knows so `within_s`."""
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(max(0.0, within_s)):
                if not await self._take():
                    return False
        except TimeoutError:
            log.event(_log, logging.INFO, "the lease was not renewed", error=f"no answer within {within_s:.1f} s")
            return False
        self._renewed, self._held_by_other = began, False
        return True

    async def _take(self) -> bool:
        try:
            lease = await self._api.get("Lease", self._namespace, self._name)
            if not self._is_free(lease):
                self._held_by_other = True
                return False
            await self._write(lease, self.identity, self._lease_s)
        except ClusterError as error:
            return error.code == 404 and await self._create()
        return True

    def _is_free(self, lease: Raw) -> bool:
        spec = _spec_of(lease)
        holder = spec.get("holderIdentity")
        version = lease["metadata"]["resourceVersion"]
        now = self._clock.monotonic()
        if self._seen is None or self._seen[0] != version:
            self._seen = version, now
        duration = float(spec.get("leaseDurationSeconds") or self._lease_s)
        return holder in (self.identity, "", None) or now >= self._seen[1] + duration

    async def _create(self) -> bool:
        meta = {"name": self._name, "namespace": self._namespace}
        manifest = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}
        try:
            await self._api.create("Lease", self._namespace, {**manifest, "spec": self._spec(self.identity, 0)})
        except ClusterError:
            return False
        return True

    async def _write(self, lease: Raw, holder: str, duration_s: float) -> None:
        """Write it, if nobody has meanwhile: its resource version says so."""
        before = _spec_of(lease)
        changed = before.get("holderIdentity") != holder
        count = int(before.get("leaseTransitions") or 0) + changed
        spec = {**self._spec(holder, count), "leaseDurationSeconds": int(duration_s)}
        if not changed:
            spec["acquireTime"] = before.get("acquireTime") or spec["acquireTime"]
        await self._api.update("Lease", self._namespace, self._name, {**lease, "spec": spec})

    def _spec(self, holder: str, transitions: int) -> dict[str, Any]:
        now = timestamps.micro(self._clock.wall())
        return {
            "holderIdentity": holder, "leaseDurationSeconds": int(self._lease_s), "acquireTime": now, "renewTime": now,
            "leaseTransitions": transitions,
        }  # fmt: skip


def _spec_of(lease: Raw) -> Raw:
    """What a Lease says; one that somebody has made by hand may say nothing."""
    return lease.get("spec") or {}
