"""Ask all workers of a group at once what they wait for and run; some may be dead, or stopped."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import Any

from resilin._base.clock import Deadline, spell
from resilin.rpc.agent.agent import Agent
from resilin.rpc.serialization.messages import WAITS
from resilin.rpc.waits import report


def answer(agent: Agent) -> bytes:
    """Return this worker's report as a message."""
    return json.dumps(report.of_worker(agent)).encode()


def of_all(agent: Agent, limit_s: float) -> list[dict[str, Any]]:
    """Return the reports of all workers, by id; of one that has not answered within `limit_s` an `error` instead."""
    others = {info.id: info.name for info in agent.peers.infos() if info.id != agent.me.id}
    said: dict[int, dict[str, Any]] = {}
    changed = threading.Condition()

    def heard(id: int, data: bytes) -> None:
        with changed:
            said[id] = json.loads(data)
            changed.notify()

    def ended(id: int, error: BaseException | None) -> None:
        with changed:
            if error is not None:
                said[id] = _unheard(agent, id, others[id], str(error))
            changed.notify()

    numbers = [agent.tell(id, WAITS, b"", partial(ended, id), partial(heard, id)) for id in others]
    deadline = Deadline(limit_s)
    with changed:
        while len(said) < len(others) and not deadline.passed():
            changed.wait(deadline.left())
        found = dict(said)
    for number in numbers:  # it is not told again
        agent.pending.pop(number)
    silent = f"did not answer within {spell(limit_s)}: it may be stopped, or busy in code that holds the interpreter"
    for id, name in others.items():
        found.setdefault(id, _unheard(agent, id, name, silent))
    found[agent.me.id] = report.of_worker(agent)
    return [found[id] for id in sorted(found)]


def _unheard(agent: Agent, id: int, name: str, error: str) -> dict[str, Any]:
    member = agent.peers.record_of(id)
    where = {} if member is None else {"host": member.at, "pid": member.pid}
    return {"worker": name, "id": id, **where, "error": error}
