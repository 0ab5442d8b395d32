"""Deletes objects as a server and its garbage collector do: finalizers, grace periods of pods, owners, namespaces.

The collector works at once, in the request that gives it work: tests see what a cluster comes to after a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from resilin.testing.kube import metadata
from resilin.testing.kube.failures import Json, conflict
from resilin.testing.kube.objects import Objects, Target, WriteOptions
from resilin.testing.kube.resources import CRD_KIND, NAMESPACES, PODS
from resilin.testing.kube.storage import Kind, StoredObject

_FOREGROUND = "foregroundDeletion"
_POD_GRACE_S = 30


@dataclass(frozen=True)
class Wish:
    """How a deletion is meant."""

    propagation: str = "Background"  # or Foreground, Orphan
    grace_s: int | None = None
    uid: str = ""
    revision: str = ""
    dry_run: bool = False

    @classmethod
    def read(cls, body: Any, query: Mapping[str, str]) -> Wish:
        """From DeleteOptions and the query; the body counts."""
        body = body if isinstance(body, dict) else {}
        grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        conditions = body.get("preconditions") or {}
        policy = body.get("propagationPolicy") or query.get("propagationPolicy") or "Background"
        if body.get("orphanDependents") or query.get("orphanDependents") == "true":
            policy = "Orphan"
        dry = bool(body.get("dryRun")) or "dryRun" in query
        uid, revision = conditions.get("uid") or "", conditions.get("resourceVersion") or ""
        return cls(policy, None if grace is None else int(grace), uid, revision, dry)


class Deletion:
    """Deletes, and collects what deleted objects owned."""

    def __init__(self, objects: Objects) -> None:
        self._objects, self._storage = objects, objects.storage

    def delete(self, target: Target, wish: Wish) -> tuple[StoredObject, bool]:
        """Delete an object; its last state, and whether it is gone already."""
        with self._storage.lock:
            old = self._objects.get(target)
            self._check(target, old, wish)
            if wish.dry_run:
                return old, True
            changed = self._begun(target, old.value, wish)
            if changed is None:
                last = self._objects.remove(target)
                self.follow(last.value)
                return last, True
            stored = old if changed == old.value else self._storage.put(target.kind, target.key, changed)
            self._spread(target, stored, wish)
            return self._objects.storage.get(target.kind, target.key) or stored, False

    def _check(self, target: Target, old: StoredObject, wish: Wish) -> None:
        meta = old.value["metadata"]
        for wanted, field, word in ((wish.uid, "uid", "UID"), (wish.revision, "resourceVersion", "ResourceVersion")):
            if wanted and wanted != meta[field]:
                why = f"Precondition failed: {word} in precondition: {wanted}, {word} in object meta: {meta[field]}"
                raise conflict(target.resource.name, target.name, why)

    def _begun(self, target: Target, old: Json, wish: Wish) -> Json | None:
        """The object as it waits for its end; None: nothing holds it."""
        meta = dict(old["metadata"])
        finalizers = list(meta.get("finalizers") or ())
        if wish.propagation == "Orphan":
            self._orphan(meta["uid"])
        elif wish.propagation == "Foreground" and self._storage.owned_by(meta["uid"]):
            finalizers += [_FOREGROUND] * (_FOREGROUND not in finalizers)
        contents = target.kind == NAMESPACES and self._contents(target.name)
        definition = target.kind == CRD_KIND and self._served(target.name)
        grace = _grace(target.kind, old, wish)
        if not finalizers and not grace and not contents and not definition:
            return None
        if finalizers:
            meta["finalizers"] = finalizers
        if "deletionTimestamp" not in meta:
            meta["deletionTimestamp"] = metadata.now(grace)
            meta["generation"] = meta.get("generation", 1) + 1
            meta["deletionGracePeriodSeconds"] = grace
        elif grace < meta.get("deletionGracePeriodSeconds", 0):
            sooner = meta["deletionGracePeriodSeconds"] - grace
            meta["deletionTimestamp"] = metadata.later(meta["deletionTimestamp"], -sooner)
            meta["deletionGracePeriodSeconds"] = grace
        result = {**old, "metadata": meta}
        if contents:
            result = {**result, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Terminating"}}
        return result

    def _spread(self, target: Target, stored: StoredObject, wish: Wish) -> None:
        """Delete what must go before an object that waits."""
        meta = stored.value["metadata"]
        if _FOREGROUND in (meta.get("finalizers") or ()):
            for kind, key in self._storage.owned_by(meta["uid"]):
                self._delete(kind, key, "Foreground")
        if target.kind == NAMESPACES:
            for kind, key in self._contents(target.name):
                self._delete(kind, key, "Background")
        if target.kind == CRD_KIND:
            for kind, key in self._served(target.name):
                self._delete(kind, key, "Background")
        self.follow(stored.value)

    def _delete(self, kind: Kind, key: tuple[str, str], policy: str) -> None:
        if self._storage.get(kind, key) is not None:
            target = Target(self._objects.registry.of(kind), *key)
            self.delete(target, Wish(policy))

    def _contents(self, namespace: str) -> list[tuple[Kind, tuple[str, str]]]:
        found = []
        for kind in self._storage.kinds():
            for stored in self._storage.all(kind, namespace)[0]:
                found.append((kind, (namespace, stored.value["metadata"]["name"])))
        return found

    def _served(self, definition: str) -> list[tuple[Kind, tuple[str, str]]]:
        plural, _, group = definition.partition(".")
        found = self._storage.all((group, plural))[0]
        keys = [(one.value["metadata"].get("namespace", ""), one.value["metadata"]["name"]) for one in found]
        return [((group, plural), key) for key in keys]

    def _orphan(self, uid: str) -> None:
        for kind, key in self._storage.owned_by(uid):
            self._drop_owner(kind, key, lambda owner: bool(owner["uid"] == uid))

    def _drop_owner(self, kind: Kind, key: tuple[str, str], drops: Callable[[Json], bool]) -> None:
        stored = self._storage.get(kind, key)
        if stored is not None:
            meta = dict(stored.value["metadata"])
            meta["ownerReferences"] = [owner for owner in meta["ownerReferences"] if not drops(owner)]
            self._storage.put(kind, key, {**stored.value, "metadata": meta})

    def follow(self, value: Json) -> None:
        """Collect after an object was written or removed: dependents without an owner, owners without dependents."""
        with self._storage.lock:
            meta = value["metadata"]
            if self._storage.with_uid(meta["uid"]) is None:
                for kind, key in self._storage.owned_by(meta["uid"]):
                    self._collect(kind, key)
                for owner in meta.get("ownerReferences") or ():
                    self._release(owner["uid"])
                self._release_namespace(meta.get("namespace", ""))
                self._release_definition(value)
                return
            where = self._storage.with_uid(meta["uid"])
            if meta.get("ownerReferences") and where is not None:
                self._collect(*where)
            if _FOREGROUND in (meta.get("finalizers") or ()) and meta.get("deletionTimestamp"):
                self._release(meta["uid"])

    def _collect(self, kind: Kind, key: tuple[str, str]) -> None:
        """Delete an object none of whose owners is there; where some are, forget the others."""
        stored = self._storage.get(kind, key)
        if stored is None:
            return
        owners = stored.value["metadata"].get("ownerReferences") or ()
        there = [owner for owner in owners if self._storage.with_uid(owner["uid"]) is not None]
        if owners and not there:
            if "deletionTimestamp" not in stored.value["metadata"]:  # else it is on its way, as a pod in its grace
                self._delete(kind, key, "Background")
        elif len(there) < len(owners):
            self._drop_owner(kind, key, lambda owner: self._storage.with_uid(owner["uid"]) is None)

    def _release(self, uid: str) -> None:
        """Let an owner go that waits for its dependents, once those that block it are gone."""
        where = self._storage.with_uid(uid)
        owner = None if where is None else self._storage.get(*where)
        if where is None or owner is None or _FOREGROUND not in (owner.value["metadata"].get("finalizers") or ()):
            return
        if any(self._blocks(kind, key, uid) for kind, key in self._storage.owned_by(uid)):
            return
        meta = dict(owner.value["metadata"])
        meta["finalizers"] = [one for one in meta["finalizers"] if one != _FOREGROUND]
        target = Target(self._objects.registry.of(where[0]), *where[1])
        after = self._objects.replace(
            target, owner, {**owner.value, "metadata": meta}, WriteOptions("garbage-collector")
        )
        self.follow(after.value)

    def _blocks(self, kind: Kind, key: tuple[str, str], uid: str) -> bool:
        stored = self._storage.get(kind, key)
        owners = () if stored is None else stored.value["metadata"].get("ownerReferences") or ()
        return any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in owners)

    def _release_namespace(self, name: str) -> None:
        found = self._storage.get(NAMESPACES, ("", name)) if name else None
        if found is not None and found.value["metadata"].get("deletionTimestamp") and not self._contents(name):
            self._objects.remove(Target(self._objects.registry.of(NAMESPACES), "", name))

    def _release_definition(self, value: Json) -> None:
        group = value.get("apiVersion", "").rpartition("/")[0]
        for stored in self._storage.all(CRD_KIND)[0]:
            spec, meta = stored.value["spec"], stored.value["metadata"]
            is_its = (spec["group"], spec["names"]["kind"]) == (group, value.get("kind"))
            if is_its and meta.get("deletionTimestamp") and not self._served(meta["name"]):
                self._objects.remove(Target(self._objects.registry.of(CRD_KIND), "", meta["name"]))


def _grace(kind: Kind, old: Json, wish: Wish) -> int:
    """How long a pod has to end: none if it never started or is over."""
    if kind != PODS:
        return 0
    spec, phase = old["spec"], (old.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    asked = spec.get("terminationGracePeriodSeconds", _POD_GRACE_S) if wish.grace_s is None else wish.grace_s
    return int(asked)
