"""How the parts of an object are told apart when two writers change it: which lists are sets, which are maps by key.

Custom resources say it in their schema. For kinds of Kubernetes it depends on the name of the field, as its own types
declare it. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilin.testing.kube.structural import EMBEDDED, PRESERVE, Schema

# Lists of Kubernetes' own kinds that are maps: the field -> the keys of its items.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "containerStatuses": ("name",),
    "env": ("name",),
    "ephemeralContainers": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "initContainerStatuses": ("name",),
    "ownerReferences": ("uid",),
    "podIPs": ("ip",),
    "resourceClaims": ("name",),
    "secrets": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
_SETS = frozenset({"finalizers"})
_DEFAULTS: Mapping[str, Any] = {"protocol": "TCP"}  # of keys that an item may leave out
_ATOMIC_MAPS = frozenset({"selector", "matchLabels", "nodeSelector", "resourceFieldRef", "fieldRef", "secretRef"})


@dataclass(frozen=True)
class FieldPlace:
    """Where one stands in an object: the schema there (None: none says anything), and the name of the field."""

    schema: Schema | None
    name: str = ""
    parent: str = ""

    def field(self, name: str) -> FieldPlace:
        """The place of a field of the object here."""
        if self.schema is None:
            return FieldPlace(None, name, self.name)
        if name == "metadata" and (not self.name or self.schema.get(EMBEDDED)):
            return FieldPlace(None, name)
        known = self.schema.get("properties", {})
        rest = self.schema.get("additionalProperties")
        inner = known.get(name, rest if isinstance(rest, Mapping) else None)
        if inner is None:  # not described: everything below changes as one, as servers hold it
            return FieldPlace({"type": "object", PRESERVE: True} if self.name else {}, name, self.name)
        return FieldPlace(inner, name, self.name)

    def item(self) -> FieldPlace:
        """The place of an item of the list here."""
        inner = None if self.schema is None else self.schema.get("items", {})
        return FieldPlace(inner, f"{self.name}[]", self.name)

    @property
    def kind(self) -> str:
        """Of a list: "map", "set" or "atomic"."""
        if self.schema is not None:
            return str(self.schema.get("x-kubernetes-list-type", "atomic"))
        if self.name in _SETS:
            return "set"
        return "map" if self.keys else "atomic"

    @property
    def keys(self) -> tuple[str, ...]:
        """Of a list that is a map: the fields that tell its items apart."""
        if self.schema is not None:
            return tuple(self.schema.get("x-kubernetes-list-map-keys", ()))
        if self.name == "ports":  # a container's port is one of it, a Service's one that it offers
            return ("containerPort", "protocol") if self.parent == "containers[]" else ("port", "protocol")
        return _KEYS.get(self.name, ())

    @property
    def atomic(self) -> bool:
        """Of an object: whether it changes as a whole."""
        if self.schema is not None:
            return self.schema.get("x-kubernetes-map-type") == "atomic"
        return self.name in _ATOMIC_MAPS

    def key(self, item: Any) -> str | None:
        """What names an item of the list here within it, as field sets write it; None: nothing does."""
        if self.kind == "set":
            return "v:" + _text(item)
        if self.kind != "map" or not isinstance(item, dict):
            return None
        found = {}
        for key in self.keys:
            default = _DEFAULTS.get(key) if self.schema is None else self._default(key)
            value = item.get(key, default)
            if value is not None:
                found[key] = value
        return "k:" + _text(found)

    def _default(self, key: str) -> Any:
        assert self.schema is not None
        return self.schema.get("items", {}).get("properties", {}).get(key, {}).get("default")


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
