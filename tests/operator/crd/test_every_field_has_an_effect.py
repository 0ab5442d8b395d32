"""Each field of an ElasticJob changes what the operator does, or is refused; each field of its status is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from refused_specs import IMAGE
from seen_jobs import SITUATIONS, outcome, seen

from resilin.operator import names, pods, spec
from resilin.operator.crd import schema
from resilin.operator.reconcile import reconcile
from resilin.testing.kube import patches, rules, structural

ROOT = schema.root()
GOOD: dict[str, Any] = {"replicas": 2, "template": {"spec": {"containers": [{"name": "worker", "image": IMAGE}]}}}
_ETCD = {"rdzv": {"backend": "etcd", "endpoint": "a:2379"}}
_TLS = {"rdzv": {**_ETCD["rdzv"], "tls": {"secretName": "a"}}}
_VOLUME = {"checkpoint": {"volume": {"claimName": "data"}}}
_BUCKET = {"checkpoint": {"bucket": {"url": "s3://a"}}}

# By the path of each field: a good spec, and the change of this field in it.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "replicas": ({}, {"replicas": 3}),
    "minReplicas": ({}, {"minReplicas": 2}),
    "maxReplicas": ({"replicas": 4}, {"maxReplicas": 3}),  # as a schema of another version may have let it through
    "nprocPerNode": ({}, {"nprocPerNode": 2}),
    "maxRestarts": ({}, {"maxRestarts": 4}),
    "rdzv.backend": ({}, _ETCD),
    "rdzv.endpoint": (_ETCD, {"rdzv": {"endpoint": "b:2379"}}),
    "rdzv.secretName": ({}, {"rdzv": {"secretName": "own"}}),
    "rdzv.tls.secretName": (_ETCD, _TLS),
    "rdzv.tls.clientCertificate": (_TLS, {"rdzv": {"tls": {"clientCertificate": True}}}),
    "rdzv.resources.limits": ({}, {"rdzv": {"resources": {"limits": {"cpu": 1}}}}),
    "rdzv.resources.requests": ({}, {"rdzv": {"resources": {"requests": {"cpu": 1}}}}),
    "rdzv.resources.claims": ({}, {"rdzv": {"resources": {"claims": [{"name": "net"}]}}}),
    "elasticPolicy.graceSeconds": ({}, {"elasticPolicy": {"graceSeconds": 31}}),
    "elasticPolicy.backoffSeconds": ({}, {"elasticPolicy": {"backoffSeconds": 200}}),
    "elasticPolicy.excludeAfter": ({}, {"elasticPolicy": {"excludeAfter": 2}}),
    "elasticPolicy.hangTimeoutSeconds": ({}, {"elasticPolicy": {"hangTimeoutSeconds": 60}}),
    "elasticPolicy.nodeLostSeconds": ({}, {"elasticPolicy": {"nodeLostSeconds": 3000}}),
    "elasticPolicy.forceDeleteLost": ({}, {"elasticPolicy": {"forceDeleteLost": True}}),
    "checkpoint.volume.claimName": (_VOLUME, {"checkpoint": {"volume": {"claimName": "other"}}}),
    "checkpoint.volume.mountPath": (_VOLUME, {"checkpoint": {"volume": {"mountPath": "/runs"}}}),
    "checkpoint.bucket.url": (_BUCKET, {"checkpoint": {"bucket": {"url": "s3://b"}}}),
    "checkpoint.bucket.secretName": (_BUCKET, {"checkpoint": {"bucket": {"secretName": "keys"}}}),
    "shmSize": ({}, {"shmSize": "1Gi"}),
    "suspend": ({}, {"suspend": True}),
    "activeDeadlineSeconds": ({}, {"activeDeadlineSeconds": 60}),
    "ttlSecondsAfterFinished": ({}, {"ttlSecondsAfterFinished": 0}),
    "cleanPodPolicy": ({}, {"cleanPodPolicy": "All"}),
    "managedBy": ({}, {"managedBy": "example.com/other"}),
    "priorityClassName": ({}, {"priorityClassName": "high"}),
    "queueName": ({}, {"queueName": "team"}),
    "workloadApi": ({}, {"workloadApi": True}),
}
REFUSED = {"spec.hostname", "spec.subdomain", "spec.restartPolicy"}  # of the template: the operator's own


def leaves(part: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The fields of a schema that have none themselves."""
    inner = part.get("properties")
    if not inner:
        yield path, part
        return
    for name, field in inner.items():
        yield from leaves(field, f"{path}.{name}" if path else name)


def _completed(change: dict[str, Any], template: dict[str, Any] | None = None) -> dict[str, Any]:
    value: dict[str, Any] = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "digits"}}
    value["spec"] = patches.merge({**GOOD, **({"template": template} if template else {})}, change)
    assert structural.prune(value, ROOT, root=True) == []
    structural.fill_in(value, ROOT)
    return value


def test_an_example_is_known_for_each_field():
    parts = schema.spec()["properties"]
    assert set(CHANGES) == {path for path, _ in leaves({"properties": {**parts, "template": {}}})} - {"template"}


@pytest.mark.parametrize("path", CHANGES)
def test_a_field_changes_what_the_operator_does(path: str):
    before, change = CHANGES[path]
    old, new = _completed(before), _completed(patches.merge(before, change))
    assert outcome(old) != outcome(new), f"spec.{path} has no effect"


# ------------------------------------------------------------------------------------------------- the template


def sample(part: dict[str, Any]) -> Any:
    """A value that the schema lets through."""
    if "enum" in part:
        return part["enum"][-1]
    if part.get("x-kubernetes-int-or-string"):
        return 1
    kind = part.get("type")
    if kind == "integer":
        return part["minimum"] + 1
    if kind == "boolean":
        return True
    if kind == "string":
        return "x"
    if kind == "array":
        return [sample(part["items"])]
    if "additionalProperties" in part:
        return {"x": sample(part["additionalProperties"])}
    fields = part.get("properties") or {}
    some = part.get("required") or list(fields)[:1]
    return {name: sample(fields[name]) for name in some} or {"x": "y"}


def template_fields() -> Iterator[tuple[str, Any]]:
    """Each field of the template, of a container in it, and a value."""
    template = schema.spec()["properties"]["template"]["properties"]
    for name, field in template["metadata"]["properties"].items():
        yield f"metadata.{name}", sample(field)
    fields = template["spec"]["properties"]
    for name, field in fields.items():
        if name != "containers":
            yield f"spec.{name}", sample(field)
    for name, field in fields["containers"]["items"]["properties"].items():
        if name != "name":
            yield f"container.{name}", sample(field)


def _template(path: str, value: Any) -> dict[str, Any]:
    part, name = path.split(".")
    container = {"name": "worker", "image": IMAGE, **({name: value} if part == "container" else {})}
    body = {"containers": [container], **({name: value} if part == "spec" else {})}
    return {"spec": body, **({"metadata": {name: value}} if part == "metadata" else {})}


def _holds(there: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(key in there and _holds(there[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(there, list) and all(any(_holds(one, item) for one in there) for item in wanted)
    return bool(there == wanted)


@pytest.mark.parametrize(("path", "value"), list(template_fields()), ids=str)
def test_a_field_of_the_template_is_in_the_pod_or_refused(path: str, value: Any):
    job = _completed({}, _template(path, value))
    refused = structural.check(job, None, ROOT, rules.compiled)
    if path in REFUSED:
        assert refused
        return
    assert refused == []
    pod = pods.worker(spec.parse(job), seen("new", job), 1)
    part, name = path.split(".")
    where = {"metadata": pod["metadata"], "spec": pod["spec"], "container": pod["spec"]["containers"][0]}[part]
    assert _holds(where[name], value), f"{path} is not in the pod"


# --------------------------------------------------------------------------------------------------- the status


def test_each_field_of_the_status_is_written():
    fields = dict(leaves({"properties": schema.status()["properties"]}))
    written: set[str] = set()
    for situation in SITUATIONS:
        job = _completed({})
        for action in reconcile(spec.parse(job), seen(situation, job)):
            if hasattr(action, "status"):
                value = {**job, "status": dict(dataclasses.asdict(action)["status"])}
                assert structural.prune(value, ROOT, root=True) == [], "the schema knows all that is written"
                assert structural.check(value, None, ROOT, rules.compiled) == []
                written |= set(_paths(value["status"]))
    assert {path for path in fields if not any(path == one or one.startswith(f"{path}.") for one in written)} == set()


def _paths(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(inner, f"{path}.{key}" if path else key)
    else:
        yield path
