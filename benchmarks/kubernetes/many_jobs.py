"""Many pods without programs: how fast they are made, and what the operator needs for many jobs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kubernetes.cluster import Cluster, Operator, job, wait
from resilin.operator import names
from resilin.testing.kube.server import KubeServer

PODS = 64
PODS_OF_JOB = 4
LOOK_S = 0.25


@dataclass
class Load:
    """Of one process of the operator."""

    memory_mb: float
    change_s: float
    writes: int


def measure_creation(rounds: int) -> list[float]:
    """Seconds from a job's creation to its last pod."""
    found = []
    with tempfile.TemporaryDirectory(prefix="resilin-kubernetes-") as folder, KubeServer() as server:
        cluster = Cluster(server)
        with Operator(server.url, Path(folder)):
            for number in range(rounds):
                since = time.monotonic()
                server.create(job(f"wide-{number}", PODS))
                cluster.wait("all pods", lambda: len(cluster.pods()) == PODS)
                found.append(time.monotonic() - since)
                path = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}/wide-{number}"
                cluster.call("DELETE", path)
                cluster.wait("no pods", lambda: not server.find("v1", "Pod"))
    return found


def measure_load(jobs: int, changes: int, resyncs: int) -> Load:
    """Memory, processor time of a change, and writes where nothing is to be done."""
    with tempfile.TemporaryDirectory(prefix="resilin-kubernetes-") as folder, KubeServer() as server:
        cluster = Cluster(server)
        with Operator(server.url, Path(folder), ["--agents", "0"]) as operator:
            for number in range(jobs):
                server.create(job(f"job-{number}", PODS_OF_JOB))
            _wait("all pods", lambda: len(cluster.pods()) == jobs * PODS_OF_JOB)
            _run_pods(cluster)
            _wait("jobs at rest", lambda: _at_rest(cluster, jobs))
            before = operator.processor_s
            for number in range(changes):
                cluster.scale(f"job-{number}", PODS_OF_JOB + 1)
            _wait("more pods", lambda: len(cluster.pods()) == jobs * PODS_OF_JOB + changes)
            _run_pods(cluster)
            _wait("jobs at rest", lambda: _at_rest(cluster, jobs))
            change_s = (operator.processor_s - before) / changes
            memory_mb = operator.memory_mb
        with Operator(server.url, Path(folder), ["--agents", "0", "--resync", "1"]) as second:
            _wait("forced resyncs", lambda: second.metric("resyncs_total") > resyncs)
            return Load(memory_mb=memory_mb, change_s=change_s, writes=int(second.metric("writes_total")))


def _wait(what: str, look: Callable[[], bool]) -> None:
    """Look now and then: to look at thousands of objects takes the server's time."""
    wait(what, look, lambda: time.sleep(LOOK_S))


def _run_pods(cluster: Cluster) -> None:
    """What schedulers and kubelets do, without programs."""
    for role in (names.WORKER, names.RENDEZVOUS):
        for pod in cluster.pods(role):
            if (pod.get("status") or {}).get("phase", "Pending") != "Pending":
                continue
            name = pod["metadata"]["name"]
            path = f"/api/v1/namespaces/default/pods/{name}"
            target = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "n0"}}
            cluster.call("POST", f"{path}/binding", {**target, "metadata": {"name": name}}, "application/json")
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            cluster.call("PATCH", f"{path}/status", {"status": ready})


def _at_rest(cluster: Cluster, jobs: int) -> bool:
    """Whether the operator has seen all pods ready."""
    found = cluster.server.find(names.API_VERSION, names.KIND)
    return len(found) == jobs and all(
        (raw.get("status") or {}).get("readyWorkers") == raw["spec"]["replicas"]
        and any(one["type"] == "Scaling" and one["status"] == "False" for one in raw["status"]["conditions"])
        for raw in found
    )
