"""Serves the page on this machine alone, under a name that nobody else knows.

Other users of the machine, and pages of other sites in the same browser, reach the port, but not the name: what they
ask for is not there. A place is opened by its number in the report, never by a path that a request names.
"""

from __future__ import annotations

import contextlib
import gzip
import http.server
import secrets
import sys
from http import HTTPStatus
from typing import Any

from resilin._base import host_port
from resilin.errors import UsageError
from resilin.profiler.view import page_files
from resilin.profiler.view.editor import Editor
from resilin.profiler.view.places import SourceLine

HOST = "127.0.0.1"
_QUIET_S = 30.0  # a connection that sends nothing for so long is closed
_OPEN = "open/"


class ViewServer(http.server.ThreadingHTTPServer):
    """A report until `server_close`. It listens at once; who asks before it has its report waits."""

    daemon_threads = True  # a browser that keeps a connection does not keep the program

    def __init__(self, port: int, editor: Editor | None) -> None:
        """Listen on `port`, 0: on a free one. UsageError when it is taken, or is none."""
        self.files = page_files.served()
        self.packed = b""
        self.places: list[SourceLine] = []
        self.editor = editor
        self.secret = secrets.token_urlsafe(16)
        if not 0 <= port <= host_port.MAX_PORT:
            raise UsageError(f"--port {port}: expected 0 (any) to {host_port.MAX_PORT}")
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise UsageError(f"--port {port}: cannot be listened on: {error.strerror}") from None

    def show(self, data: str, places: list[SourceLine]) -> None:
        """Take the report, before anybody is answered."""
        self.packed, self.places = gzip.compress(data.encode(), 5), places

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{host_port.join(HOST, self.server_port)}/{self.secret}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that goes away; all else is shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: ViewServer
    timeout = _QUIET_S
    server_version = "resilin"
    sys_version = ""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        name = self._name()
        if name == "data.json":
            self._send(HTTPStatus.OK, self.server.packed, "application/json", packed=True)
        elif name is not None and name in self.server.files:
            kind = page_files.TYPES[name[name.rfind(".") :]] if name else "text/html"
            self._send(HTTPStatus.OK, self.server.files[name], kind)
        else:
            self._say(HTTPStatus.NOT_FOUND, "there is no such page; its address was printed when it began")

    def do_POST(self) -> None:
        name = self._name() or ""
        number = name.removeprefix(_OPEN)
        if not name.startswith(_OPEN) or not (number.isascii() and number.isdigit() and len(number) < 10):
            self._say(HTTPStatus.NOT_FOUND, "expected the number of a place")
            return
        place = self.server.places[int(number)] if int(number) < len(self.server.places) else None
        if place is None or place.path is None or self.server.editor is None:
            self._say(HTTPStatus.NOT_FOUND, "no such file is known here, or no --editor was given")
            return
        try:
            self.server.editor.open(place.path, place.line)
        except OSError as error:
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, f"the editor cannot be started: {error.strerror}")
            return
        self._say(HTTPStatus.OK, "opened")

    def _name(self) -> str | None:
        """What is asked for beneath the secret name; None: not beneath it, or under another host's name."""
        hosts = [host_port.join(name, self.server.server_port) for name in (HOST, "localhost")]
        start = f"/{self.server.secret}/"
        if self.headers.get("Host") not in hosts or not secrets.compare_digest(
            self.path[: len(start)].encode(), start.encode()
        ):
            return None
        return self.path[len(start) :]

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._send(status, text.encode(), "text/plain")

    def _send(self, status: HTTPStatus, body: bytes, kind: str, *, packed: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if packed:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Security-Policy", page_files.policy())
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body)
