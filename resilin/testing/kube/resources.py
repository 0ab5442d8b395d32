"""Which resources there are: Kubernetes' own that an operator meets, and those that CustomResourceDefinitions add."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from resilin.testing.kube.failures import Failure, Json
from resilin.testing.kube.storage import Kind
from resilin.testing.kube.topology import FieldPlace

CRD_KIND: Kind = ("apiextensions.k8s.io", "customresourcedefinitions")
NAMESPACES: Kind = ("", "namespaces")
PODS: Kind = ("", "pods")


@dataclass(frozen=True)
class Scale:
    """Where a resource keeps what its scale sub-resource shows, as paths such as `.spec.replicas`."""

    spec: str = ".spec.replicas"
    status: str = ".status.replicas"
    selector: str = ""  # of a selector in string form; "": there is none


@dataclass(frozen=True)
class Column:
    """One printer column."""

    name: str
    path: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


@dataclass(frozen=True)
class Resource:
    """One resource in one version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_status: bool = False
    scale: Scale | None = None
    columns: tuple[Column, ...] = ()
    schema: Mapping[str, Any] | None = None  # custom resources have one
    singular: str = ""
    list_kind: str = ""
    others: tuple[str, ...] = ()  # further sub-resources

    @property
    def key(self) -> Kind:
        """The key of its objects in the storage: versions share them."""
        return (self.group, self.plural)

    @property
    def api_version(self) -> str:
        """`group/version`; of the core group the version alone."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def name(self) -> str:
        """The plural with its group, as messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def custom(self) -> bool:
        """Whether a CustomResourceDefinition made it."""
        return self.schema is not None

    @property
    def place(self) -> FieldPlace:
        """Where its objects begin, for merges."""
        return FieldPlace(self.schema)

    @property
    def subresources(self) -> tuple[str, ...]:
        """The names of its sub-resources."""
        own = ("status",) * self.has_status + ("scale",) * (self.scale is not None)
        return own + self.others


_PHASE = Column("Status", ".status.phase")
_OWN = (
    Resource("", "v1", "namespaces", "Namespace", False, ("ns",), has_status=True, columns=(_PHASE,)),
    Resource("", "v1", "nodes", "Node", False, ("no",), has_status=True),
    Resource(
        *("", "v1", "pods", "Pod"),
        short_names=("po",),
        categories=("all",),
        has_status=True,
        others=("binding", "eviction", "log"),
        columns=(_PHASE, Column("Node", ".spec.nodeName", priority=1), Column("IP", ".status.podIP", priority=1)),
    ),
    Resource("", "v1", "services", "Service", short_names=("svc",), categories=("all",), has_status=True),
    Resource("", "v1", "secrets", "Secret", columns=(Column("Type", ".type"),)),
    Resource("", "v1", "configmaps", "ConfigMap", short_names=("cm",)),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", short_names=("sa",), others=("token",)),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", short_names=("pvc",), has_status=True),
    Resource("", "v1", "resourcequotas", "ResourceQuota", short_names=("quota",), has_status=True),
    Resource(
        *("", "v1", "events", "Event"),
        short_names=("ev",),
        columns=(
            Column("Type", ".type"),
            Column("Reason", ".reason"),
            Column("Object", ".involvedObject.name"),
            Column("Message", ".message"),
        ),
    ),
    Resource("events.k8s.io", "v1", "events", "Event", short_names=("ev",)),
    Resource(
        *("apps", "v1", "deployments", "Deployment"),
        short_names=("deploy",),
        categories=("all",),
        has_status=True,
        scale=Scale(),
    ),
    Resource("apps", "v1", "replicasets", "ReplicaSet", short_names=("rs",), has_status=True, scale=Scale()),
    Resource("batch", "v1", "jobs", "Job", categories=("all",), has_status=True),
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", short_names=("pdb",), has_status=True),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", short_names=("netpol",)),
    Resource("coordination.k8s.io", "v1", "leases", "Lease", columns=(Column("Holder", ".spec.holderIdentity"),)),
    Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, ("pc",)),
    Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", has_status=True),
    Resource("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False),
    Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    Resource(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, ("crd", "crds"),
        has_status=True,
    ),
)  # fmt: skip


class Registry:
    """The resources of a server. Thread-safe: what it gives out does not change."""

    def __init__(self, further: Iterable[Resource] = ()) -> None:
        self._lock = threading.Lock()
        self._own = {(one.group, one.version, one.plural): one for one in (*_OWN, *further)}
        self._custom: dict[str, list[Resource]] = {}  # by the name of the definition; guarded by _lock

    def all(self) -> list[Resource]:
        """Every resource."""
        with self._lock:
            return [*self._own.values(), *(one for several in self._custom.values() for one in several)]

    def find(self, group: str, version: str, plural: str) -> Resource:
        """One resource. Failure 404 as for a path that does not exist."""
        with self._lock:
            found = self._own.get((group, version, plural))
            served = {one.version: one for one in self._custom.get(f"{plural}.{group}", ())}
        result = found or served.get(version)
        if result is not None:
            return result
        raise Failure(404, "NotFound", "the server could not find the requested resource")

    def of(self, kind: Kind) -> Resource:
        """Some version of the resource whose objects are stored as `kind`."""
        return next(one for one in self.all() if one.key == kind)

    def with_kind(self, api_version: str, kind: str) -> Resource | None:
        """The resource of objects that say this of themselves."""
        return next((one for one in self.all() if (one.api_version, one.kind) == (api_version, kind)), None)

    def define(self, definition: Json) -> None:
        """Add or replace what a CustomResourceDefinition says."""
        with self._lock:
            self._custom[definition["metadata"]["name"]] = list(_defined(definition["spec"]))

    def forget(self, name: str) -> list[Resource]:
        """Take a definition's resources out; returns them."""
        with self._lock:
            return self._custom.pop(name, [])


def _defined(spec: Json) -> Iterable[Resource]:
    names = spec["names"]
    for version in spec["versions"]:
        if not version.get("served"):
            continue
        inner = version.get("subresources") or {}
        resource = Resource(
            spec["group"],
            version["name"],
            names["plural"],
            names["kind"],
            spec["scope"] == "Namespaced",
            tuple(names.get("shortNames", ())),
            tuple(names.get("categories", ())),
            has_status="status" in inner,
            columns=tuple(map(_column, version.get("additionalPrinterColumns", ()))),
            schema=version["schema"]["openAPIV3Schema"],
            singular=names.get("singular", names["kind"].lower()),
            list_kind=names.get("listKind", ""),
        )
        if "scale" in inner:
            paths = inner["scale"]
            selector = paths.get("labelSelectorPath", "")
            scale = Scale(paths["specReplicasPath"], paths["statusReplicasPath"], selector)
            resource = replace(resource, scale=scale)
        yield resource


def _column(column: Json) -> Column:
    return Column(
        column["name"],
        column["jsonPath"],
        column["type"],
        column.get("format", ""),
        column.get("description", ""),
        column.get("priority", 0),
    )
