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
from benchmarks.kubernetes.cluster import Cluster, Operator, job
from benchmarks.parts.disturbed import Event
from resilin.testing.kube.kubelet import Kubelets
from resilin.testing.kube.pods import is_ready
from resilin.testing.kube.server import KubeServer

SETTLED = 5
LAST = 400  # events: some steps of four workers
DISORDER_S = 1.0  # by which lines of several processes may stand out of order
PARTS = ("pods made", "processes started", "in the world of four", "first step")


@dataclass
class Trained:
    """In seconds."""

    scale_s: list[float] = field(default_factory=list)
    parts_s: list[tuple[float, ...]] = field(default_factory=list)
    """What each of `scale_s` consists of, as `PARTS` says."""
    deletion_s: list[float] = field(default_factory=list)
    drain_s: list[float] = field(default_factory=list)
    most_repeated: int = 0


class _Job:
    """What the workers have noted. Whoever looks reads what is new alone: the cores are the job's."""

    def __init__(self, cluster: Cluster, events: Path) -> None:
        self._cluster, self._file, self._read_to = cluster, events, 0
        self._events: list[Event] = []

    def _read(self) -> list[Event]:
        with self._file.open("rb") as file:
            file.seek(self._read_to)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        self._events += [Event.parse(line) for line in whole.decode().splitlines()]
        return self._events

    def _since(self, kind: str, since: float, size: int) -> list[Event]:
        """The events of a kind after a moment, in worlds of `size`, in the order of time."""
        found = []
        for one in reversed(self._read()):
            if one.at < since - DISORDER_S:
                break
            if one.kind == kind and one.world == size and one.at > since:
                found.append(one)
        return sorted(found, key=lambda one: one.at)

    def forget(self) -> None:
        """What was is not looked at again."""
        self._events = self._read()[-2000:]

    def settle(self, size: int) -> None:
        """Wait until there are so many pods, none of them leaving, that have done some steps together."""

        def look() -> bool:
            pods = self._cluster.pods(leaving=True)
            if len(pods) != size or not all(map(is_ready, pods)):
                return False
            last = self._read()[-LAST:]
            newest = last[-1].generation if last else 0
            firsts = [one for one in last if one.generation == newest and one.world == size and one.rank == 0]
            return len(firsts) >= SETTLED

        self._cluster.wait(f"training with {size} pods", look)

    def first_step(self, size: int, since: float) -> float:
        """When the first step of a world of `size` was done after `since`."""

        def look() -> float | None:
            commits = self._since("commit", since, size)
            return commits[0].at if commits else None

        return self._cluster.wait(f"a step of {size} workers", look)

    def entered(self, size: int, since: float) -> float:
        """When the last worker of a world of `size` had its place there."""
        return self._since("enter", since, size)[-1].at

    def pause(self, size: int, since: float) -> tuple[float, int]:
        """The longest time without a commit of survivors until they are settled at `size`, and steps done twice."""

        def look() -> list[Event] | None:
            after = self._since("commit", since, size)
            return after if sum(one.rank == 0 for one in after) >= SETTLED else None

        after = self._cluster.wait(f"{SETTLED} steps with {size} workers", look)
        end = [one.at for one in after if one.rank == 0][SETTLED - 1]
        gaps, repeated = [], 0
        for pid in {one.pid for one in after}:
            own = [one for one in self._events if one.kind == "commit" and one.pid == pid and one.at <= end]
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
            environment={
                **{key: environment[key] for key in ("PYTHONPATH", "OMP_NUM_THREADS")},
                "PYTHONDONTWRITEBYTECODE": "",  # in an image everything is compiled
            },
        )  # fmt: skip
        with kubelets, Operator(server.url, folder):
            server.create(job("train", 2, command, elasticPolicy={"graceSeconds": 20, "backoffSeconds": 0}))
            running = _Job(cluster, events)
            for number in range(rounds):
                _round(running, cluster, kubelets, found)
                print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return found


def _round(running: _Job, cluster: Cluster, kubelets: Kubelets, found: Trained) -> None:
    running.settle(2)
    running.forget()
    before = {pod["metadata"]["uid"] for pod in cluster.pods()}
    since = time.monotonic()
    cluster.scale("train", 4)
    at = running.first_step(4, since)
    found.scale_s.append(at - since)
    running.settle(4)
    came = [kubelets.times[uid] for pod in cluster.pods() if (uid := pod["metadata"]["uid"]) not in before]
    seen, started = max(one.seen for one in came), max(one.started for one in came)
    entered = min(at, running.entered(4, since))
    found.parts_s.append((seen - since, started - seen, entered - started, at - entered))
    since = time.monotonic()
    cluster.call("DELETE", f"/api/v1/namespaces/default/pods/{_name(cluster.pods()[-1:])}")
    _take(found.deletion_s, found, running.pause(3, since))
    running.settle(4)
    pod = cluster.pods()[-1]
    node = pod["spec"]["nodeName"]
    since = time.monotonic()
    _cordon(cluster, node, True)
    meta = {"name": pod["metadata"]["name"], "namespace": "default"}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
    cluster.call("POST", f"/api/v1/namespaces/default/pods/{meta['name']}/eviction", eviction, "application/json")
    _take(found.drain_s, found, running.pause(3, since))
    _cordon(cluster, node, False)
    running.settle(4)
    cluster.scale("train", 2)
    running.settle(2)


def _take(samples: list[float], found: Trained, outcome: tuple[float, int]) -> None:
    samples.append(max(0.0, outcome[0]))
    found.most_repeated = max(found.most_repeated, outcome[1])


def _cordon(cluster: Cluster, node: str, unschedulable: bool) -> None:
    cluster.call("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": unschedulable}})


def _name(pods: Iterable[dict[str, Any]]) -> str:
    return str(next(iter(pods))["metadata"]["name"])
