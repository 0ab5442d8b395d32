"""Carry a message between two ranks of one host, at each of its ends (mailbox.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from resilin.distributed.backends.shm.memory import Place
from resilin.distributed.wire.frames import DTYPE_BYTE, Descriptor, unpack
from resilin.distributed.wire.p2p_matching import Receive
from resilin.distributed.wire.receive_buffer import receive_buffer
from resilin.distributed.wire.reduce_op import Array

FETCHED, MISSING, WITHDRAWN = range(3)  # what `fetch` says: see native/post.hpp


class Office(Protocol):
    """Declare where letters come from."""

    members: list[int]

    def fetch(self, seat: int, place: Place, into: memoryview | bytearray) -> int:
        """Copy from the memory of a rank of this host: fetched, missing or withdrawn."""

    def acknowledge(self, seat: int, ticket: int, number: int) -> None:
        """Tell a sender that its bytes have been copied."""

    def stall(self, letter: SharedMessage, arena: int | None) -> None:
        """Try `letter` again when `arena` of its sender is mapped; None: keep it until its end is known."""


class SharedMessage:
    """A message from a rank of this host. Its bytes are in `data`, or at `place` of the sender's memory."""

    complete = True

    def __init__(self, post: Office, taken: tuple[Any, ...]) -> None:
        seat, self.tag, descriptor, self.length, data, place, self._number, self._ticket = taken
        self._post = post
        self.seat: int = seat
        self.source = post.members[seat]
        self.dtype: int = descriptor[DTYPE_BYTE]
        self._descriptor: bytes = descriptor
        self.receive: Receive | None = None
        self._lock = threading.Lock()
        self._data: bytes | memoryview | None = data  # guarded by _lock
        self._place: Place = place

    @property
    def descriptor(self) -> Descriptor:
        """Return what the sender called."""
        return unpack(self._descriptor)

    def refuse(self) -> None:
        """See mailbox.Message."""
        with self._lock:
            if self._data is None:
                self._data = b""
                self._post.acknowledge(self.seat, self._ticket, self._number)

    def keep(self) -> None:
        """Copy the bytes into memory of this process, so that the sender need not wait for a receive."""
        with self._lock:
            if self._data is None:
                kept = receive_buffer(self.length, self.source)
                if self._post.fetch(self.seat, self._place, kept) == FETCHED:
                    self._data = kept
                    self._post.acknowledge(self.seat, self._ticket, self._number)

    def hand_over(self) -> None:
        """See mailbox.Message. Waits in `post.stall` while the sender's memory has not been mapped."""
        with self._lock:
            receive = self.receive
            assert receive is not None
            status = FETCHED
            if self._data is not None:
                receive.buffer[:] = self._data
            else:
                status = self._post.fetch(self.seat, self._place, receive.buffer)
                if status == FETCHED:
                    self._data = b""  # nobody keeps it now: another acknowledgement would hide the ticket's next one
                    self._post.acknowledge(self.seat, self._ticket, self._number)
        if status == FETCHED:
            receive.finish(None, self.source)
        else:  # withdrawn: its group ended; why, and who is to blame, is on its way over the socket
            self._post.stall(self, self._place[0] if status == MISSING else None)


class Sent:
    """A message under way. `array` must not change until `end` is called, once: when it is in its receiver's inbox, or,
    if it lies at a `place`, when it has been copied.
    """

    def __init__(
        self, array: Array, place: Place | None, parcel: int, what: bytes, to: int, tag: int, awaited: bool = True
    ) -> None:
        """awaited: whether a thread is called for its end; else it is told when somebody looks."""
        self.array = array
        self.place = place
        self.parcel = parcel  # in which it travels, if it has no place: see native/post.hpp
        self.what = what
        self.to = to
        self.tag = tag
        self.awaited = awaited
        self.number = -1  # the native one, while it waits to be copied
        self._lock = threading.RLock()  # a signal handler may abort while the same thread holds it
        self._ended = False  # guarded by _lock
        self._error: BaseException | None = None  # guarded by _lock
        self._finish: Callable[[BaseException | None], None] | None = None  # guarded by _lock

    def end(self, error: BaseException | None) -> None:
        """It has been taken, or never will be."""
        with self._lock:
            self._ended, self._error = True, error
            finish = self._finish
        if finish is not None:
            finish(error)

    def then(self, finish: Callable[[BaseException | None], None]) -> None:
        """Call `finish(error)` at its end, at once where that has come."""
        with self._lock:
            if not self._ended:
                self._finish = finish
                return
        finish(self._error)
