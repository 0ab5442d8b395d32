"""Works out the status of a job that is under way: conditions, counters, faults. Pure.

`openFaults` is the memory of the operator: a fault stands there from the moment it is counted until the index works
again. A pod that failed is deleted only when it stands there, so a crash between any two writes neither counts it twice
nor forgets it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from resilin.operator import faults, names, timestamps
from resilin.operator.actions import Action, Emit, PatchStatus
from resilin.operator.conditions import Conditions
from resilin.operator.faults import PodFault
from resilin.operator.observed import Observed, PodView, Refusal
from resilin.operator.scaling import Workers
from resilin.operator.spec import ElasticJobSpec

STEADY_S = 600.0  # a pod that ran for so long was well: a failure after that is the first of a row
MOST_CAUSES, OTHER_CAUSES = 63, "Other"  # the schema has room for one more
_WARNINGS = ("Degraded", "Stalled", "Failed")


@dataclass
class Draft:
    """The next status, written by the parts of `reconcile`."""

    observed: Observed
    body: dict[str, Any] = field(init=False)
    conditions: Conditions = field(init=False)
    told: list[Emit] = field(default_factory=list)
    """What people are to hear besides changes of conditions."""

    def __post_init__(self) -> None:
        self.body = copy.deepcopy(dict(self.observed.status))
        generation = int(self.observed.meta.get("generation", 1))
        self.conditions = Conditions(self.body.get("conditions") or (), generation, self.observed.now)
        self.body["observedGeneration"] = generation
        self.body["selector"] = names.selector_text(self.observed.name)
        self.conditions.set("Created", True, "Accepted", "the operator has taken the job up")

    @property
    def restarts(self) -> int:
        """Failures of pods that count."""
        return int(self.body.get("restarts") or 0)

    def actions(self) -> list[Action]:
        """Return the write that makes the cluster's status this one, none if it is, and what to tell people of it."""
        self.body["conditions"] = self.conditions.to_json()
        if self.body == self.observed.status:
            return []
        told: list[Action] = [
            Emit(
                type="Warning" if one["type"] in _WARNINGS and one["status"] == "True" else "Normal",
                reason=one["reason"] if one["status"] == "True" else f"Not{one['type']}",
                message=one["message"] or f"{one['type']}: {one['status']}",
            )
            for one in self.conditions.changed
            if one["type"] != "Created"
        ]
        version = str(self.observed.meta["resourceVersion"])
        return [PatchStatus(status=self.body, resource_version=version), *self.told, *told]


def count(draft: Draft, workers: Workers) -> dict[str, PodFault]:
    """Write the faults that are new, end those that are over; returns the faults of current pods by uid."""
    found = {
        pod.uid: fault
        for pod in workers.current.values()
        if (fault := faults.of(pod, lost=pod.uid in workers.lost)) is not None
    }
    before = list(draft.body.get("openFaults") or ())
    kept, known = [], set()
    wanted = set(workers.empty) | {pod.index for pod in workers.alive}
    for record in before:
        pod = workers.current.get(record["index"])
        back = pod is not None and pod.uid != record["uid"] and pod.ready and pod in workers.alive
        if back:
            assert pod is not None
            _add_lost_time(draft, record, pod)
        if pod is not None and pod.uid == record["uid"]:  # as long as it is seen it must not be counted again
            if pod.uid in found:
                kept.append(record)
                known.add(pod.uid)
        elif not back and record["index"] in wanted:
            kept.append(record)
    for pod in workers.current.values():
        fault = found.get(pod.uid)
        if fault is None or pod.uid in known or not (fault.counted or pod.index in workers.empty):
            continue  # a pod that was to go and went is no fault
        kept = [one for one in kept if one["index"] != pod.index]
        kept.append(_record(pod, fault, draft.observed.now))
        if fault.counted:
            draft.body["restarts"] = draft.restarts + 1
            _count_in_a_row(draft, pod, wanted)
        draft.body["lastFault"] = _last_fault(pod, fault, kept[-1]["since"])
    _put(draft.body, "openFaults", sorted(kept, key=lambda one: one["index"]))
    return found


def take_world(draft: Draft, workers: Workers) -> None:
    """Write what agents tell of their world: its generation, and faults of workers that they have answered themselves.

    Up to which number faults of a pod were counted stands in the status, too: each is counted once.
    """
    world = draft.observed.world
    if world is None or not any(pod.uid == world.told_by and pod.ready for pod in workers.alive):
        return
    nodes = {pod.uid: pod.node for pod in workers.all}
    known = draft.body.get("workerFaults") or ()
    counted = {one["uid"]: int(one["counted"]) for one in known if one["uid"] in nodes}
    for fault in sorted(world.faults, key=lambda one: (one.time, one.number)):
        if fault.uid not in nodes or fault.number <= counted.get(fault.uid, 0):
            continue
        counted[fault.uid] = fault.number
        _add_seconds(draft, fault.cause, fault.lost_s)
        at = timestamps.text(fault.time)
        draft.told.append(
            Emit(type="Warning", reason="WorkerReplaced", message=f"pod {fault.pod}: {faults.short(fault.message)}")
        )
        if at >= (draft.body.get("lastFault") or {}).get("time", ""):
            draft.body["lastFault"] = {
                "rank": fault.rank, "pod": fault.pod, "node": nodes[fault.uid], "cause": fault.cause,
                "message": faults.short(fault.message), "time": at,
            }  # fmt: skip
    _put(draft.body, "workerFaults", [{"uid": uid, "counted": counted[uid]} for uid in sorted(counted)])
    draft.body["worldGeneration"] = world.generation
    if world.restarts or "workerRestarts" in draft.body:
        draft.body["workerRestarts"] = world.restarts


def failures_in_a_row(draft: Draft, index: int) -> int:
    """Return how often pods of an index have failed since one of them ran for long."""
    known = draft.body.get("indexFailures") or ()
    return next((int(one["times"]) for one in known if one["index"] == index), 0)


def _count_in_a_row(draft: Draft, pod: PodView, wanted: set[int]) -> None:
    """One more failure of an index. What is known of indices that are wanted no more goes."""
    ran_s = (pod.ended if pod.ended is not None else draft.observed.now) - pod.bound
    times = 1 if ran_s >= STEADY_S else failures_in_a_row(draft, pod.index) + 1
    others = [
        one for one in draft.body.get("indexFailures") or () if one["index"] in wanted and one["index"] != pod.index
    ]
    found = [*others, {"index": pod.index, "times": times}]
    _put(draft.body, "indexFailures", sorted(found, key=lambda one: one["index"]))


def _record(pod: PodView, fault: PodFault, now: float) -> dict[str, Any]:
    since = pod.ended if pod.ended is not None else now
    return {
        "index": pod.index, "uid": pod.uid, "cause": fault.cause, "counted": fault.counted,
        "since": timestamps.text(since),
    }  # fmt: skip


def _last_fault(pod: PodView, fault: PodFault, since: str) -> dict[str, Any]:
    result: dict[str, Any] = {
        "pod": pod.name,
        "node": pod.node,
        "cause": fault.cause,
        "message": fault.message,
        "time": since,
    }
    if fault.rank is not None:
        result["rank"] = fault.rank
    return result


def _add_lost_time(draft: Draft, record: dict[str, Any], pod: PodView) -> None:
    """The seconds from an index's fault until it was ready again count as lost to the fault's cause."""
    since = timestamps.parse(record["since"]) or draft.observed.now
    until = pod.ready_since if pod.ready_since is not None else draft.observed.now
    _add_seconds(draft, record["cause"], round(until - since))


def _add_seconds(draft: Draft, cause: str, seconds: float) -> None:
    lost = dict(draft.body.get("lostSeconds") or {})
    if cause not in lost and len(lost) >= MOST_CAUSES:
        cause = OTHER_CAUSES
    lost[cause] = round(lost.get(cause, 0) + max(0, seconds), 3)
    draft.body["lostSeconds"] = lost


def describe(draft: Draft, spec: ElasticJobSpec, workers: Workers, refusals: Sequence[Refusal], *, open: bool) -> None:
    """Write counters and conditions of a job that is under way.

    open: something is yet to be made in this turn, and may be refused again.
    """
    observed, body, conditions = draft.observed, draft.body, draft.conditions
    ready = sum(pod.ready for pod in workers.alive)
    body["replicas"] = len(workers.alive)
    body["readyWorkers"] = ready
    enough = ready >= spec.min_replicas
    conditions.set(
        "Running", enough, "EnoughWorkers" if enough else "TooFewWorkers",
        f"at least {spec.min_replicas} ready" if enough else f"fewer than {spec.min_replicas} ready",
    )  # fmt: skip
    leaving = any(pod.deleting and workers.holds_on(pod) for pod in workers.current.values())
    scaling = bool(workers.empty or workers.victims or leaving or ready < len(workers.alive))
    conditions.set(
        "Scaling", scaling, "Resizing" if scaling else "AtSize",
        f"towards {spec.replicas} pods" if scaling else f"{spec.replicas} pods",
    )  # fmt: skip
    open_faults = body.get("openFaults") or ()
    last = body.get("lastFault") or {}
    if open_faults:
        conditions.set("Degraded", True, last.get("cause", "Fault"), last.get("message", ""))
    else:
        conditions.set("Degraded", False, "Recovered")
    pods = (*workers.current.values(), *(pod for pod in observed.pods if pod.role == names.RENDEZVOUS))
    reason = faults.stuck(pods, refusals)
    if reason is not None:
        conditions.set("Stalled", True, *reason)
    elif not open:
        conditions.set("Stalled", False, "Unblocked")
    conditions.set("Suspended", False, "Resumed")


def end(draft: Draft, kind: str, reason: str, message: str) -> None:
    """Write the end of the job: `kind` is Succeeded or Failed."""
    draft.conditions.set(kind, True, reason, message)
    for other in ("Running", "Scaling", "Degraded", "Stalled"):
        draft.conditions.set(other, False, "JobEnded")
    draft.body["completionTime"] = timestamps.text(draft.observed.now)
    draft.body["readyWorkers"] = 0
    draft.body.pop("openFaults", None)
    draft.body.pop("indexFailures", None)
    draft.body.pop("workerFaults", None)


def _put(body: dict[str, Any], key: str, value: list[Any]) -> None:
    if value:
        body[key] = value
    else:
        body.pop(key, None)
