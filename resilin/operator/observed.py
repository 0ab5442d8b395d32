"""What is seen of a job in the cluster: typed views over the API's objects. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilin.operator import names, timestamps

Raw = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Disruption:
    """Why somebody other than the pod's own program ended it, in the cluster's words."""

    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class PodView:
    """A pod of the job."""

    name: str
    uid: str
    role: str
    index: int
    incarnation: int
    phase: str
    """Pending, Running, Succeeded, Failed or Unknown."""
    ready: bool
    ready_since: float | None
    started: bool
    """Whether it has passed its startup probe: it took part in the job's world once."""
    node: str
    address: str
    bound: float
    """When it was bound to its node, as far as it is known: else when it was made."""
    deletion: float | None
    """When it is to be gone: set once its deletion was asked for, its grace included."""
    exit_code: int | None
    """Of the main container when it has terminated, else of the one that ended the pod."""
    prepared: bool = False
    """Whether its volumes are mounted and its network is there, as kubelets say from 1.29 on."""
    ended_container: str = ""
    """The container that ended the pod, where that was another than the main one: what it says is no agent's word."""
    runs_agent: bool = True
    """Whether the main container's command is an agent, as far as that is known: else its exit code is not one."""
    ended: float | None
    ended_reason: str
    """As the kubelet says: OOMKilled, Error ..."""
    message: str
    """The termination message, or the kubelet's words."""
    waiting: tuple[str, str]
    """Reason and message of the first container that waits."""
    unschedulable: str
    disruption: Disruption | None
    failure_reason: str
    """Of the pod as a whole: Evicted, NodeLost, UnexpectedAdmissionError ..."""

    @property
    def is_terminal(self) -> bool:
        """Return whether nothing of it runs any more, as its kubelet has said."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def has_ended(self) -> bool:
        """Return whether its main container has, or all of it: others, which only serve that one, may still run."""
        return self.is_terminal or (self.exit_code is not None and not self.ended_container)

    @property
    def succeeded(self) -> bool:
        """Return whether its agent has ended well."""
        return self.phase == "Succeeded" or (self.exit_code == 0 and not self.ended_container)

    @property
    def deleting(self) -> bool:
        """Return whether its deletion was asked for."""
        return self.deletion is not None


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node of the cluster, as its conditions say."""

    ready: bool
    since: float
    """When `ready` last changed."""
    unschedulable: bool = False
    """Cordoned: what runs there is about to be evicted."""
    exists: bool = True
    """False: it was removed from the cluster."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """What the API server would not do, in its words."""

    kind: str
    name: str
    code: int
    reason: str
    message: str
    key: str = ""
    """Of the Apply that was refused."""


@dataclass(frozen=True, kw_only=True)
class WorkerFault:
    """The end of a worker that its agent has answered, within a pod."""

    number: int
    """Of this pod's faults, from 1."""
    rank: int
    pod: str
    uid: str
    """The pod's."""
    cause: str
    message: str
    time: float
    lost_s: float
    """Until the next step that a worker of this pod committed."""


@dataclass(frozen=True, kw_only=True)
class WorldView:
    """The world as the agents of a job tell it."""

    told_by: str
    """Uid of the pod that was asked first."""
    generation: int
    restarts: int
    """Failures that agents have answered with a new worker."""
    recovering: bool = False
    """Whether an agent has committed no step since a fault."""
    faults: tuple[WorkerFault, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A job and all that belongs to it."""

    job: Raw
    pods: tuple[PodView, ...] = ()
    """Those that the job's owner reference names."""
    objects: Mapping[tuple[str, str], Raw] = field(default_factory=dict)
    """By kind and name: Services, the Secret and so on, owned or not."""
    nodes: Mapping[str, NodeView] | None = None
    """None: the operator may not see nodes."""
    kinds: frozenset[str] = frozenset()
    """The kinds of `objects` that are watched: of others it is not known whether they are there."""
    refusals: tuple[Refusal, ...] = ()
    """Since the last turn that met none."""
    world: WorldView | None = None
    """None: no agent was asked yet, or none has answered."""
    operator_namespace: str = ""
    """Where the operator runs; empty: outside of the cluster."""
    now: float = 0.0
    """Seconds since the epoch."""

    @property
    def meta(self) -> Raw:
        """The job's metadata."""
        meta: Raw = self.job["metadata"]
        return meta

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.meta["name"])

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return str(self.meta["namespace"])

    @property
    def uid(self) -> str:
        """The job's uid."""
        return str(self.meta["uid"])

    @property
    def status(self) -> Raw:
        """The job's status."""
        return self.job.get("status") or {}


def is_owned(raw: Raw, uid: str) -> bool:
    """Return whether the job with `uid` is the controller of this object: only then may it be changed or deleted."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)


def pod(raw: Raw) -> PodView:
    """Return the view of a pod with the operator's labels."""
    meta, status = raw["metadata"], raw.get("status") or {}
    labels = meta.get("labels") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    ready, scheduled = conditions.get("Ready") or {}, conditions.get("PodScheduled") or {}
    disrupted = conditions.get("DisruptionTarget") or {}
    main, runs_agent = _main_container(raw)
    ended, other = _end(main, status)
    disruption = None
    if disrupted.get("status") == "True":
        disruption = Disruption(reason=disrupted.get("reason", ""), message=disrupted.get("message", ""))
    return PodView(
        name=meta["name"],
        uid=meta["uid"],
        role=labels.get(names.ROLE, ""),
        index=_number(labels.get(names.INDEX)),
        incarnation=_number(labels.get(names.INCARNATION)),
        phase=status.get("phase") or "Pending",
        ready=ready.get("status") == "True",
        ready_since=timestamps.parse(ready.get("lastTransitionTime")),
        started=bool(main.get("started", True)),
        node=(raw.get("spec") or {}).get("nodeName") or "",
        address=status.get("podIP") or "",
        bound=_bound(scheduled) or timestamps.parse(meta.get("creationTimestamp")) or 0.0,
        deletion=timestamps.parse(meta.get("deletionTimestamp")),
        exit_code=ended.get("exitCode"),
        prepared=(conditions.get("PodReadyToStartContainers") or {}).get("status") == "True",
        ended_container=other,
        runs_agent=runs_agent,
        ended=timestamps.parse(ended.get("finishedAt")),
        ended_reason=ended.get("reason") or "",
        message=ended.get("message") or status.get("message") or "",
        waiting=_waiting(status),
        unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
        disruption=disruption,
        failure_reason=status.get("reason") or "",
    )


def node(raw: Raw) -> NodeView:
    """Return the view of a node."""
    for condition in (raw.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Ready":
            since = timestamps.parse(condition.get("lastTransitionTime")) or 0.0
            ready = condition["status"] == "True"
            return NodeView(ready=ready, since=since, unschedulable=bool(raw["spec"].get("unschedulable")))
    return NodeView(ready=False, since=timestamps.parse(raw["metadata"].get("creationTimestamp")) or 0.0)


def _main_container(raw: Raw) -> tuple[Raw, bool]:
    """The status of the main container, and whether it runs an agent: the image's own program may be one."""
    statuses = (raw.get("status") or {}).get("containerStatuses") or ()
    containers: Sequence[Raw] = (raw.get("spec") or {}).get("containers") or ({},)
    main = next((one for one in containers if one.get("name") == names.CONTAINER), containers[0])
    status: Raw = next((one for one in statuses if one["name"] == main.get("name")), {})
    return status, not main.get("command") or names.is_agent(main)


def _end(main: Raw, status: Raw) -> tuple[Raw, str]:
    """How a pod ended: the main container's end, else that of the first that failed, with its name."""
    ended = _terminated(main)
    if ended or status.get("phase") != "Failed":
        return ended, ""
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if (found := _terminated(one)).get("exitCode"):
            return found, str(one["name"])
    return {}, ""


def _terminated(container: Raw) -> Raw:
    return (container.get("state") or {}).get("terminated") or {}


def _waiting(status: Raw) -> tuple[str, str]:
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "", "ContainerCreating", "PodInitializing"):
            return waiting["reason"], waiting.get("message") or ""
    return "", ""


def _bound(scheduled: Raw) -> float | None:
    return timestamps.parse(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
