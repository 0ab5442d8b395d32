"""Answers requests: discovery, objects in the form that a client accepts, sub-resources of pods."""

from __future__ import annotations

import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from resilin.testing.kube import (
    discovery,
    openapi,
    openapi_v2,
    patches,
    pods,
    rbac,
    routes,
    scales,
    selectors,
    tables,
    versions,
)
from resilin.testing.kube.deletion import Deletion, Wish
from resilin.testing.kube.failures import Failure, Json, bad_request, expired
from resilin.testing.kube.faults import Faults
from resilin.testing.kube.objects import Objects, Target
from resilin.testing.kube.rbac import User
from resilin.testing.kube.resources import Registry
from resilin.testing.kube.routes import Request
from resilin.testing.kube.storage import Storage, StoredObject
from resilin.testing.kube.watches import ObjectWatch, Wanted

_KEPT_LISTS = 100  # lists that are read in parts: what is older is 410
_AS = re.compile(r"\bas=(\w+)")


@dataclass
class Answer:
    """A response: an object, its text, or a stream of lines."""

    code: int
    body: Json | bytes | None = None
    lines: Iterator[bytes] | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RawRequest:
    """A request as it comes over the connection."""

    method: str
    url: str
    accept: str
    media: str
    user_agent: str
    body: Any
    token: str = ""
    acts_as: str = ""  # a user whom the client wants to be


class Api:
    """One cluster's API."""

    def __init__(self, storage: Storage, registry: Registry, faults: Faults, minor: int, bookmark_every_s: float):
        self.storage, self.registry, self.faults = storage, registry, faults
        self.objects = Objects(storage, registry)
        self.deletion = Deletion(self.objects)
        self.closed = False
        self._minor, self._bookmark_every_s = minor, bookmark_every_s
        self.tokens: dict[str, User] = {}  # guarded by storage.lock
        self._rest: OrderedDict[str, tuple[list[StoredObject], int]] = OrderedDict()  # guarded by storage.lock

    def answer(self, message: RawRequest) -> Answer:
        """What a request is answered. Failure, or HangUp of a planned fault."""
        steps, query = routes.split(message.url)
        told = self._about_server(steps)
        if told is not None:
            return Answer(200, told)
        request = routes.read(message.method, steps, query, self.registry)
        self._authorize(message, request)
        about = (request.verb, request.target.resource.plural, request.target.subresource)
        self.faults.meet(*about, after=False)
        result = self._about_objects(request, message)
        self.faults.meet(*about, after=True)
        return result

    def _authorize(self, message: RawRequest, request: Request) -> None:
        """Refuse what the user may not do. Who has no token may do all, and be whoever they want. Failure 401, 403."""
        user = User(message.acts_as) if message.acts_as else None
        if message.token:
            with self.storage.lock:
                user = self.tokens.get(message.token)
            if user is None:
                raise Failure(401, "Unauthorized", "Unauthorized")
        if user is None:
            return
        rbac.authorize(self.storage, user, request)
        target = request.target
        if message.media == patches.APPLY and self.storage.get(target.kind, target.key) is None:
            rbac.authorize(self.storage, user, replace(request, verb="create"))

    def _about_server(self, steps: list[str]) -> Json | bytes | None:
        match steps:
            case ["healthz" | "livez" | "readyz"]:
                return b"ok"
            case ["version"]:
                return discovery.version(self._minor)
            case ["api"]:
                return discovery.core()
            case ["apis"]:
                return discovery.groups(self.registry.all())
            case ["apis", group]:
                return discovery.group(group, self.registry.all())
            case ["api", version]:
                return discovery.listed("", version, self.registry.all())
            case ["apis", group, version]:
                return discovery.listed(group, version, self.registry.all())
            case ["openapi", "v2"]:
                return openapi_v2.document(self.registry.all())
            case ["openapi", "v3"]:
                return openapi.groups(self.registry.all())
            case ["openapi", "v3", *rest] if rest:
                return openapi.document("/".join(rest), self.registry.all())
            case ["api" | "apis", *_]:
                return None
        raise Failure(404, "NotFound", "the server could not find the requested resource")

    def _about_objects(self, request: Request, message: RawRequest) -> Answer:
        target, query = request.target, request.query
        if request.verb == "list":
            return Answer(200, self._list(request, message.accept))
        if request.verb == "watch":
            return Answer(200, lines=self._watch(request, message.accept).lines())
        if request.verb == "get":
            return Answer(200, self._get(request, message))
        if request.verb == "deletecollection":
            return Answer(200, self._delete_several(request, message))
        if request.verb == "delete":
            last, gone = self.deletion.delete(target, Wish.read(message.body, query))
            return Answer(200, _deleted(target, last) if gone else self._encoded(target, last, message.accept))
        return self._write(request, message)

    def _write(self, request: Request, message: RawRequest) -> Answer:
        target = request.target
        applies = message.media == patches.APPLY
        options = routes.options(request.query, message.user_agent, applies)
        before = self.storage.get(target.kind, target.key) if target.name else None
        if target.subresource == "scale":
            media = message.media if request.verb == "patch" else None
            stored = scales.write(self.objects, target, media, message.body, options)
            assert target.resource.scale is not None
            return Answer(200, scales.shown(target.resource.scale, stored.value), warnings=options.warnings)
        if target.subresource in ("binding", "eviction", "token"):
            return Answer(201, pods.act(self.objects, self.deletion, target, message.body, options))
        if request.verb == "create":
            stored = self.objects.create(target, message.body, options)
        elif request.verb == "update":
            stored = self.objects.update(target, message.body, options)
        else:
            stored = self.objects.patch(target, message.media, message.body, options)
        if not options.dry_run:
            self.deletion.follow(stored.value)
        created = request.verb == "create" or (applies and before is None)
        body = self._encoded(target, stored, message.accept)
        return Answer(201 if created else 200, body, warnings=options.warnings)

    def _get(self, request: Request, message: RawRequest) -> Json | bytes:
        target = request.target
        stored = self.objects.get(target)
        if target.subresource == "scale" and target.resource.scale is not None:
            return scales.shown(target.resource.scale, stored.value)
        if target.subresource == "log":
            return pods.log(stored.value)
        return self._encoded(target, stored, message.accept)

    def _encoded(self, target: Target, stored: StoredObject, accept: str) -> Json | bytes:
        value = versions.shown(target.resource, stored.value)
        form = _form(accept)
        if form == "Table":
            revision = {"resourceVersion": value["metadata"].get("resourceVersion", "")}
            return tables.table(target.resource, [value], revision, "Metadata")
        if form == "PartialObjectMetadata":
            return tables.partial(value)
        return stored.encoded if value is stored.value else value

    def _selected(self, request: Request) -> selectors.Predicate:
        query, target = request.query, request.target
        by_label = selectors.labels(query.get("labelSelector", ""))
        text = query.get("fieldSelector", "")
        if target.resource.custom and text and not re.fullmatch(r"(metadata\.(name|namespace)[!=]=?[^,]*,?)*", text):
            raise bad_request(f"field label not supported: {text}")
        by_field = selectors.fields(text)
        return lambda one: by_label(one) and by_field(one)

    def _list(self, request: Request, accept: str) -> Json | bytes:
        query, target = request.query, request.target
        with self.storage.lock:
            there, revision = self._part(request)
            limit = int(query.get("limit") or 0)
            rest = there[limit:] if limit else []
            meta: Json = {"resourceVersion": str(revision)}
            if rest:
                meta["continue"] = secrets.token_urlsafe(12)
                meta["remainingItemCount"] = len(rest)
                self._rest[meta["continue"]] = (rest, revision)
                while len(self._rest) > _KEPT_LISTS:
                    self._rest.popitem(last=False)
        there = there[:limit] if limit else there
        return self._listed(request, there, meta, _form(accept), target)

    def _listed(
        self, request: Request, there: list[StoredObject], meta: Json, form: str, target: Target
    ) -> Json | bytes:
        resource = target.resource
        shown = [versions.shown(resource, one.value) for one in there]
        if form == "Table":
            return tables.table(resource, shown, meta, request.query.get("includeObject", "Metadata"))
        if form == "PartialObjectMetadataList":
            items = [tables.partial(one) for one in shown]
            return {"kind": form, "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": items}
        kind = resource.list_kind or resource.kind + "List"
        head = {"kind": kind, "apiVersion": resource.api_version, "metadata": meta}
        parts = [
            one.encoded if value is one.value else json.dumps(value).encode()
            for one, value in zip(there, shown, strict=True)
        ]
        return json.dumps(head, separators=(",", ":")).encode()[:-1] + b',"items":[' + b",".join(parts) + b"]}"

    def _part(self, request: Request) -> tuple[list[StoredObject], int]:
        token = request.query.get("continue")
        if token:
            if token not in self._rest:
                raise expired("The provided continue parameter is too old to display a consistent list result.")
            return self._rest.pop(token)
        selects = self._selected(request)
        there, revision = self.storage.all(request.target.kind, request.target.namespace)
        wanted = request.query.get("resourceVersion") or "0"
        if int(wanted) > revision:
            raise Failure(504, "Timeout", f"Too large resource version: {wanted}, current: {revision}", retry_after=1)
        return [one for one in there if selects(one.value)], revision

    def _watch(self, request: Request, accept: str) -> ObjectWatch:
        query, target = request.query, request.target
        form, resource = _form(accept), target.resource
        headers = [True]  # the first Table has the columns

        def shown(value: Json) -> Json:
            value = versions.shown(resource, value)
            if form == "PartialObjectMetadata":
                return tables.partial(value)
            if form != "Table":
                return value
            first, headers[0] = headers[0], False
            meta = {"resourceVersion": value["metadata"]["resourceVersion"]}
            return tables.table(resource, [value], meta, query.get("includeObject", "Metadata"), first)

        revision = query.get("resourceVersion", "")
        if revision and not revision.isdigit():
            raise bad_request(f'resourceVersion: Invalid value: "{revision}"')
        selects = self._selected(request)
        if target.name:
            selects = selectors.fields(f"metadata.name={target.name}")
        wanted = Wanted(
            target.kind,
            resource.api_version,
            resource.kind,
            target.namespace,
            selects,
            shown,
            revision,
            bookmarks=query.get("allowWatchBookmarks") in ("1", "true"),
            initial=query.get("sendInitialEvents") in ("1", "true"),
            timeout_s=float(query.get("timeoutSeconds") or 3600),
        )
        return ObjectWatch(self.storage, self.faults, wanted, self._bookmark_every_s, lambda: self.closed)

    def _delete_several(self, request: Request, message: RawRequest) -> Json | bytes:
        target = request.target
        with self.storage.lock:
            there, revision = self._part(request)
            for one in there:
                meta = one.value["metadata"]
                each = Target(target.resource, meta.get("namespace", ""), meta["name"])
                self.deletion.delete(each, Wish.read(message.body, request.query))
        return self._listed(request, there, {"resourceVersion": str(revision)}, "", target)


def _form(accept: str) -> str:
    """As what a client wants objects: "Table", "PartialObjectMetadata", "PartialObjectMetadataList" or as they are."""
    found = _AS.search(accept.partition(",")[0])
    name = found[1] if found else ""
    return name if name in ("Table", "PartialObjectMetadata", "PartialObjectMetadataList") else ""


def _deleted(target: Target, last: StoredObject) -> Json:
    resource = target.resource
    details: Mapping[str, str] = {"name": target.name, "kind": resource.plural, "uid": last.value["metadata"]["uid"]}
    if resource.group:
        details = {**details, "group": resource.group}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
