"""What ended a pod: an agent's report is told from free text, and no text breaks the status."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from cluster_model import job_manifest

from resilin.operator import events, faults, names, observed, pods, spec
from resilin.operator.actions import Emit
from resilin.operator.crd import schema
from resilin.operator.observed import Observed, PodView, Refusal
from resilin.operator.reconcile import reconcile
from resilin.testing.kube import structural

NOW = "2026-01-01T00:00:00Z"


def _ended(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": NOW}}


def _raw(
    states: dict[str, Any], phase: str = "Failed", command: list[str] | None = None, init: Any = None, **status: Any
) -> dict[str, Any]:
    labels = {names.JOB: "digits", names.ROLE: names.WORKER, names.INDEX: "0"}
    owner = {"uid": "job", "controller": True}
    meta = {"name": "digits-0", "uid": "u", "labels": labels, "creationTimestamp": NOW, "ownerReferences": [owner]}
    containers = [{"name": name, **({"command": command} if command else {})} for name in states]
    told = [{"name": name, "state": state} for name, state in states.items()]
    begun = [{"name": name, "state": state} for name, state in (init or {}).items()]
    return {
        "metadata": meta, "spec": {"containers": containers, "nodeName": "n0"},
        "status": {"phase": phase, "containerStatuses": told, "initContainerStatuses": begun, **status},
    }  # fmt: skip


def _fault(raw: dict[str, Any]) -> faults.PodFault:
    found = faults.of(observed.pod(raw), lost=False)
    assert found is not None
    return found


def test_the_report_of_an_agent_is_told_in_its_first_line_with_its_rank():
    text = "elastic-run: job failed: rank 3 (host a, pid 9) raised ValueError: x\n  Traceback\n  rank 7 is elsewhere"
    fault = _fault(_raw({"worker": _ended(1, text)}))
    assert (fault.final, fault.rank, fault.counted) == (True, 3, True)
    assert fault.message == "elastic-run: job failed: rank 3 (host a, pid 9) raised ValueError: x"


def test_free_text_is_told_by_its_last_line_and_names_no_rank_and_no_end_of_the_job():
    text = "epoch 3\nTraceback (most recent call last):\nRuntimeError: gpu of rank 99 is gone\n"
    fault = _fault(_raw({"worker": _ended(1, text)}))
    assert (fault.final, fault.rank, fault.message) == (False, None, "RuntimeError: gpu of rank 99 is gone")
    quoting = "the log says elastic-run: job failed: rank 3"
    assert _fault(_raw({"worker": _ended(1, quoting)})).final is False


@pytest.mark.parametrize(
    ("command", "text", "final"),
    [
        (["elastic-run", "t.py"], "", True),
        (None, "", True),
        (["sh", "-c", "python t.py"], "", False),
        (["sh", "-c", "python t.py"], "python: can't open file 't.py'", False),
        (["sh", "-c", "elastic-run t.py"], "bla\nelastic-run: error: --nnodes: expected a number", True),
    ],
)
def test_exit_code_two_ends_the_job_where_it_is_an_agents(command, text, final):
    assert _fault(_raw({"worker": _ended(2, text)}, command=command)).final is final


@pytest.mark.parametrize(
    "text",
    [
        "elastic-run: rank 99999999999999999999 died", "elastic-run: rank 4294967296 died", "\x1b[31mred\x07\x00",
        "a\ud800b", "\u202ereversed", "x" * 5000, "\n\n \n", "elastic-run: ", "elastic-run: job failed: ",
        "{\"a\": 1}", "elastic-run: rank -1", "\u2028" * 30,
    ],
    ids=lambda text: ascii(text)[:30],
)  # fmt: skip
@pytest.mark.parametrize("reason", ["Error", "no word at all", "", "x" * 500, "9Lives", "Über"])
def test_no_text_makes_a_status_that_the_server_refuses(text, reason):
    raw = _raw({"worker": _ended(1, text, reason)}, reason=reason, message=text)
    lost = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": text}
    whole = _raw({"worker": {}}, reason=reason, message=text)
    for pod in (raw, whole, {**raw, "status": {**raw["status"], "conditions": [lost]}}):
        _check_status(observed.pod(pod))


def _check_status(pod: PodView) -> None:
    job = job_manifest(replicas=1)
    meta = {**job["metadata"], "uid": "job", "resourceVersion": "7", "generation": 1, "finalizers": [names.FINALIZER]}
    refused = Refusal(kind="Pod", name="digits-1", code=403, reason="some webhook's own words", message="no\x1b[2J")
    seen = Observed(job={**job, "metadata": meta}, pods=(pod,), refusals=(refused,), now=2e9)
    status = next(action for action in reconcile(spec.parse(seen.job), seen) if hasattr(action, "status"))
    assert structural.check(json.loads(json.dumps(status.status)), None, schema.status()) == []
    shown = json.dumps(status.status, ensure_ascii=False)
    assert shown.isprintable(), "a terminal shows it and obeys nothing"
    assert shown.encode(), "no half characters, which the server would write otherwise"


def test_another_containers_words_are_not_an_agents():
    said = "elastic-run: job failed: rank 3"
    fault = _fault(_raw({"worker": {}}, init={"fetch": _ended(2, said)}))
    assert (fault.final, fault.rank) == (False, None)
    assert fault.counted is True, "its replacement waits, and there is a last one"
    assert fault.message == f"container fetch: {said}"
    sidecar = _fault(_raw({"worker": {}, "log": _ended(5)}))
    assert (sidecar.final, sidecar.message) == (False, "container log: exit code 5")


def test_a_pod_whose_agent_ended_well_has_succeeded_whatever_others_did():
    view = observed.pod(_raw({"worker": _ended(0), "log": _ended(1, "closed")}))
    assert view.succeeded
    assert faults.of(view, lost=False) is None


def test_a_pod_whose_agent_has_ended_does_not_wait_for_a_container_beside_it():
    running = {"running": {"startedAt": NOW}}
    well = observed.pod(_raw({"worker": _ended(0), "log": running}, phase="Running"))
    assert (well.succeeded, well.has_ended, well.is_terminal) == (True, True, False)
    failed = observed.pod(_raw({"worker": _ended(1, "elastic-run: rank 1 died"), "log": running}, phase="Running"))
    fault = faults.of(failed, lost=False)
    assert fault is not None
    assert (fault.rank, fault.counted, failed.has_ended) == (1, True, True)
    other = observed.pod(_raw({"worker": running, "log": _ended(1)}, phase="Running"))
    assert (other.has_ended, faults.of(other, lost=False)) == (False, None)


def test_the_agent_writes_where_the_kubelet_reads():
    container = {"name": "worker", "image": "a", "terminationMessagePath": "/tmp/end"}
    job = job_manifest(template={"spec": {"containers": [container]}})
    meta = {**job["metadata"], "uid": "0123456789", "resourceVersion": "7"}
    made = pods.worker(spec.parse(job), Observed(job={**job, "metadata": meta}), 0)["spec"]["containers"][0]
    written = [one["value"] for one in made["env"] if one["name"] == "RESILIN_TERMINATION_MESSAGE"]
    assert written == [made["terminationMessagePath"]] == ["/tmp/end"]


def test_a_note_has_no_more_bytes_than_events_take():
    job = {"metadata": {"name": "digits", "namespace": "ml", "uid": "u"}}
    note = events._event(job, Emit(type="Warning", reason="Error", message="ä" * 2000), 1.0)["note"]
    assert re.fullmatch("ä+", note)
    assert len(note.encode()) == 1024


def test_a_pod_that_was_asked_to_go_and_went_is_not_to_blame():
    view = replace(observed.pod(_raw({"worker": _ended(143)})), deletion=1.0)
    fault = faults.of(view, lost=False)
    assert fault is not None
    assert fault.counted is False
