"""The process of `s3_server.S3Server`: moto's server behind planned faults. Its owner tells it by lines of JSON."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import BaseWSGIServer, make_server

from resilin._base.clock import SYSTEM

_HOST = "127.0.0.1"
_ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>planned</Message></Error>'
_CODES = {500: "InternalError", 503: "SlowDown", 403: "AccessDenied"}


class _Faulty:
    """A WSGI application in front of another one."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()  # moto looks for the object and then makes it; S3 does both at once
        self.faults: list[dict[str, Any]] = []  # guarded by _lock
        self.seen: list[str] = []  # guarded by _lock

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        fault = self._due(environ["REQUEST_METHOD"], environ["PATH_INFO"])
        if fault is not None:
            SYSTEM.sleep(fault["delay_s"])
            if fault["status"] is not None:
                return _refused(fault["status"], environ, start)
        conditional = environ["REQUEST_METHOD"] in ("PUT", "POST") and "HTTP_IF_NONE_MATCH" in environ
        with self._one_at_a_time if conditional else contextlib.nullcontext():
            answer: Iterable[bytes] = self._inner(environ, start)
        return answer

    def _due(self, method: str, path: str) -> dict[str, Any] | None:
        with self._lock:
            self.seen.append(f"{method} {path}")
            for fault in self.faults:
                if fault["times"] and fault["method"] in ("", method) and fault["path"] in path:
                    if fault["skip"]:
                        fault["skip"] -= 1
                        return None
                    fault["times"] -= 1
                    return fault
        return None

    def told(self, what: dict[str, Any]) -> str:
        """Do what the owner asks; the answer."""
        if "bucket" in what:
            return _make_bucket(what["port"], what["bucket"])
        with self._lock:
            if "requests" in what:
                seen, self.seen = self.seen, []
                return json.dumps(seen)
            self.faults = [] if "heal" in what else [*self.faults, what]
        return "ok"


def _refused(status: int, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
    if not status:  # as if the machine had gone
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionAbortedError
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))  # else the client sees a broken pipe
    body = _ERROR.format(code=_CODES.get(status, "Unknown")).encode()
    start(f"{status} planned", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]  # which has no body: the next answer would follow it


def _make_bucket(port: int, name: str) -> str:
    connection = http.client.HTTPConnection(_HOST, port, timeout=30)
    try:
        connection.request("PUT", f"/{name}", headers={"Authorization": "AWS4-HMAC-SHA256 Credential=test/s3/x"})
        return str(connection.getresponse().status)
    finally:
        connection.close()


def main() -> None:
    """Serve until standard input ends. The first line written is the port."""
    app = _Faulty(DomainDispatcherApplication(create_backend_app))
    server: BaseWSGIServer = make_server(_HOST, 0, app, threaded=True, request_handler=MotoRequestHandler)
    serving = threading.Thread(target=server.serve_forever, name="s3-server")
    serving.start()
    print(server.server_port, flush=True)
    for line in sys.stdin:
        print(app.told({**json.loads(line), "port": server.server_port}), flush=True)
    server.shutdown()
    serving.join()


if __name__ == "__main__":
    main()
