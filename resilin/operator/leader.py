"""Elects one of several processes of the operator by a Lease: the others wait, and take over when it is silent.

Clocks of machines differ, so nobody compares the Lease's times with its own: a Lease that has not changed for its
duration, by the clock of who looks, is free. The leader gives up well before that when it cannot renew it.
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
        self._renewed = 0.0
        self.leads = False

    async def lead(self) -> None:
        """Wait until this process is the leader."""
        while not await self._try():
            await asyncio.sleep(self._renew_s)
        self.leads = True
        log.event(_log, logging.INFO, "this process leads", identity=self.identity)

    async def lost(self) -> None:
        """Keep the Lease; return when another has it, or it could not be renewed for two thirds of its duration."""
        while self._clock.monotonic() < self._renewed + self._lease_s * 2 / 3:
            await asyncio.sleep(self._renew_s)
            if not await self._try() and self._held_by_other:
                break
        self.leads = False

    _held_by_other = False

    async def release(self) -> None:
        """Let another take over at once."""
        if not self.leads:
            return
        self.leads = False
        try:
            lease = await self._api.get("Lease", self._namespace, self._name)
            if lease["spec"].get("holderIdentity") == self.identity:
                await self._write(lease, holder="", duration_s=1.0)
        except ClusterError as error:
            log.event(_log, logging.INFO, "the lease was not released", error=str(error))

    async def _try(self) -> bool:
        """Take or renew the Lease once; whether this process has it."""
        began = self._clock.monotonic()
        try:
            lease = await self._api.get("Lease", self._namespace, self._name)
            if not self._is_free(lease):
                self._held_by_other = True
                return False
            await self._write(lease, self.identity, self._lease_s)
        except ClusterError as error:
            if error.code != 404 or not await self._create():
                return False
        self._renewed, self._held_by_other = began, False
        return True

    def _is_free(self, lease: Raw) -> bool:
        holder = lease["spec"].get("holderIdentity")
        version = lease["metadata"]["resourceVersion"]
        now = self._clock.monotonic()
        if self._seen is None or self._seen[0] != version:
            self._seen = version, now
        duration = float(lease["spec"].get("leaseDurationSeconds") or self._lease_s)
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
        changed = lease["spec"].get("holderIdentity") != holder
        count = int(lease["spec"].get("leaseTransitions") or 0) + changed
        spec = {**self._spec(holder, count), "leaseDurationSeconds": int(duration_s)}
        if not changed:
            spec["acquireTime"] = lease["spec"].get("acquireTime") or spec["acquireTime"]
        await self._api.update("Lease", self._namespace, self._name, {**lease, "spec": spec})

    def _spec(self, holder: str, transitions: int) -> dict[str, Any]:
        now = timestamps.micro(self._clock.wall())
        return {
            "holderIdentity": holder, "leaseDurationSeconds": int(self._lease_s), "acquireTime": now, "renewTime": now,
            "leaseTransitions": transitions,
        }  # fmt: skip
