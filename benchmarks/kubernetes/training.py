"""One job of real agents: scaled, a pod deleted, a node drained, again and again."""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.disturbed import Event
from benchmarks.kubernetes.cluster import Cluster, Operator, job
from resilin.testing.kube.kubelet import Kubelets
from resilin.testing.kube.pods import is_ready
from resilin.testing.kube.server import KubeServer

SETTLED = 5


@dataclass
class Trained:
    """In seconds."""

    scale_s: list[float] = field(default_factory=list)
    deletion_s: list[float] = field(default_factory=list)
    drain_s: list[float] = field(default_factory=list)
    most_repeated: int = 0


class _Job:
    def __init__(self, cluster: Cluster, events: Path) -> None:
        self._cluster, self._file, self._events, self._read_to = cluster, events, [], 0
        self._events: list[Event]

    def commits(self) -> list[Event]:
        """All commits so far, in the order of time."""
        with self._file.open("rb") as file:
            file.seek(self._read_to)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        self._events += [event for line in whole.decode().splitlines() if (event := Event.parse(line)).kind == "commit"]
        return self._events

    def forget(self) -> None:
        """What was is not looked at again."""
        self.commits()
        self._events = self._events[-2000:]

    def settled(self, size: int) -> list[Event]:
        """Wait until so many pods are ready and have done some steps together; these."""

        def look() -> list[Event] | None:
            pods = self._cluster.pods()
            if len(pods) != size or not all(map(is_ready, pods)):
                return None
            commits = self.commits()
            newest = commits[-1].generation if commits else 0
            last = [one for one in commits if one.generation == newest and one.world == size and one.rank == 0]
            return last if len(last) >= SETTLED else None

        return self._cluster.wait(f"training with {size} pods", look)

    def first_step(self, size: int, since: float) -> float:
        """When the first step of a world of `size` was done after `since`."""

        def look() -> float | None:
            return next((one.at for one in self.commits() if one.world == size and one.at > since), None)

        return self._cluster.wait(f"a step of {size} workers", look)

    def pause(self, size: int, since: float) -> tuple[float, int]:
        """The longest time without a commit of survivors until they are settled at `size`, and steps done twice."""

        def look() -> list[Event] | None:
            after = [one for one in self.commits() if one.world == size and one.at > since and one.rank == 0]
            return after if len(after) >= SETTLED else None

        after = self._cluster.wait(f"{SETTLED} steps with {size} workers", look)
        staying = {one.pid for one in self.commits() if one.world == size and one.at > since}
        gaps, repeated = [], 0
        for pid in staying:
            own = [one for one in self.commits() if one.pid == pid and one.at <= after[-1].at]
            before = [b.at - a.at for a, b in itertools.pairwise(own) if b.at < since]
            pauses = [b.at - a.at for a, b in itertools.pairwise(own) if b.at >= since]
            gaps.append(max(pauses) - statistics.median(before))
            steps = [one.step for one in own if one.at >= since]
            repeated = max(repeated, len(steps) - len(set(steps)))
        return max(gaps), repeated


def measure(rounds: int) -> Trained:
    """Rounds of: scaled 2 to 4, a pod deleted, a node drained, scaled back."""
    found = Trained()
    with tempfile.TemporaryDirectory(prefix="resilin-kubernetes-") as name, KubeServer() as server:
        folder, cluster = Path(name), Cluster(server)
        events = folder / "events"
        events.touch()
        folder.joinpath("pods").mkdir()
        command = ["elastic-run", "-m", "benchmarks.ours", "recovery", "--events", str(events), "--shards", "4"]
        environment = harness.environment()
        kubelets = Kubelets(
            server, folder / "pods", harness.ROOT, nodes=("n0", "n1", "n2", "n3", "n4"),
            environment={key: environment[key] for key in ("PYTHONPATH", "OMP_NUM_THREADS")},
        )  # fmt: skip
        with kubelets, Operator(server.url, folder):
            server.create(job("train", 2, command, elasticPolicy={"graceSeconds": 20, "backoffSeconds": 0}))
            for number in range(rounds):
                _round(_Job(cluster, events), cluster, found)
                print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return found


def _round(running: _Job, cluster: Cluster, found: Trained) -> None:
    running.settled(2)
    running.forget()
    since = time.monotonic()
    cluster.scale("train", 4)
    found.scale_s.append(running.first_step(4, since) - since)
    running.settled(4)
    since = time.monotonic()
    cluster.call("DELETE", f"/api/v1/namespaces/default/pods/{_name(cluster.pods()[-1:])}")
    _take(found.deletion_s, found, running.pause(3, since))
    running.settled(4)
    pod = cluster.pods()[-1]
    node = pod["spec"]["nodeName"]
    since = time.monotonic()
    _cordon(cluster, node, True)
    meta = {"name": pod["metadata"]["name"], "namespace": "default"}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
    cluster.call("POST", f"/api/v1/namespaces/default/pods/{meta['name']}/eviction", eviction, "application/json")
    _take(found.drain_s, found, running.pause(3, since))
    _cordon(cluster, node, False)
    running.settled(4)
    cluster.scale("train", 2)
    running.settled(2)


def _take(samples: list[float], found: Trained, outcome: tuple[float, int]) -> None:
    samples.append(max(0.0, outcome[0]))
    found.most_repeated = max(found.most_repeated, outcome[1])


def _cordon(cluster: Cluster, node: str, unschedulable: bool) -> None:
    cluster.call("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": unschedulable}})


def _name(pods: Iterable[dict[str, Any]]) -> str:
    return str(next(iter(pods))["metadata"]["name"])
