"""What an ElasticJob asks for, parsed from the resource after the API server has filled in defaults. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from resilin.errors import UsageError
from resilin.operator import names

CleanPodPolicy = Literal["None", "Running", "All"]
Raw = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RdzvSpec:
    """Where the nodes meet."""

    backend: Literal["embedded", "etcd"] = "embedded"
    endpoint: str = ""
    """etcd: HOST:PORT, several separated by commas."""
    secret_name: str = ""
    """A Secret of the user's with the job's secret under the key `secret`; empty: the operator makes one."""
    tls_secret_name: str = ""
    """etcd: a Secret with `ca.crt`."""
    tls_client_certificate: bool = False
    """etcd: the Secret has `tls.crt` and `tls.key`, too, by which the agents prove who they are."""
    resources: Raw = field(default_factory=dict)
    """Of the small pod that serves the embedded store."""


@dataclass(frozen=True, kw_only=True)
class ElasticPolicy:
    """How faults are met."""

    grace_s: int = 30
    """From asking a pod to leave to killing it."""
    backoff_s: int = 10
    """Before the first replacement of a pod that failed by itself; doubled for each further one in a row."""
    exclude_after: int = 3
    """Failures of one index in a row, after which its replacements wait for the longest back-off."""
    hang_timeout_s: int | None = None
    """None: learned by the agents."""
    node_lost_s: int = 40
    """How long a node may be silent before its pods count as lost."""
    force_delete_lost: bool = False
    """Whether a lost pod is deleted without the word of its kubelet."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSpec:
    """Where checkpoints go: a claim that is mounted, or a bucket's URL."""

    claim_name: str = ""
    mount_path: str = "/checkpoint"
    url: str = ""
    secret_name: str = ""
    """Credentials for the bucket, given to workers as environment variables."""


@dataclass(frozen=True, kw_only=True)
class ElasticJobSpec:
    """The `spec` of an ElasticJob."""

    template: Raw
    """A pod template."""
    replicas: int
    min_replicas: int
    max_replicas: int
    nproc_per_node: str = "1"
    max_restarts: int = 3
    """Pods that failed by themselves (not: evicted, deleted, lost with their node) before the job fails; also the
    restarts of workers that agents do."""
    rdzv: RdzvSpec = field(default_factory=RdzvSpec)
    policy: ElasticPolicy = field(default_factory=ElasticPolicy)
    checkpoint: CheckpointSpec | None = None
    shm_size: str = ""
    suspend: bool = False
    active_deadline_s: int | None = None
    ttl_after_finished_s: int | None = None
    clean_pod_policy: CleanPodPolicy = "Running"
    managed_by: str = names.MANAGED_BY
    priority_class_name: str = ""
    queue_name: str = ""
    workload_api: bool = False


def parse(job: Raw) -> ElasticJobSpec:
    """Return the spec of the resource `job`. UsageError names the field that no schema should have let through."""
    raw: Raw = job.get("spec") or {}
    template = raw.get("template")
    if not isinstance(template, Mapping) or not (template.get("spec") or {}).get("containers"):
        raise UsageError("spec.template.spec.containers: expected at least one container, got none")
    least = int(raw.get("minReplicas") or 1)
    replicas = int(raw.get("replicas", least))
    most = int(raw.get("maxReplicas") or max(least, replicas))
    if not 1 <= least <= most:
        raise UsageError(f"spec.minReplicas: expected 1 <= minReplicas <= maxReplicas, got {least} and {most}")
    return ElasticJobSpec(
        template=template,
        min_replicas=least,
        max_replicas=most,
        replicas=min(max(replicas, least), most),
        nproc_per_node=str(raw.get("nprocPerNode", 1)),
        max_restarts=int(raw.get("maxRestarts", 3)),
        rdzv=_rdzv(raw.get("rdzv") or {}),
        policy=_policy(raw.get("elasticPolicy") or {}),
        checkpoint=_checkpoint(raw.get("checkpoint")),
        shm_size=str(raw.get("shmSize") or ""),
        suspend=bool(raw.get("suspend", False)),
        active_deadline_s=raw.get("activeDeadlineSeconds"),
        ttl_after_finished_s=raw.get("ttlSecondsAfterFinished"),
        clean_pod_policy=raw.get("cleanPodPolicy") or "Running",
        managed_by=raw.get("managedBy") or names.MANAGED_BY,
        priority_class_name=raw.get("priorityClassName") or "",
        queue_name=raw.get("queueName") or "",
        workload_api=bool(raw.get("workloadApi", False)),
    )


def _rdzv(raw: Raw) -> RdzvSpec:
    return RdzvSpec(
        backend=raw.get("backend") or "embedded",
        endpoint=raw.get("endpoint") or "",
        secret_name=raw.get("secretName") or "",
        tls_secret_name=(raw.get("tls") or {}).get("secretName") or "",
        tls_client_certificate=bool((raw.get("tls") or {}).get("clientCertificate", False)),
        resources=raw.get("resources") or {},
    )


def _policy(raw: Raw) -> ElasticPolicy:
    known = ElasticPolicy()
    return ElasticPolicy(
        grace_s=int(raw.get("graceSeconds", known.grace_s)),
        backoff_s=int(raw.get("backoffSeconds", known.backoff_s)),
        exclude_after=int(raw.get("excludeAfter", known.exclude_after)),
        hang_timeout_s=raw.get("hangTimeoutSeconds"),
        node_lost_s=int(raw.get("nodeLostSeconds", known.node_lost_s)),
        force_delete_lost=bool(raw.get("forceDeleteLost", False)),
    )


def _checkpoint(raw: Raw | None) -> CheckpointSpec | None:
    if not raw:
        return None
    volume, bucket = raw.get("volume") or {}, raw.get("bucket") or {}
    return CheckpointSpec(
        claim_name=volume.get("claimName") or "",
        mount_path=volume.get("mountPath") or CheckpointSpec.mount_path,
        url=bucket.get("url") or "",
        secret_name=bucket.get("secretName") or "",
    )
