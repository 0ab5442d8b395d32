"""Jobs that an older schema has let through: they say what is wrong, nothing hangs, and they can be deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from running_operator import ClusterUnderTest, RunningOperator, impatient, job

from resilin.operator import names, spec
from resilin.operator.engine import Engine
from resilin.testing.kube.server import KubeServer


@pytest.fixture
def lax() -> Iterator[ClusterUnderTest]:
    """A cluster that takes any spec."""
    definition = impatient()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    with KubeServer() as server:
        server.create(definition)
        yield ClusterUnderTest(server)


def _delete(cluster: ClusterUnderTest) -> None:
    cluster.call("DELETE", f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}/digits")


def _template(*containers: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": list(containers)}}}


ODD = [
    ({"template": None}, "spec.template.spec.containers: expected at least one container"),
    ({"template": {"spec": {"containers": []}}}, "spec.template.spec.containers: expected at least one container"),
    (_template({"name": "worker"}), "spec.template.spec.containers[0].image: expected a text, got none"),
    (_template({"image": "a"}), "spec.template.spec.containers[0].name: expected a text, got none"),
    (_template({"name": "worker", "image": ["a"]}), "containers[0].image: expected a text"),
    (_template("worker"), "spec.template.spec.containers[0]: expected an object, got 'worker'"),
    ({"template": "none"}, "spec.template: expected an object, got 'none'"),
    ({"replicas": "two"}, "spec.replicas: expected a whole number, got 'two'"),
    ({"replicas": True}, "spec.replicas: expected a whole number, got 'True'"),
    ({"replicas": 1.5}, "spec.replicas: expected a whole number, got '1.5'"),
    ({"minReplicas": 3, "maxReplicas": 2}, "spec.minReplicas: expected 1 <= minReplicas <= maxReplicas"),
    ({"rdzv": "embedded"}, "spec.rdzv: expected an object, got 'embedded'"),
    ({"rdzv": {"backend": "c10d"}}, "spec.rdzv.backend: expected embedded or etcd, got 'c10d'"),
    ({"elasticPolicy": {"graceSeconds": "30s"}}, "spec.elasticPolicy.graceSeconds: expected a whole number"),
    ({"checkpoint": {"volume": ["a"]}}, "spec.checkpoint.volume: expected an object"),
    ({"cleanPodPolicy": "Some"}, "spec.cleanPodPolicy: expected None, Running or All, got 'Some'"),
    ({"suspend": "yes"}, "spec.suspend: expected true or false, got 'yes'"),
]


@pytest.mark.parametrize(("change", "said"), ODD, ids=[said for _, said in ODD])
def test_a_stored_spec_that_makes_no_sense_is_a_usage_error_of_its_field(change, said):
    from resilin.errors import UsageError

    with pytest.raises(UsageError) as refused:
        spec.parse({**job(), "spec": {**job(replicas=2)["spec"], **change}})
    assert said in str(refused.value)


@pytest.mark.parametrize("change", [_template({"name": "worker"}), {"replicas": "two"}], ids=["image", "replicas"])
def test_a_job_that_cannot_be_read_says_so_and_can_be_deleted(lax, change):
    with RunningOperator(lax.url):
        lax.server.create(job(replicas=2))
        lax.wait(lambda: _ready(lax, 2))
        lax.patch_job({**change, "managedBy": None})
        lax.wait(lambda: lax.condition("Stalled")["reason"] == "InvalidSpec", within_s=10)
        assert "spec." in lax.condition("Stalled")["message"]
        assert len(lax.pods()) == 2, "what runs goes on"
        _delete(lax)
        lax.wait(lambda: all("deletionTimestamp" in pod["metadata"] for pod in lax.pods().values()))
        for name in lax.pods():
            lax.call("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0")
        lax.wait(lambda: lax.job() is None)


def _ready(cluster: ClusterUnderTest, pods: int) -> bool:
    cluster.run_pods()
    return ((cluster.job() or {}).get("status") or {}).get("readyWorkers") == pods


def test_a_job_that_cannot_be_read_and_is_anothers_is_left_to_it(lax):
    with RunningOperator(lax.url):
        lax.server.create(job("other", replicas="two", managedBy="example.com/other"))
        lax.server.create(job(replicas=1))
        lax.wait(lambda: _ready(lax, 1))
        assert "status" not in lax.job("other")


def test_a_job_that_a_newer_schema_refuses_can_be_mended_and_deleted(lax):
    """The definition becomes stricter while a job without an image is stored."""
    good = job(replicas=1, managedBy=names.MANAGED_BY, suspend=False)["spec"]  # as a server has filled it in
    bad = {**job(), "spec": {**good, **_template({"name": "worker"})}}
    bad["metadata"] = {**bad["metadata"], "finalizers": [names.FINALIZER]}
    lax.server.create(bad)
    strict = impatient()
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{strict['metadata']['name']}"
    lax.call("PATCH", path, {"spec": {"versions": strict["spec"]["versions"]}})
    with RunningOperator(lax.url):
        lax.wait(lambda: lax.condition("Stalled")["reason"] == "InvalidSpec", within_s=10)
        assert "containers[0].image: expected a text" in lax.condition("Stalled")["message"]
        lax.patch_job({"suspend": True, **_template({"name": "worker", "image": "r:1"})})
        lax.patch_job({"suspend": False})
        lax.wait(lambda: _ready(lax, 1))
        assert lax.condition("Stalled")["status"] == "False"
        _delete(lax)
        lax.wait(lambda: "deletionTimestamp" in lax.pods()["digits-0"]["metadata"])


def test_what_the_operator_itself_fails_at_is_told_in_the_jobs_status(cluster, monkeypatch):
    def broken(self: Engine, key: Any) -> Any:
        raise ZeroDivisionError("division by zero")

    with RunningOperator(cluster.url):
        cluster.server.create(job(replicas=1))
        cluster.wait(lambda: _ready(cluster, 1))
        monkeypatch.setattr(Engine, "_decide", broken)
        cluster.patch_job({"replicas": 2})
        cluster.wait(lambda: cluster.condition("Stalled")["reason"] == "OperatorError", within_s=10)
        assert "ZeroDivisionError: division by zero" in cluster.condition("Stalled")["message"]
        monkeypatch.undo()
        cluster.patch_job({"maxRestarts": 9})
        cluster.wait(lambda: _ready(cluster, 2))
        cluster.wait(lambda: cluster.condition("Stalled")["status"] == "False")
