"""The schema of an ElasticJob: what its spec may say, with defaults, and what the operator writes to its status."""

from __future__ import annotations

from resilin.operator import names
from resilin.operator.crd import rules
from resilin.operator.crd.parts import (
    Schema,
    choice,
    integer,
    listed,
    mapping,
    name,
    record,
    switch,
    text,
)
from resilin.operator.crd.pod_template import pod_template, resources

MOST_REPLICAS = 4096
_DAY = 86_400
_ENDPOINT = r"^([a-zA-Z0-9]([-.a-zA-Z0-9]*[a-zA-Z0-9])?|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}"
_ENDPOINTS = f"{_ENDPOINT}(,{_ENDPOINT[1:]})*$"
_URL = r"^[a-z][a-z0-9+.-]*://[^\s]+$"
_SIZE = r"^([1-9][0-9]*(\.[0-9]+)?|0?\.[0-9]*[1-9][0-9]*)([KMGT]i|[kMGT])?$"  # a quantity that can be mounted: above 0
_PATH = r"^/[^:\s]*$"
_CONDITIONS = ("Created", "Running", "Scaling", "Degraded", "Stalled", "Suspended", "Succeeded", "Failed")


def root() -> Schema:
    """The schema of the whole object."""
    fields = {
        "apiVersion": text(64, "The version of this schema."),
        "kind": text(64, "ElasticJob."),
        "metadata": {"type": "object"},
        "spec": spec(),
        "status": status(),
    }
    about = "A training job that grows, shrinks and loses pods while the pods that stay go on training."
    return record(fields, about, required=["spec"], rules=rules.OBJECT)


def spec() -> Schema:
    """The schema of `spec`."""
    fields = {
        "template": pod_template(),
        "replicas": integer(1, MOST_REPLICAS, "How many pods there are to be; kubectl scale and autoscalers write it."),
        "minReplicas": integer(1, MOST_REPLICAS, "With fewer ready pods the job waits.", 1),
        "maxReplicas": integer(1, MOST_REPLICAS, "The greatest replicas that is accepted."),
        "nprocPerNode": _processes(),
        "maxRestarts": integer(
            0,
            1_000_000,
            "Failures of workers and pods of their own that the job survives; not evictions, not nodes.",
            3,
        ),
        "rdzv": _rdzv(),
        "elasticPolicy": _policy(),
        "checkpoint": _checkpoint(),
        "shmSize": text(32, "Size of /dev/shm, such as 1Gi; counts as memory of the pod.", pattern=_SIZE, least=1),
        "suspend": switch("Whether the job has no pods for now; queues such as Kueue write it.", False),
        "activeDeadlineSeconds": integer(1, 1 << 62, "How long the job may take since it started."),
        "ttlSecondsAfterFinished": integer(0, (1 << 31) - 1, "How long the job is kept when it has ended."),
        "cleanPodPolicy": choice(
            ("None", "Running", "All"), "Which pods are deleted when the job has ended.", "Running"
        ),
        "managedBy": text(63, "The controller that cares for the job.", default=names.MANAGED_BY, least=1),
        "priorityClassName": name("The priority of the pods."),
        "queueName": text(63, "Kueue's queue, in which the pods wait.", pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
        "workloadApi": switch("Whether pods are one group of Kubernetes' Workload API, which changes often.", False),
    }
    return record(fields, "What the job is to be.", required=["template", "replicas"], rules=rules.SPEC)


def _processes() -> Schema:
    return {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "default": 1,
        "description": "Workers in each pod: a number, auto, cpu or gpu.",
        "maxLength": 8,
        "x-kubernetes-int-or-string": True,
    }


def _rdzv() -> Schema:
    tls = record(
        {
            "secretName": name("A Secret with ca.crt."),
            "clientCertificate": switch("Whether it has tls.crt and tls.key, which etcd asks for.", False),
        },
        "TLS to etcd.",
        required=["secretName"],
    )
    fields = {
        "backend": choice(("embedded", "etcd"), "A store in a small pod of the job's, or an etcd.", "embedded"),
        "endpoint": text(1024, "etcd: HOST:PORT, several separated by commas.", pattern=_ENDPOINTS),
        "secretName": name("A Secret with the job's secret under the key secret; by default the operator makes one."),
        "tls": tls,
        "resources": resources("Of the pod that serves the embedded store."),
    }
    return record(fields, "Where the pods meet.", rules=rules.RDZV, default={"backend": "embedded"})


def _policy() -> Schema:
    fields = {
        "graceSeconds": integer(0, _DAY, "Between asking a worker to leave and killing it.", 30),
        "backoffSeconds": integer(0, _DAY, "Before the first replacement of a pod that failed; doubled each time.", 10),
        "excludeAfter": integer(1, 1000, "Failures of one index in a row after which it waits five minutes.", 3),
        "hangTimeoutSeconds": integer(5, _DAY, "Without a step for so long, a worker counts as hanging; else learned."),
        "nodeLostSeconds": integer(10, _DAY, "How long a node may be silent before its pods count as lost.", 40),
        "forceDeleteLost": switch("Whether lost pods are deleted without their kubelet's word.", False),
    }
    return record(fields, "How faults are met.", default={})


def _checkpoint() -> Schema:
    volume = record(
        {
            "claimName": name("A PersistentVolumeClaim that all pods can mount."),
            "mountPath": text(1024, "Where it is mounted.", pattern=_PATH, default="/checkpoint"),
        },
        "A claim.",
        required=["claimName"],
        rules=rules.CHECKPOINT_VOLUME,
    )
    bucket = record(
        {
            "url": text(1024, "Such as s3://bucket/folder.", pattern=_URL),
            "secretName": name("A Secret whose keys become environment variables."),
        },
        "A bucket.",
        required=["url"],
    )
    return record({"volume": volume, "bucket": bucket}, "Where checkpoints go.", rules=rules.CHECKPOINT)


def status() -> Schema:
    """The schema of `status`."""
    moment = {"type": "string", "format": "date-time", "maxLength": 64}
    most = (1 << 31) - 1
    fault = {
        "rank": integer(0, most, "The worker that failed."),
        "pod": text(253, "Its pod."),
        "node": text(253, "The node that it ran on."),
        "cause": text(253, "In one word."),
        "message": text(32768, "In the words of the launcher or the kubelet."),
        "time": moment,
    }
    open_fault = {
        "index": integer(0, most),
        "uid": text(64),
        "cause": text(253),
        "counted": {"type": "boolean"},
        "since": moment,
    }
    fields = {
        "observedGeneration": integer(0, 1 << 62, "The generation of the spec that this status is about."),
        "conditions": listed(_condition(moment), 16, "What holds, one of each type.", keys=["type"]),
        "worldGeneration": integer(0, most, "The generation of the world that the workers are in."),
        "replicas": integer(0, most, "Pods that there are."),
        "readyWorkers": integer(0, most, "Pods that are ready."),
        "selector": text(1024, "Selects the pods, for autoscalers."),
        "restarts": integer(0, most, "Failures of pods that counted."),
        "workerRestarts": integer(0, most, "Failures that agents have answered with a new worker."),
        "lostSeconds": mapping({"type": "number", "minimum": 0}, 64, "Time without a worker in a place, by cause."),
        "lastFault": record(fault, "The last fault, as the launcher tells it."),
        "openFaults": listed(record(open_fault, required=["index", "uid"]), MOST_REPLICAS, "Places without a worker."),
        "indexFailures": listed(
            record({"index": integer(0, most), "times": integer(0, most)}, required=["index", "times"]),
            MOST_REPLICAS,
            "How often pods of an index have failed in a row.",
        ),
        "workerFaults": listed(
            record({"uid": text(64), "counted": integer(0, most)}, required=["uid", "counted"]),
            MOST_REPLICAS,
            "How many faults of workers were counted, by pod.",
        ),
        "startTime": moment,
        "completionTime": moment,
    }
    return record(fields, "What the operator has seen.")


def _condition(moment: Schema) -> Schema:
    fields = {
        "type": text(316, f"One of {', '.join(_CONDITIONS)}.", least=1),
        "status": choice(("True", "False", "Unknown"), "Whether it holds."),
        "reason": text(1024, "In one word.", pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
        "message": text(32768, "For people."),
        "observedGeneration": integer(0, 1 << 62),
        "lastTransitionTime": moment,
    }
    return record(fields, required=["type", "status", "reason", "lastTransitionTime"])
