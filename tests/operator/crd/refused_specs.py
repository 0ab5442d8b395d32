"""Specs of ElasticJobs that must be refused: the change in a good one, the field named, and words of the message."""

from typing import Any, NamedTuple

IMAGE = "resilin:cpu"


class Refused(NamedTuple):
    """One mistake. `change` is merged into a good spec (null takes away); `before` into the spec that it replaces."""

    name: str
    change: dict[str, Any]
    field: str
    words: str
    before: dict[str, Any] | None = None


def container(**fields: Any) -> dict[str, Any]:
    """The change of the template that gives its container more."""
    return {"template": {"spec": {"containers": [{"name": "worker", "image": IMAGE, **fields}]}}}


def pod(**fields: Any) -> dict[str, Any]:
    """The change of the template's pod."""
    return {"template": {"spec": fields}}


def _labelled(labels: dict[str, Any]) -> dict[str, Any]:
    return {"template": {"metadata": {"labels": labels}}}


def _limits(limits: dict[str, Any]) -> dict[str, Any]:
    return container(resources={"limits": limits})


def _mounted(path: str) -> dict[str, Any]:
    return container(volumeMounts=[{"name": "own", "mountPath": path}])


_VOLUME = {"volume": {"claimName": "data", "mountPath": "/data"}}
_MOUNT = [{"name": "own", "mountPath": "/dev/shm"}]

SIZES = [
    Refused("replicas missing", {"replicas": None}, "spec.replicas", "Required value"),
    Refused("replicas zero", {"replicas": 0}, "spec.replicas", "greater than or equal to 1"),
    Refused("replicas huge", {"replicas": 5000}, "spec.replicas", "less than or equal to 4096"),
    Refused("replicas a text", {"replicas": "2"}, "spec.replicas", "must be of type integer"),
    Refused("replicas a fraction", {"replicas": 1.5}, "spec.replicas", "must be of type integer"),
    Refused("replicas a switch", {"replicas": True}, "spec.replicas", "must be of type integer"),
    Refused("minReplicas zero", {"minReplicas": 0}, "spec.minReplicas", "greater than or equal to 1"),
    Refused("minReplicas negative", {"minReplicas": -3}, "spec.minReplicas", "greater than or equal to 1"),
    Refused("replicas below minReplicas", {"minReplicas": 3}, "spec.replicas", "replicas must not be less than minR"),
    Refused("replicas above maxReplicas", {"maxReplicas": 1}, "spec.replicas", "must not be greater than maxReplicas"),
    Refused("min above max", {"minReplicas": 3, "maxReplicas": 2}, "spec.minReplicas", "greater than maxReplicas"),
    Refused("maxReplicas zero", {"maxReplicas": 0}, "spec.maxReplicas", "greater than or equal to 1"),
    Refused("maxRestarts negative", {"maxRestarts": -1}, "spec.maxRestarts", "greater than or equal to 0"),
    Refused("nprocPerNode zero", {"nprocPerNode": 0}, "spec.nprocPerNode", "from 1 to 64, auto, cpu or gpu"),
    Refused("nprocPerNode huge", {"nprocPerNode": 65}, "spec.nprocPerNode", "from 1 to 64, auto, cpu or gpu"),
    Refused("nprocPerNode a word", {"nprocPerNode": "all"}, "spec.nprocPerNode", "from 1 to 64, auto, cpu or gpu"),
    Refused("nprocPerNode a number as text", {"nprocPerNode": "4"}, "spec.nprocPerNode", "auto, cpu or gpu"),
    Refused("nprocPerNode a switch", {"nprocPerNode": False}, "spec.nprocPerNode", "must be of type integer,string"),
    Refused("nprocPerNode long", {"nprocPerNode": "x" * 9}, "spec.nprocPerNode", "Too long"),
]

TEMPLATES = [
    Refused("template missing", {"template": None}, "spec.template", "Required value"),
    Refused("template without spec", {"template": {"spec": None}}, "spec.template.spec", "Required value"),
    Refused("no containers", pod(containers=None), "spec.template.spec.containers", "Required value"),
    Refused("empty containers", pod(containers=[]), "spec.template.spec.containers", "at least 1 items"),
    Refused(
        "containers of one name", pod(containers=[{"name": "a"}, {"name": "a"}]), "containers[1]", "Duplicate value"
    ),
    Refused("many containers", pod(containers=[{"name": f"c{i}"} for i in range(17)]), "containers", "Too many"),
    Refused("container without name", pod(containers=[{"image": IMAGE}]), "containers[0].name", "Required value"),
    Refused("container in capitals", pod(containers=[{"name": "Worker"}]), "containers[0].name", "should match"),
    Refused("no image", pod(containers=[{"name": "worker"}]), "containers[0].image", "Required value"),
    Refused("image with a blank", container(image="resilin: cpu"), "containers[0].image", "should match"),
    Refused("sidecar without image", pod(initContainers=[{"name": "a"}]), "initContainers[0].image", "Required value"),
    Refused("empty image", container(image=""), "containers[0].image", "at least 1 chars long"),
    Refused("command a text", container(command="elastic-run"), "containers[0].command", "must be of type array"),
    Refused("args of numbers", container(args=[1]), "containers[0].args[0]", "must be of type string"),
    Refused("port zero", container(ports=[{"containerPort": 0}]), "ports[0].containerPort", "or equal to 1"),
    Refused("port beyond", container(ports=[{"containerPort": 70000}]), "ports[0].containerPort", "equal to 65535"),
    Refused(
        "ports twice", container(ports=[{"containerPort": 80}, {"containerPort": 80}]), "ports[1]", "Duplicate value"
    ),
    Refused(
        "protocol", container(ports=[{"containerPort": 1, "protocol": "QUIC"}]), "ports[0].protocol", "Unsupported"
    ),
    Refused("pull policy", container(imagePullPolicy="Sometimes"), "imagePullPolicy", "supported values"),
    Refused("variable without name", container(env=[{"value": "1"}]), "env[0].name", "Required value"),
    Refused("variable a number", container(env=[{"name": "A", "value": 1}]), "env[0].value", "of type string"),
    Refused("RANK is set", container(env=[{"name": "RANK", "value": "0"}]), "containers[0].env", "must not be set"),
    Refused("secret in env", container(env=[{"name": "RESILIN_SECRET", "value": "x"}]), "env", "must not be set"),
    Refused(
        "variables twice", container(env=[{"name": "A"}, {"name": "A"}]), "containers[0].env[1]", "Duplicate value"
    ),
    Refused("limit no amount", container(resources={"limits": {"cpu": "two"}}), "limits.cpu", "should match"),
    Refused("limit a list", container(resources={"limits": {"cpu": [1]}}), "limits.cpu", "integer,string"),
    Refused(
        "GPU without limit",
        container(resources={"requests": {"nvidia.com/gpu": 1}}),
        "resources",
        "needs an equal limit",
    ),
    Refused(
        "GPUs overcommitted",
        container(resources={"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}}),
        "resources",
        "needs an equal limit",
    ),
    Refused("restartPolicy", pod(restartPolicy="Always"), "spec.template.spec.restartPolicy", "must be Never"),
    Refused("hostname", pod(hostname="a"), "spec.template.spec", "hostname and subdomain are the operator's"),
    Refused("our volume", pod(volumes=[{"name": "resilin-x"}]), "spec.template.spec.volumes", "are the operator's"),
    Refused("volume without name", pod(volumes=[{"emptyDir": {}}]), "volumes[0].name", "Required value"),
    Refused("mount without path", container(volumeMounts=[{"name": "a"}]), "mountPath", "Required value"),
    Refused(
        "our label", {"template": {"metadata": {"labels": {"resilin.dev/job": "x"}}}}, "labels", "are the operator's"
    ),
    Refused("label value", _labelled({"team": "team A"}), "metadata.labels.team", "should match"),
    Refused("label value's end", _labelled({"team": "a-"}), "metadata.labels.team", "should match"),
    Refused("label name", _labelled({"my team": "a"}), "metadata.labels", "names of labels and annotations are"),
    Refused("label of no domain", _labelled({"/a": "a"}), "metadata.labels", "names of labels and annotations are"),
    Refused("label of two domains", _labelled({"a/b/c": "a"}), "metadata.labels", "names of labels and annotations"),
    Refused("label name long", _labelled({"x" * 64: "a"}), "metadata.labels", "names of labels and annotations are"),
    Refused(
        "annotation name", {"template": {"metadata": {"annotations": {"a b": "x"}}}}, "annotations", "names of labels"
    ),
    Refused("node label", pod(nodeSelector={"a b": "x"}), "spec.template.spec.nodeSelector", "names of labels"),
    Refused("node label's value", pod(nodeSelector={"a": "x y"}), "spec.template.spec.nodeSelector.a", "should match"),
    Refused("half a GPU", _limits({"nvidia.com/gpu": "0.5"}), "resources.limits", "devices such as nvidia.com/gpu are"),
    Refused("500m of a GPU", _limits({"nvidia.com/gpu": "500m"}), "resources.limits", "half a one cannot be had"),
    Refused("half a GPU of AMD", _limits({"amd.com/gpu": "1.5"}), "resources.limits", "half a one cannot be had"),
    Refused(
        "half a GPU asked for", container(resources={"requests": {"a.b/c": "0.5"}}), "resources.requests", "are whole"
    ),
    Refused("mount of our flags", _mounted("/etc/resilin"), "volumeMounts", "where agents find their files"),
    Refused("mount of our flags with /", _mounted("/etc/resilin/"), "volumeMounts", "where agents find their files"),
    Refused("mount of our secret", _mounted("/var/run/resilin/secret"), "volumeMounts", "where agents find their"),
    Refused("label a number", {"template": {"metadata": {"labels": {"a": 1}}}}, "labels.a", "of type string"),
    Refused("toleration effect", pod(tolerations=[{"effect": "Never"}]), "tolerations[0].effect", "supported values"),
    Refused("node selector a list", pod(nodeSelector=["a"]), "spec.template.spec.nodeSelector", "of type object"),
    Refused("spread by half", pod(topologySpreadConstraints=[{"maxSkew": 1}]), "topologyKey", "Required value"),
    Refused("grace negative", pod(terminationGracePeriodSeconds=-1), "terminationGracePeriodSeconds", "equal to 0"),
]

PARTS = [
    Refused("rdzv backend", {"rdzv": {"backend": "c10d"}}, "spec.rdzv.backend", 'supported values: "embedded", "etcd"'),
    Refused("etcd without endpoint", {"rdzv": {"backend": "etcd"}}, "spec.rdzv", "endpoint is required with backend"),
    Refused("endpoint of embedded", {"rdzv": {"endpoint": "a:1"}}, "spec.rdzv.endpoint", "belongs to backend etcd"),
    Refused(
        "endpoint without port", {"rdzv": {"backend": "etcd", "endpoint": "a"}}, "spec.rdzv.endpoint", "should match"
    ),
    Refused("endpoint a URL", {"rdzv": {"backend": "etcd", "endpoint": "http://a:1"}}, "rdzv.endpoint", "should match"),
    Refused(
        "port beyond", {"rdzv": {"backend": "etcd", "endpoint": "a:1,b:65536"}}, "rdzv.endpoint", "from 1 to 65535"
    ),
    Refused("port zero", {"rdzv": {"backend": "etcd", "endpoint": "a:0,b:1"}}, "rdzv.endpoint", "from 1 to 65535"),
    Refused("TLS of embedded", {"rdzv": {"tls": {"secretName": "a"}}}, "spec.rdzv.tls", "tls belongs to backend etcd"),
    Refused(
        "TLS without Secret",
        {"rdzv": {"backend": "etcd", "endpoint": "a:1", "tls": {}}},
        "spec.rdzv.tls.secretName",
        "Required value",
    ),
    Refused(
        "resources with etcd",
        {"rdzv": {"backend": "etcd", "endpoint": "a:1", "resources": {}}},
        "spec.rdzv.resources",
        "with backend etcd there is none",
    ),
    Refused("rdzv secret", {"rdzv": {"secretName": "A_b"}}, "spec.rdzv.secretName", "should match"),
    Refused("grace negative", {"elasticPolicy": {"graceSeconds": -1}}, "elasticPolicy.graceSeconds", "equal to 0"),
    Refused("grace a text", {"elasticPolicy": {"graceSeconds": "30s"}}, "elasticPolicy.graceSeconds", "type integer"),
    Refused("back-off", {"elasticPolicy": {"backoffSeconds": 100_000}}, "elasticPolicy.backoffSeconds", "to 86400"),
    Refused("exclude after none", {"elasticPolicy": {"excludeAfter": 0}}, "elasticPolicy.excludeAfter", "equal to 1"),
    Refused("hang at once", {"elasticPolicy": {"hangTimeoutSeconds": 1}}, "hangTimeoutSeconds", "or equal to 5"),
    Refused("node lost at once", {"elasticPolicy": {"nodeLostSeconds": 1}}, "nodeLostSeconds", "or equal to 10"),
    Refused("force a word", {"elasticPolicy": {"forceDeleteLost": "yes"}}, "forceDeleteLost", "type boolean"),
    Refused("checkpoint of nothing", {"checkpoint": {}}, "spec.checkpoint", "either volume or bucket, and not both"),
    Refused(
        "checkpoint twice",
        {"checkpoint": {**_VOLUME, "bucket": {"url": "s3://a"}}},
        "spec.checkpoint",
        "either volume or bucket, and not both",
    ),
    Refused("claim missing", {"checkpoint": {"volume": {}}}, "spec.checkpoint.volume.claimName", "Required value"),
    Refused(
        "mount path relative",
        {"checkpoint": {"volume": {"claimName": "a", "mountPath": "data"}}},
        "spec.checkpoint.volume.mountPath",
        "should match",
    ),
    Refused(
        "claim over the agents' files",
        {"checkpoint": {"volume": {"claimName": "a", "mountPath": "/etc/resilin"}}},
        "spec.checkpoint.volume.mountPath",
        "where agents find their files",
    ),
    Refused(
        "claim over all", {"checkpoint": {"volume": {"claimName": "a", "mountPath": "/"}}}, "volume.mountPath", "not /"
    ),
    Refused("bucket a path", {"checkpoint": {"bucket": {"url": "/data"}}}, "bucket.url", "should match"),
    Refused(
        "checkpoint mounted over",
        {"checkpoint": _VOLUME, **container(volumeMounts=[{"name": "own", "mountPath": "/data"}])},
        "spec",
        "checkpoint.volume is mounted at its mountPath",
    ),
    Refused("shmSize a word", {"shmSize": "big"}, "spec.shmSize", "should match"),
    Refused("shmSize negative", {"shmSize": "-1Gi"}, "spec.shmSize", "should match"),
    Refused("shmSize zero", {"shmSize": "0"}, "spec.shmSize", "should match"),
    Refused("shmSize a number", {"shmSize": 1024}, "spec.shmSize", "must be of type string"),
    Refused("shmSize empty", {"shmSize": ""}, "spec.shmSize", "at least 1 chars long"),
    Refused(
        "shmSize mounted over", {"shmSize": "1Gi", **container(volumeMounts=_MOUNT)}, "spec.shmSize", "mounts /dev/shm"
    ),
    Refused(
        "shmSize mounted over with /", {"shmSize": "1Gi", **_mounted("/dev/shm/")}, "spec.shmSize", "mounts /dev/shm"
    ),
    Refused(
        "checkpoint mounted over with /",
        {"checkpoint": _VOLUME, **_mounted("/data/")},
        "spec",
        "checkpoint.volume is mounted at its mountPath",
    ),
    Refused("suspend a word", {"suspend": "true"}, "spec.suspend", "must be of type boolean"),
    Refused("deadline zero", {"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds", "greater than or equal to 1"),
    Refused("ttl negative", {"ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished", "than or equal to 0"),
    Refused("clean pod policy", {"cleanPodPolicy": "Some"}, "spec.cleanPodPolicy", "supported values"),
    Refused("managedBy empty", {"managedBy": ""}, "spec.managedBy", "at least 1 chars long"),
    Refused("managedBy long", {"managedBy": "x" * 64}, "spec.managedBy", "Too long"),
    Refused("priority class", {"priorityClassName": "High!"}, "spec.priorityClassName", "should match"),
    Refused("queue", {"queueName": "Team A"}, "spec.queueName", "should match"),
    Refused(
        "queue and Workload API", {"queueName": "a", "workloadApi": True}, "spec.workloadApi", "exclude one another"
    ),
]

SUSPENDED = {"suspend": True}
CHANGES = [
    Refused("template", container(args=["x"]), "spec.template", "only while the job is suspended", {}),
    Refused("image", container(image="other"), "spec.template", "only while the job is suspended", {}),
    Refused("nprocPerNode", {"nprocPerNode": 2}, "spec.nprocPerNode", "only while the job is suspended", {}),
    Refused("rdzv", {"rdzv": {"secretName": "a"}}, "spec.rdzv", "only while the job is suspended", {}),
    Refused("checkpoint comes", {"checkpoint": _VOLUME}, "spec", "checkpoint may change only while", {}),
    Refused("checkpoint goes", {"checkpoint": None}, "spec", "checkpoint may change only", {"checkpoint": _VOLUME}),
    Refused("shmSize grows", {"shmSize": "2Gi"}, "spec", "shmSize may change only while", {"shmSize": "1Gi"}),
    Refused("queue", {"queueName": "b"}, "spec", "queueName may change only while", {"queueName": "a"}),
    Refused("priority", {"priorityClassName": "b"}, "spec", "priorityClassName may change only", {}),
    Refused("managedBy", {"managedBy": "b"}, "spec.managedBy", "managedBy may not change", SUSPENDED),
]

ALL = [*SIZES, *TEMPLATES, *PARTS, *CHANGES]
