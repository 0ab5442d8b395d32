"""Jobs in a cluster over HTTP: what the operator makes, mends, counts, tells and removes."""

from __future__ import annotations

import time

from running_operator import RunningOperator, job

from resilin.operator import names
from resilin.operator.controller import OperatorOptions
from resilin.testing.kube.server import KubeServer


def _status(cluster, name="digits"):
    return (cluster.job(name) or {}).get("status") or {}


def _steady(cluster, pods, name="digits"):
    """Whether so many pods are ready and the operator has said so."""
    cluster.run_pods()
    status = _status(cluster, name)
    return status.get("readyWorkers") == pods and cluster.condition("Scaling", name)["status"] != "True"


def _settled(operator: RunningOperator):
    return operator.call(lambda: operator.controller.queue.idle)


def test_a_job_gets_pods_with_stable_names_and_all_that_they_need(cluster, operator):
    cluster.server.create(job(replicas=3))
    cluster.wait(lambda: _steady(cluster, 3))
    assert sorted(cluster.pods()) == ["digits-0", "digits-1", "digits-2"]
    assert sorted(cluster.pods(names.RENDEZVOUS)) == ["digits-rdzv"]
    raw = cluster.job()
    for api, kind, name in (
        ("v1", "Service", "digits"), ("v1", "Service", "digits-rdzv"), ("v1", "ConfigMap", "digits"),
        ("v1", "Secret", names.secret("digits", raw["metadata"]["uid"])),
        ("policy/v1", "PodDisruptionBudget", "digits"), ("networking.k8s.io/v1", "NetworkPolicy", "digits"),
    ):  # fmt: skip
        there = cluster.server.get(api, kind, name)
        assert there is not None, f"{kind} {name}"
        assert there["metadata"]["ownerReferences"][0]["uid"] == raw["metadata"]["uid"]
    status = _status(cluster)
    assert status["observedGeneration"] == raw["metadata"]["generation"]
    assert status["selector"] == "resilin.dev/job=digits,resilin.dev/role=worker"
    assert {one["type"]: one["status"] for one in status["conditions"]} == {
        "Created": "True", "Running": "True", "Scaling": "False",
    }  # fmt: skip


def test_no_pod_waits_for_an_event(cluster, operator):
    made = []
    cluster.server.faults.on_request(lambda verb, plural, sub: made.append(plural) if verb == "create" else None)
    cluster.server.create(job(replicas=3))
    cluster.wait(lambda: len(cluster.pods()) == 3 and "events" in made)
    assert "pods" not in made[made.index("events") :]


def test_kubectl_scale_adds_and_drains_pods_and_leaves_the_others_alone(cluster, operator):
    cluster.server.create(job(replicas=2))
    cluster.wait(lambda: _steady(cluster, 2))
    before = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
    path = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}/digits/scale"
    cluster.call("PATCH", path, {"spec": {"replicas": 4}})
    cluster.wait(lambda: _steady(cluster, 4))
    cluster.call("PATCH", path, {"spec": {"replicas": 1}})
    leaving = cluster.wait(
        lambda: {name for name, pod in cluster.pods().items() if "deletionTimestamp" in pod["metadata"]} or None
    )
    cluster.wait(lambda: sum("deletionTimestamp" in pod["metadata"] for pod in cluster.pods().values()) == 3)
    assert "digits-0" not in leaving
    for name in ("digits-1", "digits-2", "digits-3"):  # their kubelets: they have left after a commit
        cluster.call("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0")
    cluster.wait(lambda: _steady(cluster, 1))
    assert cluster.pods()["digits-0"]["metadata"]["uid"] == before["digits-0"]


def test_the_workers_leave_before_the_store_when_a_job_is_deleted(cluster, operator):
    cluster.server.create(job(replicas=2))
    cluster.wait(lambda: _steady(cluster, 2))
    cluster.call("DELETE", f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}/digits")
    cluster.wait(lambda: all("deletionTimestamp" in pod["metadata"] for pod in cluster.pods().values()))
    assert "deletionTimestamp" not in cluster.pods(names.RENDEZVOUS)["digits-rdzv"]["metadata"]
    for name in ("digits-0", "digits-1"):
        cluster.call("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0")
    cluster.wait(lambda: cluster.job() is None)
    cluster.wait(lambda: cluster.server.get("v1", "Service", "digits") is None)


def test_a_new_process_of_the_operator_writes_nothing_where_nothing_is_to_be_done(cluster):
    with RunningOperator(cluster.url) as first:
        cluster.server.create(job(replicas=2))
        cluster.wait(lambda: _steady(cluster, 2))
        cluster.wait(lambda: _settled(first))
    versions = _versions(cluster.server)
    with RunningOperator(cluster.url) as second:
        cluster.wait(lambda: second.controller is not None and second.controller.is_ready)
        for _ in range(20):
            second.call(second.controller.resync)
            cluster.wait(lambda: _settled(second))
        assert second.metrics.writes == 0
    assert _versions(cluster.server) == versions


def _versions(server: KubeServer):
    kinds = (("v1", "Pod"), ("v1", "Service"), ("v1", "Event"), (names.API_VERSION, names.KIND))
    return [raw["metadata"]["resourceVersion"] for api, kind in kinds for raw in server.find(api, kind)]


def test_an_eviction_is_told_by_its_reason_and_counts_as_no_restart(cluster, operator):
    cluster.server.create(job(replicas=2))
    cluster.wait(lambda: _steady(cluster, 2))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "digits-1", "namespace": "default"}}
    cluster.call("POST", "/api/v1/namespaces/default/pods/digits-1/eviction", eviction, "application/json")
    cluster.wait(lambda: cluster.condition("Degraded")["reason"] == "EvictionByEvictionAPI")
    assert _status(cluster)["lastFault"]["pod"] == "digits-1"
    cluster.call("DELETE", "/api/v1/namespaces/default/pods/digits-1?gracePeriodSeconds=0")
    cluster.wait(lambda: _steady(cluster, 2) and cluster.condition("Degraded")["status"] == "False")
    status = _status(cluster)
    assert "restarts" not in status
    assert "EvictionByEvictionAPI" in status["lostSeconds"]


_EARLIER = "2026-01-01T00:00:00Z"


def _end(cluster, name, code, reason="Error", message=""):
    ended = {"exitCode": code, "reason": reason, "message": message, "finishedAt": _EARLIER}
    container = {"name": "worker", "state": {"terminated": ended}}
    cluster.set_pod(name, phase="Failed" if code else "Succeeded", containerStatuses=[container], conditions=[])


def test_pods_that_fail_are_replaced_counted_and_end_the_job_when_they_are_too_many(cluster, operator):
    cluster.server.create(job(replicas=2, maxRestarts=1))
    cluster.wait(lambda: _steady(cluster, 2))
    first = cluster.pods()["digits-1"]["metadata"]["uid"]
    _end(cluster, "digits-1", 137, "OOMKilled", "elastic-run: rank 3 was killed by SIGKILL")
    cluster.wait(lambda: _steady(cluster, 2) and _status(cluster).get("restarts") == 1)
    assert cluster.pods()["digits-1"]["metadata"]["uid"] != first
    fault = _status(cluster)["lastFault"]
    assert (fault["cause"], fault["rank"], fault["node"]) == ("OOMKilled", 3, "n0")
    _end(cluster, "digits-1", 137, "OOMKilled")
    cluster.wait(lambda: cluster.condition("Failed")["reason"] == "BackoffLimitExceeded")
    cluster.wait(lambda: "deletionTimestamp" in cluster.pods()["digits-0"]["metadata"])
    assert "digits-1" in cluster.pods(), "cleanPodPolicy Running keeps what has ended, for its log"


def _end_beside_another(cluster, name, code):
    """The agent of a pod ends, and a container that ships its log goes on."""
    ended = {"exitCode": code, "reason": "Error", "message": "elastic-run: rank 1 died", "finishedAt": _EARLIER}
    states = {"worker": {"terminated": ended}, "log": {"running": {"startedAt": _EARLIER}}}
    told = [{"name": container, "state": state} for container, state in states.items()]
    cluster.set_pod(name, phase="Running", containerStatuses=told, conditions=[])


def test_a_container_beside_the_agents_keeps_no_job_from_going_on_or_ending(cluster, operator):
    containers = [{"name": "worker", "image": "r:1", "command": ["elastic-run", "t.py"]}, {"name": "log", "image": "l"}]
    cluster.server.create(job(replicas=2, template={"spec": {"containers": containers}}))
    cluster.wait(lambda: _steady(cluster, 2))
    first = cluster.pods()["digits-1"]["metadata"]["uid"]
    _end_beside_another(cluster, "digits-1", 1)
    cluster.wait(lambda: "deletionTimestamp" in cluster.pods()["digits-1"]["metadata"])
    assert _status(cluster)["restarts"] == 1
    cluster.call("DELETE", "/api/v1/namespaces/default/pods/digits-1?gracePeriodSeconds=0")
    cluster.wait(lambda: _steady(cluster, 2))
    assert cluster.pods()["digits-1"]["metadata"]["uid"] != first
    _end_beside_another(cluster, "digits-0", 0)
    cluster.wait(lambda: cluster.condition("Succeeded")["status"] == "True")
    assert "deletionTimestamp" not in cluster.pods()["digits-1"]["metadata"], "it may have something to save"
    _end_beside_another(cluster, "digits-1", 0)
    cluster.wait(lambda: all("deletionTimestamp" in pod["metadata"] for pod in cluster.pods().values()))


def test_the_failure_that_an_agent_reports_as_final_ends_the_job_in_its_own_words(cluster, operator):
    cluster.server.create(job(replicas=2))
    cluster.wait(lambda: _steady(cluster, 2))
    said = "elastic-run: job failed: rank 1 (host digits-1, pid 9) raised ValueError: x"
    _end(cluster, "digits-1", 1, "Error", said)
    failed = cluster.wait(lambda: cluster.condition("Failed")["status"] == "True" and cluster.condition("Failed"))
    assert failed["message"] == said


def test_a_job_that_has_succeeded_stays_so_is_cleaned_up_and_removed_in_time(cluster, operator):
    cluster.server.create(job(replicas=2, cleanPodPolicy="All", ttlSecondsAfterFinished=1))
    cluster.wait(lambda: _steady(cluster, 2))
    _end(cluster, "digits-0", 0)
    cluster.wait(lambda: cluster.condition("Succeeded")["status"] == "True")
    _end(cluster, "digits-1", 0)
    cluster.wait(lambda: cluster.job() is None)


def test_a_job_whose_user_keeps_it_for_longer_meanwhile_is_not_removed(cluster, operator):
    changed = []

    def on_delete(verb, plural, subresource):
        if (verb, plural) == ("delete", names.PLURAL) and not changed:
            changed.append(True)
            cluster.patch_job({"ttlSecondsAfterFinished": 3600})

    cluster.server.faults.on_request(on_delete)
    cluster.server.create(job(replicas=1, ttlSecondsAfterFinished=1))
    cluster.wait(lambda: _steady(cluster, 1))
    _end(cluster, "digits-0", 0)
    cluster.wait(lambda: changed)
    cluster.wait(lambda: _settled(operator))
    cluster.wait(lambda: _status(cluster)["observedGeneration"] == cluster.job()["metadata"]["generation"])
    assert "deletionTimestamp" not in cluster.job()["metadata"]


def test_what_keeps_a_job_from_starting_is_a_condition_in_the_kubelets_own_words(cluster, operator):
    cluster.server.create(job(replicas=1))
    cluster.wait(lambda: "digits-0" in cluster.pods())
    said = 'Back-off pulling image "r:1"'
    waiting = {"name": "worker", "state": {"waiting": {"reason": "ImagePullBackOff", "message": said}}}
    cluster.set_pod("digits-0", phase="Pending", containerStatuses=[waiting])
    cluster.wait(lambda: cluster.condition("Stalled")["reason"] == "ImagePullBackOff", within_s=10)
    assert cluster.condition("Stalled")["message"] == f"pod digits-0: {said}"
    notes = cluster.wait(
        lambda: [one for one in cluster.server.find("v1", "Event") if one["reason"] == "ImagePullBackOff"]
    )
    assert notes[0]["type"] == "Warning"


def test_a_refused_pod_is_told_with_the_servers_words_and_made_as_soon_as_it_may(cluster, operator):
    from resilin.testing.kube.failures import Failure

    refuse = True

    def quota(verb, plural, subresource):
        if refuse and verb == "create" and plural == "pods":
            raise Failure(403, "Forbidden", 'pods "digits-0" is forbidden: exceeded quota: small')

    cluster.server.faults.on_request(quota)
    cluster.server.create(job(replicas=1))
    cluster.wait(lambda: cluster.condition("Stalled")["reason"] == "QuotaExceeded", within_s=10)
    assert "exceeded quota: small" in cluster.condition("Stalled")["message"]
    refuse = False
    cluster.patch_job({"maxRestarts": 7})
    cluster.wait(lambda: _steady(cluster, 1) and cluster.condition("Stalled")["status"] == "False")


def test_what_others_have_made_under_a_name_of_the_job_is_left_alone(cluster, operator):
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "digits", "namespace": "default"}}
    cluster.server.create({**theirs, "spec": {"ports": [{"port": 80}], "selector": {"app": "shop"}}})
    before = cluster.server.get("v1", "Service", "digits")
    cluster.server.create(job(replicas=1))
    cluster.wait(lambda: cluster.condition("Stalled")["reason"] == "NameTaken")
    cluster.call("DELETE", f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}/digits")
    cluster.wait(lambda: cluster.job() is None)
    assert cluster.server.get("v1", "Service", "digits") == before


def test_a_field_that_a_user_has_taken_is_not_taken_back(cluster, operator):
    cluster.server.create(job(replicas=3, minReplicas=2))
    cluster.wait(lambda: _steady(cluster, 3))
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "digits"}}
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/digits?fieldManager=kubectl&force=true"
    cluster.call("PATCH", path, {**budget, "spec": {"minAvailable": 1}}, "application/apply-patch+yaml")
    cluster.wait(lambda: cluster.condition("Stalled")["reason"] == "FieldConflict")
    assert cluster.server.get("policy/v1", "PodDisruptionBudget", "digits")["spec"]["minAvailable"] == 1


def test_a_pod_on_a_silent_node_is_replaced_under_a_new_name_and_not_deleted_by_force(cluster, operator):
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}, "spec": {}}
    cluster.server.create(node)
    cluster.server.create({**node, "metadata": {"name": "n1"}})
    _set_node(cluster, "n0", "True")
    _set_node(cluster, "n1", "True")
    cluster.server.create(job(replicas=2))
    cluster.wait(lambda: _steady(cluster, 2))
    lost = cluster.pods()["digits-1"]
    assert cluster.pods()["digits-0"]["spec"]["nodeName"] == "n0"
    _set_node(cluster, "n0", "Unknown")
    cluster.wait(lambda: {"digits-0-r1", "digits-1-r1", "digits-rdzv-r1"} <= set(cluster.pods(None)))
    assert cluster.pods()["digits-1"]["metadata"]["uid"] == lost["metadata"]["uid"]
    assert "deletionTimestamp" in cluster.pods()["digits-1"]["metadata"]
    assert _status(cluster)["lastFault"]["cause"] == "NodeLost"


def _set_node(cluster, name, ready):
    condition = {
        "type": "Ready",
        "status": ready,
        "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    cluster.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}})


def test_a_suspended_job_has_no_pods_and_begins_again_when_it_is_resumed(cluster, operator):
    cluster.server.create(job(replicas=2, suspend=True))
    cluster.wait(lambda: cluster.condition("Suspended")["status"] == "True")
    assert cluster.pods(None) == {}
    cluster.patch_job({"suspend": False})
    cluster.wait(lambda: _steady(cluster, 2))
    assert cluster.condition("Suspended")["reason"] == "Resumed"
    cluster.patch_job({"suspend": True})
    cluster.wait(lambda: all("deletionTimestamp" in pod["metadata"] for pod in cluster.pods().values()))
    for name in ("digits-0", "digits-1"):
        cluster.call("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0")
    cluster.wait(lambda: "deletionTimestamp" in cluster.pods(names.RENDEZVOUS)["digits-rdzv"]["metadata"])
    assert "startTime" not in _status(cluster)


def test_a_job_of_the_workload_api_has_a_group_that_follows_its_least_size(cluster):
    with RunningOperator(cluster.url, OperatorOptions(pod_groups=True)):
        cluster.server.create(job(replicas=3, minReplicas=2, workloadApi=True))
        cluster.wait(lambda: _steady(cluster, 3))
        assert _least_of_group(cluster) == 2
        assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in cluster.pods().values()} == {"digits"}
        cluster.patch_job({"minReplicas": 3})
        cluster.wait(lambda: _least_of_group(cluster) == 3)
        assert cluster.condition("Stalled")["status"] != "True"


def _least_of_group(cluster):
    group = cluster.server.get("scheduling.k8s.io/v1beta1", "PodGroup", "digits")
    return group["spec"]["schedulingPolicy"]["gang"]["minCount"]


def test_a_job_that_waits_for_a_group_which_nobody_makes_says_so(cluster, operator):
    cluster.server.create(job(replicas=1, workloadApi=True))
    cluster.wait(lambda: cluster.condition("Stalled")["reason"] == "WorkloadApiOff", within_s=10)
    assert "without --pod-groups" in cluster.condition("Stalled")["message"]


def test_another_controllers_jobs_are_not_touched(cluster, operator):
    cluster.server.create(job("other", replicas=1, managedBy="example.com/other"))
    cluster.server.create(job(replicas=1))
    cluster.wait(lambda: _steady(cluster, 1))
    assert "finalizers" not in cluster.job("other")["metadata"]
    assert all(pod["metadata"]["labels"][names.JOB] == "digits" for pod in cluster.pods(None).values())


def test_an_operator_of_one_namespace_needs_no_nodes_and_sees_no_other(cluster):
    cluster.server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
    elsewhere = job("far", replicas=1)
    elsewhere["metadata"]["namespace"] = "ml"
    cluster.server.create(elsewhere)
    cluster.server.create(job(replicas=1))
    with RunningOperator(cluster.url, OperatorOptions(namespace="default", nodes=False)):
        cluster.wait(lambda: _steady(cluster, 1))
    assert cluster.server.find("v1", "Pod", "ml") == []


def test_sixty_four_pods_come_in_one_batch(cluster, operator):
    cluster.server.create(job(replicas=64))
    cluster.wait(lambda: len(cluster.pods()) == 64, within_s=10)
