"""The scale sub-resource: how many an object should have, in the form that autoscalers know. Pure but for the write."""

from __future__ import annotations

import copy
from typing import Any

from resilin.testing.kube import admission, patches, tables
from resilin.testing.kube.failures import Json, bad_request
from resilin.testing.kube.objects import Objects, Target, WriteOptions
from resilin.testing.kube.resources import Scale
from resilin.testing.kube.storage import StoredObject
from resilin.testing.kube.topology import FieldPlace


def shown(scale: Scale, value: Json) -> Json:
    """The Scale of an object."""
    fields = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    meta = {field: value["metadata"][field] for field in fields if field in value["metadata"]}
    status: Json = {"replicas": _first(value, scale.status, 0)}
    selector = _first(value, scale.selector, "") if scale.selector else ""
    if selector:
        status["selector"] = selector
    wanted = _first(value, scale.spec, 0)
    head = {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta}
    return {**head, "spec": {"replicas": wanted}, "status": status}


def _first(value: Json, path: str, default: Any) -> Any:
    found = tables.lookup(value, path)
    return found[0] if found and found[0] is not None else default


def write(objects: Objects, target: Target, media: str | None, body: Any, options: WriteOptions) -> StoredObject:
    """Take a Scale (or, with a media type, a patch of one) into an object."""
    resource, scale = target.resource, target.resource.scale
    assert scale is not None
    with objects.storage.lock:
        old = objects.get(target)
        before = shown(scale, old.value)
        after = body if media is None else _patched(media, body, before)
        replicas = after.get("spec", {}).get("replicas", 0) if isinstance(after, dict) else None
        if isinstance(replicas, bool) or not isinstance(replicas, int):
            raise bad_request(f"Scale: spec.replicas must be an integer, got {replicas!r}")
        admission.precondition(resource, after.get("metadata") or {}, old.value)
        value = copy.deepcopy(old.value)
        _set(value, scale.spec, replicas)
        return objects.replace(target, old, value, options)


def _patched(media: str, body: Any, before: Json) -> Json:
    if media == patches.APPLY:
        return dict(patches.merge(before, body))
    return patches.apply_to(before, media, body, FieldPlace(None), custom=False)


def _set(value: Json, path: str, item: Any) -> None:
    *steps, last = path.strip(".").split(".")
    for step in steps:
        value = value.setdefault(step, {})
    value[last] = item
