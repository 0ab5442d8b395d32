"""Opens the store a job meets in: memory of this process, a server here, or a client of one elsewhere."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from urllib.parse import quote

from resilin._base.clock import SYSTEM, Deadline
from resilin.elastic import records
from resilin.errors import SecretRequired, StoreError, StoreTimeout, UsageError
from resilin.launcher import addresses, cwd
from resilin.launcher.plan import Meeting
from resilin.store.base import Store
from resilin.store.connect import connect
from resilin.store.memory import MemoryStore

if TYPE_CHECKING:
    from resilin.store.server import StoreServer

CALL_TIMEOUT_S = 5.0  # one call to the store
LINGER_S = 1.0  # on top of the lease: how long a host waits for the others to have left
PING_TIMEOUT_S = 2.0  # one attempt to reach it at the start
_RETRY_S = 0.2


class OpenStore:
    """A store and what serves it. `in_process`: it is memory of this process, calls never block."""

    def __init__(self, store: Store, *, in_process: bool = False, server: StoreServer | None = None) -> None:
        self.store = store
        self.in_process = in_process
        self._server = server

    def linger(self, job: str, seconds: float) -> None:
        """As the host: wait until every other node has left, at most `seconds`."""
        if self._server is None:
            return
        prefix = records.Keys(job).nodes
        changed = threading.Event()
        deadline = Deadline(seconds)
        with self.store.watch(prefix, lambda events: changed.set()):
            while self.store.range(prefix)[0] and not deadline.passed():
                changed.wait(deadline.left())
                changed.clear()

    def close(self) -> None:
        """Stop serving and free the store."""
        if self._server is not None:
            self._server.close()
        self.store.close()


def open_store(meeting: Meeting, secret: str) -> OpenStore:
    """The store of `meeting`. StoreTimeout or StoreError (exit code 3) when it cannot be reached or served."""
    if meeting.backend == "standalone":
        return OpenStore(MemoryStore(SYSTEM), in_process=True)
    if meeting.backend == "file":
        return OpenStore(connect(f"file://{cwd.absolute(meeting.endpoint, '--rdzv-endpoint')}"))
    if meeting.backend == "etcd":
        return _reach(meeting, "an etcd", None)
    host, port = meeting.place
    expected = "the store of another elastic-run"
    if may_serve(meeting):
        served = _serve(host, port, secret, must=bool(meeting.is_host))
        if served is not None:
            return served
        expected += f" (the port is taken on this host: `ss -ltnp sport = :{port}` shows by whom)"
    return _reach(meeting, expected, secret or None)


def may_serve(meeting: Meeting) -> bool:
    """Whether this node serves an embedded store: told to, or, untold, because the endpoint's address is its own."""
    return bool(meeting.is_host) or (meeting.is_host is None and addresses.is_own(meeting.place.host))


def _serve(host: str, port: int, secret: str, must: bool) -> OpenStore | None:
    """A server on host:port over memory of this process; None when another one is there already.

    Whatever else keeps it from listening would keep it from doing so for ever, and is raised at once.
    """
    from resilin.store.server import PortTaken, StoreServer  # loads grpc (60 to 100 ms), which most launches never need

    state = MemoryStore(SYSTEM)
    try:
        return OpenStore(state, in_process=True, server=StoreServer(state, host, port, secret or None))
    except BaseException as error:
        state.close()
        if isinstance(error, UsageError) and not isinstance(error, SecretRequired):
            if isinstance(error, PortTaken) and not must:
                return None
            raise StoreError(str(error)) from None
        raise


def _reach(meeting: Meeting, expected: str, secret: str | None) -> OpenStore:
    """A client that has had an answer. Other nodes may be started before the one that serves, so it keeps trying."""
    scheme = "etcd" if meeting.backend == "etcd" else "embedded"
    user, password = (quote(text, safe="") for text in (meeting.login.user, meeting.login.password))
    login = f"{user}:{password}@" if user else ""
    url = f"{scheme}://{login}{meeting.endpoint.removeprefix(f'{scheme}://')}"
    deadline = Deadline(meeting.connect_timeout_s)
    while True:
        try:
            connect(url, secret, max(0.1, min(PING_TIMEOUT_S, deadline.left() or 0.0))).close()
            return OpenStore(connect(url, secret, CALL_TIMEOUT_S))
        except StoreTimeout:
            if deadline.passed():
                raise StoreTimeout(
                    f"{meeting.endpoint} did not answer within {meeting.connect_timeout_s:g} s, expected {expected} "
                    "there. Is it running, is the address right, does a firewall block the port?"
                ) from None
            SYSTEM.sleep(min(_RETRY_S, deadline.left() or 0.0))
