"""Lend tensors to workers of the same host instead of copying them (docs/design/lending.md).

    pack                    note                              unpack
    lend the block   ──── LENT: arena, offset, size ────>   a window on it
    or copy it once  ──── GIVEN: the same ──────────────>   a window that is written in place
    it came from there ── BACK: the loan ───────────────>   a window on what was lent
    no memory for it ──── COPIED: its bytes ────────────>   those bytes

A loan ends when the array that `unpack` made is gone: the borrower tells the lender with its next message, or a moment
later by itself. What was sent back has a loan of its own by then: because notes may overtake one another, the end of a
loan says how often it was sent back, and comes into force when as many have arrived.

A loan goes no further than to its lender and back: to a third worker a copy is given.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import secrets
import select
import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from resilin._base import host, secret
from resilin._base.clock import Deadline
from resilin._base.threads import OwnedThread
from resilin.core.kernels.common import Array, address_of
from resilin.core.machine import lending
from resilin.errors import DistNetworkError, HandshakeError, PeerLost
from resilin.rpc.channels.arena_server import TOKEN_BYTES, ArenaClient, ArenaServer
from resilin.rpc.channels.base import Block, Packed, Post, TensorChannel
from resilin.rpc.transports.base import Buffer

MIN_BYTES = 64 << 10  # below, bytes in the message cost less: benchmarks/results/rpc_lending.md
EAGER_BYTES = 2 << 20  # below, a block is copied when it is sent first, and lent from the second time on
_LENT, _GIVEN, _BACK, _COPIED = range(4)
_NOTE = struct.Struct(f"<BQQQQ{TOKEN_BYTES}s")  # kind, loan, arena, offset, size, the lender's arena server
_ENDED = struct.Struct("<Qi")  # a loan, and how often it was sent back
_ENDED_IN_NOTE, _ENDED_IN_POST = 64, 4096  # at most
_ARENAS_MAX = 64  # that are kept open
_MOMENT_S = 0.005  # loans that end within it are told of together
_LOOK_S, _LOOK_MAX_S = 0.5, 60.0  # between two looks for memory that was lent once and written since
_numbers = itertools.count(secrets.randbits(60))  # of loans and windows: no loan is taken for one of another process


def _lend(block: Block) -> lending.LentPlace | None:
    return lending.lend(block.owner, block.start, block.size, again=block.size < EAGER_BYTES)


@dataclass(slots=True)
class _Loan:
    """Memory of this worker that a peer shows. Guarded by the channel's lock."""

    peer: int
    place: lending.LentPlace
    begin: int
    end: int
    """Of what is lent, in the arena."""
    came_back: int = 0
    sent_back: int | None = None
    """How often, once the peer says that it has ended."""


@dataclass(slots=True)
class _Borrowed:
    """Memory that this worker shows in a window. Guarded by the channel's lock."""

    peer: int
    loan: int
    token: bytes
    """Of the lender's arena server."""
    own: lending.LentPlace | None = None
    """Its block, when it is memory of this worker that came back."""
    sent_back: int = 0


class LentChannel(TensorChannel):
    """Lends memory of the host's to workers of the same host that know the job's secret.

    `known`: the secret; None: that of the environment.
    """

    name: ClassVar[str] = "lent"

    def __init__(self, post: Post, known: str | None = None) -> None:
        self._post = post
        self._lock = threading.Lock()
        self._loans: dict[int, _Loan] = {}  # guarded by _lock
        self._borrowed: dict[int, _Borrowed] = {}  # guarded by _lock: by the number of the window
        self._ended: dict[int, list[tuple[int, int]]] = {}  # guarded by _lock: by lender, not told of yet
        self._arenas: dict[tuple[bytes, int], Any] = {}  # guarded by _lock: by token and number, the latest used last
        self._lines: dict[bytes, ArenaClient] = {}  # guarded by _lock: to lenders, by token
        self._orphans: set[bytes] = set()  # guarded by _lock: lines to lenders that are lost
        self._leaving: list[tuple[set[int], list[int]]] = []  # guarded by _lock: lines of lost peers, and their loans
        self._looks = False  # whether the thread looks, now and then, after what was lent
        self._closed = threading.Event()
        self._word = (secret.from_environment() or "") if known is None else known
        self._identity = f"{host.host_id()}/{'' if self._word else os.geteuid()}" if lending.available else ""
        self._windows = lending.closed_windows()
        self._server = ArenaServer(self._word, self._borrower, self._gone) if lending.available else None
        self._token = b"" if self._server is None else self._server.token
        self._thread = OwnedThread("rpc-lent", self._tell) if lending.available else None

    def describe(self) -> str:
        """Return the host's identity; without a secret with the user's, and empty where nothing can be lent."""
        return self._identity

    def reaches(self, block: Block, theirs: str) -> bool:
        """Return whether `block` is large enough, in the host's memory, and the peer on this host."""
        return (
            block.size >= MIN_BYTES
            and block.device == "cpu"
            and isinstance(block.owner, np.ndarray)
            and theirs == self._identity != ""
            and not self._closed.is_set()
        )

    def pack(self, block: Block, peer: int) -> Packed:
        """Lend `block`, send it back to where it came from, or give a copy away."""
        with self._lock:
            self._sort_closed()
            shown = lending.look_at_window(block.owner, block.start, block.size)
            if shown is not None:
                packed = self._pack_borrowed(block, peer, shown)
                if packed is not None:
                    return packed
            place = None if shown is not None else _lend(block)
            if place is not None:
                return self._pack_own(peer, place, place.offset + block.start - address_of(block.owner), block.size)
        return self._pack_copy(block, peer)

    def _pack_own(self, peer: int, place: lending.LentPlace, begin: int, size: int, kind: int = _LENT) -> Packed:
        """Note a loan that has begun. With the lock held."""
        loan = next(_numbers)
        self._loans[loan] = _Loan(peer, place, begin, begin + size)
        return Packed(self._note(peer, kind, loan, place.arena, begin, size), ())

    def _pack_borrowed(self, block: Block, peer: int, shown: lending.Shown) -> Packed | None:
        """Send on what came from a peer; None when only a copy will do. With the lock held."""
        borrowed = self._borrowed.get(shown.number)
        if borrowed is None or shown.written:
            return None
        if borrowed.own is not None:
            if not lending.lend_again(borrowed.own):
                return None
            return self._pack_own(peer, borrowed.own, shown.offset, block.size)
        if borrowed.peer != peer:
            return None
        borrowed.sent_back += 1
        return Packed(self._note(peer, _BACK, borrowed.loan, 0, shown.offset, block.size), ())

    def _pack_copy(self, block: Block, peer: int) -> Packed:
        place = lending.give(block.start, block.size)
        with self._lock:
            if place is not None:
                return self._pack_own(peer, place, place.offset, block.size, _GIVEN)
            note = self._note(peer, _COPIED, 0, 0, 0, block.size)
        return Packed(note, (ctypes.string_at(block.start, block.size),))

    def _note(self, peer: int, kind: int, loan: int, arena: int, offset: int, size: int) -> bytes:
        """With the lock held."""
        note = _NOTE.pack(kind, loan, arena, offset, size, self._token)
        ended = self._ended.get(peer)
        if not ended:
            return note
        told = b"".join([_ENDED.pack(*each) for each in ended[:_ENDED_IN_NOTE]])
        del ended[:_ENDED_IN_NOTE]
        return note + told

    def withdraw(self, packed: Packed, peer: int) -> None:
        """End what `pack` has begun for a message that was not sent."""
        kind, loan, *_ = _NOTE.unpack_from(packed.note)
        with self._lock:
            self._ended.setdefault(peer, []).extend(_ENDED.iter_unpack(packed.note[_NOTE.size :]))
            if kind in (_LENT, _GIVEN):
                self._end(peer, loan, 0)
            elif kind == _BACK:
                for borrowed in self._borrowed.values():
                    if (borrowed.peer, borrowed.loan) == (peer, loan):
                        borrowed.sent_back -= 1
                        break
                else:  # its end has been told of, with one too many
                    self._ended[peer].append((loan, -1))
        self._windows.wake()

    def unpack(self, note: bytes, parts: Sequence[Buffer], source: int) -> Any:
        """Return the block. A message that nobody needs must be unpacked, too: that ends its loans.

        Raises: ValueError; DistNetworkError when the lender died before this worker had mapped its memory.
        """
        try:
            kind, loan, arena, offset, size, token = _NOTE.unpack_from(note)
            self.handle(source, note[_NOTE.size :])
        except struct.error as error:
            raise ValueError(f"a note of {len(note)} bytes about a lent tensor of worker {source}: {error}") from None
        if kind == _COPIED and len(parts) == 1 and len(parts[0]) == size:
            copied = np.empty(size, np.uint8)
            copied[:] = np.frombuffer(parts[0], np.uint8)
            return copied
        if parts or kind not in (_LENT, _GIVEN, _BACK):
            raise ValueError(f"a note of kind {kind} with {len(parts)} parts about a lent tensor of worker {source}")
        if kind == _BACK or token == self._token:
            return self._unpack_own(loan, offset, size, source, back=kind == _BACK)
        try:
            lender = self._arena(source, arena, loan, token)
        except HandshakeError:
            raise
        except DistNetworkError as error:
            raise PeerLost(str(error), [source]) from error
        with self._lock:
            number = next(_numbers)
            self._borrowed[number] = _Borrowed(source, loan, token)
            return self._window(lender, offset, size, number, shared=kind == _GIVEN)

    def _unpack_own(self, loan: int, offset: int, size: int, source: int, back: bool) -> Array:
        """Show memory of this worker that it has lent: it came back, or was sent to this worker itself."""
        with self._lock:
            found = self._loans.get(loan)
            if found is None or found.peer != source or not found.begin <= offset <= offset + size <= found.end:
                raise ValueError(f"worker {source} sends {size} bytes at {offset} of loan {loan}, which it has not")
            lending.lend_again(found.place)
            if back:
                found.came_back += 1
                self._end_if_over(loan, found)
            else:
                self._end(source, loan, 0)
            key = (self._token, found.place.arena)
            if key not in self._arenas:
                self._arenas[key] = lending.own_arena(found.place.arena)
            lender = self._keep(key, self._arenas[key])
            number = next(_numbers)
            self._borrowed[number] = _Borrowed(source, loan, self._token, found.place)
            return self._window(lender, offset, size, number, own=found.place)

    def _window(
        self,
        lender: Any,
        offset: int,
        size: int,
        number: int,
        shared: bool = False,
        own: lending.LentPlace | None = None,
    ) -> Array:
        """With the lock held."""
        shown = None
        try:
            shown = lending.open_window(
                lender, offset, size, shared=shared, closed=self._windows, number=number, own=own
            )
            if shown is None:  # the kernel maps no more
                copied = np.empty(size, np.uint8)
                if os.preadv(lender.fd, [copied.data], offset) != size:
                    raise ValueError(f"{size} bytes at {offset} of a lender's arena cannot be read")
                return copied
            return shown
        finally:
            if shown is None:
                if own is not None:
                    lending.end_loan(own)
                self._windows.put(number)

    def _arena(self, source: int, arena: int, loan: int, token: bytes) -> Any:
        """The arena of a peer in which it has lent something, mapped once."""
        key = (token, arena)
        with self._lock:
            found = self._arenas.get(key)
            if found is not None:
                return self._keep(key, found)
            line = self._lines.get(token)
        if line is None:
            line = self._dialed(source, token)
        try:
            fetched = lending.lender_arena(*line.fetch(loan, arena))
        except DistNetworkError:
            with self._lock:
                if self._lines.get(token) is line:
                    del self._lines[token]
            line.close()
            raise
        with self._lock:
            return self._keep(key, self._arenas.setdefault(key, fetched))

    def _dialed(self, source: int, token: bytes) -> ArenaClient:
        made = ArenaClient(token, self._word, source)
        with self._lock:
            line = None if self._closed.is_set() else self._lines.setdefault(token, made)
        if line is not made:
            made.close()
        if line is None:
            raise DistNetworkError(f"a tensor of worker {source} arrived after the end of RPC")
        return line

    def _keep(self, key: tuple[bytes, int], arena: Any) -> Any:
        """Note that an arena was used; the one that was not for the longest time is forgotten. With the lock held."""
        self._arenas[key] = self._arenas.pop(key, arena)
        if len(self._arenas) > _ARENAS_MAX:
            del self._arenas[next(iter(self._arenas))]
        return self._arenas[key]

    def handle(self, source: int, note: bytes) -> None:
        """Take the ends of loans."""
        if len(note) % _ENDED.size:
            raise ValueError(f"{len(note)} bytes about loans that worker {source} has ended")
        if note:
            with self._lock:
                for loan, sent_back in _ENDED.iter_unpack(note):
                    self._end(source, loan, sent_back)

    def _end(self, peer: int, loan: int, sent_back: int) -> None:
        """With the lock held, as `_end_if_over` and `_sort_closed`."""
        found = self._loans.get(loan)
        if found is not None and found.peer == peer:
            found.sent_back = sent_back + (found.sent_back or 0)
            self._end_if_over(loan, found)

    def _end_loan(self, place: lending.LentPlace) -> None:
        lending.end_loan(place)
        if not self._looks:
            self._looks = True
            self._windows.wake()

    def _end_if_over(self, loan: int, found: _Loan) -> None:
        if found.sent_back is not None and found.came_back >= found.sent_back:
            del self._loans[loan]
            self._end_loan(found.place)

    def _sort_closed(self) -> None:
        for number in () if self._windows is None else self._windows.take():
            borrowed = self._borrowed.pop(number, None)
            if borrowed is not None and borrowed.own is None:
                self._ended.setdefault(borrowed.peer, []).append((borrowed.loan, borrowed.sent_back))

    def _tell(self) -> None:
        """The thread: tells lenders of loans that have ended, unless a message to them did so before.

        And moves what is lent again and again into huge pages, and frees what was lent once and has been written since,
        looking less often the longer there is none.
        """
        poller = select.poll()
        poller.register(self._windows.fd, select.POLLIN)
        pause_s, due = _LOOK_S, Deadline(_LOOK_S)
        while not self._closed.is_set():
            left_s = due.left() if self._looks else None
            if poller.poll(None if left_s is None else left_s * 1000):
                os.eventfd_read(self._windows.fd)
                self._closed.wait(_MOMENT_S)
                self._tell_now()
            if self._looks and due.passed():
                self._looks = False  # before it is looked: a loan that ends meanwhile sets it again
                lending.collapse_lent()
                more = lending.drop_originals() > 0
                self._looks = self._looks or more
                pause_s = min(2 * pause_s, _LOOK_MAX_S) if more else _LOOK_S
                due = Deadline(pause_s)

    def _tell_now(self) -> None:
        with self._lock:
            self._sort_closed()
            ended, self._ended = self._ended, {}
            lines = self._unused_lines()
        for line in lines:
            line.close()
        for peer, loans in ended.items():
            for start in range(0, len(loans), _ENDED_IN_POST):
                self._post(peer, b"".join([_ENDED.pack(*each) for each in loans[start : start + _ENDED_IN_POST]]))

    def _borrower(self, loan: int) -> int | None:
        with self._lock:
            found = self._loans.get(loan)
            return None if found is None else found.peer

    def _gone(self, line: int) -> None:
        """Nothing is shown through one of the server's lines any more."""
        with self._lock:
            for lines, loans in self._leaving:
                lines.discard(line)
                if not lines:
                    self._end_lost(loans)
            self._leaving = [(lines, loans) for lines, loans in self._leaving if lines]
        self._close_server()

    def _end_lost(self, loans: Iterable[int]) -> None:
        for loan in loans:
            found = self._loans.pop(loan, None)
            if found is not None:
                self._end_loan(found.place)

    def lost(self, peer: int) -> None:
        """End the loans of `peer`, as soon as its process or its channel is gone and cannot show them any more."""
        with self._lock:
            loans = [loan for loan, found in self._loans.items() if found.peer == peer]
            lines_there = set() if self._server is None else self._server.lines_of(peer)
            if lines_there:
                self._leaving.append((lines_there, loans))
            else:
                self._end_lost(loans)
            self._orphans |= {token for token, line in self._lines.items() if line.lender == peer}
            lines = self._unused_lines()
        for line in lines:
            line.close()

    def _unused_lines(self) -> list[ArenaClient]:
        """Take out the lines to lost peers of which nothing is shown any more. With the lock held."""
        if not self._orphans:
            return []
        unused = self._orphans - {borrowed.token for borrowed in self._borrowed.values()}
        self._orphans -= unused
        for key in [key for key in self._arenas if key[0] in unused]:
            del self._arenas[key]
        return [self._lines.pop(token) for token in unused & self._lines.keys()]

    def close(self) -> None:
        """Free what was borrowed: what is shown of it is copied first. What a peer shows stays until it lets go."""
        if self._closed.is_set() or self._server is None or self._thread is None:
            return
        with self._lock:
            self._closed.set()
        self._windows.wake()
        self._thread.join()
        lending.keep_windows(self._windows)
        with self._lock:
            lines = list(self._lines.values())
            self._lines.clear()
            self._arenas.clear()
        for line in lines:
            line.close()
        for peer in {loan.peer for loan in list(self._loans.values())}:
            self.lost(peer)
        self._close_server()

    def _close_server(self) -> None:
        """After the end, once nothing is on loan any more."""
        with self._lock:
            over = self._closed.is_set() and not self._loans
        if over and self._server is not None:
            self._server.close()

    def stats(self) -> dict[str, int]:
        """Loans to peers that have not ended, windows on what they have lent, and arenas that are kept open."""
        with self._lock:
            self._sort_closed()
            return {"loans": len(self._loans), "windows": len(self._borrowed), "arenas": len(self._arenas)}
