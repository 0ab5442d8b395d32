"""Answer `resilin rpc` of the same user of this machine, also when all threads that run calls are stuck.

Frames of `_base.framing`, each one JSON object:

    {"op": "who"}                   -> {"job": j, "group": g, "worker": name, "pid": p}
    {"op": "waits", "limit_s": s}   -> {"workers": [...]}    what all workers of the group say; see gathered.py
    anything that cannot be done    -> {"error": text}

The socket has a name in the abstract namespace (Linux), which tells whose worker of which job it is; the kernel says
who asks. Other hosts' workers are asked through RPC, whose connections have proved the job's secret.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import sys
from typing import Any

from resilin._base import auth, env, framing, json_text
from resilin._base.clock import Deadline
from resilin.distributed.connections.accept_loop import AcceptLoop, Refusals, Visit
from resilin.distributed.wire.after_fork import track
from resilin.rpc.agent.agent import Agent
from resilin.rpc.serialization.messages import WAITS
from resilin.rpc.waits import gathered

_PREFIX = "resilin-rpc-waits"  # also known to the launcher, which looks for it
_BACKLOG = 8
_ASKED_MAX_BYTES = 4096
_LIMIT_S = 30.0  # the longest that anybody may have us wait for other workers


class DebugServer:
    """Listens for one worker."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._job = env.get("RESILIN_JOB") or env.get("TORCHELASTIC_RUN_ID") or ""
        self._refusals = Refusals("what RPC waits for")
        digest = hashlib.sha256(self._job.encode()).hexdigest()[:16]
        name = f"{_PREFIX}-{os.geteuid()}-{digest}-{os.getpid()}-{secrets.token_hex(4)}"
        listening = track(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listening.bind(b"\0" + name.encode())
        listening.listen(_BACKLOG)
        self._accept_loop = AcceptLoop("rpc-waits", [listening], self._serve)

    def close(self) -> None:
        """End every thread. Idempotent."""
        self._accept_loop.close()

    def _serve(self, visit: Visit) -> None:
        with self._refusals.noted():
            auth.require_same_user(visit.sock)
        visit.admit()
        while True:
            asked = framing.recv_frame(visit.sock, Deadline(None), _ASKED_MAX_BYTES)
            framing.send_frame(visit.sock, json.dumps(self._answer(asked)).encode())

    def _answer(self, asked: bytes) -> dict[str, Any]:
        try:
            request = json_text.parse(asked)
            op = request["op"]
            if op == "who":
                me = self._agent.me.name
                return {"job": self._job, "group": self._agent.membership.group, "worker": me, "pid": os.getpid()}
            if op == "waits":
                return {"workers": gathered.of_all(self._agent, min(max(float(request["limit_s"]), 0.0), _LIMIT_S))}
            raise ValueError(f"unknown op {op!r}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return {"error": f"{type(error).__name__}: {error}"}


def install(agent: Agent) -> None:
    """Let a worker that has not started be asked."""
    agent.answer(WAITS, lambda source, data: gathered.answer(agent))
    if sys.platform == "linux":
        agent.when_closed.append(DebugServer(agent).close)
