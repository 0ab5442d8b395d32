"""Decides who may do what by the Roles and bindings that are stored, as a cluster with RBAC does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from resilin.testing.kube.failures import Failure, Json
from resilin.testing.kube.routes import Request
from resilin.testing.kube.storage import Storage

_GROUP = "rbac.authorization.k8s.io"
_ACCOUNT = "system:serviceaccount"


@dataclass(frozen=True)
class User:
    """Who asks."""

    name: str

    @property
    def groups(self) -> frozenset[str]:
        """What the user belongs to."""
        parts = self.name.split(":")
        accounts = {"system:serviceaccounts", f"system:serviceaccounts:{parts[2]}"} if self.account else set()
        return frozenset({"system:authenticated", *accounts})

    @property
    def account(self) -> tuple[str, str] | None:
        """Of a service account: its namespace and name."""
        parts = self.name.split(":")
        return (parts[2], parts[3]) if len(parts) == 4 and self.name.startswith(_ACCOUNT + ":") else None

    @classmethod
    def of_account(cls, namespace: str, name: str) -> User:
        """A service account as a user."""
        return cls(f"{_ACCOUNT}:{namespace}:{name}")


def authorize(storage: Storage, user: User, request: Request) -> None:
    """Refuse what no role that is bound to the user allows. Failure 403."""
    if any(_allows(rule, request) for rule in _rules(storage, user, request.target.namespace)):
        return
    target = request.target
    resource = target.resource.plural + (f"/{target.subresource}" if target.subresource else "")
    where = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
    what = f'cannot {request.verb} resource "{resource}" in API group "{target.resource.group}" {where}'
    name = f' "{target.name}"' if target.name else ""
    text = f'{target.resource.name}{name} is forbidden: User "{user.name}" {what}'
    raise Failure(403, "Forbidden", text, {"kind": target.resource.plural, "group": target.resource.group})


def _rules(storage: Storage, user: User, namespace: str) -> Iterator[Json]:
    """The rules of all roles that are bound to a user, in that namespace or everywhere."""
    for kind, where in (("clusterrolebindings", ""), ("rolebindings", namespace)):
        if kind == "rolebindings" and not namespace:
            continue
        for stored in storage.all((_GROUP, kind), where)[0]:
            if any(_is_user(subject, user, where) for subject in stored.value.get("subjects") or ()):
                yield from _role(storage, stored.value["roleRef"], where)


def _is_user(subject: Json, user: User, namespace: str) -> bool:
    if subject["kind"] == "ServiceAccount":
        return (subject.get("namespace") or namespace, subject["name"]) == user.account
    return subject["name"] == user.name if subject["kind"] == "User" else subject["name"] in user.groups


def _role(storage: Storage, reference: Json, namespace: str) -> list[Json]:
    plural, where = ("clusterroles", "") if reference["kind"] == "ClusterRole" else ("roles", namespace)
    found = storage.get((_GROUP, plural), (where, reference["name"]))
    return [] if found is None else found.value.get("rules") or []


def _allows(rule: Json, request: Request) -> bool:
    target = request.target
    resource = target.resource.plural + (f"/{target.subresource}" if target.subresource else "")
    names = rule.get("resourceNames")
    return (
        _in(request.verb, rule.get("verbs"))
        and _in(target.resource.group, rule.get("apiGroups"))
        and _in(resource, rule.get("resources"))
        and (not names or target.name in names)
    )


def _in(word: str, words: list[str] | None) -> bool:
    return word in (words or ()) or "*" in (words or ())
