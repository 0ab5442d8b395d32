"""Carry what workers tell one another in a distributed backward, and of autograd contexts that end."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from resilin._base.clock import Deadline
from resilin.errors import PeerLost, RpcError, UsageError
from resilin.rpc.agent.peers import KnownPeers
from resilin.rpc.agent.thread_pool import step_down
from resilin.rpc.autograd.backwards import GRADIENTS_AT, Backwards, Message
from resilin.rpc.autograd.contexts import ANSWER, Contexts
from resilin.rpc.autograd.nodes import RecvRpcBackward
from resilin.rpc.serialization import remote_errors
from resilin.rpc.serialization.messages import BACKWARD, CLEANUP, HEADER, HEADER_BYTES, REPLIES, SMALL
from resilin.rpc.serialization.serializer import Serializer, load_small_in, take_back
from resilin.rpc.transports.base import RpcMessage
from resilin.rpc.worker_info import WorkerInfo

CONTEXT_ID = struct.Struct("<Q")
_SEND_S = 60.0  # for a peer to make room, where calls have no limit


class Teller(Protocol):
    """Tells a peer something until it answers."""

    def tell(self, peer: int, kind: int, data: bytes, then: Callable[[BaseException | None], None]) -> int:
        """Send a message of the worker's own, again until it is answered; then call `then`."""

    def later(self, job: Callable[[], None]) -> None:
        """Do what may wait for a peer."""


class GradientMessages:
    """Those of one worker. limit: seconds that a peer may take; 0: as long as it likes."""

    def __init__(
        self,
        me: WorkerInfo,
        peers: KnownPeers,
        serializer: Serializer,
        contexts: Contexts,
        numbers: Iterator[int],
        teller: Teller,
        limit: Callable[[], float],
    ) -> None:
        self._me, self._peers, self._serializer, self._contexts = me, peers, serializer, contexts
        self._numbers, self._teller, self._limit = numbers, teller, limit
        contexts.when_new = self._mind
        self.backwards = Backwards(
            me.id, contexts, self._say, self._described, remote_errors.rebuilt, step_down, limit, peers.name_of
        )

    def _described(self, error: BaseException) -> Any:
        text, *rest = remote_errors.described(error, self._me)
        words = text.partition("\n")[2].partition(": ")[2]
        return (f"Error on Node {self._me.id}: {words}\nIt is {self._me}.", *rest)

    def _say(self, peer: int, message: Message, node: RecvRpcBackward | None) -> None:
        """Send a message. Gradients go to devices as what they are the gradients of has come from there."""
        flags: int
        blocks: Sequence[Any]
        forks: Sequence[Any]
        asked = node is not None and not node.place.endswith(ANSWER)
        to = self._peers.answering(peer) if asked else self._peers.find(peer)
        data = None if node is None else self._serializer.dump_small_in(message, GRADIENTS_AT, to)
        if data is not None:
            flags, blocks, forks = SMALL, (), ()
        else:
            flags, data, blocks, forks = self._serializer.dump(message, to)
        head = HEADER.pack(BACKWARD, flags, REPLIES, 0, next(self._numbers), 0.0)
        try:
            self._peers.send(peer, [head + data, *blocks], REPLIES, Deadline(self._limit() or _SEND_S))
        except TimeoutError:
            take_back(forks)
            raise RpcError(f"worker {to.name!r} leaves no room for a message of a backward") from None
        except BaseException:
            take_back(forks)
            raise

    def handle(self, message: RpcMessage, flags: int, number: int) -> None:
        """Take a message of a backward."""
        data = memoryview(message.parts[0])[HEADER_BYTES:]
        if flags & SMALL:
            said = load_small_in(data, GRADIENTS_AT)
        else:
            said, _ = self._serializer.load(flags, data, message.parts[1:], message.source)
        if not self._peers.is_gone(message.source, number):
            self.backwards.heard(message.source, said)

    def end(self, context_id: int, source: int = -1) -> None:
        """Forget a context, and have those forget it that it was taken to from here. source: who has said so."""
        self._spread(context_id, self.backwards.end(context_id) - {source})

    def _mind(self, context_id: int, maker: int) -> None:
        """Hear of the end of the worker that made a context, also where another one has brought it."""
        if not self._peers.is_connected(maker):
            self._teller.later(partial(self._reach, context_id, maker))

    def _reach(self, context_id: int, maker: int) -> None:
        try:
            self._peers.reach(maker)
        except PeerLost:  # and the context ends as those of all that are lost
            pass
        except (RpcError, UsageError):  # it has left
            self.end(context_id)

    def _spread(self, context_id: int, workers: Iterable[int]) -> None:
        for worker in set(workers) - {self._me.id}:
            self._teller.tell(worker, CLEANUP, CONTEXT_ID.pack(context_id), _heard)

    def lost(self, peer: int, error: PeerLost, turn: int) -> None:
        """Note that a worker is gone, and with it its contexts."""
        for context_id, workers in self.backwards.lost(peer, error, turn):
            self._spread(context_id, workers)


def _heard(error: BaseException | None) -> None:
    """Take the answer to a cleanup: who is gone has nothing to forget."""
