"""What people do with ElasticJobs, done with the real kubectl."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from resilin.operator.crd.definition import definition
from resilin.testing.kube.kubectl import Kubectl
from resilin.testing.kube.server import KubeServer

pytestmark = pytest.mark.slow

Run = Callable[..., str]

JOB = """\
apiVersion: resilin.dev/v1alpha1
kind: ElasticJob
metadata: {name: digits}
spec:
  replicas: 2
  maxReplicas: 4
  template:
    spec:
      containers:
      - name: worker
        image: resilin:cpu
        command: [elastic-run, train.py]
"""


def columns(text: str) -> dict[str, str]:
    """The one row of a table, by its headings, which blanks part."""
    head, row = text.splitlines()
    names = list(re.finditer(r"\S+(?: \S+)*", head))
    ends = [*(name.start() for name in names[1:]), max(len(head), len(row))]
    return {name[0]: row[name.start() : end].strip() for name, end in zip(names, ends, strict=True)}


def test_a_job_is_applied_shown_and_deleted(run: Run, kube: KubeServer):
    assert run("apply", "-f", "-", text=JOB) == "elasticjob.resilin.dev/digits created\n"
    assert run("apply", "-f", "-", text=JOB) == "elasticjob.resilin.dev/digits unchanged\n"
    condition = {"type": "Running", "status": "True", "reason": "EnoughWorkers", "message": "at least 1 ready"}
    status = {"readyWorkers": 2, "restarts": 1, "worldGeneration": 5, "lastFault": {"cause": "OOMKilled", "node": "n1"}}
    status["conditions"] = [{**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    job = kube.get("resilin.dev/v1alpha1", "ElasticJob", "digits")
    assert job is not None
    kube.storage.put(("resilin.dev", "elasticjobs"), ("default", "digits"), {**job, "status": status})

    row = columns(run("get", "ej"))
    assert (row["NAME"], row["REPLICAS"], row["READY"], row["RUNNING"], row["RESTARTS"]) == (
        "digits",
        "2",
        "2",
        "True",
        "1",
    )
    row = columns(run("get", "elasticjobs", "-o", "wide"))
    assert (row["WORLD"], row["LAST FAULT"], row["ON NODE"]) == ("5", "OOMKilled", "n1")
    assert "elasticjob.resilin.dev/digits" in run("get", "all")
    assert run("get", "ej", "-o", "jsonpath={.items[0].spec.elasticPolicy.graceSeconds}") == "30"
    told = run("describe", "ej", "digits")
    assert "at least 1 ready" in told
    assert "Node Lost Seconds:" in told
    assert "condition met" in run("wait", "--for=condition=Running", "ej/digits", "--timeout=10s")
    assert run("delete", "ej", "digits").startswith('elasticjob.resilin.dev "digits" deleted')
    assert run("get", "ej", "-o", "name") == ""


def test_events_of_a_job_are_described(run: Run, kube: KubeServer):
    run("apply", "-f", "-", text=JOB)
    job = kube.get("resilin.dev/v1alpha1", "ElasticJob", "digits")
    assert job is not None
    event = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "digits.1"}}
    about = {"kind": "ElasticJob", "name": "digits", "namespace": "default", "uid": job["metadata"]["uid"]}
    event |= {
        "regarding": {"apiVersion": "resilin.dev/v1alpha1", **about},
        "note": "pod digits-1 was killed: OOMKilled",
    }
    event |= {"reason": "OOMKilled", "type": "Warning", "eventTime": "2026-01-01T00:00:00.000000Z"}
    kube.create({**event, "reportingController": "resilin.dev/operator", "action": "Reconcile"})
    told = run("describe", "ej", "digits")
    assert "pod digits-1 was killed: OOMKilled" in told
    assert "resilin.dev/operator" in told


def test_a_job_is_scaled(run: Run):
    run("apply", "-f", "-", text=JOB)
    assert run("scale", "ej/digits", "--replicas=3") == "elasticjob.resilin.dev/digits scaled\n"
    assert run("get", "ej", "digits", "-o", "jsonpath={.spec.replicas} {.metadata.generation}") == "3 2"
    refused = run("scale", "ej/digits", "--replicas=9", fails=True)
    assert "spec.replicas" in refused
    assert "replicas must not be greater than maxReplicas" in refused
    run("scale", "ej/digits", "--current-replicas=7", "--replicas=1", fails=True)


def test_a_job_is_edited_patched_and_labelled(run: Run):
    run("apply", "-f", "-", text=JOB)
    run("edit", "ej", "digits", EDITOR="sed -i 's/maxRestarts: 3/maxRestarts: 7/'")
    run("patch", "ej", "digits", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    run("patch", "ej", "digits", "--type=json", "-p", '[{"op":"replace","path":"/spec/minReplicas","value":2}]')
    job = json.loads(run("get", "ej", "digits", "-o", "json"))
    spec = job["spec"]
    assert (spec["maxRestarts"], spec["suspend"], spec["minReplicas"]) == (7, True, 2)
    assert job["metadata"]["generation"] == 4
    run("patch", "ej", "digits", "--type=strategic", "-p", '{"spec":{"suspend":false}}', fails=True)
    run("label", "ej", "digits", "team=a")
    assert run("get", "ej", "-l", "team=a", "-o", "name") == "elasticjob.resilin.dev/digits\n"
    assert run("get", "ej", "-l", "team!=a", "-o", "name") == ""


def test_a_template_may_change_only_while_a_job_is_suspended(run: Run):
    run("apply", "-f", "-", text=JOB)
    changed = JOB.replace("resilin:cpu", "resilin:next")
    refused = run("apply", "-f", "-", text=changed, fails=True)
    assert "spec.template" in refused
    assert "template may change only while the job is suspended: set suspend first" in refused
    run("patch", "ej", "digits", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    assert "configured" in run("apply", "-f", "-", text=changed)


def test_a_difference_is_shown_before_it_is_applied(kubectl: Kubectl, run: Run, kube: KubeServer, tmp_path: Path):
    run("apply", "-f", "-", text=JOB)
    ran = kubectl.run(kube.url, tmp_path, "diff", "-f", "-", text=JOB.replace("maxReplicas: 4", "maxReplicas: 5"))
    assert ran.code == 1
    assert "-  maxReplicas: 4" in ran.out
    assert "+  maxReplicas: 5" in ran.out
    assert kubectl.run(kube.url, tmp_path, "diff", "-f", "-", text=JOB).code == 0
    assert run("get", "ej", "digits", "-o", "jsonpath={.spec.maxReplicas}") == "4"
    run("apply", "--dry-run=server", "-f", "-", text=JOB.replace("maxReplicas: 4", "maxReplicas: 6"))
    assert run("get", "ej", "digits", "-o", "jsonpath={.spec.maxReplicas}") == "4"


def test_server_side_apply_tells_of_conflicts(run: Run):
    run("apply", "--server-side", "-f", "-", text=JOB)
    run("scale", "ej/digits", "--replicas=3")
    refused = run("apply", "--server-side", "-f", "-", text=JOB, fails=True)
    assert "Apply failed with 1 conflict: conflict with" in refused
    assert ".spec.replicas" in refused
    run("apply", "--server-side", "--force-conflicts", "-f", "-", text=JOB)
    assert run("get", "ej", "digits", "-o", "jsonpath={.spec.replicas}") == "2"
    without = JOB.replace("  replicas: 2\n", "  replicas: 2\n  minReplicas: 2\n")
    run("apply", "--server-side", "-f", "-", text=without)
    run("apply", "--server-side", "-f", "-", text=JOB)
    assert run("get", "ej", "digits", "-o", "jsonpath={.spec.minReplicas}") == "1", "the default is back"


def test_a_mistyped_field_is_refused_before_anything_is_written(run: Run):
    refused = run("apply", "-f", "-", text=JOB + "  worldSize: 3\n", fails=True)
    assert "worldSize" in refused
    assert "unknown field" in refused
    assert run("get", "ej", "-o", "name") == ""


def test_fields_are_explained(run: Run):
    told = run("explain", "elasticjob.spec.elasticPolicy")
    assert "nodeLostSeconds" in told
    assert "How long a node may be silent before its pods count as lost." in told
    assert "elasticjobs" in run("api-resources", "--api-group=resilin.dev")


def test_deletion_waits_for_finalizers(kubectl: Kubectl, run: Run, kube: KubeServer, tmp_path: Path):
    run("apply", "-f", "-", text=JOB.replace("{name: digits}", "{name: digits, finalizers: [resilin.dev/teardown]}"))
    ran = kubectl.run(kube.url, tmp_path, "delete", "ej", "digits", "--timeout=1s")
    assert ran.code == 1
    assert "timed out waiting for the condition" in ran.err
    run("patch", "ej", "digits", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    run(
        "wait", "--for=delete", "ej/digits", "--timeout=10s", fails=kubectl.version < 24
    )  # later ones take "gone" as done
    assert run("get", "ej", "-o", "name") == ""


def test_the_base_is_applied_whole(run: Run, kube: KubeServer, repository: Path):
    name = definition()["metadata"]["name"]
    run("delete", "crd", name)
    run("apply", "-k", str(repository / "deploy" / "k8s" / "base"))
    assert "condition met" in run("wait", "--for=condition=Established", f"crd/{name}", "--timeout=10s")
    assert "unchanged" in run("apply", "-k", str(repository / "deploy" / "k8s" / "base"))
    deployment = kube.get("apps/v1", "Deployment", "resilin-operator", "resilin-system")
    assert deployment is not None
    run("apply", "-f", str(repository / "deploy" / "k8s" / "overlays" / "embedded" / "job.yaml"))
    assert "digits" in run("get", "ej", "-o", "name")


@pytest.mark.parametrize("overlay", ["embedded", "etcd", "gpu", "kueue", "namespaced", "workload-api"])
def test_overlays_are_built_and_taken(overlay: str, kubectl: Kubectl, run: Run, kube: KubeServer, repository: Path):
    if kubectl.version < 21:
        pytest.skip("kubectl before 1.21 has kustomize 2, which knows no `patches`")
    built = run("kustomize", str(repository / "deploy" / "k8s" / "overlays" / overlay))
    jobs = [one for one in yaml.safe_load_all(built) if one["kind"] == "ElasticJob"]
    for job in jobs:
        run("apply", "-f", "-", text=yaml.safe_dump(job))
    assert len(jobs) == (0 if overlay in ("namespaced", "workload-api") else 1)
