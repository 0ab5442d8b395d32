"""Remembers where wrong proofs of a secret came from, and makes the next ones from there wait.

Keeps no thread and little memory: at most MAX_PLACES places, each for FORGET_S after its last wrong proof. Where
nobody was wrong nothing waits, so a stranger slows down who shares its place alone.
"""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from resilin._base.clock import SYSTEM, Clock
from resilin._base.host import is_loopback

FREE = 5  # wrong proofs that cost nothing: a node whose workers were given another job's secret hears it at once
FIRST_S, LONGEST_S = 0.05, 0.5  # the wait doubles from the first to the longest, which a peer with a deadline bears
FORGET_S = 60.0
MAX_PLACES = 1024

_NETWORK_BYTES = 8  # an IPv6 host may take any address of its network: they are one place


def place_of(address: str, user: Callable[[], int | None]) -> str:
    """Who is taken for one with whom: a host, or a user of this host, where the kernel names one."""
    address = address.partition("%")[0].removeprefix("::ffff:")
    if not address or is_loopback(address):  # any process may take any address of loopback
        number = user()
        return "this host" if number is None else f"user {number} of this host"
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address)
        return f"{socket.inet_ntop(socket.AF_INET6, packed[:_NETWORK_BYTES].ljust(16, bytes(1)))}/64"
    return address


@dataclass
class _Place:
    count: int = 0  # of wrong proofs, since it was last forgotten
    last: float = 0.0


class WrongProofs:
    """The wrong proofs that one server got. Thread-safe."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._places: OrderedDict[str, _Place] = OrderedDict()  # guarded by _lock: the last wrong one at the end

    def __bool__(self) -> bool:
        """Whether any place is remembered: where not, who a peer is need not be found out."""
        return bool(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def wait_s(self, place: str) -> float:
        """How long the next proof from there has to wait before it is looked at."""
        with self._lock:
            self._forget()
            found = self._places.get(place)
            over = found.count - FREE if found is not None else -1
        return min(LONGEST_S, FIRST_S * 2.0 ** min(over, 16)) if over >= 0 else 0.0

    def note(self, place: str) -> int:
        """A proof from there was wrong: how many by now."""
        with self._lock:
            self._forget()
            found = self._places.setdefault(place, _Place())
            found.count, found.last = found.count + 1, self._clock.monotonic()
            self._places.move_to_end(place)
            if len(self._places) > MAX_PLACES:
                self._places.popitem(last=False)
            return found.count

    def _forget(self) -> None:
        before = self._clock.monotonic() - FORGET_S
        while self._places and next(iter(self._places.values())).last < before:
            self._places.popitem(last=False)
