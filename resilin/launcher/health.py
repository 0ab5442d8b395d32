"""Answers gRPC's health checks, for kubelets: is this node's agent alive, and does it take part?

    service ""           SERVING: this node is in the world of the present generation (readiness)
    service "liveness"   SERVING: the agent's loop answers

and, for an operator, `/resilin.agent.v1.Agent/World`: what `Agent.world` says, as JSON.

The messages have one field each, so they are written and read here by hand: grpc brings no classes for them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from resilin._base import host_port
from resilin.elastic.agent.agent import Agent
from resilin.errors import UsageError

_CHECK, _WORLD = "/grpc.health.v1.Health/Check", "/resilin.agent.v1.Agent/World"
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse: field 1, a varint
_SERVICE_TAG = 0x0A  # HealthCheckRequest: field 1, a string
_ANSWER_S = 1.0
_SERVICES = ("", "liveness")
_T = TypeVar("_T")


class HealthServer:
    """Serves the health of `agent` at one address, until it is closed. Made in the agent's loop."""

    def __init__(self, agent: Agent, host: str, port: int) -> None:
        self._agent = agent
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(1, "health")
        self._server: Any = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((_Router({_CHECK: self._check, _WORLD: self._world}),))
        where = host_port.join(host, port)
        try:
            self.port = int(self._server.add_insecure_port(where))
        except RuntimeError:
            self._pool.shutdown()
            raise UsageError(f"--health-port: {where} cannot be listened on: is something there already?") from None
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._server.stop(None).wait(_ANSWER_S)
        self._pool.shutdown(wait=False)

    def _check(self, request: bytes, context: Any) -> bytes:
        service = _service(request)
        if service not in _SERVICES:
            context.abort(grpc.StatusCode.NOT_FOUND, f"expected service '' or 'liveness', got {service!r}")
        try:
            takes_part = self._ask(_takes_part(self._agent))
        except TimeoutError:
            return _NOT_SERVING
        return _SERVING if service == "liveness" or takes_part else _NOT_SERVING

    def _world(self, request: bytes, context: Any) -> bytes:
        try:
            return json.dumps(self._ask(_world(self._agent))).encode()
        except TimeoutError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the agent's loop does not answer")
            raise

    def _ask(self, question: Coroutine[Any, Any, _T]) -> _T:
        """The agent's answer, in its own loop. TimeoutError: it gives none."""
        asked = asyncio.run_coroutine_threadsafe(question, self._loop)
        try:
            return asked.result(_ANSWER_S)
        except TimeoutError:
            asked.cancel()
            raise


class _Router(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, methods: dict[str, Callable[[bytes, Any], bytes]]) -> None:
        self._handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}

    def service(self, call: Any) -> Any:
        return self._handlers.get(call.method)


async def _takes_part(agent: Agent) -> bool:
    return agent.takes_part


async def _world(agent: Agent) -> dict[str, Any]:
    return agent.world


def _service(request: bytes) -> str:
    """The service that a request names: its first field; none means all of it."""
    if len(request) < 2 or request[0] != _SERVICE_TAG:
        return ""
    return request[2 : 2 + request[1]].decode("utf-8", "replace")  # a length below 128 is one byte
