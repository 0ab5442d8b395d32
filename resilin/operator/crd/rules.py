"""The rules of an ElasticJob in CEL, each with the sentence that a user reads who breaks it.

They keep to the base language. A rule that compares with the object before does not run where an optional field comes
or goes: such fields are compared one level up, with `has` on both sides.
"""

from __future__ import annotations

from typing import Any

Rule = dict[str, Any]

RESERVED_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RESILIN_CONTROL_FD",
    "RESILIN_GENERATION",
    "RESILIN_JOB",
    "RESILIN_SECRET",
)


AGENTS_FOLDERS = ("/etc/resilin", "/var/run/resilin", "/run/resilin")


def rule(text: str, message: str, field: str = "") -> Rule:
    """A rule, the message for those who break it, and the field below its object that is to be corrected."""
    result: Rule = {"rule": text, "message": message}
    return {**result, "fieldPath": field} if field else result


def _fixed_unless_suspended(field: str, optional: bool = False) -> Rule:
    may_change = "self.suspend || oldSelf.suspend"
    same = f"self.{field} == oldSelf.{field}"
    if optional:
        same = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {same})"
        return rule(
            f"{may_change} || ({same})", f"{field} may change only while the job is suspended: set suspend first"
        )
    text = f"{may_change} || {same}"
    return rule(text, f"{field} may change only while the job is suspended: set suspend first", f".{field}")


OBJECT = [
    rule(
        "self.metadata.name.size() <= 50 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name becomes that of Services and pods: at most 50 lower-case letters, digits and -, a letter first",
    ),
]

SPEC = [
    rule(
        "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
        "minReplicas must not be greater than maxReplicas",
        ".minReplicas",
    ),
    rule("self.replicas >= self.minReplicas", "replicas must not be less than minReplicas", ".replicas"),
    rule(
        "!has(self.maxReplicas) || self.replicas <= self.maxReplicas",
        "replicas must not be greater than maxReplicas",
        ".replicas",
    ),
    rule(
        "type(self.nprocPerNode) == int ? self.nprocPerNode >= 1 && self.nprocPerNode <= 64 : "
        "self.nprocPerNode in ['auto', 'cpu', 'gpu']",
        "nprocPerNode must be a number from 1 to 64, auto, cpu or gpu",
        ".nprocPerNode",
    ),
    rule(
        "!self.workloadApi || !has(self.queueName)",
        "workloadApi and queueName exclude one another: Kueue admits the pods of a group by itself",
        ".workloadApi",
    ),
    rule(
        "!has(self.shmSize) || self.template.spec.containers.all(c, !has(c.volumeMounts) || "
        "c.volumeMounts.all(m, !m.mountPath.matches('^/+dev/+shm/*$')))",
        "shmSize mounts /dev/shm: no container may mount something else there",
        ".shmSize",
    ),
    rule(
        "!has(self.checkpoint) || !has(self.checkpoint.volume) || self.template.spec.containers.all(c, "
        "!has(c.volumeMounts) || c.volumeMounts.all(m, m.mountPath != self.checkpoint.volume.mountPath && "
        "m.mountPath != self.checkpoint.volume.mountPath + '/'))",
        "checkpoint.volume is mounted at its mountPath: no container may mount something else there",
    ),
    rule("self.managedBy == oldSelf.managedBy", "managedBy may not change", ".managedBy"),
    *(_fixed_unless_suspended(field) for field in ("template", "nprocPerNode", "rdzv")),
    *(_fixed_unless_suspended(field, True) for field in ("checkpoint", "shmSize", "queueName", "priorityClassName")),
]

RDZV = [
    rule("self.backend != 'etcd' || has(self.endpoint)", "endpoint is required with backend etcd"),
    rule(
        "self.backend != 'embedded' || !has(self.endpoint)",
        "endpoint belongs to backend etcd: the embedded store has a pod and a Service of its own",
        ".endpoint",
    ),
    rule(
        "!has(self.endpoint) || !self.endpoint.matches(':(0+|6553[6-9]|655[4-9][0-9]|65[6-9][0-9]{2}|6[6-9][0-9]{3}|"
        "[7-9][0-9]{4})(,|$)')",
        "endpoint: ports are from 1 to 65535",
        ".endpoint",
    ),
    rule("self.backend == 'etcd' || !has(self.tls)", "tls belongs to backend etcd", ".tls"),
    rule(
        "self.backend == 'embedded' || !has(self.resources)",
        "resources are those of the embedded store's pod: with backend etcd there is none",
        ".resources",
    ),
]

CHECKPOINT = [
    rule("has(self.volume) != has(self.bucket)", "checkpoint needs either volume or bucket, and not both"),
]

CHECKPOINT_VOLUME = [
    rule(
        "!self.mountPath.matches('^/*((etc|var/run|run)/resilin(/.*)?|dev(/.*)?)?$')",
        "mountPath must be a folder of its own: not /, not in /dev, and not where agents find their files, which is in "
        "/etc/resilin and /var/run/resilin",
        ".mountPath",
    ),
]

LABELS = [
    rule("self.all(k, !k.startsWith('resilin.dev/'))", "labels that begin with resilin.dev/ are the operator's"),
]

LABEL_KEYS = [
    rule(
        "self.all(k, k.size() <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?"
        "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",
        "names of labels and annotations are at most 63 letters, digits, -, _ and ., with a letter or digit at both "
        "ends, after a domain and / if need be",
    ),
]

MOUNTS = [
    rule(
        "self.all(m, "
        + " && ".join(f"m.mountPath != '{path}' && !m.mountPath.startsWith('{path}/')" for path in AGENTS_FOLDERS)
        + ")",
        "nothing may be mounted where agents find their files, which is in /etc/resilin and /var/run/resilin",
    ),
]

POD = [
    rule(
        "!has(self.restartPolicy) || self.restartPolicy == 'Never'",
        "restartPolicy must be Never: agents restart workers, and the operator replaces pods",
        ".restartPolicy",
    ),
    rule(
        "!has(self.hostname) && !has(self.subdomain)",
        "hostname and subdomain are the operator's: every pod is JOB-INDEX.JOB",
    ),
]

VOLUMES = [
    rule("self.all(v, !v.name.startsWith('resilin-'))", "volumes whose names begin with resilin- are the operator's"),
]

ENV = [
    rule(
        f"self.all(e, !(e.name in {list(RESERVED_VARIABLES)}))",
        "variables that agents give to workers must not be set: " + ", ".join(RESERVED_VARIABLES),
    ),
]

RESOURCES = [
    rule(
        "!has(self.requests) || !('nvidia.com/gpu' in self.requests) || (has(self.limits) && 'nvidia.com/gpu' in "
        "self.limits && self.limits['nvidia.com/gpu'] == self.requests['nvidia.com/gpu'])",
        "a request for nvidia.com/gpu needs an equal limit: devices are not overcommitted",
    ),
    *(
        rule(
            f"!has(self.{field}) || self.{field}.all(k, !k.contains('/') || type(self.{field}[k]) == int || "
            f"!self.{field}[k].matches('[-.mun]'))",
            f"{field}: devices such as nvidia.com/gpu are whole, half a one cannot be had",
            f".{field}",
        )
        for field in ("limits", "requests")
    ),
]
