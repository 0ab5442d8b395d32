"""Tells clients which resources there are: `/api`, `/apis` and what is below. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from resilin.testing.kube.failures import Failure, Json
from resilin.testing.kube.resources import Resource

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_FURTHER = {
    "binding": ("Binding", "", "v1", ["create"]),
    "eviction": ("Eviction", "policy", "v1", ["create"]),
    "log": ("Pod", "", "v1", ["get"]),
    "token": ("TokenRequest", "authentication.k8s.io", "v1", ["create"]),
}


def version(minor: int) -> Json:
    """What `/version` says."""
    text = f"v1.{minor}.0"
    return {"major": "1", "minor": str(minor), "gitVersion": text, "platform": "linux/amd64"}


def core() -> Json:
    """What `/api` says."""
    return {"kind": "APIVersions", "versions": ["v1"]}


def groups(resources: Sequence[Resource]) -> Json:
    """What `/apis` says."""
    names = dict.fromkeys(one.group for one in resources if one.group)
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name, resources) for name in names]}


def group(name: str, resources: Sequence[Resource]) -> Json:
    """What `/apis/GROUP` says."""
    if name not in {one.group for one in resources}:
        raise Failure(404, "NotFound", "the server could not find the requested resource")
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, resources)}


def _group(name: str, resources: Sequence[Resource]) -> Json:
    found = dict.fromkeys(one.version for one in resources if one.group == name)
    versions = [{"groupVersion": f"{name}/{one}", "version": one} for one in found]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def listed(group_name: str, version_name: str, resources: Sequence[Resource]) -> Json:
    """What `/apis/GROUP/VERSION` says."""
    there = [one for one in resources if (one.group, one.version) == (group_name, version_name)]
    if not there:
        raise Failure(404, "NotFound", "the server could not find the requested resource")
    entries = [entry for one in there for entry in _entries(one)]
    head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": there[0].api_version}
    return {**head, "resources": entries}


def _entries(one: Resource) -> list[Json]:
    singular = one.singular or one.kind.lower()
    entry: Json = {"name": one.plural, "singularName": singular, "namespaced": one.namespaced, "kind": one.kind}
    entry["verbs"] = _VERBS
    if one.short_names:
        entry["shortNames"] = list(one.short_names)
    if one.categories:
        entry["categories"] = list(one.categories)
    return [entry, *(_subresource(one, name) for name in one.subresources)]


def _subresource(one: Resource, name: str) -> Json:
    entry: Json = {"name": f"{one.plural}/{name}", "singularName": "", "namespaced": one.namespaced}
    if name == "scale":
        return {**entry, "group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": ["get", "patch", "update"]}
    if name in _FURTHER:
        kind, group_name, version_name, verbs = _FURTHER[name]
        return {**entry, "group": group_name, "version": version_name, "kind": kind, "verbs": verbs}
    return {**entry, "kind": one.kind, "verbs": ["get", "patch", "update"]}
