"""What the operator makes: valid in the newest Kubernetes, restricted, the template first where it speaks."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
from cluster_model import job_manifest

from resilin.operator import manifests, names, pods, spec
from resilin.operator import observed as observed_job
from resilin.operator.observed import Observed
from resilin.store.connect import connect
from resilin.testing.etcd import EtcdCluster

VERSIONS = ("1.37", "1.36")


def _observed(**fields: Any) -> Observed:
    job = job_manifest(**fields)
    meta = {**job["metadata"], "uid": "0123456789abcdef", "resourceVersion": "7", "generation": 1}
    return Observed(job={**job, "metadata": meta})


def _everything(**fields: Any) -> list[dict[str, Any]]:
    observed = _observed(**fields)
    wanted = spec.parse(observed.job)
    return [
        *manifests.applied(wanted, observed), manifests.secret(observed), pods.worker(wanted, observed, 0),
        pods.worker(wanted, observed, 3, 2), pods.rendezvous(wanted, observed),
    ]  # fmt: skip


FULL = {
    "shmSize": "1Gi", "priorityClassName": "high", "queueName": "team", "nprocPerNode": "gpu",
    "checkpoint": {"volume": {"claimName": "runs", "mountPath": "/runs"}},
    "rdzv": {"backend": "embedded", "resources": {"requests": {"cpu": "10m"}}},
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fields", [{}, FULL], ids=["least", "full"])
def test_every_object_is_valid_to_its_last_field(version, fields):
    for manifest in _everything(**fields):
        kubernetes_validate.validate(copy.deepcopy(manifest), version, strict=True)


def test_pods_pass_the_restricted_standard_where_the_template_says_nothing():
    for pod in _everything():
        if pod["kind"] != "Pod":
            continue
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_what_the_template_says_wins_except_where_a_job_could_not_work():
    container = {
        "name": "trainer", "image": "x", "env": [{"name": "RESILIN_HEALTH_PORT", "value": "7"}],
        "securityContext": {"allowPrivilegeEscalation": True}, "readinessProbe": {"exec": {"command": ["true"]}},
        "volumeMounts": [{"name": "mine", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    body = {"containers": [container], "restartPolicy": "Always", "terminationGracePeriodSeconds": 7}
    template = {"metadata": {"labels": {"team": "a", names.INDEX: "9"}}, "spec": body}
    observed = _observed(template=template, shmSize="1Gi")
    pod = pods.worker(spec.parse(observed.job), observed, 2)
    made = pod["spec"]["containers"][0]
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["labels"][names.INDEX] == "2"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 7
    assert made["securityContext"]["allowPrivilegeEscalation"] is True
    assert made["readinessProbe"] == {"exec": {"command": ["true"]}}
    assert [one for one in made["env"] if one["name"] == "RESILIN_HEALTH_PORT"] == container["env"]
    assert [one["name"] for one in made["volumeMounts"] if one["mountPath"] == "/dev/shm"] == ["mine"]
    assert template["spec"] is body, "the template itself is not written to"
    assert "volumes" not in body


def test_a_drain_never_hangs_on_the_disruption_budget():
    for least, replicas, available in ((1, 1, 0), (2, 2, 1), (2, 5, 2)):
        budget = next(
            one for one in _everything(minReplicas=least, replicas=replicas) if one["kind"] == "PodDisruptionBudget"
        )
        assert budget["spec"]["minAvailable"] == available


def test_flags_of_a_job_are_a_file_that_elastic_run_reads(tmp_path):
    from resilin.launcher import arguments

    observed = _observed(elasticPolicy={"graceSeconds": 9, "hangTimeoutSeconds": 60}, maxRestarts=4, nprocPerNode=2)
    file = tmp_path / "elastic-run.toml"
    file.write_text(manifests.config_text(spec.parse(observed.job), "digits"))
    args = arguments.parse(["--config", str(file), "train.py"])
    assert (args.nnodes, str(args.nproc_per_node), args.max_restarts) == ("1:4096", "2", 4)
    assert args.log_line_prefix_template == "[rank ${rank}]: ", "with --tee, lines of several workers are told apart"
    assert (float(args.shutdown_timeout), str(args.hang_timeout)) == (9.0, "60")


def _container(**fields: Any) -> dict[str, Any]:
    observed = _observed(**fields)
    container: dict[str, Any] = pods.worker(spec.parse(observed.job), observed, 0)["spec"]["containers"][0]
    return container


def test_a_pod_has_all_that_agents_and_kubelets_need_of_one_another():
    made = _container(elasticPolicy={"graceSeconds": 9})
    health = {"port": names.HEALTH_PORT}
    assert made["readinessProbe"]["grpc"] == made["startupProbe"]["grpc"] == health
    assert made["livenessProbe"]["grpc"] == {**health, "service": "liveness"}
    variables = {one["name"]: one.get("value") or one["valueFrom"]["fieldRef"]["fieldPath"] for one in made["env"]}
    assert variables["RESILIN_HEALTH_PORT"] == str(names.HEALTH_PORT)
    assert variables["RESILIN_TERMINATION_MESSAGE"] == made["terminationMessagePath"] == "/dev/termination-log"
    assert made["terminationMessagePolicy"] == "FallbackToLogsOnError"
    downward = {"POD_NAME": "metadata.name", "NODE_NAME": "spec.nodeName", "LOCAL_ADDR": "status.podIP"}
    assert {key: variables[f"RESILIN_{key}"] for key in downward} == downward
    secret = next(one for one in made["volumeMounts"] if one["mountPath"] == names.SECRET_FOLDER)
    assert secret["readOnly"] is True
    assert variables["RESILIN_SECRET_FILE"] == f"{names.SECRET_FOLDER}/secret", "a file, never a variable"


def _conf(observed, **container):
    template = {"spec": {"containers": [{"name": "trainer", "image": "x", **container}]}}
    made = pods.worker(spec.parse(_observed(template=template).job), observed, 2)["spec"]["containers"][0]
    return [one for one in made["env"] if one["name"] == "RESILIN_RDZV_CONF"]


def test_a_replacement_leaves_survivors_time_to_put_back_what_a_lost_store_knew():
    observed = _observed()
    own = [{"name": "RESILIN_RDZV_CONF", "value": "lease_ttl=3"}]
    assert [one["value"] for one in _conf(observed)] == ["is_host=false"]
    assert [one["value"] for one in _conf(observed, env=own)] == ["is_host=false,lease_ttl=3"]
    trained = replace(observed, job={**observed.job, "status": {"worldGeneration": 3}})
    assert [one["value"] for one in _conf(trained)] == ["is_host=false"], "nobody lives who could come back"
    raw = {**pods.worker(spec.parse(observed.job), observed, 0), "status": {"phase": "Running"}}
    raw["metadata"] = {**raw["metadata"], "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    survivor = replace(observed_job.pod(raw), started=True)
    assert [one["value"] for one in _conf(replace(trained, pods=(survivor,)))] == ["is_host=false,rejoin_timeout=60"]
    assert [one["value"] for one in _conf(replace(observed, pods=(survivor,)))] == ["is_host=false"]
    taken = [{"name": "RESILIN_RDZV_CONF", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    assert _conf(replace(trained, pods=(survivor,)), env=taken) == taken


@pytest.mark.parametrize(
    ("command", "hook"),
    [(["elastic-run", "t.py"], False), (["/opt/bin/torchrun", "t.py"], False), (["sh", "-c", "x"], True), (None, True)],
)
def test_an_agent_that_is_not_the_first_process_is_asked_to_leave_by_a_hook(command: list[str] | None, hook: bool):
    container = {"name": "worker", "image": "r:1", **({"command": command} if command else {})}
    made = _container(template={"spec": {"containers": [container]}}, elasticPolicy={"graceSeconds": 9})
    leave = ["resilin", "k8s", "leave", "--timeout=14"]
    assert (made.get("lifecycle") or {}).get("preStop") == ({"exec": {"command": leave}} if hook else None)
    own = {"preStop": {"exec": {"command": ["true"]}}, "postStart": {"exec": {"command": ["true"]}}}
    mine = _container(template={"spec": {"containers": [{**container, "lifecycle": own}]}})
    assert mine["lifecycle"] == own


def test_the_files_of_tls_are_mounted_and_named_to_the_agents():
    etcd = {"backend": "etcd", "endpoint": "a:2379,b:2379", "tls": {"secretName": "etcd-ca"}}
    observed = _observed(rdzv=etcd)
    body = pods.worker(spec.parse(observed.job), observed, 0)["spec"]
    volume = next(one for one in body["volumes"] if one["name"] == "resilin-tls")
    assert volume["secret"]["secretName"] == "etcd-ca"
    assert [one["key"] for one in volume["secret"]["items"]] == ["ca.crt"]
    variables = {one["name"]: one.get("value") for one in body["containers"][0]["env"]}
    assert variables["RESILIN_RDZV_ENDPOINT"] == f"etcd://a:2379,b:2379?ca={names.TLS_FOLDER}/ca.crt"
    etcd["tls"]["clientCertificate"] = True
    made = _container(rdzv=etcd)
    endpoint = next(one["value"] for one in made["env"] if one["name"] == "RESILIN_RDZV_ENDPOINT")
    assert endpoint.endswith(f"&cert={names.TLS_FOLDER}/tls.crt&key={names.TLS_FOLDER}/tls.key")


def test_agents_meet_in_an_etcd_through_tls_by_what_a_pod_says():
    """The endpoint of a pod, with the folder of its mount put where the files are here."""
    with EtcdCluster(tls=True) as etcd:
        etcd_part = {"backend": "etcd", "endpoint": etcd.endpoints[0], "tls": {"secretName": "etcd-ca"}}
        made = _container(rdzv=etcd_part)
        endpoint = next(one["value"] for one in made["env"] if one["name"] == "RESILIN_RDZV_ENDPOINT")
        with connect(endpoint.replace(f"{names.TLS_FOLDER}/ca.crt", etcd.ca)) as store:
            store.put("key", b"value")
            assert store.get("key").value == b"value"


@pytest.mark.parametrize("version", VERSIONS)
def test_pods_of_a_group_are_valid_where_kubernetes_has_the_workload_api(version: str):
    made = _everything(workloadApi=True, minReplicas=2)
    group = next(one for one in made if one["kind"] == "PodGroup")
    worker = next(one for one in made if one["kind"] == "Pod" and one["metadata"]["labels"].get(names.INDEX))
    assert worker["spec"]["schedulingGroup"] == {"podGroupName": group["metadata"]["name"]}
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    if version == "1.37":
        for manifest in made:
            kubernetes_validate.validate(copy.deepcopy(manifest), version, strict=True)
        return
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):  # 1.36 has another version of it: off by default
        kubernetes_validate.validate(copy.deepcopy(group), version, strict=True)


def test_no_two_jobs_want_pods_of_one_name():
    jobs = ["a", "a-1", "a-1-1", "a-r1", "a-1-r1", "a-rdzv", "a-rdzv-1", "a-rdzv-r1"]
    wanted = [
        name
        for job in jobs
        for name in (
            *(names.pod(job, index, incarnation) for index in range(3) for incarnation in range(3)),
            *(names.rendezvous(job, incarnation) for incarnation in range(3)),
        )
    ]
    assert len(wanted) == len(set(wanted)) == len(jobs) * 12
