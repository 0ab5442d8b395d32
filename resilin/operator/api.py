"""What the operator needs of a Kubernetes API server. `client.py` does it over HTTP; tests do it in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from resilin.operator import names

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class Resource:
    """Where the objects of a kind are."""

    prefix: str
    """Of the path: /api/v1, or /apis/GROUP/VERSION."""
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str = "", sub: str = "") -> str:
        """Return the path of an object, or of all in a namespace, or with None of all there are."""
        parts = [self.prefix]
        if self.namespaced and namespace is not None:
            parts.append(f"namespaces/{namespace}")
        return "/".join(part for part in (*parts, self.plural, name, sub) if part)


RESOURCES: dict[str, Resource] = {
    names.KIND: Resource(f"/apis/{names.API_VERSION}", names.PLURAL),
    "Pod": Resource("/api/v1", "pods"),
    "Service": Resource("/api/v1", "services"),
    "ConfigMap": Resource("/api/v1", "configmaps"),
    "Secret": Resource("/api/v1", "secrets"),
    "Node": Resource("/api/v1", "nodes", namespaced=False),
    "PodDisruptionBudget": Resource("/apis/policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": Resource("/apis/networking.k8s.io/v1", "networkpolicies"),
    "PodGroup": Resource("/apis/scheduling.k8s.io/v1beta1", "podgroups"),
    "PodEvent": Resource("/api/v1", "events"),  # as kubelets write them, and their fields can be selected
    "Event": Resource("/apis/events.k8s.io/v1", "events"),
    "Lease": Resource("/apis/coordination.k8s.io/v1", "leases"),
}


@dataclass(frozen=True)
class WatchEvent:
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Raw


class Api(Protocol):
    """An API server. Each call has a deadline and raises ClusterError, with code 0 where the outcome is unknown."""

    async def list(
        self, kind: str, namespace: str | None, selector: str = "", *, fields: str = ""
    ) -> tuple[list[Raw], int]:
        """Return all objects as the store has them now, and the resource version read at. `selector`: of labels."""
        ...

    def watch(self, kind: str, namespace: str | None, selector: str, version: int) -> AsyncIterator[WatchEvent]:
        """Yield what happened after `version`, until the server ends the watch, which it does from time to time."""
        ...

    async def get(self, kind: str, namespace: str, name: str) -> Raw:
        """Return one object."""
        ...

    async def create(self, kind: str, namespace: str, manifest: Raw, *, dry_run: bool = False) -> Raw:
        """Make an object, or only try to; 409 AlreadyExists when there is one of its name."""
        ...

    async def apply(self, kind: str, namespace: str, name: str, manifest: Raw) -> Raw:
        """Make the manifest's fields so, as `names.MANAGER`; 409 where others have set them."""
        ...

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str, grace_s: int | None = None, version: str = ""
    ) -> Raw:
        """Ask for the end of the object of that uid, and where one is given of that resource version; what the server
        answers: the object while it is still there."""
        ...

    async def update(self, kind: str, namespace: str, name: str, manifest: Raw, sub: str = "") -> Raw:
        """Replace an object, or its sub-resource; 409 unless it is of the manifest's resource version."""
        ...

    async def merge(self, kind: str, namespace: str, name: str, patch: Raw) -> Raw:
        """Change fields of an object; 409 where `patch` names another resource version."""
        ...
