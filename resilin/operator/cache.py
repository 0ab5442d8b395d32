"""Keeps what is known of the cluster. Pure: lists, events and answers in, views out.

Watches lag behind what the operator itself has written, so answers of writes go in as well, and what is older than what
is known is ignored: resource versions of one server are numbers that grow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from resilin.operator import names, observed
from resilin.operator.observed import NodeView, Observed, PodView, Raw, Refusal, WorldView

Key = tuple[str, str]
"""A job's namespace and name."""
SURROUNDINGS = frozenset({"Service", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy"})
_MOST_TOMBSTONES = 20_000


@dataclass(frozen=True, slots=True)
class _Pod:
    view: PodView
    version: int
    owner: str


class Cache:
    """Jobs, their pods and objects, and nodes. `kinds`: of objects beside pods that are watched. `namespace`: the
    operator's own."""

    def __init__(self, kinds: frozenset[str] = SURROUNDINGS, namespace: str = "") -> None:
        self.kinds = kinds
        self._namespace = namespace
        self._worlds: dict[Key, WorldView] = {}
        self.nodes: dict[str, NodeView] | None = None
        self._jobs: dict[Key, Raw] = {}
        self._pods: dict[Key, dict[str, _Pod]] = {}  # by job and name
        self._objects: dict[Key, dict[tuple[str, str], Raw]] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()  # uid -> the version up to which it is known to be gone
        self._floor: dict[tuple[str, Key], int] = {}  # kind and job -> what is older is known already

    @property
    def jobs(self) -> Iterable[Key]:
        """All jobs."""
        return tuple(self._jobs)

    def job(self, key: Key) -> Raw | None:
        """Return the resource, None where there is none."""
        return self._jobs.get(key)

    def observe(self, key: Key, refusals: tuple[Refusal, ...], now: float) -> Observed | None:
        """Return what is known of a job."""
        job = self._jobs.get(key)
        if job is None:
            return None
        uid = job["metadata"]["uid"]
        objects = dict(self._objects.get(key, {}))
        pods = tuple(pod.view for pod in self._pods.get(key, {}).values() if pod.owner == uid)
        return Observed(
            job=job, pods=pods, objects=objects, nodes=self.nodes, kinds=self.kinds, refusals=refusals,
            world=self._worlds.get(key), operator_namespace=self._namespace, now=now,
        )  # fmt: skip

    def ready_workers(self, key: Key) -> list[PodView]:
        """Return the workers' pods of a job whose agents are in the world, by index."""
        found = (pod.view for pod in self._pods.get(key, {}).values())
        able = [pod for pod in found if pod.role == names.WORKER and pod.ready and not pod.deleting and pod.address]
        return sorted(able, key=lambda pod: (pod.index, pod.incarnation))

    def world(self, key: Key) -> WorldView | None:
        """Return what agents told last."""
        return self._worlds.get(key)

    def put_world(self, key: Key, world: WorldView) -> bool:
        """Take what agents of a job tell; whether it is anything new."""
        if key not in self._jobs or self._worlds.get(key) == world:
            return False
        self._worlds[key] = world
        return True

    def holds(self, key: Key, kind: str, name: str) -> bool:
        """Return whether an object of a job is known."""
        return (kind, name) in self._objects.get(key, {})

    # ------------------------------------------------------------------------------------------- what comes in

    def put(self, kind: str, raw: Raw) -> Key | None:
        """Take an object as it is now; the job that it concerns, None where it says nothing new."""
        meta = raw["metadata"]
        version = int(meta["resourceVersion"])
        key = _key_of(kind, raw)
        if key is None or version <= self._gone.get(meta["uid"], -1) or version <= self._floor.get((kind, key), -1):
            return None
        if kind == names.KIND:
            old = self._jobs.get(key)
            if old is not None and int(old["metadata"]["resourceVersion"]) >= version:
                return None
            self._jobs[key] = _slim(raw)
        elif kind == "Pod":
            known = self._pods.setdefault(key, {}).get(meta["name"])
            if known is not None and known.version >= version:
                return None
            self._pods[key][meta["name"]] = _Pod(observed.pod(raw), version, _owner(raw))
        elif kind in self.kinds:
            of_job = self._objects.setdefault(key, {})
            there = of_job.get((kind, meta["name"]))
            if there is not None and int(there["metadata"]["resourceVersion"]) >= version:
                return None
            of_job[kind, meta["name"]] = _slim(raw)
        return key

    def remove(self, kind: str, raw: Raw) -> Key | None:
        """Take note that an object is gone; the job that it concerns, None where that was known."""
        meta = raw["metadata"]
        key = _key_of(kind, raw)
        if key is None:
            return None
        version = int(meta["resourceVersion"])
        self._bury(meta["uid"], version)
        if kind == names.KIND:
            return self._drop_job(key, meta["uid"])
        if kind == "Pod":
            pod = self._pods.get(key, {}).get(meta["name"])
            if pod is None or pod.view.uid != meta["uid"]:
                return None
            del self._pods[key][meta["name"]]
            return key
        there = self._objects.get(key, {}).get((kind, meta["name"]))
        if there is None or there["metadata"]["uid"] != meta["uid"]:
            return None
        del self._objects[key][kind, meta["name"]]
        return key

    def replace(self, kind: str, items: Iterable[Raw], version: int, only: Key | None = None) -> set[Key]:
        """Take a list that was read at `version`: what it lacks is gone. `only`: it is of one job. Jobs that change."""
        changed: set[Key] = set()
        listed = set()
        for raw in items:
            listed.add(raw["metadata"]["uid"])
            key = self.put(kind, raw)
            if key is not None:
                changed.add(key)
        for key, uid, known in list(self._all(kind, only)):
            if uid not in listed and known <= version:
                self._forget(kind, key, uid, version)
                changed.add(key)
        for key in [only] if only is not None else list(self._keys(kind)):
            self._floor[kind, key] = max(version, self._floor.get((kind, key), -1))
        return changed

    def put_node(self, raw: Raw) -> tuple[str, bool]:
        """Take a node as it is now; its name, and whether that matters to pods."""
        name = raw["metadata"]["name"]
        nodes = self.nodes if self.nodes is not None else {}
        self.nodes = nodes
        before, nodes[name] = nodes.get(name), observed.node(raw)
        return name, before != nodes[name]

    def remove_node(self, name: str, now: float) -> None:
        """Take note that a node is gone: its pods are as those of one that does not answer since `now`."""
        before = self.nodes.get(name) if self.nodes is not None else None
        if self.nodes is not None and (before is None or before.exists):
            since = before.since if before is not None and not before.ready else now
            self.nodes[name] = NodeView(ready=False, since=since, exists=False)

    def on_node(self, name: str) -> list[Key]:
        """Return the jobs that have pods on a node."""
        return [key for key, pods in self._pods.items() if any(pod.view.node == name for pod in pods.values())]

    # ---------------------------------------------------------------------------------------------- helpers

    def _keys(self, kind: str) -> Iterable[Key]:
        if kind == names.KIND:
            return self._jobs
        return self._pods if kind == "Pod" else self._objects

    def _all(self, kind: str, only: Key | None) -> Iterable[tuple[Key, str, int]]:
        for key in [only] if only is not None else list(self._keys(kind)):
            if kind == names.KIND:
                found: Iterable[Raw] = [self._jobs[key]] if key in self._jobs else []
            elif kind == "Pod":
                yield from ((key, pod.view.uid, pod.version) for pod in self._pods.get(key, {}).values())
                continue
            else:
                found = [raw for (of_kind, _), raw in self._objects.get(key, {}).items() if of_kind == kind]
            for raw in found:
                yield key, raw["metadata"]["uid"], int(raw["metadata"]["resourceVersion"])

    def _forget(self, kind: str, key: Key, uid: str, version: int) -> None:
        self._bury(uid, version)
        if kind == names.KIND:
            self._drop_job(key, uid)
        elif kind == "Pod":
            self._pods[key] = {name: pod for name, pod in self._pods[key].items() if pod.view.uid != uid}
        else:
            of_job = self._objects[key]
            self._objects[key] = {at: raw for at, raw in of_job.items() if raw["metadata"]["uid"] != uid}

    def _drop_job(self, key: Key, uid: str) -> Key | None:
        job = self._jobs.get(key)
        if job is None or job["metadata"]["uid"] != uid:
            return None
        del self._jobs[key]
        self._worlds.pop(key, None)
        for kind in (names.KIND, "Pod", *self.kinds):
            self._floor.pop((kind, key), None)
        for known in (self._pods, self._objects):
            if not known.get(key):
                known.pop(key, None)
        return key

    def _bury(self, uid: str, version: int) -> None:
        self._gone[uid] = max(version, self._gone.pop(uid, -1))
        while len(self._gone) > _MOST_TOMBSTONES:
            self._gone.popitem(last=False)


def _slim(raw: Raw) -> Raw:
    """Without who wrote what, which is half of an object and read by nobody here."""
    meta = {key: value for key, value in raw["metadata"].items() if key != "managedFields"}
    return {**raw, "metadata": meta}


def _key_of(kind: str, raw: Raw) -> Key | None:
    """The job that an object belongs to, by its label."""
    meta: Mapping[str, Any] = raw["metadata"]
    if kind == names.KIND:
        return meta["namespace"], meta["name"]
    job = (meta.get("labels") or {}).get(names.JOB)
    return (meta["namespace"], job) if job else None


def _owner(raw: Raw) -> str:
    owners = raw["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), "")
