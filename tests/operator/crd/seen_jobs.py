"""Situations of a job with two pods, and all that the operator makes and does of a spec in each of them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from resilin.operator import cache, manifests, names, observed, pods, spec, timestamps
from resilin.operator.observed import Observed, WorkerFault, WorldView
from resilin.operator.reconcile import reconcile

NOW = 1_800_000_000.0
SITUATIONS = ("new", "running", "failed", "beaten", "lost", "ended", "told")


def _at(ago_s: float) -> str:
    return timestamps.text(NOW - ago_s)


def _pod(index: int, *, phase: str = "Running", node: str = "n1", code: int | None = None) -> dict[str, Any]:
    labels = {names.JOB: "digits", names.ROLE: names.WORKER, names.INDEX: str(index), names.INCARNATION: "0"}
    conditions = [
        {"type": "Ready", "status": str(phase == "Running"), "lastTransitionTime": _at(900)},
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": _at(900)},
    ]
    status: dict[str, Any] = {"phase": phase, "conditions": conditions, "podIP": "10.0.0.1"}
    if code is not None:
        ended = {"exitCode": code, "reason": "Error", "finishedAt": _at(40), "message": "elastic-run: rank 1 died"}
        status["containerStatuses"] = [{"name": "worker", "state": {"terminated": ended}}]
    meta = {"name": names.pod("digits", index), "uid": f"pod-{index}", "labels": labels, "creationTimestamp": _at(900)}
    return {"metadata": meta, "spec": {"nodeName": node, "containers": [{"name": "worker"}]}, "status": status}


def seen(situation: str, job: dict[str, Any]) -> Observed:
    """What is observed of `job`."""
    status: dict[str, Any] = {"startTime": _at(3600), "restarts": 0}
    raw = [_pod(0), _pod(1)]
    nodes = {
        "n1": observed.NodeView(ready=True, since=NOW - 9000),
        "n2": observed.NodeView(ready=False, since=NOW - 60),
    }
    world = None
    if situation == "new":
        raw, status = [], {}
    elif situation == "beaten":
        status.update(restarts=4)
    elif situation == "failed":  # for the second time in a row; it was counted, and its place is to be filled
        raw[1] = _pod(1, phase="Failed", code=1)
        fault = {"index": 1, "uid": "pod-1", "cause": "Error", "counted": True, "since": _at(40)}
        status.update(restarts=2, openFaults=[fault], indexFailures=[{"index": 1, "times": 2}])
    elif situation == "lost":
        raw[1] = _pod(1, node="n2")
        fault = {"index": 1, "uid": "pod-1", "cause": "NodeLost", "counted": False, "since": _at(20)}
        status.update(openFaults=[fault])
        raw[1]["metadata"]["deletionTimestamp"] = _at(30)
    elif situation == "ended":
        raw[1] = _pod(1, phase="Succeeded", code=0)
        raw[0] = _pod(0, phase="Succeeded", code=0)
        conditions = [{"type": "Succeeded", "status": "True", "reason": "x", "lastTransitionTime": _at(100)}]
        status.update(conditions=conditions, completionTime=_at(100))
    elif situation == "told":
        raw[1] = _pod(1, phase="Failed", code=1)
        death = WorkerFault(
            number=1,
            rank=1,
            pod="digits-0",
            uid="pod-0",
            cause="SIGKILL",
            message="rank 1 was killed",
            time=NOW - 3,
            lost_s=0.02,
        )
        world = WorldView(told_by="pod-0", generation=4, restarts=1, faults=(death,))
    meta = {
        **job["metadata"], "namespace": "ml", "uid": "0123456789abcdef", "resourceVersion": "7", "generation": 1,
        "finalizers": [names.FINALIZER],
    }  # fmt: skip
    return Observed(
        job={**job, "metadata": meta, "status": status}, pods=tuple(map(observed.pod, raw)), nodes=nodes, world=world,
        kinds=cache.SURROUNDINGS | {"PodGroup"}, now=NOW, operator_namespace="resilin-system",
    )  # fmt: skip


def outcome(job: dict[str, Any]) -> str:
    """All that the operator makes of a spec, and does in each situation."""
    wanted = spec.parse(job)
    made: list[Any] = []
    for situation in SITUATIONS:
        there = seen(situation, job)
        made += [manifests.applied(wanted, there), pods.worker(wanted, there, 0), pods.rendezvous(wanted, there)]
        made += [[type(action).__name__, dataclasses.asdict(action)] for action in reconcile(wanted, there)]
    return json.dumps(made, sort_keys=True, indent=1)
