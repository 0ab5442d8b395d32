"""Keep what one worker publishes under a name: its latest version, and who reads it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from resilin._base.clock import Deadline
from resilin.errors import RpcError, RpcTimeout, UsageError
from resilin.rpc.agent.agent import Agent
from resilin.rpc.agent.thread_pool import step_down
from resilin.rpc.constants import UNSET_RPC_TIMEOUT
from resilin.rpc.published import versions
from resilin.rpc.published.announcement import Announcement
from resilin.rpc.published.versions import Version
from resilin.rpc.serialization.messages import PUBLISHED
from resilin.rpc.timeouts import seconds


@dataclass
class _Reader:
    """A worker that is told of new versions. Guarded by the publication's lock."""

    told: int = 0
    """The last version that it was told of."""
    telling: bool = False
    """It has not answered yet: a worker that is stopped is told once, of the newest then, when it goes on."""
    has: int = 0


class Publication:
    """What a worker publishes under a name; `rpc.publish` returns it. Any thread."""

    def __init__(self, agent: Agent, name: str) -> None:
        self._agent, self.name = agent, name
        self.epoch = agent.peers.member.incarnation
        self._lock = threading.Condition()
        self._making = threading.Lock()  # versions are made one after the other
        self._latest: Version | None = None  # guarded by _lock
        self._number = 0  # guarded by _lock: of the last version, also when it is withdrawn
        self._readers: dict[int, _Reader] = {}  # guarded by _lock: by the worker's id

    def __repr__(self) -> str:
        return f"<Publication {self.name!r} version={self._number} readers={len(self._readers)}>"

    @property
    def version(self) -> int:
        """Return the number of the last version; 0: there was none."""
        return self._number

    @property
    def latest(self) -> Version | None:
        """Return the version that is handed out."""
        return self._latest

    def readers(self) -> dict[str, int]:
        """Return the version that each reader has taken over, by the workers' names; 0: none yet."""
        with self._lock:
            found = {id: reader.has for id, reader in self._readers.items()}
        return {self._agent.peers.name_of(id): has for id, has in found.items()}

    def put(self, state: Any, number: int | None, readers: list[int], checksum: bool) -> None:
        """Make the next version of `state`, and tell everybody. See `rpc.publish`."""
        with self._making:
            if number is None:
                number = self._number + 1
            elif number <= self._number:
                raise UsageError(
                    f"publish({self.name!r}): expected a version above {self._number}, the last one, got {number}"
                )
            made = versions.snapshot(self._agent, state)
            told = versions.checksum_of(versions.tensors_of(made)) if checksum else None
            with self._lock:
                self._latest, self._number = Version(self.epoch, number, made, told), number
                for id in readers:
                    self._readers.setdefault(id, _Reader())
                everybody = list(self._readers)
        for id in everybody:
            self._tell(id)

    def enrol(self, reader: int) -> int:
        """Tell a worker of new versions from now on; return the number of the latest, 0: there is none."""
        with self._lock:
            known = self._readers.setdefault(reader, _Reader())
            known.told = max(known.told, self._number)
            return 0 if self._latest is None else self._number

    def dismiss(self, reader: int) -> None:
        """Tell a worker of no more versions."""
        with self._lock:
            self._readers.pop(reader, None)
            self._lock.notify_all()

    def taken(self, reader: int, number: int) -> None:
        """Note that a reader has taken a version over."""
        with self._lock:
            known = self._readers.get(reader)
            if known is not None:
                known.has = max(known.has, number)
                self._lock.notify_all()

    def _tell(self, id: int) -> None:
        with self._lock:
            reader = self._readers.get(id)
            if reader is None or reader.telling or reader.told >= self._number:
                return
            reader.telling, reader.told = True, self._number
            said = Announcement(self.name, self.epoch, self._number).encoded()
        self._agent.tell(id, PUBLISHED, said, lambda error: self._told(id, error))

    def _told(self, id: int, error: BaseException | None) -> None:
        with self._lock:
            reader = self._readers.get(id)
            if reader is not None:
                reader.telling = False
        if error is None:
            self._tell(id)
        else:
            self.dismiss(id)

    def wait(self, version: int | None = None, timeout: float = UNSET_RPC_TIMEOUT) -> None:
        """Wait until all readers have taken over `version` (None: the last), or a newer one.

        A reader that dies meanwhile is waited for no longer. timeout: seconds; 0 is without end; without it that of the
        options holds. Raises: RpcTimeout, which names the readers that have not.
        """
        number = self._number if version is None else version
        limit = seconds(timeout, "timeout") if timeout != UNSET_RPC_TIMEOUT else self._agent.timeout_s
        deadline = Deadline(limit or None)
        step_down()
        with self._lock:
            while late := [id for id, reader in self._readers.items() if reader.has < number]:
                if self._agent.is_closed:
                    raise RpcError(f"publication {self.name!r}: RPC was shut down while readers were waited for")
                if deadline.passed():
                    names = ", ".join(self._agent.peers.name_of(id) for id in late)
                    raise RpcTimeout(
                        f"version {number} of {self.name!r} was not taken over within {limit:g} s by: {names}"
                    )
                self._lock.wait(deadline.left())

    def close(self) -> None:
        """Hand out nothing any more, until the next `publish`; readers keep what they have. Idempotent."""
        with self._lock:
            self._latest = None
            self._readers.clear()
            self._lock.notify_all()
