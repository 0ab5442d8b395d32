"""What the sub-resources of pods do: a pod is bound to a node, or evicted as far as its disruption budget lets."""

from __future__ import annotations

import math
from typing import Any

from resilin.testing.kube import metadata, selectors
from resilin.testing.kube.deletion import Deletion, Wish
from resilin.testing.kube.failures import Failure, Json, bad_request
from resilin.testing.kube.objects import Objects, Target, WriteOptions
from resilin.testing.kube.resources import PODS
from resilin.testing.kube.storage import Storage

_BUDGETS = ("policy", "poddisruptionbudgets")
_LOG = "resilin.dev/log"  # an annotation of tests' pods: what `kubectl logs` shows
_SUCCESS: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def act(objects: Objects, deletion: Deletion, target: Target, body: Any, options: WriteOptions) -> Json:
    """Carry out a binding or an eviction."""
    if not isinstance(body, dict):
        raise bad_request("the object provided is unrecognized: expected an object")
    with objects.storage.lock:
        if target.subresource == "binding":
            _bind(objects, target, body, options)
        elif target.subresource == "eviction":
            _evict(objects, deletion, target, body)
        else:
            raise Failure(404, "NotFound", "the server could not find the requested resource")
    return _SUCCESS


def _bind(objects: Objects, target: Target, body: Json, options: WriteOptions) -> None:
    old = objects.get(target)
    node = body.get("target", {}).get("name")
    if old.value["spec"].get("nodeName"):
        text = f'pod {target.name} is already assigned to node "{old.value["spec"]["nodeName"]}"'
        raise Failure(409, "Conflict", f'Operation cannot be fulfilled on pods/binding "{target.name}": {text}')
    value = {**old.value, "spec": {**old.value["spec"], "nodeName": node}}
    value = with_condition(value, "PodScheduled", "True")
    if not options.dry_run:
        objects.storage.put(PODS, target.key, value)


def _evict(objects: Objects, deletion: Deletion, target: Target, body: Json) -> None:
    old = objects.get(target)
    started = (old.value.get("status") or {}).get("phase") == "Running"
    if started and not _allowed(objects.storage, old.value):
        text = "Cannot evict pod as it would violate the pod's disruption budget."
        raise Failure(429, "TooManyRequests", text, {"causes": [{"reason": "DisruptionBudget", "message": text}]})
    value = with_condition(old.value, "DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")
    objects.storage.put(PODS, target.key, value)
    deletion.delete(Target(target.resource, target.namespace, target.name), Wish.read(body.get("deleteOptions"), {}))


def _allowed(storage: Storage, pod: Json) -> bool:
    """Whether the budgets that select a pod can do without it."""
    namespace = pod["metadata"]["namespace"]
    budgets = [one.value["spec"] for one in storage.all(_BUDGETS, namespace)[0]]
    pods = [one.value for one in storage.all(PODS, namespace)[0]]
    for budget in budgets:
        selects = selectors.match_labels(budget.get("selector"))
        if not selects(pod):
            continue
        chosen = [one for one in pods if selects(one)]
        healthy = sum(is_ready(one) and not one["metadata"].get("deletionTimestamp") for one in chosen)
        if "maxUnavailable" in budget:
            needed = len(chosen) - _count(budget["maxUnavailable"], len(chosen))
        else:
            needed = _count(budget.get("minAvailable", 1), len(chosen))
        if is_ready(pod) and healthy - 1 < needed:
            return False
    return True


def _count(amount: int | str, total: int) -> int:
    if isinstance(amount, int):
        return amount
    return math.ceil(int(amount.removesuffix("%")) * total / 100)


def is_ready(pod: Json) -> bool:
    """Whether a pod has the condition Ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def with_condition(pod: Json, type_: str, status: str, reason: str = "", message: str = "") -> Json:
    """A pod with a condition set; the time of its last change is kept while its status stays."""
    before = (pod.get("status") or {}).get("conditions") or ()
    same = next((one for one in before if one["type"] == type_ and one["status"] == status), None)
    since = same["lastTransitionTime"] if same else metadata.now()
    condition = {"type": type_, "status": status, "lastTransitionTime": since, "reason": reason, "message": message}
    condition = {name: item for name, item in condition.items() if item}
    conditions = [*(one for one in before if one["type"] != type_), condition]
    return {**pod, "metadata": dict(pod["metadata"]), "status": {**(pod.get("status") or {}), "conditions": conditions}}


def log(pod: Json) -> bytes:
    """What a pod has said: tests put it into an annotation."""
    return str((pod["metadata"].get("annotations") or {}).get(_LOG, "")).encode()
