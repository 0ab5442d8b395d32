"""One process leads at a time, however slow the server is; what kubelets are told meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from running_operator import job

from resilin._base.clock import SYSTEM
from resilin.errors import ClusterError
from resilin.operator import client
from resilin.operator.actions import Create
from resilin.operator.cache import Cache
from resilin.operator.client import Client
from resilin.operator.controller import Controller, OperatorOptions, lead_and_run
from resilin.operator.engine import Engine
from resilin.operator.leader import Election
from resilin.operator.metrics import Metrics
from resilin.testing.patience import PATIENCE_S


class SlowLeases:
    """A server that knows one Lease, and answers after `wait_s`."""

    def __init__(self) -> None:
        self.wait_s = 0.0
        self.lease: dict[str, Any] | None = None
        self._version = 0

    async def get(self, kind: str, namespace: str, name: str) -> Any:
        await asyncio.sleep(self.wait_s)
        if self.lease is None:
            raise ClusterError("leases not found", code=404, reason="NotFound")
        return self.lease

    async def create(self, kind: str, namespace: str, manifest: Any) -> Any:
        return await self.update(kind, namespace, "", manifest)

    async def update(self, kind: str, namespace: str, name: str, manifest: Any) -> Any:
        await asyncio.sleep(self.wait_s)
        self._version += 1
        self.lease = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(self._version)}}
        return self.lease


def test_a_leader_stops_before_its_lease_can_run_out_however_slow_the_server_is():
    async def story() -> None:
        api = SlowLeases()
        election = Election(api, "default", "a", lease_s=1.5, renew_s=0.05)
        await election.lead()
        api.wait_s = 3600.0  # each request of its own would be waited for
        began = SYSTEM.monotonic()
        await asyncio.wait_for(election.lost(), PATIENCE_S)
        took_s = SYSTEM.monotonic() - began
        assert not election.leads
        assert not election.may_write
        assert took_s > 0.9, "it has not given up at once"
        assert election._left() > -0.4, "nor after another may have taken the Lease"

    _retried(story)


def _retried(story: Any, tries: int = 3) -> None:
    """Run it; what asserts times may find the machine busy."""
    for last in (tries - 1 == one for one in range(tries)):
        try:
            asyncio.run(story())
            return
        except AssertionError:
            if last:
                raise


def test_who_waits_is_not_kept_by_a_request_that_is_never_answered():
    async def story() -> None:
        api = SlowLeases()
        api.wait_s = 3600.0
        election = Election(api, "default", "a", lease_s=0.3, renew_s=0.05)
        waiting = asyncio.create_task(election.lead())
        await asyncio.sleep(0.3)
        api.wait_s = 0.0
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert election.may_write

    asyncio.run(story())


def test_a_lease_that_says_nothing_is_taken():
    async def story() -> None:
        api = SlowLeases()
        api.lease = {"metadata": {"name": "resilin-operator", "resourceVersion": "7"}, "spec": None}
        election = Election(api, "default", "a")
        await asyncio.wait_for(election.lead(), PATIENCE_S)
        await election.release()
        assert api.lease["spec"]["holderIdentity"] == ""

    asyncio.run(story())


def test_a_loop_that_was_held_up_writes_nothing_after_the_lease_has_run_out():
    async def story() -> None:
        api = SlowLeases()
        election = Election(api, "default", "a", lease_s=0.3, renew_s=0.05)
        await election.lead()
        engine = Engine(api, Cache(), Metrics(), may_write=lambda: election.may_write)
        time.sleep(0.4)
        pod = {"metadata": {"name": "digits-0", "namespace": "default"}}
        refused = await engine._attempt(("default", "digits"), Create(kind="Pod", name="digits-0", manifest=pod))
        assert refused is not None
        assert refused.reason == "NotLeading"
        assert api.lease["metadata"]["name"] == "resilin-operator", "nothing else was written"

    asyncio.run(story())


def test_the_lease_is_released_when_the_work_ends_with_an_error():
    async def story() -> None:
        api = SlowLeases()

        async def work() -> None:
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            await lead_and_run(Election(api, "default", "a"), work)
        assert api.lease["spec"]["holderIdentity"] == ""

    asyncio.run(story())


class Later:
    """A clock that can be put forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return SYSTEM.monotonic() + self.ahead_s

    def wall(self) -> float:
        return SYSTEM.wall() + self.ahead_s


def test_who_has_waited_for_a_day_is_healthy_when_it_begins_to_lead(cluster):
    async def story() -> None:
        clock = Later()
        async with Client(client.find_server(cluster.url)) as api:
            controller = Controller(api, OperatorOptions(agents_s=0), Metrics(), clock)
            clock.ahead_s = 86_400.0
            assert controller.is_healthy, "no watch runs yet: none is silent"
            controller.update_gauges()
            assert controller._metrics.gauges["watch_silence_seconds"] == 0
            running = asyncio.create_task(controller.run())
            await asyncio.sleep(0)
            assert controller.is_healthy, "the first lists are under way"
            async with asyncio.timeout(PATIENCE_S):
                while not controller.is_ready:
                    await asyncio.sleep(0.01)
            assert controller.is_healthy
            clock.ahead_s += 3600.0  # and none has ended or said a word
            assert not controller.is_healthy
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    cluster.server.create(job(replicas=1))
    asyncio.run(story())
