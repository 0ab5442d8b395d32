"""Builds pods: a worker's from the job's template, and the small one that serves the store. Pure.

What the template says wins wherever both say something, except where a job could not work: who owns the pod, its name,
its labels of ours, and `restartPolicy: Never`, because a pod that ended is replaced by another one.
"""

from __future__ import annotations

import copy
from typing import Any

from resilin.operator import gang, manifests, names
from resilin.operator.observed import Observed
from resilin.operator.spec import ElasticJobSpec

CONFIG_FOLDER = "/etc/resilin"
_SECRET_FILE = f"{names.SECRET_FOLDER}/{names.SECRET_KEY}"
_GRACE_MARGIN_S = 5  # for the agent itself, after its workers had theirs
_CONF = "RESILIN_RDZV_CONF"
_REJOIN_S = 60  # more than survivors of a cut need to notice it and to find the new store
_SECRET_VOLUME, _CONFIG_VOLUME, _SHM_VOLUME, _CHECKPOINT_VOLUME, _TLS_VOLUME = (
    "resilin-secret", "resilin-config", "resilin-shm", "resilin-checkpoint", "resilin-tls",
)  # fmt: skip
_CA, _CLIENT = "ca.crt", {"cert": "tls.crt", "key": "tls.key"}  # as in Secrets of type kubernetes.io/tls


def worker(spec: ElasticJobSpec, observed: Observed, index: int, incarnation: int = 0) -> dict[str, Any]:
    """Return the pod of a worker."""
    job = observed.name
    template = copy.deepcopy(dict(spec.template))
    given = template.get("metadata") or {}
    meta = manifests.metadata(observed, names.pod(job, index, incarnation), names.WORKER)
    meta["labels"] = {
        **(given.get("labels") or {}), **meta["labels"], names.INDEX: str(index), names.INCARNATION: str(incarnation),
    }  # fmt: skip
    if given.get("annotations"):
        meta["annotations"] = dict(given["annotations"])
    body: dict[str, Any] = template["spec"]
    _pod_defaults(body, spec)
    body["hostname"], body["subdomain"] = meta["name"], job
    body.setdefault(
        "topologySpreadConstraints",
        [
            {
                "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": names.selector(job)},
            }
        ],
    )  # fmt: skip
    main = next((one for one in body["containers"] if one["name"] == names.CONTAINER), body["containers"][0])
    for container in (*body["containers"], *(body.get("initContainers") or ())):
        _restrict(container)
    _main_container(main, body, spec, observed)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body}
    gang.decorate(pod, spec, job)
    return pod


def rendezvous(spec: ElasticJobSpec, observed: Observed, incarnation: int = 0) -> dict[str, Any]:
    """Return the pod that serves the embedded store. It runs the image of the workers, which has resilin."""
    template = spec.template["spec"]
    main = next((one for one in template["containers"] if one["name"] == names.CONTAINER), template["containers"][0])
    name = names.rendezvous(observed.name, incarnation)
    container: dict[str, Any] = {
        "name": "store",
        "image": main["image"],
        "command": ["resilin", "store", "serve"],
        "args": ["--host", "$(RESILIN_POD_IP)", "--port", str(names.STORE_PORT), "--secret-file", _SECRET_FILE],
        "env": [{"name": "RESILIN_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "store", "containerPort": names.STORE_PORT}],
        "volumeMounts": [{"name": _SECRET_VOLUME, "mountPath": names.SECRET_FOLDER, "readOnly": True}],
        "readinessProbe": {"tcpSocket": {"port": names.STORE_PORT}, "periodSeconds": 2},
        "resources": dict(spec.rdzv.resources)
        or {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if main.get("imagePullPolicy"):
        container["imagePullPolicy"] = main["imagePullPolicy"]
    _restrict(container)
    body: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 5}
    for field in ("imagePullSecrets", "nodeSelector", "tolerations", "securityContext", "runtimeClassName"):
        if template.get(field):
            body[field] = copy.deepcopy(template[field])
    _pod_defaults(body, spec)
    body["volumes"] = [_secret_volume(spec, observed)]
    body["hostname"] = name
    meta = manifests.metadata(observed, name, names.RENDEZVOUS)
    meta["labels"][names.INCARNATION] = str(incarnation)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body}


def _pod_defaults(body: dict[str, Any], spec: ElasticJobSpec) -> None:
    """What makes a pod pass the restricted Pod Security standard, and a replaceable one."""
    body["restartPolicy"] = "Never"
    body.setdefault("automountServiceAccountToken", False)
    body.setdefault("enableServiceLinks", False)
    body.setdefault("terminationGracePeriodSeconds", spec.policy.grace_s + _GRACE_MARGIN_S)
    context = body.setdefault("securityContext", {})
    context.setdefault("runAsNonRoot", True)
    context.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    if spec.priority_class_name:
        body.setdefault("priorityClassName", spec.priority_class_name)


def _restrict(container: dict[str, Any]) -> None:
    context = container.setdefault("securityContext", {})
    context.setdefault("allowPrivilegeEscalation", False)
    context.setdefault("capabilities", {"drop": ["ALL"]})


def _secret_volume(spec: ElasticJobSpec, observed: Observed) -> dict[str, Any]:
    source = {
        "secretName": spec.rdzv.secret_name or names.secret(observed.name, observed.uid),
        "items": [{"key": names.SECRET_KEY, "path": names.SECRET_KEY}],
        "defaultMode": 0o440,
    }
    return {"name": _SECRET_VOLUME, "secret": source}


def _main_container(main: dict[str, Any], body: dict[str, Any], spec: ElasticJobSpec, observed: Observed) -> None:
    """Give the container that runs `elastic-run` what the job's agents need."""
    main.setdefault("terminationMessagePath", names.TERMINATION_FILE)
    _environment(main, spec, observed)
    main.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    probe = {"grpc": {"port": names.HEALTH_PORT}, "timeoutSeconds": 2}
    main.setdefault("startupProbe", {**probe, "periodSeconds": 1, "failureThreshold": 300})
    main.setdefault("readinessProbe", {**probe, "periodSeconds": 2, "failureThreshold": 2})
    liveness = {"grpc": {"port": names.HEALTH_PORT, "service": "liveness"}, "timeoutSeconds": 5}
    main.setdefault("livenessProbe", {**liveness, "periodSeconds": 10, "failureThreshold": 6})
    if not names.is_agent(main):
        leave = ["resilin", "k8s", "leave", f"--timeout={spec.policy.grace_s + _GRACE_MARGIN_S}"]
        lifecycle = main["lifecycle"] = dict(main.get("lifecycle") or {})
        lifecycle.setdefault("preStop", {"exec": {"command": leave}})
    config = {"name": observed.name, "items": [{"key": "elastic-run.toml", "path": "elastic-run.toml"}]}
    _mount(body, main, {"name": _CONFIG_VOLUME, "configMap": config}, CONFIG_FOLDER)
    _mount(body, main, _secret_volume(spec, observed), names.SECRET_FOLDER)
    if spec.rdzv.tls_secret_name:
        files = [_CA, *(_CLIENT.values() if spec.rdzv.tls_client_certificate else ())]
        items = [{"key": file, "path": file} for file in files]
        source = {"secretName": spec.rdzv.tls_secret_name, "items": items, "defaultMode": 0o440}
        _mount(body, main, {"name": _TLS_VOLUME, "secret": source}, names.TLS_FOLDER)
    if spec.shm_size:
        shm = {"name": _SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": spec.shm_size}}
        _mount(body, main, shm, "/dev/shm", read_only=False)
    checkpoint = spec.checkpoint
    if checkpoint is not None and checkpoint.claim_name:
        claim = {"name": _CHECKPOINT_VOLUME, "persistentVolumeClaim": {"claimName": checkpoint.claim_name}}
        _mount(body, main, claim, checkpoint.mount_path, read_only=False)
    if checkpoint is not None and checkpoint.secret_name:
        main.setdefault("envFrom", []).append({"secretRef": {"name": checkpoint.secret_name}})


def _mount(
    body: dict[str, Any], main: dict[str, Any], volume: dict[str, Any], path: str, *, read_only: bool = True
) -> None:
    if any(one.get("mountPath") == path for one in main.get("volumeMounts") or ()):
        return  # the template has its own there
    body.setdefault("volumes", []).append(volume)
    mount: dict[str, Any] = {"name": volume["name"], "mountPath": path}
    if read_only:
        mount["readOnly"] = True
    main.setdefault("volumeMounts", []).append(mount)


def _environment(main: dict[str, Any], spec: ElasticJobSpec, observed: Observed) -> None:
    """The flags of `elastic-run` that depend on the pod, and names for whoever asks."""
    ours: list[dict[str, Any]] = [
        {"name": "RESILIN_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "RESILIN_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "RESILIN_LOCAL_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "RESILIN_CONFIG", "value": f"{CONFIG_FOLDER}/elastic-run.toml"},
        {"name": "RESILIN_RDZV_ID", "value": f"{observed.namespace}.{observed.name}.{observed.uid[:8]}"},
        {"name": "RESILIN_RDZV_BACKEND", "value": spec.rdzv.backend},
        {"name": "RESILIN_RDZV_ENDPOINT", "value": _endpoint(spec, observed)},
        {"name": "RESILIN_SECRET_FILE", "value": _SECRET_FILE},
        {"name": "RESILIN_HEALTH_PORT", "value": str(names.HEALTH_PORT)},
        {"name": "RESILIN_TERMINATION_MESSAGE", "value": main["terminationMessagePath"]},
    ]
    conf = ["is_host=false"] if spec.rdzv.backend == "embedded" else []
    if _has_survivors(observed):
        conf.append(f"rejoin_timeout={_REJOIN_S:g}")
    conf += [one["value"] for one in main.get("env") or () if one["name"] == _CONF and one.get("value")]  # counts more
    if spec.checkpoint is not None:
        where = spec.checkpoint.url or spec.checkpoint.mount_path
        ours.append({"name": "RESILIN_CHECKPOINT", "value": where})
    theirs = list(main.get("env") or ())
    if conf and not any(one["name"] == _CONF and "value" not in one for one in theirs):
        ours.append({"name": _CONF, "value": ",".join(conf)})
        theirs = [one for one in theirs if one["name"] != _CONF]
    given = {one["name"] for one in theirs}
    main["env"] = [one for one in ours if one["name"] not in given] + theirs


def _has_survivors(observed: Observed) -> bool:
    """Whether a pod lives that has trained: the store's pod may be lost with the others."""
    begun = (observed.job.get("status") or {}).get("worldGeneration")
    return bool(begun) and any(
        pod.role == names.WORKER and pod.phase == "Running" and pod.started and pod.deletion is None
        for pod in observed.pods
    )


def _endpoint(spec: ElasticJobSpec, observed: Observed) -> str:
    """Where the agents meet, as `--rdzv-endpoint` takes it."""
    rdzv = spec.rdzv
    if rdzv.backend == "embedded":
        return f"{names.rendezvous(observed.name)}.{observed.namespace}.svc:{names.STORE_PORT}"
    if not rdzv.tls_secret_name:
        return rdzv.endpoint
    files = {"ca": _CA, **(_CLIENT if rdzv.tls_client_certificate else {})}
    return f"etcd://{rdzv.endpoint}?" + "&".join(f"{key}={names.TLS_FOLDER}/{file}" for key, file in files.items())
