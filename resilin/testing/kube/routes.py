"""Reads what a request is about from its path, method and query. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from resilin.testing.kube.failures import Failure, bad_request
from resilin.testing.kube.objects import Target, WriteOptions
from resilin.testing.kube.resources import Registry

_UNKNOWN = "the server could not find the requested resource"
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_AGENT = re.compile(r"[^/\s]+")


@dataclass(frozen=True)
class Request:
    """A request for objects."""

    verb: str  # get, list, watch, create, update, patch, delete, deletecollection
    target: Target
    query: Mapping[str, str]


def split(url: str) -> tuple[list[str], dict[str, str]]:
    """The steps of a path, and the query."""
    parts = urlsplit(url)
    return [unquote(step) for step in parts.path.split("/") if step], dict(parse_qsl(parts.query, True))


def read(method: str, steps: Sequence[str], query: Mapping[str, str], registry: Registry) -> Request:
    """What a request below `/api/v1` or `/apis/GROUP/VERSION` is about. Failure 404, 405."""
    head = 2 if steps[0] == "api" else 3
    group, version = ("", steps[1]) if steps[0] == "api" else (steps[1], steps[2])
    rest = list(steps[head:])
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource = registry.find(group, version, rest[0])
    if len(rest) > 3 or (namespace and not resource.namespaced):
        raise Failure(404, "NotFound", _UNKNOWN)
    name, subresource = [*rest[1:], "", ""][:2]
    if name and resource.namespaced and not namespace:
        raise Failure(404, "NotFound", _UNKNOWN)
    if subresource and subresource not in resource.subresources:
        raise Failure(404, "NotFound", _UNKNOWN)
    verb = _verb(method, bool(name), query, subresource)
    if verb == "create" and resource.namespaced and not namespace:
        raise Failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    return Request(verb, Target(resource, namespace, name, subresource), query)


def _verb(method: str, single: bool, query: Mapping[str, str], subresource: str) -> str:
    verb = _VERBS.get(method)
    if (
        verb is None
        or (not single and verb in ("update", "patch"))
        or (single and verb == "create" and not subresource)
    ):
        raise Failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    if not single and verb == "get":
        return "watch" if query.get("watch") in ("1", "true") else "list"
    if not single and verb == "delete":
        return "deletecollection"
    return verb


def options(query: Mapping[str, str], user_agent: str, applies: bool) -> WriteOptions:
    """How a write is meant. A writer without a name is called after its program; apply must name itself."""
    found = _AGENT.match(user_agent)
    manager = query.get("fieldManager") or ("" if applies else found[0] if found else "unknown")
    validation = query.get("fieldValidation") or "Warn"
    if validation not in ("Ignore", "Warn", "Strict"):
        raise bad_request(f"fieldValidation: Unsupported value: {validation!r}: Ignore, Strict, Warn")
    dry_run = query.get("dryRun", "")
    if dry_run not in ("", "All"):
        raise bad_request(f'dryRun: Unsupported value: "{dry_run}": supported values: "All"')
    return WriteOptions(manager, dry_run == "All", query.get("force") == "true", validation)
