"""What happens to an object between a request and the storage: defaults, pruning, checks, generations. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from resilin.testing.kube import definitions, metadata, structural
from resilin.testing.kube.failures import Cause, Failure, Json, bad_request, invalid
from resilin.testing.kube.resources import CRD_KIND, PODS, Resource

_HEAD = frozenset({"apiVersion", "kind", "metadata", "status"})
_POD_MAY_CHANGE = frozenset(
    {"activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"}
)


def decoded(resource: Resource, body: Any, namespace: str, name: str = "") -> Json:
    """A copy of a request's object with its head completed. Failure 400: it does not belong here."""
    if not isinstance(body, dict):
        raise bad_request("the object provided is unrecognized: expected an object")
    if not body.get("kind") or not body.get("apiVersion"):
        raise bad_request("Object 'Kind' is missing" if not body.get("kind") else "Object 'apiVersion' is missing")
    if (body["apiVersion"], body["kind"]) != (resource.api_version, resource.kind):
        got = f"{body['apiVersion']}, Kind={body['kind']}"
        raise bad_request(f"the object in the request ({got}) does not match {resource.api_version}, {resource.kind}")
    value = copy.deepcopy(body)
    meta = value.setdefault("metadata", {})
    if not isinstance(meta, dict):
        raise bad_request("metadata must be an object")
    given = meta.get("namespace", namespace) if resource.namespaced else namespace
    if given != namespace:
        text = "the namespace of the provided object does not match the namespace sent on the request"
        raise bad_request(text)
    if resource.namespaced:
        meta["namespace"] = namespace
    if name and meta.setdefault("name", name) != name:
        raise bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")
    return value


def complete(resource: Resource, value: Json, validation: str) -> list[str]:
    """Prune and fill in, in place; returns warnings. Failure 400: unknown fields where strictness was asked for."""
    if resource.schema is None:
        _own_defaults(resource, value)
        return []
    unknown = structural.prune(value, resource.schema, root=True)
    if unknown and validation == "Strict":
        listed = ", ".join(f'unknown field "{path}"' for path in unknown)
        raise bad_request(f"strict decoding error: {listed}")
    structural.fill_in(value, resource.schema)
    return [f'unknown field "{path}"' for path in unknown] if validation == "Warn" else []


def _own_defaults(resource: Resource, value: Json) -> None:
    if resource.key == PODS:
        spec = value.setdefault("spec", {})
        spec.setdefault("restartPolicy", "Always")
        spec.setdefault("terminationGracePeriodSeconds", 30)
        value.setdefault("status", {}).setdefault("phase", "Pending")
    elif resource.kind == "Namespace":
        value.setdefault("status", {}).setdefault("phase", "Active")
    elif resource.key == CRD_KIND:
        definitions.complete(value)
    elif resource.kind == "Secret":
        value.setdefault("type", "Opaque")
    elif resource.kind == "Deployment":
        value.setdefault("spec", {}).setdefault("replicas", 1)


def check(resource: Resource, value: Json, old: Json | None) -> None:
    """Refuse an object that is wrong, with every cause. Failure 422."""
    causes = metadata.check(resource.kind, value["metadata"])
    if resource.schema is not None:
        causes += structural.check(value, old, resource.schema)
    elif resource.key == CRD_KIND:
        causes += definitions.problems(value)
    elif resource.key == PODS:
        causes += _pod(value, old)
    if causes:
        name = value["metadata"].get("name") or value["metadata"].get("generateName", "")
        raise invalid(resource.kind, resource.group, name, causes)


def _pod(value: Json, old: Json | None) -> list[Cause]:
    spec = value.get("spec", {})
    if not spec.get("containers"):
        return [Cause("spec.containers", "Required value", "FieldValueRequired")]
    if old is not None and _fixed(spec) != _fixed(old["spec"]):
        names = "`spec.containers[*].image`, `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, "
        text = f"pod updates may not change fields other than {names}`spec.tolerations` (only additions to existing)"
        return [Cause("spec", f"Forbidden: {text}", "FieldValueForbidden")]
    return []


def _fixed(spec: Mapping[str, Any]) -> Json:
    """What of a pod's spec must stay as it is."""
    result = {name: item for name, item in spec.items() if name not in _POD_MAY_CHANGE}
    for field in ("containers", "initContainers"):
        if field in result:
            result[field] = [{k: v for k, v in one.items() if k != "image"} for one in result[field]]
    return result


def begin(resource: Resource, value: Json) -> None:
    """Make an object new, in place: its identity, no status of its own, generation 1."""
    metadata.stamp(value["metadata"])
    if resource.has_status:
        value.pop("status", None)
    value["metadata"]["generation"] = 1


def succeed(resource: Resource, value: Json, old: Json, subresource: str = "") -> Json:
    """What a write makes of `old`: what the server alone decides stays, and the generation grows with the spec.

    Through the status sub-resource nothing but the status changes; through the object itself, all but the status.
    """
    meta, before = value["metadata"], old["metadata"]
    if subresource == "status":
        meta = {**before, "managedFields": meta.get("managedFields", before.get("managedFields"))}
        return {**old, "metadata": meta, "status": value.get("status", {})}
    result = dict(value)
    if resource.has_status:
        result.pop("status", None)
        if "status" in old:
            result["status"] = old["status"]
    kept = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "generateName")
    result["metadata"] = {**meta, **{field: before[field] for field in kept if field in before}}
    for field in kept:
        if field not in before:
            result["metadata"].pop(field, None)
    result["metadata"]["resourceVersion"] = before["resourceVersion"]
    if _desired(result) != _desired(old):
        result["metadata"]["generation"] = before.get("generation", 1) + 1
    return result


def _desired(value: Json) -> Json:
    return {name: item for name, item in value.items() if name not in _HEAD}


def precondition(resource: Resource, meta: Mapping[str, Any], old: Json) -> None:
    """Refuse a write to another object or another revision than meant. Failure 409."""
    name, before = old["metadata"]["name"], old["metadata"]
    for field in ("uid", "resourceVersion"):
        wanted = meta.get(field)
        if wanted and wanted != before[field]:
            raise _stale(resource, name, field, wanted, before[field])


def _stale(resource: Resource, name: str, field: str, wanted: str, found: str) -> Failure:
    if field == "uid":
        why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
    else:
        why = "the object has been modified; please apply your changes to the latest version and try again"
    details = {"name": name, "kind": resource.plural, "group": resource.group}
    return Failure(409, "Conflict", f'Operation cannot be fulfilled on {resource.name} "{name}": {why}', details)
