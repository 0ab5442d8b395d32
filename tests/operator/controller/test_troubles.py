"""A server and a network that fail: watches that are cut or too old, refusals, lost answers, a leader that goes."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest
from running_operator import ClusterUnderTest, RunningOperator, impatient, job

from resilin.errors import ClusterError
from resilin.operator import client, names
from resilin.operator.client import Client
from resilin.operator.controller import lead_and_run
from resilin.operator.health import HealthServer
from resilin.operator.leader import Election
from resilin.testing.kube.faults import PlannedFault
from resilin.testing.kube.server import KubeServer


def _scaled(cluster, pods):
    cluster.run_pods()
    status = (cluster.job() or {}).get("status") or {}
    return status.get("readyWorkers") == pods and len(cluster.pods()) == pods


def _scale_up(cluster, *sizes):
    for size in sizes:
        cluster.patch_job({"replicas": size})
        cluster.wait(lambda size=size: _scaled(cluster, size))


def test_a_watch_that_is_cut_in_the_middle_of_a_line_goes_on_where_it_was(cluster, operator):
    cluster.server.create(job(replicas=1))
    cluster.wait(lambda: _scaled(cluster, 1))
    cluster.server.faults.cut_events(3)
    _scale_up(cluster, 2, 3)
    assert operator.metrics.text().count("watch_restarts_total{") >= 1


def test_a_watch_whose_place_is_gone_lists_again():
    with KubeServer(keep=20) as server:
        server.create(impatient())
        cluster = ClusterUnderTest(server)
        with RunningOperator(cluster.url, watch_s=1.0):
            cluster.server.create(job(replicas=1))
            cluster.wait(lambda: _scaled(cluster, 1))
            server.faults.cut_events(2)
            for number in range(40):  # more changes than the server keeps
                server.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c{number}"}})
            _scale_up(cluster, 2)


@pytest.mark.parametrize(
    "fault",
    [
        PlannedFault(429, times=3, verb="create", retry_after=1), PlannedFault(500, times=4),
        PlannedFault(409, times=3),
        PlannedFault(0, times=3), PlannedFault(0, times=3, after=True), PlannedFault(503, times=2, verb="list"),
    ],
    ids=["429", "500", "409", "hang up", "lost answers", "list"],
)  # fmt: skip
def test_calls_that_fail_delay_and_change_nothing(cluster, operator, fault):
    cluster.server.create(job(replicas=1))
    cluster.wait(lambda: _scaled(cluster, 1))
    cluster.server.faults.plan(fault)
    _scale_up_despite(cluster, 3)
    assert sorted(cluster.pods()) == ["digits-0", "digits-1", "digits-2"]


def _scale_up_despite(cluster, size):
    """The test's own calls meet the faults as well."""

    def asked():
        try:
            cluster.patch_job({"replicas": size})
        except OSError:
            return False
        return True

    def there():
        try:
            return _scaled(cluster, size)
        except OSError:
            return False

    cluster.wait(asked)
    cluster.wait(there)


def test_the_next_process_leads_when_the_leader_goes_or_is_silent(cluster):
    async def story() -> None:
        async with Client(client.find_server(cluster.url)) as api:
            times = {"lease_s": 1.0, "renew_s": 0.05}
            first, second, third = (Election(api, "default", name, **times) for name in ("a", "b", "c"))
            await first.lead()
            waiting = asyncio.create_task(second.lead())
            keeping = asyncio.create_task(first.lost())
            await asyncio.sleep(0.3)
            assert not second.leads
            keeping.cancel()
            await first.release()
            await asyncio.wait_for(waiting, 5)
            await asyncio.wait_for(third.lead(), 5)  # the second says nothing more
            await asyncio.wait_for(second.lost(), 5)
            assert not second.leads

    asyncio.run(story())


def test_who_loses_the_lease_works_no_more(cluster):
    async def story() -> list[str]:
        told = []

        async def work() -> None:
            told.append("began")
            try:
                await asyncio.Event().wait()
            finally:
                told.append("ended")

        async with Client(client.find_server(cluster.url)) as api:
            election = Election(api, "default", "a", lease_s=0.5, renew_s=0.05)
            running = asyncio.create_task(lead_and_run(election, work))
            while not told:
                await asyncio.sleep(0.01)
            path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/resilin-operator"
            await asyncio.to_thread(cluster.call, "PATCH", path, {"spec": {"holderIdentity": "b"}})
            await asyncio.wait_for(running, 5)
        return told

    assert asyncio.run(story()) == ["began", "ended"]


def test_the_pages_for_kubelets_and_prometheus_are_served():
    async def story() -> None:
        pages = {"/healthz": lambda: (200, "ok\n"), "/readyz": lambda: (503, "no\n")}
        async with HealthServer("127.0.0.1", 0, pages) as server:
            url = f"http://127.0.0.1:{server.port}"
            answer = await asyncio.to_thread(urllib.request.urlopen, f"{url}/healthz", timeout=5)
            assert answer.read() == b"ok\n"
            for path, status in (("/readyz", 503), ("/none", 404)):
                with pytest.raises(urllib.error.HTTPError) as refused:
                    await asyncio.to_thread(urllib.request.urlopen, url + path, timeout=5)
                assert refused.value.code == status
                refused.value.close()

    asyncio.run(story())


def test_errors_carry_the_servers_words(cluster):
    async def story() -> ClusterError:
        async with Client(client.find_server(cluster.url)) as api:
            with pytest.raises(ClusterError) as refused:
                await api.get(names.KIND, "default", "none")
            return refused.value

    error = asyncio.run(story())
    assert (error.code, error.reason) == (404, "NotFound")
    assert '"none" not found' in error.said
