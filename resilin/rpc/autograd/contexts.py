"""Keep the autograd contexts of one worker: what tensors it has sent and received in each, and their gradients.

A message of a context is named by its *place* in the program: the k-th message that a call sends, within the call that
ran it, within that one's, ..., as numbers of 8 bytes each; the answer of a call is behind all that it sends. Places
are the same in every run of a program, whatever the threads of the workers do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from resilin.core.autograd.grad_mode import mode
from resilin.core.tensor import Tensor
from resilin.distributed.work import future
from resilin.errors import PeerLost, RpcError, UsageTypeError
from resilin.rpc.autograd.nodes import RecvRpcBackward, SendRpcBackward

ID_BITS = 48
"""Below them, contexts are numbered; above, they have the id of the worker that made them."""
_TURNS = 1 << 8  # of processes under one id that follow each other, before their contexts' numbers begin anew
_TURN_SHIFT = 40
ANSWER = b"\xff" * 8
"""The last number in the place of the answer of a call."""
_MOST_ENDED = 1 << 14  # contexts that have ended: what comes late of one of them does not make it again


class DistAutogradContext:
    """What one worker has of a context."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.lock = threading.RLock()
        self.sends: dict[bytes, SendRpcBackward] = {}  # guarded by lock, as the next ones
        self.receives: dict[bytes, RecvRpcBackward] = {}
        self.known: set[int] = set()
        """Workers that this one has called in it."""
        self.gradients: dict[Tensor, Tensor] = {}
        self.task: Any = None
        """The backward that is under way, as far as this worker takes part."""
        self.over: dict[tuple[int, int], Any] = {}
        """Backwards that have ended here, by their ids, the last ones."""
        self.lost: PeerLost | None = None
        """Why a backward cannot reach all that took part in its forward any more."""
        self.ended = False
        self.frame = Frame(self, b"")

    def sent(self, place: bytes, to: int, tensors: Sequence[Tensor]) -> NotedSend:
        """Note that `tensors`, which all require gradients, leave for worker `to`."""
        node = SendRpcBackward(place, to, tensors)
        with self.lock:
            self.sends[place] = node
        return NotedSend(self, place)

    def received(self, place: bytes, source: int, tensors: Sequence[Tensor]) -> None:
        """Note that `tensors`, which have just been made, have come from worker `source`."""
        node = RecvRpcBackward(self.id, place, source, tensors)
        with self.lock:
            self.receives[place] = node

    def peers(self) -> set[int]:
        """Return the workers that its graph here leads to, or from."""
        with self.lock:
            return {node.to for node in self.sends.values()} | {node.source for node in self.receives.values()}

    # --- PyTorch's names ---

    def _context_id(self) -> int:
        return self.id

    def _send_functions(self) -> dict[bytes, SendRpcBackward]:
        with self.lock:
            return dict(self.sends)

    def _recv_functions(self) -> dict[bytes, RecvRpcBackward]:
        with self.lock:
            return dict(self.receives)

    def _known_worker_ids(self) -> set[int]:
        with self.lock:
            return set(self.known)


class NotedSend:
    """What was noted for a message, and is taken back when that is not sent."""

    __slots__ = ("_context", "_place")

    def __init__(self, context: DistAutogradContext, place: bytes) -> None:
        self._context, self._place = context, place

    def take_back(self) -> None:
        """Forget it."""
        with self._context.lock:
            self._context.sends.pop(self._place, None)


class Frame:
    """A call that is run in a context, or the block that began it: it counts the messages that it sends."""

    __slots__ = ("_numbers", "context", "place")

    def __init__(self, context: DistAutogradContext, place: bytes) -> None:
        self.context, self.place, self._numbers = context, place, count(1)

    def next_place(self) -> bytes:
        """Return the place of the next message."""
        return self.place + next(self._numbers).to_bytes(8, "big")


class _Here(threading.local):
    frame: Frame | None = None


here = _Here()
"""The call, in a context, that this thread runs."""


@contextmanager
def within(frame: Frame | None) -> Iterator[None]:
    """Let the block be part of the call `frame`."""
    before, here.frame = here.frame, frame
    try:
        yield
    finally:
        here.frame = before


def kept(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs `callback` in the call that this thread runs now."""
    frame = here.frame
    if frame is None:
        return callback

    def run(*args: Any) -> Any:
        with within(frame):
            return callback(*args)

    return run


future.bound = kept


def part() -> Frame | None:
    """Return a call within the one that this thread runs, for what is called in another thread: with the same places
    in every run, whenever that is. None where this thread runs none in a context, or records nothing."""
    frame = here.frame
    return None if frame is None or not mode.grad else Frame(frame.context, frame.next_place())


def not_found(id: int) -> RpcError:
    """Return what is raised for a context that is not here."""
    return RpcError(
        f"Could not find autograd context with id: {id}. It has ended, or no call in it has come to this worker: use "
        "the id within its `with resilin.distributed.autograd.context() as id:`"
    )


def _nobody(context_id: int, maker: int) -> None:
    """Take note of a new context, where nobody wants to know."""


class Contexts:
    """The contexts of one worker. turn: how many processes had been this worker before."""

    def __init__(self, me: int, turn: int) -> None:
        self._me = me
        self._first = (turn % _TURNS) << _TURN_SHIFT
        self._numbers = count(self._first)
        self._lock = threading.Lock()
        self._open: dict[int, DistAutogradContext] = {}  # guarded by _lock
        self._ended: dict[int, None] = {}  # guarded by _lock
        self._dead: dict[int, int] = {}  # guarded by _lock: workers that were lost: how many had been it before
        self.when_new: Callable[[int, int], None] = _nobody
        """Called with the id of a context that has come here, and with that of the worker that made it."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def most(self) -> int:
        """Return the largest id that a context of this worker can have."""
        return (self._me << ID_BITS) + (1 << ID_BITS) - 1

    def new(self) -> DistAutogradContext:
        """Return a context with an id that no other has."""
        made = DistAutogradContext((self._me << ID_BITS) + next(self._numbers) % (1 << ID_BITS))
        with self._lock:
            self._open[made.id] = made
        return made

    def get(self, id: int) -> DistAutogradContext:
        """Return the context called `id`. RpcError where it is not here; UsageTypeError for what is no id."""
        if type(id) is not int:
            raise UsageTypeError(
                f"incompatible function arguments: expected the id of an autograd context, an int, got {id!r:.40}"
            )
        found = self._open.get(id)
        if found is None:
            raise not_found(id)
        return found

    def find(self, id: int) -> DistAutogradContext | None:
        """Return the context called `id`; None where it is not here."""
        return self._open.get(id)

    def come(self, id: int) -> DistAutogradContext | None:
        """Return the context that a call brings, made where it is new here; None where it has ended."""
        found = self._open.get(id)
        if found is not None:
            return found
        maker, turn = id >> ID_BITS, id >> _TURN_SHIFT & _TURNS - 1
        with self._lock:
            if id in self._ended or maker == self._me or turn == self._dead.get(maker, -1):
                return self._open.get(id)
            made = self._open.setdefault(id, DistAutogradContext(id))
        self.when_new(id, maker)
        return made

    def end(self, id: int) -> DistAutogradContext | None:
        """Forget a context, and that it ever comes again; return what was here of it."""
        with self._lock:
            found = self._open.pop(id, None)
            self._ended[id] = None
            while len(self._ended) > _MOST_ENDED:
                del self._ended[next(iter(self._ended))]
        if found is not None:
            with found.lock:
                found.ended = True
        return found

    def all(self) -> list[DistAutogradContext]:
        """Return those that are open."""
        return list(self._open.values())

    def made_by_dead(self, maker: int, turn: int) -> list[int]:
        """Note that the process which was worker `maker`, with `turn` before it, is gone; return its contexts' ids."""
        with self._lock:
            self._dead[maker] = turn % _TURNS
            return [
                id for id in self._open if id >> ID_BITS == maker and id >> _TURN_SHIFT & _TURNS - 1 == turn % _TURNS
            ]
