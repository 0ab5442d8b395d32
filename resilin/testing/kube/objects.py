"""Reads and writes objects: what each verb means, on the object itself and on its sub-resources.

Every write is one step under the storage's lock: what it is based on cannot change meanwhile.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from resilin.testing.kube import admission, field_sets, managers, metadata, patches, versions
from resilin.testing.kube.failures import Cause, Failure, Json, already_exists, bad_request, invalid, not_found
from resilin.testing.kube.managers import Writer
from resilin.testing.kube.resources import CRD_KIND, NAMESPACES, Registry, Resource
from resilin.testing.kube.storage import Kind, Storage, StoredObject


@dataclass(frozen=True)
class Target:
    """What a request is about."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def kind(self) -> Kind:
        """Where its objects are stored."""
        return versions.storage_key(self.resource)

    @property
    def key(self) -> tuple[str, str]:
        """Under which key."""
        return (self.namespace, self.name)


@dataclass(frozen=True)
class WriteOptions:
    """How a write is meant."""

    manager: str = "unknown"
    dry_run: bool = False
    force: bool = False
    validation: str = "Warn"
    warnings: list[str] = field(default_factory=list)  # filled by the write


class Objects:
    """The verbs that create and change."""

    def __init__(self, storage: Storage, registry: Registry) -> None:
        self.storage, self.registry = storage, registry

    def get(self, target: Target) -> StoredObject:
        """One object. Failure 404."""
        found = self.storage.get(target.kind, target.key)
        if found is None:
            raise not_found(target.resource.name, target.name)
        return found

    def create(self, target: Target, body: Any, options: WriteOptions) -> StoredObject:
        """Keep a new object."""
        resource = target.resource
        value = versions.kept(resource, admission.decoded(resource, body, target.namespace))
        meta = value["metadata"]
        if meta.get("managedFields"):
            meta.pop("managedFields")
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = metadata.name_from(meta["generateName"])
        with self.storage.lock:
            self._check_namespace(target)
            if meta.get("name") and self.storage.get(target.kind, (target.namespace, meta["name"])):
                raise already_exists(resource.name, meta["name"])
            return self._create(target, value, options, self._writer(target, options, "Update"))

    def _create(self, target: Target, value: Json, options: WriteOptions, writer: Writer) -> StoredObject:
        resource = target.resource
        admission.begin(resource, value)
        if writer.operation == "Apply":
            managers.write(value, {writer: (set(field_sets.leaves(value, resource.schema)), metadata.now())})
        options.warnings.extend(admission.complete(resource, value, options.validation))
        admission.check(resource, value, None)
        if writer.operation == "Update":
            managers.note_update(None, value, resource.schema, writer, metadata.now())
        if options.dry_run:
            return StoredObject(value)
        stored = self.storage.put(target.kind, (target.namespace, value["metadata"]["name"]), value)
        self._registered(target, stored.value)
        return stored

    def update(self, target: Target, body: Any, options: WriteOptions) -> StoredObject:
        """Replace an object."""
        resource = target.resource
        value = versions.kept(resource, admission.decoded(resource, body, target.namespace, target.name))
        with self.storage.lock:
            old = self.get(target)
            if resource.custom and not value["metadata"].get("resourceVersion"):
                text = "Invalid value: 0x0: must be specified for an update"
                cause = Cause("metadata.resourceVersion", text)
                raise invalid(resource.kind, resource.group, target.name, [cause])
            return self.replace(target, old, value, options)

    def patch(self, target: Target, media: str, body: Any, options: WriteOptions) -> StoredObject:
        """Change an object; server-side apply may create it."""
        resource = target.resource
        with self.storage.lock:
            if media == patches.APPLY:
                return self._apply(target, body, options)
            old = self.get(target)
            before = versions.shown(resource, old.value)
            changed = patches.apply_to(before, media, body, resource.place, resource.custom)
            value = versions.kept(resource, admission.decoded(resource, changed, target.namespace, target.name))
            return self.replace(target, old, value, options)

    def _apply(self, target: Target, body: Any, options: WriteOptions) -> StoredObject:
        resource, writer = target.resource, self._writer(target, options, "Apply")
        if not options.manager:
            text = "Required value: is required for apply patch"
            raise invalid("PatchOptions", "meta.k8s.io", "", [Cause("fieldManager", text, "FieldValueRequired")])
        wanted = versions.kept(resource, admission.decoded(resource, body, target.namespace, target.name))
        if wanted["metadata"].get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        old = self.storage.get(target.kind, target.key)
        if old is None and (target.subresource or wanted["metadata"].get("uid")):
            raise not_found(resource.name, target.name)
        if old is None:
            self._check_namespace(target)
            return self._create(target, wanted, options, writer)
        admission.precondition(resource, wanted["metadata"], old.value)
        _restrict(resource, wanted, target.subresource)
        value = managers.apply(old.value, wanted, resource.schema, writer, metadata.now(), options.force)
        return self.replace(target, old, value, options, applied=True)

    def replace(
        self, target: Target, old: StoredObject, value: Json, options: WriteOptions, applied: bool = False
    ) -> StoredObject:
        """Keep `value` in the place of `old`, unless nothing differs; remove it if it only waited for finalizers."""
        resource = target.resource
        admission.precondition(resource, value["metadata"], old.value)
        value = copy.deepcopy(admission.succeed(resource, value, old.value, target.subresource))
        options.warnings.extend(admission.complete(resource, value, options.validation))
        if value["metadata"].get("generation") == old.value["metadata"].get("generation"):
            value = admission.succeed(resource, value, old.value, target.subresource)  # defaults may have changed it
        admission.check(resource, value, old.value)
        if not applied:
            value["metadata"]["managedFields"] = old.value["metadata"].get("managedFields")
            writer = self._writer(target, options, "Update")
            managers.note_update(old.value, value, resource.schema, writer, metadata.now())
        if _same(value, old.value):
            return old
        if options.dry_run:
            return StoredObject(value)
        if self._is_over(value):
            return self.remove(target)
        stored = self.storage.put(target.kind, target.key, value)
        self._registered(target, stored.value)
        return stored

    def remove(self, target: Target) -> StoredObject:
        """Forget an object, and what its definition served."""
        if target.kind == CRD_KIND:
            self._unregister(target.name)
        return self.storage.remove(target.kind, target.key)

    @staticmethod
    def _is_over(value: Json) -> bool:
        meta = value["metadata"]
        leaving = meta.get("deletionTimestamp") and not meta.get("deletionGracePeriodSeconds")
        return bool(leaving) and not meta.get("finalizers") and not _holds_contents(value)

    def _registered(self, target: Target, value: Json) -> None:
        if target.kind == CRD_KIND:
            self.registry.define(value)

    def _unregister(self, name: str) -> None:
        for resource in self.registry.forget(name):
            for stored in self.storage.all(resource.key)[0]:
                meta = stored.value["metadata"]
                self.storage.remove(resource.key, (meta.get("namespace", ""), meta["name"]))

    def _check_namespace(self, target: Target) -> None:
        if not target.resource.namespaced:
            return
        found = self.storage.get(NAMESPACES, ("", target.namespace))
        if found is None:
            raise not_found("namespaces", target.namespace)
        if found.value["metadata"].get("deletionTimestamp"):
            text = f"unable to create new content in namespace {target.namespace} because it is being terminated"
            raise Failure(403, "Forbidden", f'{target.resource.name} "{target.name}" is forbidden: {text}')

    def _writer(self, target: Target, options: WriteOptions, operation: str) -> Writer:
        version = target.resource.api_version
        subresource = "" if target.subresource == "scale" and operation == "Apply" else target.subresource
        return Writer(options.manager, operation, version, subresource)


def _holds_contents(value: Json) -> bool:
    return value.get("kind") == "Namespace" and bool((value.get("spec") or {}).get("finalizers"))


def _restrict(resource: Resource, wanted: Json, subresource: str) -> None:
    """Leave what a sub-resource takes: fields beyond it are ignored, not owned."""
    if subresource == "status":
        for name in [name for name in wanted if name not in ("apiVersion", "kind", "metadata", "status")]:
            del wanted[name]
        wanted["metadata"] = {k: v for k, v in wanted["metadata"].items() if k in ("name", "namespace")}
    elif resource.has_status:
        wanted.pop("status", None)


def _same(value: Json, old: Json) -> bool:
    """Whether nothing differs but when somebody last wrote the same."""
    return _without_times(value) == _without_times(old)


def _without_times(value: Mapping[str, Any]) -> Json:
    meta = dict(value["metadata"])
    entries = meta.pop("managedFields", None) or ()
    marks = [{k: v for k, v in entry.items() if k != "time"} for entry in entries]
    return {**value, "metadata": {**meta, "managedFields": sorted(map(str, marks))}}
