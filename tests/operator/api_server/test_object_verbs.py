"""Objects are created, replaced, patched and shown as a real API server does it."""

from typing import Any

import pytest
from raw_client import JOBS, RawClient, job, pod

PODS = "/api/v1/namespaces/default/pods"


def test_what_is_created_has_an_identity_and_defaults(client: RawClient):
    made = client.post(JOBS, job())
    assert made.code == 201
    assert made["metadata"]["generation"] == 1
    assert len(made["metadata"]["uid"]) == 36
    assert made["spec"]["elasticPolicy"]["graceSeconds"] == 30
    assert client.get(f"{JOBS}/digits").body == made.body


def test_a_name_is_given_once(client: RawClient):
    client.post(JOBS, job())
    again = client.post(JOBS, job())
    assert (again.code, again["reason"]) == (409, "AlreadyExists")
    assert again["message"] == 'elasticjobs.resilin.dev "digits" already exists'


def test_names_are_generated(client: RawClient):
    value = job()
    value["metadata"] = {"generateName": "run-"}
    names = {client.post(JOBS, value)["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("run-") and len(name) == 9 for name in names)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (pod("Capital"), "lowercase RFC 1123 subdomain"),
        (pod("a" * 254), "must be no more than 253 characters"),
        (pod("a", labels={"k": "not a label"}), "a valid label must be empty or consist of"),
        (pod("a", labels={"-k": "v"}), "name part must consist of"),
        (pod("a", annotations={"k": "v" * 300_000}), "may not be more than 262144 bytes"),
        (pod("a", ownerReferences=[{"kind": "X"}]), "ownerReferences[0].uid"),
        ({**pod("a"), "spec": {"containers": []}}, "spec.containers: Required value"),
    ],
)
def test_bad_objects_are_refused_with_their_field(client: RawClient, value: dict[str, Any], words: str):
    answer = client.post(PODS, value)
    assert (answer.code, answer["reason"]) == (422, "Invalid")
    assert words in answer["message"]
    assert answer["details"]["causes"]


def test_an_object_of_another_place_is_refused(client: RawClient):
    assert client.post(PODS, job()).code == 400
    assert client.post(PODS, pod("a", namespace="other")).code == 400
    assert client.post("/api/v1/namespaces/nowhere/pods", pod("a"))["message"] == 'namespaces "nowhere" not found'
    assert client.get("/apis/resilin.dev/v2/elasticjobs").code == 404
    assert client.get(f"{JOBS}/none")["reason"] == "NotFound"


def test_unknown_fields_are_dropped_warned_of_or_refused(client: RawClient):
    value = job(worldSize=3)
    warned = client.post(JOBS, value, dryRun="All")
    assert warned.headers["Warning"] == '299 - "unknown field \\"spec.worldSize\\""'
    assert "worldSize" not in warned["spec"]
    assert "Warning" not in client.post(JOBS, value, dryRun="All", fieldValidation="Ignore").headers
    refused = client.post(JOBS, value, fieldValidation="Strict")
    assert refused.code == 400
    assert refused["message"] == 'strict decoding error: unknown field "spec.worldSize"'


def test_a_replacement_must_be_of_the_newest_revision(client: RawClient):
    old = client.post(JOBS, job())
    value = client.put(f"{JOBS}/digits", {**old, "spec": {**old["spec"], "replicas": 3}})
    assert (value.code, value["metadata"]["generation"]) == (200, 2)
    late = client.put(f"{JOBS}/digits", {**old, "spec": {**old["spec"], "replicas": 4}})
    assert (late.code, late["reason"]) == (409, "Conflict")
    assert "the object has been modified; please apply your changes to the latest version" in late["message"]
    without = {**old, "metadata": {"name": "digits"}}
    assert "must be specified for an update" in client.put(f"{JOBS}/digits", without)["message"]


def test_a_write_that_changes_nothing_makes_no_revision(client: RawClient):
    old = client.post(JOBS, job())
    same = client.put(f"{JOBS}/digits", dict(old))
    assert same["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"]
    same = client.patch(f"{JOBS}/digits", "merge", {"spec": {"replicas": 2}})
    assert same["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"]


def test_a_status_is_written_through_its_own_path_alone(client: RawClient):
    made = client.post(JOBS, {**job(), "status": {"restarts": 7}})
    assert "status" not in made
    made = client.patch(f"{JOBS}/digits", "merge", {"status": {"restarts": 7}})
    assert "status" not in made
    wanted = {**made, "spec": {}, "status": {"restarts": 7}}
    made = client.put(f"{JOBS}/digits/status", wanted)
    assert made["status"] == {"restarts": 7}
    assert (made["spec"]["replicas"], made["metadata"]["generation"]) == (2, 1)
    wanted = {**made, "spec": {**made["spec"], "replicas": 3}, "status": {"restarts": 9}}
    made = client.put(f"{JOBS}/digits", wanted)
    assert (made["status"], made["metadata"]["generation"]) == ({"restarts": 7}, 2)
    refused = client.patch(f"{JOBS}/digits/status", "merge", {"status": {"restarts": -1}})
    assert "status.restarts in body should be greater than or equal to 0" in refused["message"]


def test_what_a_writer_may_not_decide_stays(client: RawClient):
    old = client.post(JOBS, job())
    meta = {"uid": old["metadata"]["uid"], "generation": 40, "creationTimestamp": "2020-01-01T00:00:00Z"}
    new = client.patch(f"{JOBS}/digits", "merge", {"metadata": {**meta, "deletionTimestamp": "2020-01-01T00:00:00Z"}})
    for field in ("generation", "creationTimestamp"):
        assert new["metadata"][field] == old["metadata"][field]
    assert "deletionTimestamp" not in new["metadata"]
    assert client.patch(f"{JOBS}/digits", "merge", {"metadata": {"uid": "other"}}).code == 409


def test_a_scale_shows_and_changes_the_size(client: RawClient):
    client.post(JOBS, job(maxReplicas=4))
    status = {"status": {"replicas": 1, "selector": "resilin.dev/job=digits"}}
    client.patch(f"{JOBS}/digits/status", "merge", status)
    scale = client.get(f"{JOBS}/digits/scale")
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == {"replicas": 1, "selector": "resilin.dev/job=digits"}
    assert client.put(f"{JOBS}/digits/scale", {**scale, "spec": {"replicas": 3}})["spec"] == {"replicas": 3}
    assert client.get(f"{JOBS}/digits")["metadata"]["generation"] == 2
    late = client.put(f"{JOBS}/digits/scale", {**scale, "spec": {"replicas": 1}})
    assert late.code == 409
    refused = client.patch(f"{JOBS}/digits/scale", "merge", {"spec": {"replicas": 9}})
    assert "replicas must not be greater than maxReplicas" in refused["message"]


def test_json_patches_are_all_or_nothing(client: RawClient):
    client.post(JOBS, job())
    good = [
        {"op": "test", "path": "/spec/replicas", "value": 2},
        {"op": "add", "path": "/metadata/labels", "value": {"a/b": "c"}},
        {"op": "copy", "from": "/metadata/labels/a~1b", "path": "/metadata/labels/d"},
        {"op": "add", "path": "/spec/template/spec/containers/-", "value": {"name": "log", "image": "l:1"}},
        {"op": "add", "path": "/spec/suspend", "value": True},
    ]
    made = client.patch(f"{JOBS}/digits", "json", good)
    assert made["metadata"]["labels"] == {"a/b": "c", "d": "c"}
    assert [one["name"] for one in made["spec"]["template"]["spec"]["containers"]] == ["worker", "log"]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"op": "test", "path": "/spec/replicas", "value": 1}, 422),
        ({"op": "test", "path": "/spec/suspend", "value": 0}, 422),
        ({"op": "remove", "path": "/spec/none"}, 422),
        ({"op": "remove", "path": "/spec/template/spec/containers/-1"}, 422),
        ({"op": "add", "path": "/spec/template/spec/containers/01", "value": {}}, 422),
        ({"op": "move", "from": "/spec", "path": "/spec/template"}, 422),
        ({"op": "remove", "path": ""}, 400),
        ({"op": "add", "path": "", "value": []}, 400),
        ({"op": "turn", "path": "/spec"}, 400),
        ({"op": "remove", "path": 3}, 400),
        ("remove", 400),
        (None, 400),
    ],
    ids=str,
)
def test_a_json_patch_of_which_one_operation_fails_changes_nothing(client: RawClient, bad: Any, code: int):
    client.post(JOBS, job())
    before = client.get(f"{JOBS}/digits").body
    refused = client.patch(f"{JOBS}/digits", "json", [{"op": "replace", "path": "/spec/replicas", "value": 5}, bad])
    assert refused.code == code, refused.body
    assert client.get(f"{JOBS}/digits").body == before


def test_strategic_patches_merge_lists_of_kubernetes_own_kinds_only(client: RawClient):
    client.post(PODS, pod("a", labels={"x": "y"}))
    patch = {"spec": {"containers": [{"name": "a", "image": "new"}]}, "metadata": {"labels": {"x": None}}}
    made = client.patch(f"{PODS}/a", "strategic", patch)
    assert made["spec"]["containers"] == [{"name": "a", "image": "new"}]
    assert "x" not in made["metadata"].get("labels", {})
    client.post(JOBS, job())
    assert client.patch(f"{JOBS}/digits", "strategic", {"spec": {"replicas": 3}}).code == 415


def test_pods_may_not_change_what_they_are(client: RawClient):
    client.post(PODS, pod("a"))
    refused = client.patch(f"{PODS}/a", "merge", {"spec": {"nodeName": "n"}})
    assert refused.code == 422
    assert "pod updates may not change fields other than" in refused["message"]


def test_a_dry_run_changes_nothing(client: RawClient):
    assert client.post(JOBS, job(), dryRun="All").code == 201
    assert client.get(f"{JOBS}/digits").code == 404
    client.post(JOBS, job())
    changed = client.patch(f"{JOBS}/digits", "merge", {"spec": {"replicas": 3}}, dryRun="All")
    assert changed["spec"]["replicas"] == 3
    assert client.delete(f"{JOBS}/digits", dryRun="All").code == 200
    assert client.get(f"{JOBS}/digits")["spec"]["replicas"] == 2


def test_lists_are_selected_and_read_in_parts(client: RawClient):
    for number in range(5):
        client.post(JOBS, {**job(f"j{number}"), "metadata": {"name": f"j{number}", "labels": {"n": str(number)}}})
    assert [one["metadata"]["name"] for one in client.get(JOBS, labelSelector="n in (1,3)")["items"]] == ["j1", "j3"]
    assert len(client.get(JOBS, labelSelector="n!=1,n")["items"]) == 4
    assert len(client.get(JOBS, fieldSelector="metadata.name=j2")["items"]) == 1
    assert client.get(JOBS, fieldSelector="spec.replicas=2").code == 400
    first = client.get(JOBS, limit=2)
    assert (len(first["items"]), first["metadata"]["remainingItemCount"]) == (2, 3)
    client.delete(f"{JOBS}/j2")
    rest = client.get(JOBS, limit=9, **{"continue": first["metadata"]["continue"]})
    assert [one["metadata"]["name"] for one in rest["items"]] == ["j2", "j3", "j4"], "of the moment of the first part"
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert client.get(JOBS, **{"continue": "unknown"}).code == 410
    assert len(client.get("/apis/resilin.dev/v1alpha1/elasticjobs")["items"]) == 4


def test_a_table_has_the_columns_of_the_definition(kube: Any):
    client = RawClient(kube.url, Accept="application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
    RawClient(kube.url).post(JOBS, job())
    condition = {"type": "Running", "status": "True", "reason": "A", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"readyWorkers": 2, "conditions": [condition]}
    RawClient(kube.url).patch(f"{JOBS}/digits/status", "merge", {"status": status})
    table = client.get(JOBS)
    assert table["kind"] == "Table"
    columns = [one["name"] for one in table["columnDefinitions"]]
    row = dict(zip(columns, table["rows"][0]["cells"], strict=True))
    assert (row["Name"], row["Replicas"], row["Ready"], row["Running"], row["Failed"]) == ("digits", 2, 2, "True", None)
    assert row["Age"].endswith("s")
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


def test_both_kinds_of_events_are_one(client: RawClient):
    made = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "a", "uid": "u"},
        "note": "why",
        "reportingController": "resilin.dev/operator",
        "eventTime": "2026-01-01T00:00:00.000000Z",
    }
    assert client.post("/apis/events.k8s.io/v1/namespaces/default/events", made)["note"] == "why"
    core = client.get("/api/v1/namespaces/default/events", fieldSelector="involvedObject.uid=u")["items"]
    assert [(one["message"], one["source"]["component"]) for one in core] == [("why", "resilin.dev/operator")]


def test_a_definition_comes_and_goes_with_its_objects(client: RawClient):
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/elasticjobs.resilin.dev"
    client.post(JOBS, job())
    assert {one["type"] for one in client.get(path)["status"]["conditions"]} == {"NamesAccepted", "Established"}
    assert client.delete(path).code == 200
    assert client.get(JOBS).code == 404
