"""The forms in which an object is shown: versions of a resource differ in nothing, but both kinds of Event do. Pure."""

from __future__ import annotations

from typing import Any

from resilin.testing.kube.failures import Json
from resilin.testing.kube.resources import Resource

EVENTS = ("", "events")
_EVENTS_GROUP = "events.k8s.io"

# Fields of an Event in events.k8s.io and what they are called in the core group, in which events are kept.
_RENAMED = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}


def storage_key(resource: Resource) -> tuple[str, str]:
    """Under which kind the objects of a resource are kept."""
    return EVENTS if resource.group == _EVENTS_GROUP else resource.key


def shown(resource: Resource, value: Json) -> Json:
    """A stored object as this resource shows it."""
    if resource.group == _EVENTS_GROUP:
        back = {core: name for name, core in _RENAMED.items()}
        value = {back.get(name, name): item for name, item in value.items()}
    if value.get("apiVersion") == resource.api_version:
        return value
    return {**value, "apiVersion": resource.api_version, "kind": resource.kind}


def kept(resource: Resource, value: Json) -> Json:
    """An object of this resource as it is stored."""
    if resource.group != _EVENTS_GROUP:
        return value
    result: dict[str, Any] = {_RENAMED.get(name, name): item for name, item in value.items()}
    result["apiVersion"] = "v1"
    if "reportingComponent" in result:
        result.setdefault("source", {"component": result["reportingComponent"]})
    if "eventTime" in result:
        result.setdefault("firstTimestamp", None)
        result.setdefault("lastTimestamp", None)
    return result
