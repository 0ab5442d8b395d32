"""Tells schedulers and queues that pods belong together. Pure.

Nothing else knows Kueue's label and the Workload API. That one has changed with each version of Kubernetes so far: it
is off unless the job asks for it.
"""

from __future__ import annotations

from typing import Any

from resilin.operator.spec import ElasticJobSpec

QUEUE = "kueue.x-k8s.io/queue-name"
WORKLOAD_API = "scheduling.k8s.io/v1beta1"


def decorate(pod: dict[str, Any], spec: ElasticJobSpec, job: str) -> None:
    """Write into a worker's pod what its queue and its scheduler want to find there.

    Each pod is admitted by itself: a group of fixed size could not grow.
    """
    if spec.queue_name:
        pod["metadata"]["labels"][QUEUE] = spec.queue_name
    if spec.workload_api:
        pod["spec"]["schedulingGroup"] = {"podGroupName": job}


def objects(spec: ElasticJobSpec, job: str) -> list[dict[str, Any]]:
    """Return the objects beside the pods: with the Workload API a group that starts when `minReplicas` fit."""
    if not spec.workload_api:
        return []
    group = {"schedulingPolicy": {"gang": {"minCount": spec.min_replicas}}}
    return [{"apiVersion": WORKLOAD_API, "kind": "PodGroup", "metadata": {"name": job}, "spec": group}]
