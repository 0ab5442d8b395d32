"""Builds the objects beside the workers' pods: Services, Secret, ConfigMap, PodDisruptionBudget, NetworkPolicy. Pure.

Each has the job as its owner, so that the cluster's garbage collector removes what is left of a job.
"""

from __future__ import annotations

from typing import Any

from resilin.operator import gang, names
from resilin.operator.observed import Observed
from resilin.operator.spec import ElasticJobSpec

MOST_NODES = 4096
"""What agents take as the most nodes: how many pods there are, the operator alone decides."""
_CONFIG_FILE = "elastic-run.toml"
_PODS = ("Pod",)


def owner(observed: Observed) -> dict[str, Any]:
    """Return the reference that makes the job the controller of an object."""
    return {
        "apiVersion": names.API_VERSION, "kind": names.KIND, "name": observed.name, "uid": observed.uid,
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def metadata(observed: Observed, name: str, role: str = "") -> dict[str, Any]:
    """Return the metadata of an object of the job."""
    labels = {names.JOB: observed.name, "app.kubernetes.io/managed-by": names.MANAGER}
    if role:
        labels[names.ROLE] = role
    return {
        "name": name, "namespace": observed.namespace, "labels": labels, "ownerReferences": [owner(observed)],
    }  # fmt: skip


def applied(spec: ElasticJobSpec, observed: Observed) -> list[dict[str, Any]]:
    """Return the objects that are kept as the spec says, in the order in which they are made."""
    job = observed.name
    result = [
        _config(spec, observed),
        _service(observed, job, names.WORKER, []),
        _network_policy(observed),
        _disruption_budget(spec, observed),
    ]
    if spec.rdzv.backend == "embedded":
        port = {"name": "store", "port": names.STORE_PORT, "protocol": "TCP"}
        result.insert(2, _service(observed, names.rendezvous(job), names.RENDEZVOUS, [port]))
    for extra in gang.objects(spec, job):
        extra["metadata"] = metadata(observed, extra["metadata"]["name"])
        result.append(extra)
    return result


def secret(observed: Observed) -> dict[str, Any]:
    """Return the job's Secret, without what it holds."""
    return {
        "apiVersion": "v1", "kind": "Secret", "metadata": metadata(observed, names.secret(observed.name, observed.uid)),
        "type": "Opaque", "immutable": True,
    }  # fmt: skip


def config_text(spec: ElasticJobSpec, job: str) -> str:
    """Return the file of `elastic-run --config` for the job's pods: what is the same for all of them."""
    policy = spec.policy
    lines = [
        f'nnodes = "{spec.min_replicas}:{MOST_NODES}"',
        f'nproc_per_node = "{spec.nproc_per_node}"',
        f"max_restarts = {spec.max_restarts}",
        f"shutdown_timeout = {policy.grace_s}",
        'log_line_prefix_template = "[rank ${rank}]: "',
        f'hang_timeout = "{policy.hang_timeout_s if policy.hang_timeout_s is not None else "auto"}"',
    ]
    return "".join(f"{line}\n" for line in lines)


def _config(spec: ElasticJobSpec, observed: Observed) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(observed, observed.name),
        "data": {_CONFIG_FILE: config_text(spec, observed.name)},
    }  # fmt: skip


def _service(observed: Observed, name: str, role: str, ports: list[dict[str, Any]]) -> dict[str, Any]:
    """A headless Service: names of pods, or of the one pod that serves the store, in both families where both are."""
    spec: dict[str, Any] = {
        "clusterIP": "None",
        "ipFamilyPolicy": "PreferDualStack",
        "publishNotReadyAddresses": role == names.WORKER,
        "selector": names.selector(observed.name, role),
    }
    if ports:
        spec["ports"] = ports
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(observed, name, role), "spec": spec}


def _network_policy(observed: Observed) -> dict[str, Any]:
    """Only the job's own pods reach its pods, and the operator their agents; kubelets always do."""
    mine = {"matchLabels": {names.JOB: observed.name}}
    ingress: list[dict[str, Any]] = [{"from": [{"podSelector": mine}]}]
    if observed.operator_namespace:
        peer = {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": observed.operator_namespace}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": names.MANAGER}},
        }
        ingress.append({"from": [peer], "ports": [{"port": names.HEALTH_PORT, "protocol": "TCP"}]})
    return {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(observed, observed.name),
        "spec": {"podSelector": mine, "policyTypes": ["Ingress"], "ingress": ingress},
    }  # fmt: skip


def _disruption_budget(spec: ElasticJobSpec, observed: Observed) -> dict[str, Any]:
    """Evictions leave `minReplicas`, and never block a drain for ever: one pod may always go."""
    return {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata(observed, observed.name),
        "spec": {
            "minAvailable": min(spec.min_replicas, spec.replicas - 1),
            "selector": {"matchLabels": names.selector(observed.name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }  # fmt: skip
