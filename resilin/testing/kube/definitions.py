"""Checks CustomResourceDefinitions as a server does: structural schemas, rules that compile. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from resilin.testing.kube import cel_cost, metadata, rules
from resilin.testing.kube.failures import Cause, Json
from resilin.testing.kube.structural import INT_OR_STRING, PRESERVE, Schema

_FORBIDDEN = ("$ref", "definitions", "dependencies", "deprecated", "discriminator", "id", "patternProperties")


def complete(definition: Json) -> None:
    """Fill in the names that have defaults, and the status of a definition that is served, in place."""
    names = definition["spec"]["names"]
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", names["kind"] + "List")
    since = metadata.now()
    conditions = [
        {"type": type_, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since}
        for type_, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    stored = [version["name"] for version in definition["spec"]["versions"] if version.get("storage")]
    known = {one["type"] for one in definition.get("status", {}).get("conditions", ())}
    if not known:
        definition["status"] = {"conditions": conditions, "acceptedNames": names, "storedVersions": stored}


def problems(definition: Json) -> list[Cause]:
    """What is wrong with a definition."""
    spec = definition["spec"]
    name = f"{spec['names']['plural']}.{spec['group']}"
    causes: list[Cause] = []
    if definition["metadata"]["name"] != name:
        causes.append(Cause("metadata.name", f'Invalid value: must be spec.names.plural+"."+spec.group: "{name}"'))
    if sum(bool(version.get("storage")) for version in spec["versions"]) != 1:
        causes.append(Cause("spec.versions", "Invalid value: must have exactly one version marked as storage version"))
    for index, version in enumerate(spec["versions"]):
        where = f"spec.versions[{index}].schema.openAPIV3Schema"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            causes.append(Cause(where, "Required value: schemas are required", "FieldValueRequired"))
        else:
            found = list(structure(schema, where, root=True))
            causes += found or cel_cost.problems(schema, where)
    return causes


def structure(schema: Schema, path: str, root: bool = False) -> Iterator[Cause]:
    """Where a schema is not structural."""
    if root and schema.get("type") != "object":
        yield Cause(f"{path}.type", "Invalid value: must be object at the root")
    if "type" not in schema and not schema.get(INT_OR_STRING) and not schema.get(PRESERVE):
        yield Cause(f"{path}.type", "Required value: must not be empty for specified object fields")
    for word in _FORBIDDEN:
        if word in schema:
            yield Cause(f"{path}.{word}", "Forbidden: is not supported", "FieldValueForbidden")
    if "properties" in schema and schema.get("additionalProperties"):
        yield Cause(path, "Forbidden: additionalProperties and properties are mutual exclusive", "FieldValueForbidden")
    if schema.get("type") == "array" and "items" not in schema:
        yield Cause(f"{path}.items", "Required value: must be specified", "FieldValueRequired")
    yield from _keys(schema, path)
    yield from _compile(schema, path)
    for name, inner in schema.get("properties", {}).items():
        yield from structure(inner, f"{path}.properties[{name}]")
    if isinstance(schema.get("items"), dict):
        yield from structure(schema["items"], f"{path}.items")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from structure(schema["additionalProperties"], f"{path}.additionalProperties")


def _keys(schema: Schema, path: str) -> Iterator[Cause]:
    if schema.get("x-kubernetes-list-type") != "map":
        return
    keys = schema.get("x-kubernetes-list-map-keys", ())
    if not keys:
        yield Cause(
            f"{path}.x-kubernetes-list-map-keys", "Required value: must not be empty if x-kubernetes-list-type is map"
        )
    inner = schema.get("items", {})
    for key in keys:
        if key not in inner.get("properties", {}):
            yield Cause(f"{path}.x-kubernetes-list-map-keys", f'Invalid value: "{key}": not a property of items')
        elif key not in inner.get("required", ()) and "default" not in inner["properties"][key]:
            text = "Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be "
            text += "a required property"
            yield Cause(f"{path}.items.properties[{key}]", text)


def _compile(schema: Schema, path: str) -> Iterator[Cause]:
    for index, rule in enumerate(schema.get("x-kubernetes-validations", ())):
        where = f"{path}.x-kubernetes-validations[{index}].rule"
        try:
            rules.compiled(rule["rule"])
        except ValueError as error:
            yield Cause(where, f"Invalid value: {rule['rule']!r}: compilation failed: {error}")
