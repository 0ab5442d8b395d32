"""Answers /healthz, /readyz and /metrics over HTTP/1.1, for kubelets and Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

from resilin._base import host_port
from resilin.errors import UsageError

_REQUEST_TIMEOUT_S = 5.0
_MOST_BYTES = 8192
Page = Callable[[], tuple[int, str]]
"""Returns a status and a text."""
_WORDS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class HealthServer:
    """Serves pages by path. Use it as a context manager."""

    def __init__(self, host: str, port: int, pages: dict[str, Page]) -> None:
        self._host, self.port = host, port
        self._pages = pages
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self.port, limit=_MOST_BYTES)
        except OSError as error:
            where = host_port.join(self._host or "*", self.port)
            text = f"--health-host, --health-port: cannot listen at {where}: {error.strerror or error}"
            raise UsageError(text) from None
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer."""
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, text = self._answer(head)
                body = text.encode()
                lines = (
                    f"HTTP/1.1 {status} {_WORDS[status]}", "Content-Type: text/plain; version=0.0.4; charset=utf-8",
                    f"Content-Length: {len(body)}", "Connection: close",
                )  # fmt: skip
                writer.write("\r\n".join((*lines, "", "")).encode() + body)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # who asked is gone, or asked nothing
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, head: bytes) -> tuple[int, str]:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or words[0] != "GET":
            return 405, "GET only\n"
        page = self._pages.get(words[1].partition("?")[0])
        return page() if page is not None else (404, "no such page\n")
