"""Describes the resources in OpenAPI v2, in the binary form in which clients up to Kubernetes 1.26 ask for it. Pure.

The messages are those of gnostic's OpenAPIv2.proto; only the fields that such clients read are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from resilin.testing.kube import openapi
from resilin.testing.kube.resources import Resource
from resilin.testing.kube.structural import INT_OR_STRING, PRESERVE

MEDIA = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"

_GVK = "x-kubernetes-group-version-kind"
_QUERY = ("dryRun", "fieldManager", "force")


def document(resources: Sequence[Resource]) -> bytes:
    """The whole description, as a Document."""
    info = _text(1, "Kubernetes") + _text(2, "unversioned")
    paths = b"".join(_message(2, _text(1, path) + _message(2, item)) for path, item in _paths(resources))
    described = [one for one in resources if one.custom]  # clients know Kubernetes' own kinds by themselves
    models = b"".join(_named(1, openapi.model(one), _schema(openapi.described(one))) for one in described)
    return _text(1, "2.0") + _message(2, info) + _message(8, paths) + _message(9, models)


def _paths(resources: Sequence[Resource]) -> Iterable[tuple[str, bytes]]:
    """The path of each object with its PATCH operation, by which clients see that a dry run is possible."""
    for one in resources:
        gvk = {"group": one.group, "version": one.version, "kind": one.kind}
        head = f"apis/{one.group}/{one.version}" if one.group else f"api/{one.version}"
        middle = "/namespaces/{namespace}" if one.namespaced else ""
        operation = b"".join(_parameter(name) for name in _QUERY) + _extension(13, _GVK, gvk)
        yield f"/{head}{middle}/{one.plural}/{{name}}", _message(8, operation)


def _parameter(name: str) -> bytes:
    query = _text(2, "query") + _text(4, name) + _text(6, "string")
    return _message(8, _message(1, _message(2, _message(3, query))))


def _schema(schema: Mapping[str, Any]) -> bytes:
    """A Schema. What may be anything has no type there."""
    result = _text(4, schema.get("description", ""))
    if _GVK in schema:
        result += _extension(31, _GVK, schema[_GVK])
    kind = schema.get("type")
    if kind is None or schema.get(INT_OR_STRING) or schema.get(PRESERVE):
        return result
    result += _message(22, _text(1, kind)) + _text(2, schema.get("format", ""))
    result += b"".join(_text(19, name) for name in schema.get("required", ()))
    if "properties" in schema:
        inner = b"".join(_named(1, name, _schema(one)) for name, one in schema["properties"].items())
        result += _message(25, inner)
    if isinstance(schema.get("additionalProperties"), Mapping):
        result += _message(21, _message(1, _schema(schema["additionalProperties"])))
    if kind == "array":
        result += _message(23, _message(1, _schema(schema["items"])))
    return result


def _extension(number: int, name: str, value: Any) -> bytes:
    return _named(number, name, _text(2, json.dumps(value)))  # JSON is YAML


def _named(number: int, name: str, value: bytes) -> bytes:
    return _message(number, _text(1, name) + _message(2, value))


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode()) if value else b""


def _message(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
