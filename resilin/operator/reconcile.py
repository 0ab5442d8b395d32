"""Decides what to do about a job: what is asked for and what is seen in, actions out. Pure: no clock, no client.

    deleted ──> _teardown      ended ──> _after_end      suspended ──> _suspended
    else: count faults ──> ended now? ──> status ──> Services, Secret, store ──> pods that go ──> pods that come

It may be called at any time, any number of times, after a crash between any two of its actions: the next call goes on
from what is seen then. At the state that is asked for it returns no write.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from resilin.operator import manifests, names, pod_events, pods, scaling, status, timestamps
from resilin.operator.actions import Action, Apply, Create, CreateSecret, Delete, Manifest, Requeue, SetFinalizers
from resilin.operator.faults import NOT_PREPARED, PodFault
from resilin.operator.observed import Observed, PodView, Refusal, is_owned
from resilin.operator.scaling import Workers
from resilin.operator.spec import ElasticJobSpec, unreadable
from resilin.operator.status import Draft

MOST_BACKOFF_S = 300


def reconcile(spec: ElasticJobSpec, observed: Observed) -> tuple[Action, ...]:
    """Return what brings the job nearer to what is asked for. Nothing where another controller manages it."""
    if spec.managed_by != names.MANAGED_BY:
        return ()
    workers = scaling.look(spec, observed)
    finalizers = tuple(observed.meta.get("finalizers") or ())
    if observed.meta.get("deletionTimestamp"):
        return tuple(_teardown(spec, observed, workers, finalizers))
    if names.FINALIZER not in finalizers:
        version = str(observed.meta["resourceVersion"])
        return (SetFinalizers(finalizers=(*finalizers, names.FINALIZER), resource_version=version),)
    draft = Draft(observed)
    if draft.conditions.is_true("Succeeded") or draft.conditions.is_true("Failed"):
        return tuple(_after_end(spec, observed, workers, draft))
    if spec.suspend:
        return tuple(_suspended(spec, observed, workers, draft))
    return tuple(_under_way(spec, observed, workers, draft))


def reconcile_unreadable(observed: Observed, why: str) -> tuple[Action, ...]:
    """Return what to do about a job whose spec cannot be read: it says so, its pods are left alone, and it can end."""
    stand_in = unreadable(observed.job)
    draft = Draft(observed)
    ended = draft.conditions.is_true("Succeeded") or draft.conditions.is_true("Failed")
    if ended or observed.meta.get("deletionTimestamp") or stand_in.managed_by != names.MANAGED_BY:
        return reconcile(stand_in, observed)
    draft.conditions.set("Stalled", True, "InvalidSpec", why)
    return tuple(draft.actions())


def _under_way(spec: ElasticJobSpec, observed: Observed, workers: Workers, draft: Draft) -> Iterator[Action]:
    draft.body.setdefault("startTime", timestamps.text(observed.now))
    found = status.count(draft, workers)
    status.take_world(draft, workers)
    ended = _verdict(spec, observed, workers, draft, found)
    if ended is not None:
        status.end(draft, *ended)
        yield from draft.actions()
        return
    applied = manifests.applied(spec, observed)
    around = list(_surroundings(applied, observed))
    refused = {action.key for action in around if isinstance(action, Apply)}
    refused &= {refusal.key for refusal in observed.refusals}
    kept = [one for one in observed.refusals if not one.key or one.key in refused]
    observed = replace(observed, refusals=(*kept, *_obstacles(applied, observed)))
    times = [workers.look_again, _deadline(spec, draft), pod_events.look_again(observed)]
    following = [*_store(spec, observed, workers), *_pods(spec, observed, workers, draft, found, times)]
    untried = [action for action in around if not (isinstance(action, Apply) and action.key in refused)]
    status.describe(draft, spec, workers, observed.refusals, open=any(map(_makes, (*untried, *following))))
    yield from draft.actions()
    yield from untried
    yield from _secret(spec, observed, following)
    yield from following
    yield from _look_again(times, observed)


def _makes(action: Action) -> bool:
    return isinstance(action, Apply | Create)


def _pods(
    spec: ElasticJobSpec, observed: Observed, workers: Workers, draft: Draft, found: Mapping[str, PodFault],
    times: list[float | None],
) -> Iterator[Action]:  # fmt: skip
    """What becomes of the workers' pods. `times` gets when time alone will change that."""
    counted = {one["uid"] for one in observed.status.get("openFaults") or ()}
    yield from _fence(workers, spec)
    for pod in workers.victims:
        yield _delete(pod, "scaled down")
    for pod in workers.current.values():
        if (
            pod.index not in workers.empty
            and not pod.deleting
            and not pod.succeeded
            and (pod.has_ended or pod.uid in workers.lost)
        ):
            fault = found.get(pod.uid)
            if fault is None or not fault.counted or pod.uid in counted:
                yield _delete(pod, "no longer wanted", spec, workers)
    yield from _fill(spec, observed, workers, draft, counted, times)


def _fill(
    spec: ElasticJobSpec, observed: Observed, workers: Workers, draft: Draft, counted: set[str],
    times: list[float | None],
) -> Iterator[Action]:  # fmt: skip
    """Fill the empty indices: first what stands in the way goes, then all that can come does in one batch."""
    come: list[Create] = []
    for index in workers.empty:
        pod = workers.current.get(index)
        if pod is None:
            come.append(_create(spec, observed, index, 0))
        elif pod.uid in workers.lost:
            if pod.uid not in counted:
                continue  # the status knows of it first
            if not pod.deleting or (spec.policy.force_delete_lost and pod.deletion is not None):
                yield _delete(pod, "its node does not answer", spec, workers)
            come.append(_create(spec, observed, index, pod.incarnation + 1))
        elif pod.has_ended and not pod.deleting and (pod.uid in counted or pod.succeeded):
            at = _replace_at(spec, draft, pod)
            if observed.now >= at:
                yield _delete(pod, "ended; replaced", spec, workers)
            else:
                times.append(at)
    yield from come


def _create(spec: ElasticJobSpec, observed: Observed, index: int, incarnation: int) -> Create:
    manifest = pods.worker(spec, observed, index, incarnation)
    return Create(kind="Pod", name=manifest["metadata"]["name"], manifest=manifest)


def _delete(pod: PodView, why: str, spec: ElasticJobSpec | None = None, workers: Workers | None = None) -> Delete:
    """Ask for a pod's end; without the word of its kubelet only where it is lost and the user wants that."""
    lost = spec is not None and workers is not None and pod.uid in workers.lost
    force = lost and spec is not None and spec.policy.force_delete_lost
    return Delete(kind="Pod", name=pod.name, uid=pod.uid, grace_s=0 if force else None, why=why)


def _fence(workers: Workers, spec: ElasticJobSpec) -> Iterator[Action]:
    """Earlier incarnations must go, should their node ever answer again."""
    for pod in workers.superseded:
        if not pod.deleting or (pod.uid in workers.lost and spec.policy.force_delete_lost):
            yield _delete(pod, "a newer pod has its place", spec, workers)


def _replace_at(spec: ElasticJobSpec, draft: Draft, pod: PodView) -> float:
    """When the place of a pod that ended is to be filled again: later with each failure in a row that counts."""
    record = next((one for one in draft.body.get("openFaults") or () if one["uid"] == pod.uid), None)
    if record is None or not record["counted"]:
        return 0.0
    in_a_row = max(1, status.failures_in_a_row(draft, pod.index))
    longest = max(MOST_BACKOFF_S, spec.policy.backoff_s)
    since = timestamps.parse(record["since"]) or 0.0
    if in_a_row >= spec.policy.exclude_after and spec.policy.backoff_s:
        return since + float(longest)
    return since + float(min(spec.policy.backoff_s * 2 ** min(in_a_row - 1, 30), longest))


# ------------------------------------------------------------------------------------------------ the job's end


def _verdict(
    spec: ElasticJobSpec, observed: Observed, workers: Workers, draft: Draft, found: Mapping[str, PodFault]
) -> tuple[str, str, str] | None:
    """The condition that ends the job, its reason and message; None: it goes on."""
    if any(pod.succeeded for pod in workers.current.values()):  # an agent does so when all workers have
        return "Succeeded", "WorkersSucceeded", "training has finished"
    for fault in found.values():
        if fault.final:
            return "Failed", fault.cause, fault.message
    if draft.restarts > spec.max_restarts:
        last = draft.body.get("lastFault") or {}
        text = f"{draft.restarts} pods failed, {spec.max_restarts} are allowed; the last: {last.get('message', '')}"
        return "Failed", "BackoffLimitExceeded", text
    deadline = _deadline(spec, draft)
    if deadline is not None and observed.now >= deadline:
        return "Failed", "DeadlineExceeded", f"not finished after {spec.active_deadline_s} s"
    return None


def _deadline(spec: ElasticJobSpec, draft: Draft) -> float | None:
    started = timestamps.parse(draft.body.get("startTime"))
    return None if spec.active_deadline_s is None or started is None else started + spec.active_deadline_s


def _after_end(spec: ElasticJobSpec, observed: Observed, workers: Workers, draft: Draft) -> Iterator[Action]:
    """Clean up as the policy says, and remove the job itself when its time has come. What ended stays ended."""
    policy = spec.clean_pod_policy
    if policy == "None" and draft.conditions.is_true("Failed"):
        policy = "Running"  # a job that failed must not go on in part
    ended = timestamps.parse(draft.body.get("completionTime")) or observed.now
    times = [ended + spec.policy.grace_s]
    succeeded = draft.conditions.is_true("Succeeded")
    if succeeded and any(workers.holds_on(pod) and not pod.has_ended for pod in workers.all):
        policy = "None"  # they end by themselves, and may have something to evaluate and to save, however long
    for pod in workers.alive:
        if not pod.started and policy == "None":  # it came too late, and would begin the job anew
            yield _delete(pod, "the job ended before it took part")
    for pod in workers.all:
        if not pod.deleting and (policy == "All" or (policy == "Running" and not pod.is_terminal)):
            yield _delete(pod, "the job has ended", spec, workers)
    if not any(map(workers.holds_on, workers.all)) or (not succeeded and observed.now >= times[0]):
        yield from _delete_store(observed)
    yield from draft.actions()
    if spec.ttl_after_finished_s is not None:
        times.append(ended + spec.ttl_after_finished_s)
        if observed.now >= times[-1]:
            version = str(observed.meta["resourceVersion"])  # its user may want to keep it for longer by now
            yield Delete(
                kind=names.KIND, name=observed.name, uid=observed.uid, why="ttlSecondsAfterFinished",
                resource_version=version,
            )  # fmt: skip
    yield from _look_again(times, observed)


def _suspended(spec: ElasticJobSpec, observed: Observed, workers: Workers, draft: Draft) -> Iterator[Action]:
    """No pod of a suspended job is left: the workers leave first, then the store."""
    for key in ("startTime", "openFaults", "indexFailures", "worldGeneration", "workerRestarts", "workerFaults"):
        draft.body.pop(key, None)
    draft.body["replicas"] = len(workers.alive)
    draft.body["readyWorkers"] = 0
    draft.conditions.set("Suspended", True, "Suspended", "spec.suspend is true")
    for other in ("Running", "Scaling", "Degraded", "Stalled"):
        draft.conditions.set(other, False, "Suspended")
    yield from draft.actions()
    yield from _clear(spec, observed, workers)


def _teardown(
    spec: ElasticJobSpec, observed: Observed, workers: Workers, finalizers: tuple[str, ...]
) -> Iterator[Action]:
    """The workers leave while the store is there, then the store goes, then the job. The collector has the rest."""
    if names.FINALIZER not in finalizers:
        return
    yield from _clear(spec, observed, workers)
    if not any(workers.holds_on(pod) for pod in workers.all):
        left = tuple(one for one in finalizers if one != names.FINALIZER)
        yield SetFinalizers(finalizers=left, resource_version=str(observed.meta["resourceVersion"]))


def _clear(spec: ElasticJobSpec, observed: Observed, workers: Workers) -> Iterator[Action]:
    for pod in workers.all:
        if not pod.deleting or (spec.policy.force_delete_lost and pod.uid in workers.lost):
            yield _delete(pod, "the job is to have no pods", spec, workers)
    if not any(workers.holds_on(pod) for pod in workers.all):
        yield from _delete_store(observed)
    yield from _look_again([workers.look_again], observed)


def _delete_store(observed: Observed) -> Iterator[Action]:
    for pod in observed.pods:
        if pod.role == names.RENDEZVOUS and not pod.deleting:
            yield _delete(pod, "nobody needs the store")


# ----------------------------------------------------------------------------------------------- what is around


def _surroundings(applied: Iterable[Manifest], observed: Observed) -> Iterator[Action]:
    """The objects that pods need, before the pods."""
    for manifest in applied:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        there = observed.objects.get((kind, name))
        if kind not in observed.kinds or (there is not None and not is_owned(there, observed.uid)):
            continue
        if there is None or not _holds(manifest, there):
            key = _key(manifest, there)
            yield Apply(kind=kind, name=name, manifest=manifest, key=key)


def _obstacles(applied: Iterable[Manifest], observed: Observed) -> Iterator[Refusal]:
    """Objects that cannot be made: of kinds that are not cared for, or with names that somebody else has taken, whose
    objects are never changed and never deleted."""
    for manifest in applied:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        there = observed.objects.get((kind, name))
        if kind == "PodGroup" and kind not in observed.kinds:
            text = "this operator was started without --pod-groups: nobody makes the group that the pods wait for"
            yield Refusal(kind=kind, name=name, code=404, reason="WorkloadApiOff", message=text)
        elif there is not None and not is_owned(there, observed.uid):
            text = "is there already and belongs to somebody else; remove it, or give the job another name"
            yield Refusal(kind=kind, name=name, code=409, reason="NameTaken", message=text)


def _secret(spec: ElasticJobSpec, observed: Observed, following: list[Action]) -> Iterator[Action]:
    """The job's secret, before pods that mount it, and where a kubelet misses it: somebody may have deleted it."""
    own = names.secret(observed.name, observed.uid)
    missed = any(pod.waiting[0] in NOT_PREPARED and own in pod.waiting[1] for pod in observed.pods)
    if not spec.rdzv.secret_name and (missed or any(isinstance(action, Create) for action in following)):
        in_use = any(map(_has_mounts, observed.pods))
        yield CreateSecret(name=own, manifest=manifests.secret(observed), key=names.SECRET_KEY, in_use=in_use)


def _has_mounts(pod: PodView) -> bool:
    """Whether something may run in a pod that has read its volumes."""
    if pod.is_terminal or not pod.node:
        return False
    return pod.phase != "Pending" or (pod.waiting[0] not in NOT_PREPARED)


def _store(spec: ElasticJobSpec, observed: Observed, workers: Workers) -> Iterator[Action]:
    """The pod that serves the store: one that ended or is lost is replaced; of several the newest stays."""
    if spec.rdzv.backend != "embedded":
        return
    there = sorted((pod for pod in observed.pods if pod.role == names.RENDEZVOUS), key=lambda pod: pod.incarnation)
    for pod in there:
        unfit = pod.is_terminal or pod.uid in workers.lost or pod is not there[-1]
        if unfit and (not pod.deleting or (pod.uid in workers.lost and spec.policy.force_delete_lost)):
            yield _delete(pod, "replaced by another store", spec, workers)
    if there and there[-1].uid not in workers.lost:
        return
    manifest = pods.rendezvous(spec, observed, there[-1].incarnation + 1 if there else 0)
    yield Create(kind="Pod", name=manifest["metadata"]["name"], manifest=manifest)


def _holds(wanted: Any, there: Any) -> bool:
    """Return whether all that `wanted` says is so; what the server or others have added is theirs."""
    if wanted == there:
        return True
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(key in there and _holds(wanted[key], there[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(there, list) and len(wanted) <= len(there) and all(map(_holds, wanted, there))
    return False


def _key(manifest: Mapping[str, Any], there: Mapping[str, Any] | None) -> str:
    version = there["metadata"].get("resourceVersion") if there is not None else ""
    text = json.dumps([manifest, version], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _look_again(times: Iterable[float | None], observed: Observed) -> Iterator[Action]:
    at = min((at for at in times if at is not None and at > observed.now), default=None)
    if at is not None:
        yield Requeue(after_s=at - observed.now)
