"""Faults that tests plan happen, once each, and where they were planned; roles decide who may do what."""

import http.client

import pytest
from raw_client import JOBS, RawClient, job, pod

from resilin.testing.kube.faults import PlannedFault
from resilin.testing.kube.server import KubeServer

PODS = "/api/v1/namespaces/default/pods"


def test_too_many_requests_say_when_to_come_again(kube: KubeServer, client: RawClient):
    fault = kube.faults.plan(PlannedFault(429, times=2, verb="create", plural="elasticjobs", retry_after=3))
    assert client.get(JOBS).code == 200
    for _ in range(2):
        refused = client.post(JOBS, job())
        assert (refused.code, refused["reason"], refused.headers["Retry-After"]) == (429, "TooManyRequests", "3")
        assert refused["details"]["retryAfterSeconds"] == 3
    assert client.post(JOBS, job()).code == 201
    assert fault.fired == 2


def test_an_answer_is_lost_before_or_after_the_write(kube: KubeServer, client: RawClient):
    kube.faults.plan(PlannedFault(0, verb="create"))
    with pytest.raises(http.client.RemoteDisconnected):
        client.post(JOBS, job())
    assert client.get(f"{JOBS}/digits").code == 404
    kube.faults.plan(PlannedFault(0, verb="create", after=True))
    with pytest.raises(http.client.RemoteDisconnected):
        client.post(JOBS, job())
    assert client.get(f"{JOBS}/digits").code == 200


def test_a_fault_is_of_one_sub_resource(kube: KubeServer, client: RawClient):
    client.post(JOBS, job())
    kube.faults.plan(PlannedFault(500, plural="elasticjobs", subresource="status"))
    assert client.patch(f"{JOBS}/digits", "merge", {"spec": {"replicas": 3}}).code == 200
    assert client.patch(f"{JOBS}/digits/status", "merge", {"status": {"restarts": 1}}).code == 500
    assert client.patch(f"{JOBS}/digits/status", "merge", {"status": {"restarts": 1}}).code == 200


def test_planned_faults_can_be_forgotten(kube: KubeServer, client: RawClient):
    kube.faults.plan(PlannedFault(503, times=100))
    kube.faults.clear()
    assert client.get(JOBS).code == 200


def test_each_request_is_heard_of(kube: KubeServer, client: RawClient):
    heard: list[tuple[str, str, str]] = []
    kube.faults.on_request(lambda *what: heard.append(what))
    client.post(JOBS, job())
    client.get(f"{JOBS}/digits/scale")
    client.get("/apis")
    assert heard == [("create", "elasticjobs", ""), ("get", "elasticjobs", "scale")]


def test_bodies_that_are_none_are_refused(client: RawClient, kube: KubeServer):
    assert client.post(JOBS, ["a", "list"]).code == 400
    assert client.post(JOBS, {"kind": "ElasticJob"})["message"] == "Object 'apiVersion' is missing"
    connection = http.client.HTTPConnection(kube.url.removeprefix("http://"), timeout=60)
    for media, code in (("application/json", 400), ("application/vnd.kubernetes.protobuf", 415)):
        connection.request("POST", JOBS, b"\x00not json", {"Content-Type": media})
        answer = connection.getresponse()
        assert answer.status == code
        answer.read()
    connection.close()


def test_paths_and_methods_that_are_none_are_refused(client: RawClient):
    assert client.get("/nothing").code == 404
    assert client.get(f"{JOBS}/digits/unknown").code == 404
    assert client.post(f"{JOBS}/digits", job()).code == 405
    assert client.put(JOBS, job()).code == 405
    assert client.post("/apis/resilin.dev/v1alpha1/elasticjobs", job()).code == 405


def test_an_account_may_do_what_its_roles_say(kube: KubeServer):
    account = RawClient(kube.url, Authorization=f"Bearer {kube.token('default', 'reader')}")
    refused = account.get(PODS)
    assert (refused.code, refused["reason"]) == (403, "Forbidden")
    assert refused["message"] == (
        'pods is forbidden: User "system:serviceaccount:default:reader" cannot list resource "pods" in API group "" '
        'in the namespace "default"'
    )
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"], "resourceNames": []}]
    rules.append({"apiGroups": [""], "resources": ["pods/status"], "verbs": ["*"], "resourceNames": ["p"]})
    group = "rbac.authorization.k8s.io"
    kube.create({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": rules})
    binding = {"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": {"name": "b"}}
    binding["roleRef"] = {"apiGroup": group, "kind": "Role", "name": "r"}
    binding["subjects"] = [{"kind": "ServiceAccount", "name": "reader"}]
    kube.create(binding)
    kube.create(pod("p"))
    kube.create(pod("q"))
    assert len(account.get(PODS)["items"]) == 2
    assert account.get("/api/v1/pods").code == 403, "a Role is of one namespace"
    assert account.delete(f"{PODS}/p").code == 403
    assert account.patch(f"{PODS}/p/status", "merge", {"status": {"phase": "Running"}}).code == 200
    assert account.patch(f"{PODS}/q/status", "merge", {"status": {"phase": "Running"}}).code == 403
    assert account.get("/apis").code == 200
    assert account.patch(f"{PODS}/q", "apply", pod("q"), fieldManager="a").code == 403
    kube.create({**binding, "metadata": {"name": "c"}, "roleRef": {**binding["roleRef"], "name": "s"}})
    appliers = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    kube.create({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": "s"}, "rules": appliers})
    assert account.patch(f"{PODS}/q", "apply", pod("q"), fieldManager="a").code == 200
    assert account.patch(f"{PODS}/new", "apply", pod("new"), fieldManager="a").code == 403, "it would create one"
    assert RawClient(kube.url, Authorization="Bearer wrong").get(PODS).code == 401
