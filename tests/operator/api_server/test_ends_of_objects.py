"""How objects go: finalizers, owners, grace periods of pods, namespaces."""

from typing import Any

import pytest
from raw_client import JOBS, RawClient, job, pod

PODS = "/api/v1/namespaces/default/pods"


def owner(value: dict[str, Any], **more: Any) -> dict[str, Any]:
    meta = value["metadata"]
    return {"apiVersion": value["apiVersion"], "kind": value["kind"], "name": meta["name"], "uid": meta["uid"], **more}


def names(client: RawClient) -> set[str]:
    return {one["metadata"]["name"] for one in client.get(PODS)["items"]}


def test_a_deletion_answers_what_it_has_deleted(client: RawClient):
    uid = client.post(JOBS, job())["metadata"]["uid"]
    told = client.delete(f"{JOBS}/digits")
    assert (told["kind"], told["status"], told["details"]["uid"]) == ("Status", "Success", uid)
    assert client.delete(f"{JOBS}/digits").code == 404


def test_finalizers_hold_an_object(client: RawClient):
    value = job()
    value["metadata"]["finalizers"] = ["resilin.dev/teardown"]
    client.post(JOBS, value)
    held = client.delete(f"{JOBS}/digits")
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["generation"] == 2
    again = client.delete(f"{JOBS}/digits")
    assert again["metadata"]["deletionTimestamp"] == held["metadata"]["deletionTimestamp"]
    last = client.patch(f"{JOBS}/digits", "merge", {"metadata": {"finalizers": None}})
    assert last.code == 200
    assert client.get(f"{JOBS}/digits").code == 404


def test_preconditions_protect_a_successor(client: RawClient):
    old = client.post(JOBS, job())
    client.delete(f"{JOBS}/digits")
    client.post(JOBS, job())
    refused = client.delete(f"{JOBS}/digits", {"preconditions": {"uid": old["metadata"]["uid"]}})
    assert (refused.code, refused["reason"]) == (409, "Conflict")
    assert client.get(f"{JOBS}/digits").code == 200


def test_dependents_go_with_their_owner(client: RawClient):
    first, second = client.post(JOBS, job("a")), client.post(JOBS, job("b"))
    client.post(PODS, pod("of-a", ownerReferences=[owner(first)]))
    client.post(PODS, pod("of-both", ownerReferences=[owner(first), owner(second)]))
    client.post(PODS, pod("of-none"))
    client.delete(f"{JOBS}/a")
    assert names(client) == {"of-both", "of-none"}
    left = client.get(f"{PODS}/of-both")["metadata"]["ownerReferences"]
    assert [one["name"] for one in left] == ["b"]
    client.delete(f"{JOBS}/b", propagationPolicy="Orphan")
    assert names(client) == {"of-both", "of-none"}
    assert client.get(f"{PODS}/of-both")["metadata"].get("ownerReferences", []) == []


def test_a_dependent_of_what_is_gone_goes_at_once(client: RawClient):
    first = client.post(JOBS, job("a"))
    client.delete(f"{JOBS}/a")
    assert client.post(PODS, pod("late", ownerReferences=[owner(first)])).code == 201
    assert names(client) == set()


def test_in_the_foreground_the_owner_goes_last(client: RawClient):
    first = client.post(JOBS, job("a"))
    client.post(PODS, pod("p", ownerReferences=[owner(first, blockOwnerDeletion=True)], finalizers=["test/hold"]))
    held = client.delete(f"{JOBS}/a", {"propagationPolicy": "Foreground"})
    assert held["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert client.get(f"{PODS}/p")["metadata"]["deletionTimestamp"]
    assert client.get(f"{JOBS}/a").code == 200
    client.patch(f"{PODS}/p", "merge", {"metadata": {"finalizers": None}})
    assert client.get(f"{PODS}/p").code == 404
    assert client.get(f"{JOBS}/a").code == 404


def test_a_running_pod_has_its_grace_period(client: RawClient):
    client.post(PODS, pod("p"))
    client.post(f"{PODS}/p/binding", {"target": {"name": "node-1"}})
    client.patch(f"{PODS}/p/status", "merge", {"status": {"phase": "Running"}})
    held = client.delete(f"{PODS}/p")
    assert held["metadata"]["deletionGracePeriodSeconds"] == 30
    assert client.delete(f"{PODS}/p", gracePeriodSeconds=5)["metadata"]["deletionGracePeriodSeconds"] == 5
    assert client.delete(f"{PODS}/p", gracePeriodSeconds=9)["metadata"]["deletionGracePeriodSeconds"] == 5
    client.delete(f"{PODS}/p", gracePeriodSeconds=0)
    assert names(client) == set()


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_is_over_goes_at_once(client: RawClient, phase: str):
    client.post(PODS, pod("p"))
    client.post(f"{PODS}/p/binding", {"target": {"name": "node-1"}})
    client.patch(f"{PODS}/p/status", "merge", {"status": {"phase": phase}})
    client.delete(f"{PODS}/p")
    assert names(client) == set()


def test_a_pod_is_bound_once(client: RawClient):
    client.post(PODS, pod("p"))
    assert client.post(f"{PODS}/p/binding", {"target": {"name": "node-1"}}).code == 201
    assert client.post(f"{PODS}/p/binding", {"target": {"name": "node-2"}}).code == 409
    assert client.get(f"{PODS}/p")["spec"]["nodeName"] == "node-1"


def test_a_budget_holds_evictions_back(client: RawClient):
    for number in range(2):
        client.post(PODS, pod(f"p{number}", labels={"job": "a"}))
        client.post(f"{PODS}/p{number}/binding", {"target": {"name": "node-1"}})
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        client.patch(f"{PODS}/p{number}/status", "merge", {"status": ready})
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}}
    budget["spec"] = {"minAvailable": 1, "selector": {"matchLabels": {"job": "a"}}}
    client.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p0"}}
    assert client.post(f"{PODS}/p0/eviction", eviction).code == 201
    evicted = client.get(f"{PODS}/p0")
    assert evicted["metadata"]["deletionTimestamp"]
    told = {one["type"]: one.get("reason") for one in evicted["status"]["conditions"]}
    assert told["DisruptionTarget"] == "EvictionByEvictionAPI"
    refused = client.post(f"{PODS}/p1/eviction", eviction)
    assert (refused.code, refused["details"]["causes"][0]["reason"]) == (429, "DisruptionBudget")


def test_several_are_deleted_by_a_selector(client: RawClient):
    for number in range(3):
        client.post(PODS, pod(f"p{number}", labels={"n": str(number)}))
    client.delete(PODS, labelSelector="n!=1")
    assert names(client) == {"p1"}


def test_a_namespace_takes_its_contents_along(client: RawClient):
    client.post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    path = "/api/v1/namespaces/team/pods"
    client.post(path, pod("free"))
    client.post(path, pod("held", finalizers=["test/hold"]))
    assert client.delete("/api/v1/namespaces/team")["status"]["phase"] == "Terminating"
    assert [one["metadata"]["name"] for one in client.get(path)["items"]] == ["held"]
    refused = client.post(path, pod("new"))
    assert (refused.code, refused["reason"]) == (403, "Forbidden")
    assert "because it is being terminated" in refused["message"]
    client.patch(f"{path}/held", "merge", {"metadata": {"finalizers": None}})
    assert client.get("/api/v1/namespaces/team").code == 404
