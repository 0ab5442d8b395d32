"""Watches tell everything once and in order, say when they cannot, and break off on demand."""

import json
from itertools import islice

from raw_client import JOBS, RawClient, event, job

from resilin.testing.kube.server import KubeServer


def test_a_watch_goes_on_where_a_list_was(client: RawClient):
    client.post(JOBS, job("a"))
    revision = client.get(JOBS)["metadata"]["resourceVersion"]
    client.post(JOBS, job("b"))
    client.patch(f"{JOBS}/a", "merge", {"spec": {"replicas": 3}})
    client.delete(f"{JOBS}/b")
    with client.watching(JOBS, resourceVersion=revision) as lines:
        seen = [event(line) for line in islice(lines, 3)]
        client.post(JOBS, job("c"))
        seen.append(event(next(lines)))
    assert [(kind, name) for kind, name, _ in seen] == [
        ("ADDED", "b"),
        ("MODIFIED", "a"),
        ("DELETED", "b"),
        ("ADDED", "c"),
    ]
    revisions = [int(one) for _, _, one in seen]
    assert revisions == sorted(set(revisions))


def test_a_watch_without_a_revision_begins_with_what_there_is(client: RawClient):
    client.post(JOBS, job("a"))
    with client.watching(JOBS) as lines:
        assert event(next(lines))[:2] == ("ADDED", "a")


def test_objects_come_into_a_selection_and_leave_it(client: RawClient):
    with client.watching(JOBS, resourceVersion=1 << 30, labelSelector="a=b", timeoutSeconds=0) as lines:
        assert list(lines) == []
    revision = client.get(JOBS)["metadata"]["resourceVersion"]
    client.post(JOBS, job())
    for value in ("b", "b", "c"):
        client.patch(f"{JOBS}/digits", "merge", {"metadata": {"labels": {"a": value, "n": value}}})
    client.patch(f"{JOBS}/digits", "merge", {"metadata": {"labels": {"a": "b"}}})
    client.patch(f"{JOBS}/digits", "merge", {"spec": {"replicas": 3}})
    with client.watching(JOBS, resourceVersion=revision, labelSelector="a=b") as lines:
        assert [event(line)[0] for line in islice(lines, 4)] == ["ADDED", "DELETED", "ADDED", "MODIFIED"]


def test_a_revision_that_is_forgotten_is_gone(kube: KubeServer, client: RawClient):
    client.post(JOBS, job())
    kube.storage.compact()
    with client.watching(JOBS, resourceVersion=1) as lines:
        told = json.loads(next(lines))
        assert next(lines, None) is None, "the watch ends"
    assert (told["type"], told["object"]["code"], told["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert told["object"]["message"].startswith("too old resource version: 1 (")


def test_only_so_many_changes_are_kept():
    with KubeServer(keep=3) as kube:
        client = RawClient(kube.url)
        maps = "/api/v1/namespaces/default/configmaps"
        head = {"apiVersion": "v1", "kind": "ConfigMap"}
        made = [client.post(maps, {**head, "metadata": {"name": f"m{i}"}}) for i in range(5)]
        with client.watching(maps, resourceVersion=made[1]["metadata"]["resourceVersion"]) as lines:
            assert [event(line)[1] for line in islice(lines, 3)] == ["m2", "m3", "m4"]
        with client.watching(maps, resourceVersion=made[0]["metadata"]["resourceVersion"]) as lines:
            assert event(next(lines))[0] == "ERROR"


def test_bookmarks_tell_the_revision_of_other_objects(kube: KubeServer, client: RawClient):
    with (
        client.watching(JOBS, resourceVersion=kube.storage.revision, allowWatchBookmarks="true") as lines,
        client.watching(JOBS, resourceVersion=kube.storage.revision, timeoutSeconds=1) as without,
    ):
        client.post("/api/v1/namespaces/default/pods", {**_POD})
        kube.faults.send_bookmarks()
        told = json.loads(next(lines))
        assert told["type"] == "BOOKMARK"
        assert told["object"]["kind"] == "ElasticJob"
        assert told["object"]["metadata"]["resourceVersion"] == str(kube.storage.revision)
        assert list(without) == [], "who does not want bookmarks has none"


_POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}}


def test_initial_events_end_with_a_bookmark(client: RawClient):
    client.post(JOBS, job("a"))
    query = {"sendInitialEvents": "true", "allowWatchBookmarks": "true", "resourceVersionMatch": "NotOlderThan"}
    with client.watching(JOBS, **query) as lines:
        assert event(next(lines))[:2] == ("ADDED", "a")
        mark = json.loads(next(lines))
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_watch_ends_after_its_time(client: RawClient):
    with client.watching(JOBS, timeoutSeconds=1) as lines:
        assert list(lines) == []


def test_a_watch_is_cut_in_the_middle_of_an_event(kube: KubeServer, client: RawClient):
    kube.faults.cut_events(times=1)
    with client.watching(JOBS, resourceVersion=kube.storage.revision) as lines:
        client.post(JOBS, job())
        part = next(lines)
        assert part.startswith(b'{"type":"ADDED"')
        assert not part.endswith(b"\n")
        assert next(lines, None) is None
    with client.watching(JOBS, resourceVersion="0") as lines:
        assert event(next(lines))[:2] == ("ADDED", "digits"), "the next one is whole"


def test_all_watches_are_cut_at_once(kube: KubeServer, client: RawClient):
    with client.watching(JOBS) as first, client.watching("/api/v1/pods") as second:
        kube.faults.cut_watches()
        assert (list(first), list(second)) == ([], [])
    with client.watching(JOBS, allowWatchBookmarks="true") as lines:
        kube.faults.cut_watches(midline=True)
        part = list(lines)
        assert len(part) == 1
        assert part[0].startswith(b'{"type":"BOOKMARK"')
        assert not part[0].endswith(b"\n")


def test_closing_the_server_ends_its_watches():
    with (
        KubeServer() as kube,
        RawClient(kube.url).watching("/api/v1/pods", resourceVersion=kube.storage.revision) as lines,
    ):
        kube.close()
        assert list(lines) == []


def test_tables_are_watched_too(kube: KubeServer, client: RawClient):
    client.post(JOBS, job("a"))
    client.post(JOBS, job("b"))
    tables = RawClient(kube.url, Accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    with tables.watching(JOBS) as lines:
        first, second = (json.loads(line)["object"] for line in islice(lines, 2))
    assert [one["kind"] for one in (first, second)] == ["Table", "Table"]
    assert first["columnDefinitions"][0]["name"] == "Name"
    assert second["columnDefinitions"] is None
    assert second["rows"][0]["cells"][0] == "b"
