"""Calls an API server over HTTP. The only module that knows lightkube and its HTTP library.

Of lightkube: where the server is, who we are (in a cluster, from a kubeconfig, tokens that are renewed, commands that
give them) and TLS. Objects stay JSON as it came: the operator keeps views of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import httpx2
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import Cluster, Context, User
from lightkube.core.exceptions import ConfigError

from resilin.errors import ClusterError, UsageError
from resilin.operator import names, yaml_text
from resilin.operator.api import RESOURCES, Raw, WatchEvent

CALL_TIMEOUT_S = 10.0  # to connect, to send, and between two pieces of an answer
_WHOLE_CALL_S = 30.0  # an answer that comes in drops is given up, too
_PAGE = 500  # objects of a list in one answer, as client-go
_SILENCE_S = 15.0  # after the server should have ended a watch: then the connection is dead
_MOST_LINE_BYTES = 16 << 20  # of one event: an object has at most 1.5 MiB
_UNREADABLE = (ConfigError, OSError, yaml_text.error_type(), KeyError, AttributeError, TypeError, ValueError)
_APPLY = {"Content-Type": "application/apply-patch+yaml"}  # JSON is YAML
_MERGE = {"Content-Type": "application/merge-patch+json"}


def find_server(url: str = "") -> SingleConfig:
    """Return where the server is: `url` (no TLS, no user: a proxy, a test), the cluster we run in, or KUBECONFIG."""
    if url:
        return SingleConfig("given", Context(cluster="given"), Cluster(server=url), User())
    try:
        found = KubeConfig.from_env().get()
    except _UNREADABLE as error:
        said = str(error) if isinstance(error, ConfigError | OSError) else f"{type(error).__name__}: {error}"
        raise UsageError(
            f"no cluster: expected to run in one, or a kubeconfig (KUBECONFIG), got {' '.join(said.split())}"
        ) from None
    if found is None:
        raise UsageError("no cluster: the kubeconfig names no current context")
    if not str(found.cluster.server).startswith(("https://", "http://")):
        raise UsageError(f"kubeconfig: clusters[].cluster.server: expected a URL, got {found.cluster.server!r}")
    return found if found.user is not None else found._replace(user=User())


class Client:
    """An API server. Close it in the end."""

    def __init__(self, config: SingleConfig, watch_s: float = 120.0) -> None:
        """Connect to nothing yet. `watch_s`: how long one watch lasts; one that dies in silence is noticed so late.

        UsageError: a file that the kubeconfig names cannot be used.
        """
        parameters = ConnectionParams(timeout=httpx2.Timeout(CALL_TIMEOUT_S), trust_env=False)
        try:
            self._http = AsyncClient(config, parameters)
        except (ConfigError, OSError, ValueError) as error:
            text = f"kubeconfig: the certificates or the user cannot be used: {type(error).__name__}: {error}"
            raise UsageError(text) from None
        self._watch_s = watch_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        await self._http.aclose()

    async def list(
        self, kind: str, namespace: str | None, selector: str = "", *, fields: str = ""
    ) -> tuple[list[Raw], int]:
        """Return all objects as the store has them now, page by page, and the resource version read at."""
        path, token = RESOURCES[kind].path(namespace), ""
        items: list[Raw] = []
        while True:
            query = {"limit": str(_PAGE), "labelSelector": selector, "fieldSelector": fields, "continue": token}
            answer = await self._call("GET", path, query={key: value for key, value in query.items() if value})
            items += answer.get("items") or ()
            token = answer["metadata"].get("continue") or ""
            if not token:
                return items, int(answer["metadata"]["resourceVersion"])

    async def watch(self, kind: str, namespace: str | None, selector: str, version: int) -> AsyncIterator[WatchEvent]:
        """Yield what happened after `version` until the server ends the watch. ClusterError 410: it is too old."""
        query = {
            "watch": "true", "resourceVersion": str(version), "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, int(self._watch_s))),
        }  # fmt: skip
        if selector:
            query["labelSelector"] = selector
        timeout = httpx2.Timeout(CALL_TIMEOUT_S, read=self._watch_s + _SILENCE_S)
        path = RESOURCES[kind].path(namespace)
        try:
            async with self._http.stream("GET", path, params=query, timeout=timeout) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise _refused(answer)
                async for line in _lines(answer):
                    yield _event(line)
        except httpx2.HTTPError as error:
            raise ClusterError(f"watch of {kind}: {type(error).__name__}: {error}") from None

    async def get(self, kind: str, namespace: str, name: str) -> Raw:
        """Return one object."""
        return await self._call("GET", RESOURCES[kind].path(namespace, name))

    async def create(self, kind: str, namespace: str, manifest: Raw, *, dry_run: bool = False) -> Raw:
        """Make an object; with `dry_run` only find out whether that could be done."""
        query = {**_MANAGER, "dryRun": "All"} if dry_run else _MANAGER
        return await self._call("POST", RESOURCES[kind].path(namespace), manifest, query=query)

    async def apply(self, kind: str, namespace: str, name: str, manifest: Raw) -> Raw:
        """Make the manifest's fields so; never by force."""
        path = RESOURCES[kind].path(namespace, name)
        return await self._call("PATCH", path, manifest, query=_MANAGER, headers=_APPLY)

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str, grace_s: int | None = None, version: str = ""
    ) -> Raw:
        """Ask for the end of the object of that uid, and where one is given of that resource version."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if version:
            options["preconditions"]["resourceVersion"] = version
        options["propagationPolicy"] = "Background"
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        return await self._call("DELETE", RESOURCES[kind].path(namespace, name), options)

    async def update(self, kind: str, namespace: str, name: str, manifest: Raw, sub: str = "") -> Raw:
        """Replace an object, or its sub-resource."""
        return await self._call("PUT", RESOURCES[kind].path(namespace, name, sub), manifest, query=_MANAGER)

    async def merge(self, kind: str, namespace: str, name: str, patch: Raw) -> Raw:
        """Change fields of an object."""
        path = RESOURCES[kind].path(namespace, name)
        return await self._call("PATCH", path, patch, query=_MANAGER, headers=_MERGE)

    async def _call(
        self, method: str, path: str, body: Raw | None = None, *, query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Raw:  # fmt: skip
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        sent = headers or ({"Content-Type": "application/json"} if content is not None else {})
        try:
            async with asyncio.timeout(_WHOLE_CALL_S):
                answer = await self._http.request(method, path, params=query, content=content, headers=sent)
        except TimeoutError:
            raise ClusterError(f"{method} {path}: no whole answer within {_WHOLE_CALL_S:g} s") from None
        except httpx2.HTTPError as error:
            text = f"{method} {path}: {type(error).__name__}: {error}"
            raise ClusterError(text) from None
        if answer.status_code >= 300:
            raise _refused(answer)
        try:
            value: Raw = json.loads(answer.content)
        except ValueError:
            raise ClusterError(f"{method} {path}: expected JSON, got {answer.content[:80]!r}") from None
        return value


_MANAGER = {"fieldManager": names.MANAGER}


def _refused(answer: httpx2.Response) -> ClusterError:
    """The error that an answer stands for: the server's own words where it sent a Status."""
    try:
        status = json.loads(answer.content)
    except ValueError:
        status = {}
    if not isinstance(status, dict) or status.get("kind") != "Status":
        status = {"message": answer.text[:200] or f"HTTP status {answer.status_code}"}
    return _error(status, answer.status_code, answer.headers.get("Retry-After"))


def _error(status: Raw, code: int, retry_after: str | None = None) -> ClusterError:
    details = status.get("details") or {}
    conflicts = any(one.get("reason") == "FieldManagerConflict" for one in details.get("causes") or ())
    after = retry_after if retry_after and retry_after.isdecimal() else details.get("retryAfterSeconds")
    return ClusterError(
        str(status.get("message") or "refused"),
        code=int(status.get("code") or code),
        reason="FieldManagerConflict" if conflicts else str(status.get("reason") or ""),
        retry_after_s=float(after) if after else None,
    )


async def _lines(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """Whole lines. Only the byte LF ends one: other line ends of Unicode may stand inside of JSON texts."""
    rest = b""
    async for chunk in answer.aiter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > _MOST_LINE_BYTES:
            raise ClusterError(f"a watch sent a line of more than {_MOST_LINE_BYTES} bytes")
    if rest.strip():
        raise ClusterError("a watch was cut in the middle of an event")


def _event(line: bytes) -> WatchEvent:
    try:
        event = json.loads(line)
        kind, value = event["type"], event["object"]
    except (ValueError, KeyError, TypeError):
        raise ClusterError(f"a watch sent {line[:80]!r}, expected an event") from None
    if kind == "ERROR":
        raise _error(value, int(value.get("code") or 0))
    return WatchEvent(kind, value)
