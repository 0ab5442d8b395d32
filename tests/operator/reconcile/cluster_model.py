"""A cluster in memory: an API server that fails as real ones do, kubelets, nodes, and people who change their mind."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from resilin.errors import ClusterError
from resilin.operator import names, timestamps
from resilin.operator.api import Raw, WatchEvent
from resilin.operator.observed import WorkerFault

NAMESPACE, JOB = "ml", "digits"
KEY = (NAMESPACE, JOB)
START = 1_800_000_000.0


class Crash(BaseException):
    """The operator is killed here."""


@dataclass
class Time:
    """The cluster's clock, which stands still between steps."""

    now: float = START

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@dataclass
class Trouble:
    """How calls go wrong, each with its chance."""

    chance: float = 0.0
    random: random.Random = field(default_factory=random.Random)

    def before(self) -> None:
        """Raise what ends a call before it was carried out."""
        if self.random.random() < self.chance:
            raise self.random.choice(
                [
                    Crash(),
                    ClusterError("too many requests", code=429, reason="TooManyRequests", retry_after_s=1.0),
                    ClusterError("etcdserver: leader changed", code=500, reason="InternalError"),
                    ClusterError("no answer", code=0),
                    ClusterError("the object has been modified", code=409, reason="Conflict"),
                ]
            )

    def after(self) -> None:
        """Raise what ends a call after it was carried out: its answer is lost, or who asked is killed."""
        if self.random.random() < self.chance:
            raise self.random.choice([Crash(), ClusterError("no answer", code=0)])


class Cluster:
    """Implements `resilin.operator.api.Api`, and what else lives in a cluster."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.time = Time()
        self.trouble = Trouble(random=random.Random(seed + 1))
        self.version = 100
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}  # by kind and name; one namespace is enough
        self.events: dict[str, list[WatchEvent]] = {}  # by kind, oldest first
        self.writes: list[str] = []
        self.foreign: dict[tuple[str, str], str] = {}  # fields of an object's spec that somebody else has set
        self.quota: int | None = None  # the most pods
        self.failures = 0  # pods that failed by themselves
        self.once_lost: set[str] = set()  # uids of pods that could be taken for lost at some time
        self.broken: list[str] = []  # invariants that did not hold
        self.node_lost_s = 40
        self.world = 1  # the generation that agents are in
        self.worker_faults: list[WorkerFault] = []
        self._uids = 0

    # ----------------------------------------------------------------------------------------- the API

    async def list(
        self, kind: str, namespace: str | None, selector: str = "", *, fields: str = ""
    ) -> tuple[list[Raw], int]:
        self.trouble.before()
        return [raw for raw in self.of(kind) if not selector or names.JOB in _labels(raw)], self.version

    def watch(self, kind: str, namespace: str | None, selector: str, version: int) -> AsyncIterator[WatchEvent]:
        raise AssertionError("histories deliver events themselves")

    async def get(self, kind: str, namespace: str, name: str) -> Raw:
        self.trouble.before()
        return self._existing(kind, name)

    async def create(self, kind: str, namespace: str, manifest: Raw, *, dry_run: bool = False) -> Raw:
        self.trouble.before()
        name = manifest["metadata"]["name"]
        if (kind, name) in self.objects:
            raise ClusterError(f"{kind} {name} already exists", code=409, reason="AlreadyExists")
        if kind == "Event":
            return manifest
        if kind == "Pod" and self.quota is not None and len(self.of("Pod")) >= self.quota:
            raise ClusterError(f"pods {name} is forbidden: exceeded quota: small", code=403, reason="Forbidden")
        if dry_run:
            return manifest
        if kind == "Pod":
            self._check_identity(manifest)
        answer = self.add(kind, manifest)
        self.writes.append(f"create {kind} {name}")
        self.trouble.after()
        return answer

    async def apply(self, kind: str, namespace: str, name: str, manifest: Raw) -> Raw:
        self.trouble.before()
        self.writes.append(f"apply {kind} {name}")
        there = self.objects.get((kind, name))
        if there is None:
            answer = self.add(kind, manifest)
        else:
            taken = self.foreign.get((kind, name))
            if taken is not None and there["spec"].get(taken) != manifest["spec"].get(taken):
                self.writes.pop()
                raise ClusterError(f"conflict with kubectl: .spec.{taken}", code=409, reason="FieldManagerConflict")
            answer = self.change(kind, name, **{key: manifest[key] for key in ("spec", "data") if key in manifest})
        self.trouble.after()
        return answer

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str, grace_s: int | None = None, version: str = ""
    ) -> Raw:
        self.trouble.before()
        there = self._existing(kind, name)
        if version:
            self._check_version(kind, name, version)
        if there["metadata"]["uid"] != uid:
            raise ClusterError("the UID in the precondition does not match", code=409, reason="Conflict")
        self.writes.append(f"delete {kind} {name}")
        answer = self.ask_for_end(kind, name, grace_s)
        self.trouble.after()
        return answer

    async def update(self, kind: str, namespace: str, name: str, manifest: Raw, sub: str = "") -> Raw:
        self.trouble.before()
        assert sub == "status"
        self._check_version(kind, name, manifest["metadata"]["resourceVersion"])
        self.writes.append(f"status {kind} {name}")
        answer = self.change(kind, name, status=manifest["status"])
        self.trouble.after()
        return answer

    async def merge(self, kind: str, namespace: str, name: str, patch: Raw) -> Raw:
        self.trouble.before()
        if kind == "Event":
            return patch
        self._check_version(kind, name, patch["metadata"]["resourceVersion"])
        self.writes.append(f"finalizers {kind} {name}")
        answer = self.change(kind, name, meta={"finalizers": patch["metadata"]["finalizers"]})
        if not patch["metadata"]["finalizers"] and answer["metadata"].get("deletionTimestamp"):
            self.drop(kind, name)
        self.trouble.after()
        return answer

    def _existing(self, kind: str, name: str) -> dict[str, Any]:
        there = self.objects.get((kind, name))
        if there is None:
            raise ClusterError(f"{kind} {name} not found", code=404, reason="NotFound")
        return there

    def _check_version(self, kind: str, name: str, version: str) -> None:
        if self._existing(kind, name)["metadata"]["resourceVersion"] != version:
            raise ClusterError("the object has been modified", code=409, reason="Conflict")

    # ------------------------------------------------------------------------------------ what is stored

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All objects of a kind."""
        return [raw for (known, _), raw in self.objects.items() if known == kind]

    def add(self, kind: str, manifest: Raw) -> dict[str, Any]:
        """Store a new object."""
        self._uids += 1
        meta = {
            **manifest["metadata"], "uid": f"uid-{self._uids:05}", "generation": 1,
            "creationTimestamp": timestamps.text(self.time.now),
        }  # fmt: skip
        name = meta["name"]
        self.objects[kind, name] = self._stamp("ADDED", kind, {**manifest, "kind": kind, "metadata": meta})
        return self.objects[kind, name]

    def change(self, kind: str, name: str, meta: Raw | None = None, **parts: Any) -> dict[str, Any]:
        """Replace parts of an object."""
        old = self.objects[kind, name]
        metadata = {**old["metadata"], **(meta or {})}
        if "spec" in parts and parts["spec"] != old.get("spec"):
            metadata["generation"] = old["metadata"]["generation"] + 1
        self.objects[kind, name] = self._stamp("MODIFIED", kind, {**old, **parts, "metadata": metadata})
        return self.objects[kind, name]

    def ask_for_end(self, kind: str, name: str, grace_s: int | None = None) -> dict[str, Any]:
        """What DELETE does."""
        there = self.objects[kind, name]
        grace = there.get("spec", {}).get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s
        waits = kind == "Pod" and there["spec"].get("nodeName") and grace > 0 and not _is_terminal(there)
        if there["metadata"].get("finalizers") or waits:
            if "deletionTimestamp" not in there["metadata"]:
                at = timestamps.text(self.time.now + (grace if kind == "Pod" else 0))
                return self.change(
                    kind, name, meta={"deletionTimestamp": at, "deletionGracePeriodSeconds": grace}
                )  # fmt: skip
            return there
        self.drop(kind, name)
        meta = {**there["metadata"], "deletionTimestamp": timestamps.text(self.time.now)}
        return {**there, "metadata": {**meta, "deletionGracePeriodSeconds": 0}}

    def drop(self, kind: str, name: str) -> None:
        """Remove an object, and what it owned."""
        gone = self.objects.pop((kind, name))
        self._stamp("DELETED", kind, {**gone, "metadata": dict(gone["metadata"])})
        uid = gone["metadata"]["uid"]
        for (other, what), raw in list(self.objects.items()):
            if any(one["uid"] == uid for one in raw["metadata"].get("ownerReferences", ())):
                self.ask_for_end(other, what)

    def _stamp(self, event: str, kind: str, raw: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        self.events.setdefault(kind, []).append(WatchEvent(event, raw))
        return raw

    # ---------------------------------------------------------------------------------------- who lives there

    def worker_pods(self) -> list[dict[str, Any]]:
        """The workers' pods that are the job's."""
        return [pod for pod in self.of("Pod") if _labels(pod).get(names.ROLE) == names.WORKER]

    def job_has(self, condition: str) -> bool:
        """Whether the job is there and has a condition that holds."""
        status = self.objects.get((names.KIND, JOB), {}).get("status") or {}
        return any(one["type"] == condition and one["status"] == "True" for one in status.get("conditions", ()))

    def is_silent(self, pod: Raw) -> bool:
        """Whether the pod's node is down."""
        node = self.objects.get(("Node", pod["spec"].get("nodeName", "")))
        return node is not None and node["status"]["conditions"][0]["status"] != "True"

    def kubelets(self, all_of_them: bool = False) -> None:
        """Let pods go on: be scheduled, start, become ready, end as they were asked to."""
        for pod in self.of("Pod"):
            if all_of_them or self.random.random() < 0.6:
                self._kubelet(pod)

    def _kubelet(self, pod: dict[str, Any]) -> None:
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        if not pod["spec"].get("nodeName"):
            nodes = [node["metadata"]["name"] for node in self.of("Node") if not node["spec"].get("unschedulable")]
            if nodes:
                bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamps.text(self.time.now)}
                spec = {**pod["spec"], "nodeName": self.random.choice(nodes)}
                self.change("Pod", name, spec=spec, status={"phase": "Pending", "conditions": [bound]})
        elif self.is_silent(pod):
            return
        elif pod["metadata"].get("deletionTimestamp"):
            self.drop("Pod", name)
        elif status.get("phase", "Pending") == "Pending":
            self.change("Pod", name, status=self._status(pod, "Running", False))
        elif status["phase"] == "Running" and status["conditions"][0]["status"] != "True":
            self.change("Pod", name, status=self._status(pod, "Running", True))

    def _status(self, pod: Raw, phase: str, ready: bool) -> dict[str, Any]:
        now = timestamps.text(self.time.now)
        kept = [one for one in (pod.get("status") or {}).get("conditions", ()) if one["type"] != "Ready"]
        return {
            "phase": phase,
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": str(ready), "lastTransitionTime": now}, *kept],
        }

    def end_pod(self, pod: Raw, code: int, reason: str = "Error", message: str = "") -> None:
        """The pod's program ends."""
        ended = {"exitCode": code, "reason": reason, "message": message, "finishedAt": timestamps.text(self.time.now)}
        container = pod["spec"]["containers"][0]["name"]
        self.change(
            "Pod", pod["metadata"]["name"],
            status={
                **self._status(pod, "Failed" if code else "Succeeded", False),
                "containerStatuses": [{"name": container, "state": {"terminated": ended}}],
            },
        )  # fmt: skip

    def running(self) -> list[dict[str, Any]]:
        """Workers' pods whose program runs and whose node answers."""
        return [
            pod for pod in self.worker_pods()
            if (pod.get("status") or {}).get("phase") == "Running" and not self.is_silent(pod)
        ]  # fmt: skip

    def set_node(self, name: str, ready: bool) -> None:
        """A node goes down or comes back."""
        condition = {
            "type": "Ready", "status": "True" if ready else "Unknown",
            "lastTransitionTime": timestamps.text(self.time.now),
        }  # fmt: skip
        self.change("Node", name, status={"conditions": [condition]})

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and take note of which pods may count as lost by then."""
        self.time.now += seconds
        for pod in self.worker_pods():
            since = []
            if self.is_silent(pod):
                node = self.objects["Node", pod["spec"]["nodeName"]]
                since.append(timestamps.parse(node["status"]["conditions"][0]["lastTransitionTime"]))
            if pod["metadata"].get("deletionTimestamp"):
                since.append(timestamps.parse(pod["metadata"]["deletionTimestamp"]))
            if any(at is not None and self.time.now >= at + self.node_lost_s for at in since):
                self.once_lost.add(pod["metadata"]["uid"])

    def _check_identity(self, manifest: Raw) -> None:
        """No identity has two pods that live; one whose node was silent for long must have been asked to go."""
        labels = manifest["metadata"]["labels"]
        if labels.get(names.ROLE) != names.WORKER:
            return
        for pod in self.worker_pods():
            if _labels(pod)[names.INDEX] != labels[names.INDEX] or _is_terminal(pod):
                continue
            meta = pod["metadata"]
            if meta["uid"] not in self.once_lost or not meta.get("deletionTimestamp"):
                self.broken.append(f"{manifest['metadata']['name']} is made while {meta['name']} lives")


def _labels(raw: Raw) -> dict[str, str]:
    labels: dict[str, str] = raw["metadata"].get("labels") or {}
    return labels


def _is_terminal(pod: Raw) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def job_manifest(**fields: Any) -> dict[str, Any]:
    """An ElasticJob as its user would write it, with the schema's defaults."""
    template = {"spec": {"containers": [{"name": "worker", "image": "r:1", "command": ["elastic-run", "train.py"]}]}}
    spec = {
        "template": template, "minReplicas": 1, "maxReplicas": 8, "replicas": 3, "maxRestarts": 100,
        "elasticPolicy": {"graceSeconds": 5, "backoffSeconds": 1, "nodeLostSeconds": 40}, **fields,
    }  # fmt: skip
    return {"apiVersion": names.API_VERSION, "metadata": {"name": JOB, "namespace": NAMESPACE}, "spec": spec}


Step = Callable[[], None]


def steps(cluster: Cluster) -> Iterator[tuple[int, Step]]:
    """What people, programs and machines may do next, with weights."""
    draw = cluster.random
    job = cluster.objects.get((names.KIND, JOB))
    yield 12, cluster.kubelets
    yield 6, lambda: cluster.pass_time(draw.choice([0.1, 1.0, 7.0, 45.0]))
    for node in cluster.of("Node"):
        ready = node["status"]["conditions"][0]["status"] == "True"
        yield 1 if ready else 3, lambda n=node["metadata"]["name"], r=ready: cluster.set_node(n, not r)
    for pod in cluster.running():
        yield 1, lambda p=pod: _fail(cluster, p)
        yield 1, lambda p=pod: cluster.ask_for_end("Pod", p["metadata"]["name"])
        yield 1, lambda p=pod: _evict(cluster, p)
    if job is not None and not job["metadata"].get("deletionTimestamp"):
        yield 4, lambda: _edit(cluster, replicas=draw.randint(1, 6))
        yield 1, lambda: _edit(cluster, suspend=not job["spec"].get("suspend", False))
        if draw.random() < 0.03:
            yield 1, lambda: cluster.ask_for_end(names.KIND, JOB)
        if draw.random() < 0.03 and cluster.running():
            yield 1, lambda: [cluster.end_pod(pod, 0, "Completed") for pod in cluster.running()]
    for kind in ("Service", "ConfigMap", "PodDisruptionBudget"):
        if (kind, JOB) in cluster.objects and draw.random() < 0.2:
            yield 1, lambda k=kind: cluster.drop(k, JOB)
    if ("PodDisruptionBudget", JOB) in cluster.objects and draw.random() < 0.1:
        yield 1, lambda: _take_field(cluster)
    yield 1, lambda: setattr(cluster, "quota", draw.choice([None, 2, 4]))


def _fail(cluster: Cluster, pod: Raw) -> None:
    code, reason = cluster.random.choice([(1, "Error"), (3, "Error"), (137, "OOMKilled"), (139, "Error")])
    cluster.failures += 1
    cluster.end_pod(pod, code, reason, "elastic-run: rank 2 raised ValueError: x")


def _evict(cluster: Cluster, pod: Raw) -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drained"}
    status = {**pod["status"], "conditions": [*pod["status"]["conditions"], condition]}
    cluster.change("Pod", pod["metadata"]["name"], status=status)
    cluster.ask_for_end("Pod", pod["metadata"]["name"])


def _edit(cluster: Cluster, **fields: Any) -> None:
    job = cluster.objects[names.KIND, JOB]
    cluster.change(names.KIND, JOB, spec={**job["spec"], **fields})


def _take_field(cluster: Cluster) -> None:
    there = cluster.objects["PodDisruptionBudget", JOB]
    cluster.foreign["PodDisruptionBudget", JOB] = "minAvailable"
    cluster.change("PodDisruptionBudget", JOB, spec={**there["spec"], "minAvailable": 0})
