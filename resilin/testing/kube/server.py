"""A Kubernetes API server for tests, over HTTP on loopback. It keeps everything in memory and is ended by its owner."""

from __future__ import annotations

import contextlib
import http.server
import json
import secrets
import socket
import sys
import threading
from types import TracebackType
from typing import Any, Self

import yaml

from resilin.testing.kube import failures
from resilin.testing.kube.api import Answer, Api, RawRequest
from resilin.testing.kube.failures import Failure, Json
from resilin.testing.kube.faults import Faults, HangUp
from resilin.testing.kube.objects import Target, WriteOptions
from resilin.testing.kube.rbac import User
from resilin.testing.kube.resources import Registry
from resilin.testing.kube.storage import Storage
from resilin.testing.kube.watches import Cut

_MOST_BYTES = 3 << 20  # of a request's body, as Kubernetes' own limit
_LONGEST_QUIET_S = 120.0  # of a connection between requests
_FIRST_NAMESPACES = ("default", "kube-system", "kube-public")


class KubeServer:
    """One cluster without nodes: `url` is what clients take, `faults` what goes wrong on demand."""

    def __init__(self, minor: int = 36, keep: int = 10_000, bookmark_every_s: float = 60.0) -> None:
        """Start serving. `minor`: of the version that it calls itself; `keep`: changes that can be watched."""
        self.storage, self.registry = Storage(keep), Registry()
        self.faults = Faults(self.storage)
        self.api = Api(self.storage, self.registry, self.faults, minor, bookmark_every_s)
        for name in _FIRST_NAMESPACES:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self._server = _Server(self.api)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="kube-server", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def create(self, value: Json, manager: str = "test") -> Json:
        """Create an object without a connection; returns it as stored."""
        target = self._target(value)
        stored = self.api.objects.create(target, value, WriteOptions(manager))
        self.api.deletion.follow(stored.value)
        return stored.value

    def get(self, api_version: str, kind: str, name: str, namespace: str = "default") -> Json | None:
        """An object as stored, or None."""
        resource = self.registry.with_kind(api_version, kind)
        assert resource is not None, f"no resource {api_version} {kind}"
        target = Target(resource, namespace if resource.namespaced else "", name)
        stored = self.storage.get(target.kind, target.key)
        return None if stored is None else stored.value

    def find(self, api_version: str, kind: str, namespace: str = "") -> list[Json]:
        """All objects of a kind, as stored."""
        resource = self.registry.with_kind(api_version, kind)
        assert resource is not None, f"no resource {api_version} {kind}"
        return [stored.value for stored in self.storage.all(Target(resource).kind, namespace)[0]]

    def token(self, namespace: str, account: str) -> str:
        """A token of a service account: with it, a client may do what the stored roles allow and nothing else."""
        token = secrets.token_urlsafe(16)
        with self.storage.lock:
            self.api.tokens[token] = User.of_account(namespace, account)
        return token

    def _target(self, value: Json) -> Target:
        resource = self.registry.with_kind(value["apiVersion"], value["kind"])
        assert resource is not None, f"no resource {value['apiVersion']} {value['kind']}"
        return Target(resource, value["metadata"].get("namespace", "default") if resource.namespaced else "")

    def close(self) -> None:
        """Stop serving: connections end, watches too."""
        with self.storage.changed:
            self.api.closed = True
            self.storage.changed.notify_all()
        self._server.shutdown()
        self._server.end_connections()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # server_close() joins them
    request_queue_size = 128

    def __init__(self, api: Api) -> None:
        self.api = api
        self._connections: set[socket.socket] = set()  # guarded by _lock
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error of the server; all else is shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def end_connections(self) -> None:
        """Wake the threads that read or write."""
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):  # ended by the client meanwhile
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = _LONGEST_QUIET_S
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: tests look at what was answered."""

    def _answer(self) -> None:
        try:
            try:
                answer = self.server.api.answer(self._message())
            except Failure as failure:
                answer = Answer(failure.code, failure.status())
                self._send(answer, failure.retry_after)
                return
            self._send(answer)
        except (HangUp, BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def _message(self) -> RawRequest:
        headers = self.headers
        length = int(headers.get("Content-Length") or 0)
        if length > _MOST_BYTES:
            raise Failure(413, "RequestEntityTooLarge", f"limit is {_MOST_BYTES}")
        text = self.rfile.read(length)
        media = headers.get("Content-Type", "application/json").partition(";")[0].strip()
        body = _parsed(text, media) if text else None
        accept, agent = headers.get("Accept", ""), headers.get("User-Agent", "")
        token = headers.get("Authorization", "").removeprefix("Bearer ")
        acts_as = headers.get("Impersonate-User", "")
        return RawRequest(self.command, self.path, accept, media, agent, body, token, acts_as)

    def _send(self, answer: Answer, retry_after: int = 0) -> None:
        self.send_response(answer.code)
        for warning in answer.warnings:
            self.send_header("Warning", f'299 - "{warning.replace(chr(34), chr(92) + chr(34))}"')
        if retry_after:
            self.send_header("Retry-After", str(retry_after))
        if answer.lines is not None:
            self._stream(answer)
            return
        plain = isinstance(answer.body, bytes)
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        text = plain and not body.startswith(b"{")
        self.send_header("Content-Type", "text/plain" if text else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, answer: Answer) -> None:
        assert answer.lines is not None
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for line in answer.lines:
                self._chunk(line)
            self._chunk(b"")
        except Cut as cut:
            if cut.part:
                self._chunk(cut.part)
            self.close_connection = True

    def _chunk(self, part: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))


def _parsed(text: bytes, media: str) -> Any:
    if not media.endswith(("json", "yaml")):
        raise failures.unsupported_media(media, ("application/json", "application/yaml"))
    try:
        return yaml.safe_load(text) if media.endswith("yaml") and not text.startswith(b"{") else json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        raise Failure(400, "BadRequest", f"the body cannot be read as {media}: {error}") from None
