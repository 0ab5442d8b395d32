"""Speaks HTTP to the test API server, as plainly as can be: what is tested is what goes over the connection."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

from resilin.testing.patience import PATIENCE_S

JOBS = "/apis/resilin.dev/v1alpha1/namespaces/default/elasticjobs"
MEDIA = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


def job(name: str = "digits", **spec: Any) -> dict[str, Any]:
    """An ElasticJob."""
    template = {"spec": {"containers": [{"name": "worker", "image": "resilin:cpu"}]}}
    spec = {"replicas": 2, "template": template, **spec}
    return {"apiVersion": "resilin.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": name}, "spec": spec}


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    """A pod."""
    metadata = {"name": name, **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "a"}]}}


class Answered(dict[str, Any]):
    """A body, with the status and the headers beside it."""

    def __init__(self, code: int, headers: dict[str, str], body: Any) -> None:
        super().__init__(body if isinstance(body, dict) else {})
        self.code, self.headers, self.body = code, headers, body


class RawClient:
    """One connection."""

    def __init__(self, url: str, **headers: str) -> None:
        self._netloc = urlsplit(url).netloc
        self._headers = {"User-Agent": "test/1", "Accept": "application/json", **headers}

    def ask(self, method: str, path: str, body: Any = None, media: str = "", /, **query: Any) -> Answered:
        """One request; `media` names a patch."""
        connection = http.client.HTTPConnection(self._netloc, timeout=PATIENCE_S)
        headers = {**self._headers, "Content-Type": MEDIA.get(media, "application/json")}
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, f"{path}?{urlencode(query)}", text, headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        is_json = response.headers.get_content_type() == "application/json"
        return Answered(response.status, dict(response.headers), json.loads(answer) if is_json else answer)

    def get(self, path: str, **query: Any) -> Answered:
        """GET."""
        return self.ask("GET", path, **query)

    def post(self, path: str, body: Any, **query: Any) -> Answered:
        """POST."""
        return self.ask("POST", path, body, **query)

    def put(self, path: str, body: Any, **query: Any) -> Answered:
        """PUT."""
        return self.ask("PUT", path, body, **query)

    def patch(self, path: str, media: str, body: Any, **query: Any) -> Answered:
        """PATCH of one of the media."""
        return self.ask("PATCH", path, body, media, **query)

    def delete(self, path: str, body: Any = None, **query: Any) -> Answered:
        """DELETE."""
        return self.ask("DELETE", path, body, **query)

    @contextmanager
    def watching(self, path: str, **query: Any) -> Iterator[Iterator[bytes]]:
        """The lines of a watch as they come; ended by the end of the block."""
        connection = http.client.HTTPConnection(self._netloc, timeout=PATIENCE_S)
        try:
            connection.request("GET", f"{path}?{urlencode({'watch': '1', **query})}", headers=self._headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            yield iter(response.readline, b"")
        finally:
            connection.close()


def event(line: bytes) -> tuple[str, str, str]:
    """Of one line of a watch: the type, the object's name, and its resourceVersion."""
    value = json.loads(line)
    meta = value["object"].get("metadata", {})
    return value["type"], meta.get("name", ""), meta.get("resourceVersion", "")
