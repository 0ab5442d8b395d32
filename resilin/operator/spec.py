"""What an ElasticJob asks for, parsed from the resource after the API server has filled in defaults. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from resilin.errors import UsageError
from resilin.operator import names

CleanPodPolicy = Literal["None", "Running", "All"]
_CLEAN_POD_POLICIES: tuple[CleanPodPolicy, ...] = ("None", "Running", "All")
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
    """Return the spec of the resource `job`. UsageError names the field that no schema should have let through.

    What is stored may be older than the schema, so nothing is taken for granted.
    """
    raw = _Fields(_mapping(job.get("spec") or {}, "spec"), "spec")
    least = raw.whole("minReplicas", 1) or 1
    replicas = raw.whole("replicas", least)
    most = raw.whole("maxReplicas", 0) or max(least, replicas)
    if not 1 <= least <= most:
        raise UsageError(f"spec.minReplicas: expected 1 <= minReplicas <= maxReplicas, got {least} and {most}")
    return ElasticJobSpec(
        template=_template(raw.inner("template")),
        min_replicas=least,
        max_replicas=most,
        replicas=min(max(replicas, least), most),
        nproc_per_node=str(raw.raw.get("nprocPerNode", 1)),
        max_restarts=raw.whole("maxRestarts", 3),
        rdzv=_rdzv(raw.inner("rdzv")),
        policy=_policy(raw.inner("elasticPolicy")),
        checkpoint=_checkpoint(raw.inner("checkpoint")),
        shm_size=raw.text("shmSize"),
        suspend=raw.switch("suspend"),
        active_deadline_s=raw.perhaps("activeDeadlineSeconds"),
        ttl_after_finished_s=raw.perhaps("ttlSecondsAfterFinished"),
        clean_pod_policy=_clean_pod_policy(raw.text("cleanPodPolicy") or "Running"),
        managed_by=managed_by(job),
        priority_class_name=raw.text("priorityClassName"),
        queue_name=raw.text("queueName"),
        workload_api=raw.switch("workloadApi"),
    )


def managed_by(job: Raw) -> str:
    """Return the controller that cares for a job, whatever else its spec says."""
    raw = job.get("spec")
    return str((raw.get("managedBy") if isinstance(raw, Mapping) else "") or names.MANAGED_BY)


def unreadable(job: Raw) -> ElasticJobSpec:
    """Return a spec that stands for one which `parse` refuses: enough to let the job's pods leave, and it go."""
    return ElasticJobSpec(template={}, replicas=1, min_replicas=1, max_replicas=1, managed_by=managed_by(job))


@dataclass(frozen=True)
class _Fields:
    """The fields of an object at `path`, each checked for its type. UsageError: it has another one."""

    raw: Raw
    path: str

    def inner(self, name: str) -> _Fields:
        path = f"{self.path}.{name}"
        return _Fields(_mapping(self.raw.get(name) or {}, path), path)

    def text(self, name: str) -> str:
        value = self.raw.get(name)
        return str(self._checked(name, "" if value is None else value, str))

    def whole(self, name: str, default: int) -> int:
        value = self.perhaps(name)
        return default if value is None else value

    def perhaps(self, name: str) -> int | None:
        value = self.raw.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None:
            return None
        return int(self._checked(name, "a switch" if isinstance(value, bool) else value, int))

    def switch(self, name: str) -> bool:
        return bool(self._checked(name, self.raw.get(name) or False, bool))

    def _checked(self, name: str, value: Any, kind: type) -> Any:
        if not isinstance(value, kind):
            raise UsageError(f"{self.path}.{name}: expected {_KINDS[kind]}, got {str(self.raw.get(name))[:60]!r}")
        return value


_KINDS = {str: "a text", int: "a whole number", bool: "true or false"}


def _mapping(value: Any, path: str) -> Raw:
    if not isinstance(value, Mapping):
        raise UsageError(f"{path}: expected an object, got {str(value)[:60]!r}")
    return value


def _template(template: _Fields) -> Raw:
    """The template, with a name and an image in each container: without one a pod would never be made."""
    body = template.inner("spec")
    for kind in ("containers", "initContainers"):
        there = body.raw.get(kind) or ()
        path = f"{body.path}.{kind}"
        if not isinstance(there, list | tuple):
            raise UsageError(f"{path}: expected a list, got {str(there)[:60]!r}")
        if kind == "containers" and not there:
            raise UsageError(f"{path}: expected at least one container, got none")
        for index, one in enumerate(there):
            container = _Fields(_mapping(one, f"{path}[{index}]"), f"{path}[{index}]")
            for field_name in ("name", "image"):
                if not container.text(field_name).strip():
                    raise UsageError(f"{container.path}.{field_name}: expected a text, got none")
    return template.raw


def _clean_pod_policy(text: str) -> CleanPodPolicy:
    for known in _CLEAN_POD_POLICIES:
        if text == known:
            return known
    raise UsageError(f"spec.cleanPodPolicy: expected None, Running or All, got {text[:60]!r}")


def _rdzv(raw: _Fields) -> RdzvSpec:
    backend = raw.text("backend") or "embedded"
    if backend not in ("embedded", "etcd"):
        raise UsageError(f"{raw.path}.backend: expected embedded or etcd, got {backend[:60]!r}")
    tls = raw.inner("tls")
    return RdzvSpec(
        backend="etcd" if backend == "etcd" else "embedded",
        endpoint=raw.text("endpoint"),
        secret_name=raw.text("secretName"),
        tls_secret_name=tls.text("secretName"),
        tls_client_certificate=tls.switch("clientCertificate"),
        resources=raw.inner("resources").raw,
    )


def _policy(raw: _Fields) -> ElasticPolicy:
    known = ElasticPolicy()
    return ElasticPolicy(
        grace_s=raw.whole("graceSeconds", known.grace_s),
        backoff_s=raw.whole("backoffSeconds", known.backoff_s),
        exclude_after=raw.whole("excludeAfter", known.exclude_after),
        hang_timeout_s=raw.perhaps("hangTimeoutSeconds"),
        node_lost_s=raw.whole("nodeLostSeconds", known.node_lost_s),
        force_delete_lost=raw.switch("forceDeleteLost"),
    )


def _checkpoint(raw: _Fields) -> CheckpointSpec | None:
    if not raw.raw:
        return None
    volume, bucket = raw.inner("volume"), raw.inner("bucket")
    return CheckpointSpec(
        claim_name=volume.text("claimName"),
        mount_path=volume.text("mountPath") or CheckpointSpec.mount_path,
        url=bucket.text("url"),
        secret_name=bucket.text("secretName"),
    )
