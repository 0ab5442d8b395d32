"""Describes the resources to clients in OpenAPI v3, as far as they check and explain objects by it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from resilin.testing.kube.failures import Failure, Json
from resilin.testing.kube.resources import Resource
from resilin.testing.kube.structural import EMBEDDED, PRESERVE

_GVK = "x-kubernetes-group-version-kind"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_METADATA = {"type": "object", "description": "Standard object's metadata.", PRESERVE: True}
_QUERY = ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")
_DROPPED = frozenset({"x-kubernetes-validations"})  # OpenAPI v3 keeps it, clients do not read it


def groups(resources: Sequence[Resource]) -> Json:
    """What `/openapi/v3` says: where the description of each group and version is."""
    paths = {}
    for one in resources:
        path = _path(one.group, one.version)
        mark = hashlib.sha256(json.dumps(str(one.schema)).encode()).hexdigest()[:32]
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={mark}"}
    return {"paths": paths}


def _path(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def document(path: str, resources: Sequence[Resource]) -> Json:
    """The description of one group and version."""
    there = [one for one in resources if _path(one.group, one.version) == path]
    if not there:
        raise Failure(404, "NotFound", "the server could not find the requested resource")
    schemas: Json = {_META: _METADATA}
    paths: Json = {}
    for one in there:
        schemas[model(one)] = described(one)
        paths |= _paths(one)
    info = {"title": "Kubernetes", "version": "unversioned"}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def model(one: Resource) -> str:
    """The name of a resource's schema: its group's labels turned round, as Kubernetes has it."""
    return ".".join([*reversed(one.group.split(".") if one.group else ["core", "k8s"]), one.version, one.kind])


def described(one: Resource) -> Json:
    """The schema of a resource with what it says of its kind."""
    schema: Json = _clean(one.schema) if one.schema is not None else {"type": "object", PRESERVE: True}
    properties = dict(schema.get("properties", {}))
    properties.setdefault("apiVersion", {"type": "string", "description": "APIVersion of this object."})
    properties.setdefault("kind", {"type": "string", "description": "Kind of this object."})
    properties["metadata"] = _METADATA
    gvk = [{"group": one.group, "version": one.version, "kind": one.kind}]
    return {**schema, "properties": properties, _GVK: gvk}


def _clean(schema: Mapping[str, Any]) -> Json:
    result = {key: item for key, item in schema.items() if key not in _DROPPED}
    if schema.get(EMBEDDED):
        result[PRESERVE] = True
    for key in ("properties",):
        if key in schema:
            result[key] = {name: _clean(inner) for name, inner in schema[key].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            result[key] = _clean(schema[key])
    return result


def _paths(one: Resource) -> Json:
    base = "/" + _path(one.group, one.version)
    middle = "/namespaces/{namespace}" if one.namespaced else ""
    gvk = {"group": one.group, "version": one.version, "kind": one.kind}
    query = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in _QUERY]
    body = {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{model(one)}"}}}}
    answer = {"200": {"description": "OK"}}

    def operation(action: str, with_body: bool) -> Json:
        head: Json = {"x-kubernetes-action": action, _GVK: gvk, "parameters": query, "responses": answer}
        return {**head, "requestBody": body} if with_body else head

    collection = {"get": operation("list", False), "post": operation("post", True)}
    single = {
        "get": operation("get", False),
        "put": operation("put", True),
        "patch": operation("patch", True),
        "delete": operation("delete", False),
    }
    path = f"{base}{middle}/{one.plural}"
    return {path: collection, path + "/{name}": single}
