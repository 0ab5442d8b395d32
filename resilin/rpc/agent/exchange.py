"""Make the messages of calls, send them, and read replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin._base import trace
from resilin._base.clock import Deadline
from resilin.core.autograd.grad_mode import mode
from resilin.errors import PeerLost
from resilin.rpc.agent.peers import KnownPeers, Peer
from resilin.rpc.agent.pending import late
from resilin.rpc.autograd.contexts import Contexts, DistAutogradContext, here
from resilin.rpc.serialization import function_names, remote_errors
from resilin.rpc.serialization.messages import (
    ANONYMOUS,
    BLOCKS,
    CONTEXT,
    ERROR,
    GRADIENTS,
    HEADER_BYTES,
    PROFILED,
    REPLY,
    RREFS,
    SMALL,
    context_mark,
    marked_context,
)
from resilin.rpc.serialization.serializer import Serializer, dump_plain_call, take_back
from resilin.rpc.tracing import remote_events
from resilin.rpc.transports.base import REQUESTS, RpcMessage


class Exchange:
    """What calls of every kind need, of one worker."""

    def __init__(self, peers: KnownPeers, serializer: Serializer, contexts: Contexts) -> None:
        self._peers, self._serializer, self._contexts = peers, serializer, contexts
        self.sent = 0
        """Calls that were made, about: what shutdown compares to find out whether any was."""

    def make(
        self, ids: bytes, function: Any, args: Any, kwargs: Any, peer: Peer
    ) -> tuple[int, bytes, bytes, list[Any], Sequence[Any]]:
        """Return the flags, name, first part without its header, other parts, and forks of RRefs of a call.

        Where this thread runs a call in an autograd context, the new call takes that along.
        """
        frame = here.frame
        if frame is None or not mode.grad:
            flags, name, rest, blocks, forks = self._made(ids, function, args, kwargs, peer, None, b"")
        else:
            context, place = frame.context, frame.next_place()
            context.known.add(peer.id)
            flags, name, rest, blocks, forks = self._made(ids, function, args, kwargs, peer, context, place)
            flags, rest = flags | CONTEXT, rest + context_mark(context.id, place)
        if trace.recorder is not None and remote_events.here.asked is not None:
            return flags | PROFILED, name, rest, [*blocks, remote_events.here.asked.option()], forks
        return flags, name, rest, blocks, forks

    def _made(
        self,
        ids: bytes,
        function: Any,
        args: Any,
        kwargs: Any,
        peer: Peer,
        context: DistAutogradContext | None,
        place: bytes,
    ) -> tuple[int, bytes, bytes, list[Any], Sequence[Any]]:
        name = function_names.name_of(function)
        args = tuple(args) if args else ()
        if name is not None:
            data = dump_plain_call(args, kwargs)
            if data is not None:
                return 0, name, ids + name + data, [], ()
            data = self._serializer.dump_small_call(args, kwargs, peer)
            if data is not None:
                return SMALL, name, ids + name + data, [], ()
            flags, data, blocks, forks = self._serializer.dump((args, kwargs or {}), peer, context, place)
        else:
            if not callable(function):
                raise TypeError("function should be callable.")
            name = function_names.shown(function)
            flags, data, blocks, forks = self._serializer.dump((function, args, kwargs or {}), peer, context, place)
            flags |= ANONYMOUS
        return flags, name, ids + name + data, blocks, forks

    def in_context(self, rest: bytes, peer: Peer) -> tuple[int, bytes]:
        """Return the flags and the first part without its header of a call that takes no tensors."""
        frame = here.frame
        if frame is None or not mode.grad:
            return 0, rest
        frame.context.known.add(peer.id)
        return CONTEXT, rest + context_mark(frame.context.id, frame.next_place())

    def send(
        self,
        peer: Peer,
        parts: Sequence[Any],
        name: bytes,
        limit: float | None,
        forks: Sequence[Any],
        queue: int = REQUESTS,
    ) -> None:
        """Send a call. What `forks` are is undone where it does not go. RpcTimeout, PeerLost."""
        self.sent += 1
        try:
            self._peers.send(peer.id, parts, queue, Deadline(limit))
        except TimeoutError:
            take_back(forks)
            raise late(name.decode(), peer.name, limit) from None
        except BaseException:
            take_back(forks)
            raise

    def read(self, kind: int, flags: int, message: RpcMessage) -> tuple[Any, BaseException | None]:
        """Return the value of a reply, or the error."""
        try:
            data = memoryview(message.parts[0])[HEADER_BYTES:]
            context, place = None, b""
            if flags & CONTEXT:
                id, place = marked_context(data)
                context = self._contexts.find(id)
            value, _ = self._serializer.load(flags, data, message.parts[1:], message.source, context, place)
        except PeerLost as error:  # the memory of a tensor in it went with the peer
            return None, self._peers.named(message.source, error)
        except Exception as error:  # noqa: BLE001 - what the classes of a reply raise: the caller's
            return None, error
        return (None, remote_errors.rebuilt(value, message.source)) if kind == ERROR else (value, None)

    def throw_away(self, flags: int, message: RpcMessage) -> None:
        """Let go of the references and the lent memory in a reply that nobody waits for any more."""
        if flags & (RREFS | BLOCKS | GRADIENTS):
            self.read(REPLY, flags, message)
