"""Say which calls one worker waits for, and which it runs."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from resilin._base.clock import SYSTEM
from resilin.distributed.work.future import Future
from resilin.rpc.agent.agent import Agent

_MOST = 1000  # calls of each kind that are told of, the oldest first
_WAITS = frozenset({Future.settled_within.__code__, Future.wait.__code__})
_DEEP = 4  # frames above that in which a thread waits for a future


def of_worker(agent: Agent) -> dict[str, Any]:
    """Return what a worker waits for and runs, as JSON; ages in seconds. What ends meanwhile may show."""
    now = SYSTEM.monotonic()
    running = {request.thread: key for key, request in list(agent.server.active.items()) if request.thread}
    return {
        "worker": agent.me.name,
        "id": agent.me.id,
        "host": agent.peers.member.at,
        "pid": agent.peers.member.pid,
        "threads": agent.num_threads,
        "waits": _oldest(_waits(agent, running, now)),
        "runs": _oldest(_runs(agent, now)),
    }


def _oldest(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(calls, key=lambda call: -call["age_s"])[:_MOST]


def _waits(agent: Agent, running: dict[int, tuple[int, int]], now: float) -> list[dict[str, Any]]:
    waited = _waited_for()
    found = []
    for peer, number, name, begun, thread in agent.blocking_calls():
        found.append(_wait(agent, peer, number, name, now - begun, True, running.get(thread)))
    for number, call in agent.pending.calls():
        threads = waited.get(id(call.future), ())
        within = next((running[thread] for thread in threads if thread in running), None)
        found.append(_wait(agent, call.peer, number, call.name, now - call.begun, bool(threads), within))
    return found


def _wait(
    agent: Agent, peer: int, number: int, name: bytes, age_s: float, blocks: bool, within: tuple[int, int] | None
) -> dict[str, Any]:
    return {
        "to": agent.peers.name_of(peer),
        "to_id": peer,
        "number": number,
        "function": name.decode("utf-8", "replace"),
        "age_s": max(0.0, age_s),
        "blocks": blocks,
        "within": None if within is None else list(within),
    }


def _runs(agent: Agent, now: float) -> list[dict[str, Any]]:
    return [
        {
            "from": agent.peers.name_of(source),
            "from_id": source,
            "number": number,
            "function": request.name.decode("utf-8", "replace"),
            "age_s": max(0.0, now - request.begun),
            "thread": bool(request.thread),
        }
        for (source, number), request in list(agent.server.active.items())
    ]


def _waited_for() -> dict[int, list[int]]:
    """The threads that wait for a future, by its identity."""
    found: dict[int, list[int]] = {}
    for thread, innermost in sys._current_frames().items():
        frame: FrameType | None = innermost
        for _ in range(_DEEP):
            if frame is None:
                break
            if frame.f_code in _WAITS:
                found.setdefault(id(frame.f_locals.get("self")), []).append(thread)
                break
            frame = frame.f_back
    return found
