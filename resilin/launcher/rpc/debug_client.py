"""The sockets at which RPC workers of this machine answer their own user; see resilin/rpc/waits/debug_server.py."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilin._base import auth, framing, json_text
from resilin._base.clock import Deadline
from resilin.errors import DistNetworkError, HandshakeError, SecretRequired

LONGEST_S = 30.0  # that workers let anybody wait
_WHO_S = 2.0
_MORE_S = 1.0  # for the way, beyond what workers may take
_MAX_BYTES = 64 << 20
_SOCKETS = Path("/proc/net/unix")
_NAME = re.compile(r"@(resilin-rpc-waits-(?P<user>\d+)-(?P<job>[0-9a-f]{16})-(?P<pid>\d+)-[0-9a-f]{8})$", re.MULTILINE)


class Unanswered(Exception):
    """A worker does not answer; the text says which."""


@dataclass(frozen=True)
class Silent:
    """A worker of this machine that does not answer."""

    pid: int
    text: str


class RpcWorker:
    """A connection to one worker. OSError, Unanswered: it is gone, or does not answer."""

    def __init__(self, name: str, pid: int) -> None:
        self.pid = pid
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.settimeout(_WHO_S)
            self._socket.connect(b"\0" + name.encode())
            auth.require_same_user(self._socket)
            who = self._ask(_WHO_S, op="who")
        except BaseException:
            self._socket.close()
            raise
        self.job, self.group, self.worker = str(who["job"]), str(who["group"]), str(who["worker"])

    def waits(self, limit_s: float) -> list[dict[str, Any]]:
        """Return what all workers of its group wait for and run. Unanswered."""
        found: list[dict[str, Any]] = self._ask(limit_s + _MORE_S, op="waits", limit_s=limit_s)["workers"]
        return found

    def _ask(self, within_s: float, **request: Any) -> dict[str, Any]:
        try:
            framing.send_frame(self._socket, json.dumps(request).encode())
            answer: dict[str, Any] = json_text.parse(framing.recv_frame(self._socket, Deadline(within_s), _MAX_BYTES))
        except TimeoutError:
            raise Unanswered(
                f"the RPC worker with pid {self.pid} did not answer within {within_s:g} s: it may be stopped, or busy "
                "in code that holds the interpreter"
            ) from None
        if "error" in answer:
            raise Unanswered(f"the RPC worker with pid {self.pid} could not {request['op']}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


def of_job(job: str | None) -> list[RpcWorker | Silent]:
    """Return this user's workers on this machine of `job`, of any job without it; who takes them closes them."""
    digest = None if job is None else hashlib.sha256(job.encode()).hexdigest()[:16]
    found: list[RpcWorker | Silent] = []
    for name, of, pid in _names():
        if digest is not None and of != digest:
            continue
        try:
            found.append(RpcWorker(name, pid))
        except Unanswered as error:
            found.append(Silent(pid, str(error)))
        except TimeoutError:  # its queue of connections is full
            found.append(Silent(pid, f"the RPC worker with pid {pid} takes no connections: it may be stopped"))
        except (OSError, DistNetworkError, HandshakeError, SecretRequired):  # it ends just now, or is another user's
            continue
    return found


def _names() -> Iterator[tuple[str, str, int]]:
    try:
        text = _SOCKETS.read_text(encoding="utf-8", errors="replace")
    except OSError:  # no Linux
        return
    for found in dict.fromkeys(each.group(0) for each in _NAME.finditer(text)):
        each = _NAME.match(found)
        if each is not None and int(each["user"]) == os.geteuid():
            yield each[1], each["job"], int(each["pid"])
