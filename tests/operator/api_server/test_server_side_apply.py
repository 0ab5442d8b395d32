"""Server-side apply: who manages what, who may take it over, and what goes with whom."""

from typing import Any

import pytest
from raw_client import JOBS, RawClient, job

MAPS = "/api/v1/namespaces/default/configmaps"
SERVICES = "/api/v1/namespaces/default/services"
DIGITS = f"{JOBS}/digits"


def managers(value: dict[str, Any]) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {
        (one["manager"], one["operation"], one.get("subresource", "")): one["fieldsV1"]
        for one in value["metadata"].get("managedFields", ())
    }


def config(**data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data}


def test_apply_creates_what_is_not_there(client: RawClient):
    made = client.patch(DIGITS, "apply", job(), fieldManager="a")
    assert made.code == 201
    owned = managers(made)[("a", "Apply", "")]["f:spec"]
    assert set(owned) == {".", "f:replicas", "f:template"}, "defaults are nobody's"
    container = owned["f:template"]["f:spec"]["f:containers"]['k:{"name":"worker"}']
    assert container == {".": {}, "f:image": {}, "f:name": {}}


def test_apply_needs_a_name_of_who_applies(client: RawClient):
    refused = client.patch(DIGITS, "apply", job())
    assert refused.code == 422
    assert "fieldManager: Required value: is required for apply patch" in refused["message"]


def test_applying_the_same_makes_no_revision(client: RawClient):
    first = client.patch(DIGITS, "apply", job(), fieldManager="a")
    again = client.patch(DIGITS, "apply", job(), fieldManager="a")
    assert again.code == 200
    assert again.body == first.body


def test_what_is_left_out_goes_if_nobody_else_wants_it(client: RawClient):
    client.patch(f"{MAPS}/m", "apply", config(x="1", y="2", z="3"), fieldManager="a")
    client.patch(f"{MAPS}/m", "apply", config(y="2"), fieldManager="b")
    client.patch(f"{MAPS}/m", "merge", {"data": {"own": "4"}}, fieldManager="c")
    made = client.patch(f"{MAPS}/m", "apply", config(z="3"), fieldManager="a")
    assert made["data"] == {"y": "2", "z": "3", "own": "4"}
    assert managers(made)[("b", "Apply", "")]["f:data"] == {".": {}, "f:y": {}}


def test_another_value_of_anothers_field_is_a_conflict(client: RawClient):
    client.patch(DIGITS, "apply", job(), fieldManager="a")
    other = job(replicas=3)
    refused = client.patch(DIGITS, "apply", other, fieldManager="b")
    assert (refused.code, refused["reason"]) == (409, "Conflict")
    text = 'Apply failed with 1 conflict: conflict with "a" using resilin.dev/v1alpha1: .spec.replicas'
    assert refused["message"] == text
    assert refused["details"]["causes"] == [
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "a" using resilin.dev/v1alpha1',
            "field": ".spec.replicas",
        }
    ]
    forced = client.patch(DIGITS, "apply", other, fieldManager="b", force="true")
    assert forced["spec"]["replicas"] == 3
    assert "f:replicas" not in managers(forced)[("a", "Apply", "")]["f:spec"]
    assert client.patch(DIGITS, "apply", job(), fieldManager="a").code == 409, "a must give way or force, too"


def test_equal_values_are_shared_and_survive_until_both_leave(client: RawClient):
    client.patch(f"{MAPS}/m", "apply", config(x="1"), fieldManager="a")
    both = client.patch(f"{MAPS}/m", "apply", config(x="1"), fieldManager="b")
    assert set(managers(both)) == {("a", "Apply", ""), ("b", "Apply", "")}
    assert client.patch(f"{MAPS}/m", "apply", config(), fieldManager="a")["data"] == {"x": "1"}
    assert client.patch(f"{MAPS}/m", "apply", config(), fieldManager="b").get("data", {}) == {}


def test_a_plain_write_takes_fields_over(client: RawClient):
    client.patch(DIGITS, "apply", job(), fieldManager="a")
    made = client.patch(DIGITS, "merge", {"spec": {"replicas": 4}}, fieldManager="hpa")
    assert managers(made)[("hpa", "Update", "")] == {"f:spec": {"f:replicas": {}}}
    assert "f:replicas" not in managers(made)[("a", "Apply", "")]["f:spec"]
    without = job()
    del without["spec"]["replicas"]
    kept = client.patch(DIGITS, "apply", without, fieldManager="a")
    assert kept["spec"]["replicas"] == 4, "whoever does not name a field does not mind it"


def test_scale_and_status_are_managed_apart(client: RawClient):
    client.patch(DIGITS, "apply", job(), fieldManager="a")
    client.patch(f"{DIGITS}/scale", "merge", {"spec": {"replicas": 3}}, fieldManager="kubectl")
    status = {"apiVersion": "resilin.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "digits"}}
    status["status"] = {"restarts": 1}
    made = client.patch(f"{DIGITS}/status", "apply", status, fieldManager="a")
    assert made["status"] == {"restarts": 1}
    assert managers(made)[("kubectl", "Update", "scale")] == {"f:spec": {"f:replicas": {}}}
    assert managers(made)[("a", "Apply", "status")] == {"f:status": {".": {}, "f:restarts": {}}}
    refused = client.patch(DIGITS, "apply", job(), fieldManager="a")
    assert 'conflict with "kubectl" with subresource "scale"' in refused["message"]


def test_lists_with_keys_are_merged_and_others_replaced(client: RawClient):
    value = job()
    container = value["spec"]["template"]["spec"]["containers"][0]
    container |= {"env": [{"name": "A", "value": "1"}], "args": ["x", "y"]}
    client.patch(DIGITS, "apply", value, fieldManager="a")
    log = {"name": "log", "image": "b"}
    other = job(suspend=True)
    other["spec"]["template"]["spec"]["containers"] = [
        log,
        {"name": "worker", "env": [{"name": "B"}], "args": ["x", "y"]},
    ]
    made = client.patch(DIGITS, "apply", other, fieldManager="b")
    containers = {one["name"]: one for one in made["spec"]["template"]["spec"]["containers"]}
    assert containers["log"] == log
    assert {one["name"] for one in containers["worker"]["env"]} == {"A", "B"}
    assert containers["worker"]["args"] == ["x", "y"]
    without = job(suspend=True)
    without["spec"]["template"]["spec"]["containers"] = [{"name": "worker", "image": "resilin:cpu"}]
    made = client.patch(DIGITS, "apply", without, fieldManager="b")
    containers = {one["name"]: one for one in made["spec"]["template"]["spec"]["containers"]}
    assert set(containers) == {"worker"}, "the item that only b had is gone with b's wish"
    assert [one["name"] for one in containers["worker"]["env"]] == ["A"]


def test_ports_without_a_protocol_are_those_of_tcp(client: RawClient):
    head = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    first = {**head, "spec": {"ports": [{"port": 80, "protocol": "TCP", "name": "web"}]}}
    client.patch(f"{SERVICES}/s", "apply", first, fieldManager="a")
    made = client.patch(f"{SERVICES}/s", "apply", {**head, "spec": {"ports": [{"port": 80}]}}, fieldManager="b")
    assert made["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "name": "web"}]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"managedFields": [{"manager": "x"}]}, 400, "metadata.managedFields must be nil"),
        ({"resourceVersion": "1"}, 409, "the object has been modified"),
        ({"uid": "x"}, 409, "UID in precondition"),
        ({"name": "other"}, 400, "does not match the name on the URL"),
    ],
)
def test_apply_refuses_what_it_cannot_be_based_on(client: RawClient, change: dict[str, Any], code: int, words: str):
    client.patch(DIGITS, "apply", job(), fieldManager="a")
    value = job()
    value["metadata"] |= change
    refused = client.patch(DIGITS, "apply", value, fieldManager="a")
    assert refused.code == code
    assert words in refused["message"]


def test_what_is_applied_is_checked(client: RawClient):
    refused = client.patch(DIGITS, "apply", job(replicas=0), fieldManager="a")
    assert "spec.replicas in body should be greater than or equal to 1" in refused["message"]
    assert client.get(DIGITS).code == 404
