"""Random histories end at one fixed point, whatever was late, lost, repeated, refused or killed on the way."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from cluster_model import JOB
from operator_history import KEY, Cluster, Operator, job, live_through

from resilin.operator import names

PARTS = 16  # so that several processors share them


def _check_fixed_point(cluster: Cluster) -> None:
    if (names.KIND, JOB) not in cluster.objects:  # deleted: nothing of it is left
        assert {kind for kind, _ in cluster.objects} == {"Node"}
        return
    raw = job(cluster)
    spec, status = raw["spec"], raw["status"]
    conditions = {one["type"]: one["status"] for one in status["conditions"]}
    assert status["observedGeneration"] == raw["metadata"]["generation"]
    assert "openFaults" not in status
    assert status.get("restarts", 0) <= cluster.failures
    assert status.get("lostSeconds", {}).get("SIGKILL", 0) <= len(cluster.worker_faults), "each is counted once"
    assert status.get("worldGeneration", 0) <= cluster.world
    workers = cluster.worker_pods()
    if conditions.get("Succeeded") == "True":
        assert cluster.running() == []
        assert len(workers) == len(cluster.of("Pod")), "the store is gone"
        assert conditions.get("Failed") != "True"
        return
    if spec.get("suspend"):
        assert cluster.of("Pod") == []
        assert conditions["Suspended"] == "True"
        return
    indices = Counter(pod["metadata"]["labels"][names.INDEX] for pod in workers)
    assert set(indices.values()) == {1}
    assert len(workers) == spec["replicas"] == status["readyWorkers"] == status["replicas"]
    assert all(pod["status"]["conditions"][0]["status"] == "True" for pod in workers)
    assert conditions["Running"] == "True"
    assert conditions.get("Degraded") != "True"
    assert conditions.get("Scaling") != "True"
    stores = [pod for pod in cluster.of("Pod") if pod not in workers]
    assert len(stores) == 1
    kept = {(kind, name) for kind, name in cluster.objects if kind not in ("Pod", "Node", "Secret", names.KIND)}
    assert kept == {
        ("Service", JOB), ("Service", f"{JOB}-rdzv"), ("ConfigMap", JOB), ("NetworkPolicy", JOB),
        ("PodDisruptionBudget", JOB),
    }  # fmt: skip
    if ("PodDisruptionBudget", JOB) in cluster.foreign:
        held = cluster.objects["PodDisruptionBudget", JOB]["spec"]["minAvailable"]
        wanted = min(spec["minReplicas"], spec["replicas"] - 1)
        assert conditions.get("Stalled", "False") == str(held != wanted), "a field that somebody else holds is told"
    else:
        assert conditions.get("Stalled") != "True"


async def _one(seed: int) -> None:
    cluster, operator = await live_through(seed)
    assert cluster.broken == []
    _check_fixed_point(cluster)
    writes = len(cluster.writes)
    for process in (operator, Operator(cluster)):  # the same one, and one that knows nothing
        for _ in range(3):
            process.dirty.add(KEY)
            await process.turn()
            process.dirty.add(KEY)
            await process.turn()
    assert cluster.writes[writes:] == [], "a write at the fixed point"


@pytest.mark.parametrize("part", range(PARTS))
def test_any_history_ends_at_one_fixed_point_without_a_write_and_never_two_pods_of_an_identity(part, turns):
    async def all_of_them() -> None:
        for seed in range(part, turns(short=1_000, full=20_000), PARTS):
            try:
                await _one(seed)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise

    asyncio.run(all_of_them())
