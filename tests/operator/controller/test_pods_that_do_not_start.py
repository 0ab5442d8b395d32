"""Pods that cannot start for something that is missing: the job names it, in the kubelet's or the scheduler's words."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running_operator import ClusterUnderTest, RunningOperator, impatient, job

from resilin.operator import names
from resilin.operator.controller import OperatorOptions
from resilin.testing.kube.kubelet import Kubelets
from resilin.testing.kube.server import KubeServer

WITHIN_S = 10.0
SLEEPS = {"name": "worker", "image": "r:1", "command": ["sleep", "600"], "readinessProbe": {"exec": {"command": []}}}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ClusterUnderTest]:
    """A cluster with kubelets, whose pods sleep."""
    (tmp_path / "pods").mkdir()
    with KubeServer() as server:
        server.create(impatient())
        with Kubelets(server, tmp_path / "pods", tmp_path, nodes=("n0",), loopback=True):
            yield ClusterUnderTest(server)


def _job(**spec: Any) -> dict[str, Any]:
    etcd = {"backend": "etcd", "endpoint": "a:2379"}  # no store: nothing but what is looked at runs
    return job(replicas=1, **{"rdzv": etcd, "template": {"spec": {"containers": [SLEEPS]}}, **spec})


def _with_volume(**source: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [SLEEPS], "volumes": [{"name": "data", **source}]}}}


def _stalled(cluster: ClusterUnderTest, *words: str) -> Callable[[], bool]:
    def so() -> bool:
        found = cluster.condition("Stalled")
        told = f"{found['reason']} {found['message']}"
        return found["status"] == "True" and all(word in told for word in words)

    return so


def _ready(cluster: ClusterUnderTest, pods: int) -> Callable[[], bool]:
    return lambda: ((cluster.job() or {}).get("status") or {}).get("readyWorkers") == pods


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_with_volume(configMap={"name": "params"}), ("FailedMount", 'pod digits-0: ', 'configmap "params" not found')),
        (_with_volume(secret={"secretName": "keys"}), ("FailedMount", 'volume "data"', 'secret "keys" not found')),
        (
            _with_volume(persistentVolumeClaim={"claimName": "disk"}),
            ("Unschedulable", 'persistentvolumeclaim "disk" not found'),
        ),
        ({"checkpoint": {"volume": {"claimName": "runs"}}}, ("Unschedulable", 'claim "runs" not found')),
        ({"rdzv": {"backend": "etcd", "endpoint": "a:1", "secretName": "mine"}}, ("FailedMount", 'secret "mine"')),
    ],
    ids=["config map", "secret", "claim", "checkpoint", "rdzv secret"],
)  # fmt: skip
def test_what_is_missing_is_named_within_ten_seconds(world, change, words):
    with RunningOperator(world.url, OperatorOptions(agents_s=0)):
        world.server.create(_job(**change))
        world.wait(_stalled(world, *words), within_s=WITHIN_S)


def test_a_job_goes_on_when_what_was_missing_is_there(world):
    with RunningOperator(world.url, OperatorOptions(agents_s=0)):
        world.server.create(_job(**_with_volume(configMap={"name": "params"})))
        world.wait(_stalled(world, 'configmap "params" not found'), within_s=WITHIN_S)
        world.server.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "params"}, "data": {}})
        world.wait(_ready(world, 1))
        world.wait(lambda: world.condition("Stalled")["status"] == "False")


def test_a_trouble_that_was_over_before_anybody_asked_is_none(cluster, operator):
    """A pod whose image takes long to come: the last word counts."""
    cluster.server.create(job(replicas=1))
    cluster.wait(lambda: "digits-0" in cluster.pods())
    uid = cluster.pods()["digits-0"]["metadata"]["uid"]
    for at, kind, reason in ((1, "Warning", "FailedMount"), (2, "Normal", "Pulling")):
        cluster.server.create({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"e{at}"}, "type": kind, "reason": reason,
            "message": "volume", "involvedObject": {"kind": "Pod", "name": "digits-0", "uid": uid},
            "lastTimestamp": f"2026-01-01T00:00:0{at}Z",
        })  # fmt: skip
    asked: list[str] = []
    cluster.server.faults.on_request(lambda verb, plural, sub: asked.append(plural) if verb == "list" else None)
    binding = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "n0"}}
    path = "/api/v1/namespaces/default/pods/digits-0/binding"
    cluster.call("POST", path, {**binding, "metadata": {"name": "digits-0"}}, "application/json")
    cluster.wait(lambda: "events" in asked)
    cluster.wait(lambda: operator.call(lambda: operator.controller.queue.idle))
    assert cluster.condition("Stalled")["status"] != "True"


def _secret(cluster: ClusterUnderTest) -> dict[str, Any] | None:
    return cluster.server.get("v1", "Secret", names.secret("digits", cluster.job()["metadata"]["uid"]))


def _content(secret: dict[str, Any]) -> str:
    plain = (secret.get("stringData") or {}).get(names.SECRET_KEY)
    return plain or base64.b64decode(secret["data"][names.SECRET_KEY]).decode()


def _delete_secret(cluster: ClusterUnderTest) -> None:
    name = _secret(cluster)["metadata"]["name"]
    cluster.call("DELETE", f"/api/v1/namespaces/default/secrets/{name}")


def test_a_secret_that_was_deleted_is_made_again_with_what_the_pods_that_live_have(world):
    with RunningOperator(world.url, OperatorOptions(agents_s=0)):
        world.server.create(_job())
        world.wait(_ready(world, 1))
        before = _content(_secret(world))
        _delete_secret(world)
        world.patch_job({"replicas": 2})
        world.wait(_ready(world, 2))
        assert _content(_secret(world)) == before
        assert world.condition("Stalled")["status"] != "True"


def test_a_secret_that_is_deleted_while_pods_come_is_made_again_for_them(world):
    with RunningOperator(world.url, OperatorOptions(agents_s=0)):
        deleted = []

        def on_bind(verb: str, plural: str, subresource: str) -> None:
            if subresource == "binding" and not deleted:
                deleted.append(True)
                secret = _secret(world)
                path = f"/api/v1/namespaces/default/secrets/{secret['metadata']['name']}"
                world.call("DELETE", path)

        world.server.faults.on_request(on_bind)
        world.server.create(_job())
        world.wait(_ready(world, 1))
        assert deleted
        assert _secret(world) is not None


def test_another_process_does_not_make_another_secret_while_pods_have_the_one_from_before(world):
    with RunningOperator(world.url, OperatorOptions(agents_s=0)):
        world.server.create(_job())
        world.wait(_ready(world, 1))
    _delete_secret(world)
    with RunningOperator(world.url, OperatorOptions(agents_s=0)):
        world.patch_job({"replicas": 2})
        world.wait(_stalled(world, "SecretGone", "suspend the job and resume it"), within_s=WITHIN_S)
        assert list(world.pods()) == ["digits-0"], "none comes that could not join"
        assert _secret(world) is None
        world.patch_job({"suspend": True})
        world.wait(lambda: not world.pods())
        world.patch_job({"suspend": False})
        world.wait(_ready(world, 2))
        assert _secret(world) is not None
        world.wait(lambda: world.condition("Stalled")["status"] == "False")


def test_another_process_finds_the_secret_that_is_there(world):
    with RunningOperator(world.url, OperatorOptions(agents_s=0)):
        world.server.create(_job())
        world.wait(_ready(world, 1))
    before = _secret(world)
    with RunningOperator(world.url, OperatorOptions(agents_s=0)):
        world.patch_job({"replicas": 2})
        world.wait(_ready(world, 2))
    assert _secret(world) == before
