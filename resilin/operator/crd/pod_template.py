"""The schema of an ElasticJob's pod template.

Described is what jobs commonly set and what rules look at. Everything else of a pod is kept as it stands, so that
fields of later versions of Kubernetes work, and is judged by the server that gets the pod. The definition stays small
enough for `kubectl apply`, which writes a copy of it into an annotation.
"""

from __future__ import annotations

from resilin.operator.crd import rules
from resilin.operator.crd.parts import (
    IMAGE,
    LABEL_NAME,
    LABEL_VALUE,
    Schema,
    as_is,
    choice,
    integer,
    listed,
    mapping,
    name,
    quantity,
    record,
    switch,
    text,
)

_PULL = ("Always", "IfNotPresent", "Never")
_MESSAGES = ("File", "FallbackToLogsOnError")


def pod_template() -> Schema:
    """The schema of `spec.template`."""
    labels = mapping(text(63, pattern=LABEL_VALUE), 64, "Labels of the pods, beside the operator's.")
    annotations = mapping(text(65536), 64, "Annotations of the pods.")
    metadata = record(
        {
            "labels": {**labels, "x-kubernetes-validations": [*rules.LABELS, *rules.LABEL_KEYS]},
            "annotations": {**annotations, "x-kubernetes-validations": rules.LABEL_KEYS},
        }
    )
    about = (
        "The pod that each node of the job is. The container that runs elastic-run is called worker, or is the first."
    )
    return record({"metadata": metadata, "spec": _pod()}, about, required=["spec"])


def _pod() -> Schema:
    volume = record({"name": text(63, pattern=LABEL_NAME)}, required=["name"], more=True)
    volumes = listed(volume, 64, keys=["name"])
    selector = mapping(text(63, pattern=LABEL_VALUE), 64, "Labels that a node must have.")
    fields = {
        "containers": listed(container(), 16, "Containers, at least one.", keys=["name"], least=1),
        "initContainers": listed(container(), 16, "Run before; sidecars with restartPolicy Always.", keys=["name"]),
        "volumes": {**volumes, "x-kubernetes-validations": rules.VOLUMES},
        "restartPolicy": text(16, "Never, which it is anyway."),
        "hostname": text(63),
        "subdomain": text(63),
        "nodeSelector": {**selector, "x-kubernetes-validations": rules.LABEL_KEYS},
        "tolerations": listed(_toleration(), 64, "Taints that are put up with."),
        "topologySpreadConstraints": listed(_spread(), 16, "How pods are spread; by default over hosts."),
        "affinity": as_is(),
        "securityContext": as_is("Of all containers; by default what the restricted Pod Security standard asks for."),
        "serviceAccountName": name(),
        "automountServiceAccountToken": switch("Whether pods may speak to the API server; by default not."),
        "imagePullSecrets": listed(record({"name": name()}, required=["name"]), 16, keys=["name"]),
        "priorityClassName": name(),
        "schedulerName": name(),
        "runtimeClassName": name(),
        "hostNetwork": switch("Whether pods use the network of their node."),
        "hostIPC": switch("Whether pods share memory with their node."),
        "terminationGracePeriodSeconds": integer(0, 86400, "By default elasticPolicy.graceSeconds and a little more."),
    }
    return record(fields, required=["containers"], rules=rules.POD, more=True)


def container() -> Schema:
    """The schema of a container."""
    mount = record({"name": text(63), "mountPath": text(1024)}, required=["name", "mountPath"], more=True)
    fields = {
        "name": text(63, pattern=LABEL_NAME),
        "image": text(1024, pattern=IMAGE, least=1),
        "imagePullPolicy": choice(_PULL, "When the image is pulled."),
        "command": listed(text(65536), 256),
        "args": listed(text(65536), 1024),
        "workingDir": text(4096),
        "env": {**listed(_variable(), 256, keys=["name"]), "x-kubernetes-validations": rules.ENV},
        "envFrom": listed(as_is(), 64),
        "ports": listed(_port(), 64, keys=["containerPort", "protocol"]),
        "resources": resources(),
        "volumeMounts": {**listed(mount, 64, keys=["mountPath"]), "x-kubernetes-validations": rules.MOUNTS},
        "securityContext": as_is(),
        "livenessProbe": as_is(),
        "readinessProbe": as_is(),
        "startupProbe": as_is(),
        "lifecycle": as_is(),
        "restartPolicy": choice(("Always",), "Of an init container that keeps running beside the others."),
        "terminationMessagePath": text(4096),
        "terminationMessagePolicy": choice(_MESSAGES, "Where the reason of an end is read."),
        "tty": {"type": "boolean"},
        "stdin": {"type": "boolean"},
    }
    return record(fields, required=["name", "image"], more=True)


def resources(about: str = "") -> Schema:
    """The schema of what a container asks for."""
    amounts = mapping(quantity(), 32)
    claims = listed(record({"name": text(63)}, required=["name"], more=True), 16, keys=["name"])
    fields = {"limits": amounts, "requests": amounts, "claims": claims}
    return record(fields, about, rules=rules.RESOURCES)


def _variable() -> Schema:
    fields = {"name": text(253, least=1), "value": text(32768), "valueFrom": as_is()}
    return record(fields, required=["name"])


def _port() -> Schema:
    fields = {
        "containerPort": integer(1, 65535),
        "hostPort": integer(1, 65535),
        "hostIP": text(64),
        "name": text(15),
        "protocol": choice(("TCP", "UDP", "SCTP"), "TCP unless said otherwise.", "TCP"),
    }
    return record(fields, required=["containerPort"])


def _toleration() -> Schema:
    fields = {
        "key": text(317),
        "operator": choice(("Exists", "Equal", "Lt", "Gt"), "How value is compared."),
        "value": text(63),
        "effect": choice(("NoSchedule", "PreferNoSchedule", "NoExecute"), "Which effect of the taint; all if none."),
        "tolerationSeconds": integer(-(1 << 62), 1 << 62),
    }
    return record(fields)


def _spread() -> Schema:
    fields = {
        "maxSkew": integer(1, 1 << 30),
        "topologyKey": text(317, least=1),
        "whenUnsatisfiable": choice(("DoNotSchedule", "ScheduleAnyway"), "What if it cannot be."),
        "labelSelector": as_is(),
    }
    return record(fields, required=["maxSkew", "topologyKey", "whenUnsatisfiable"], more=True)
