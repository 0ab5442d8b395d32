"""Run what other workers call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import count
from threading import get_ident
from typing import Any

from resilin._base import log, trace
from resilin._base.clock import SYSTEM, Deadline
from resilin.distributed.wire.error_codec import copy_error
from resilin.distributed.work.future import Future
from resilin.errors import PeerLost, RpcError, UsageError
from resilin.rpc import functions
from resilin.rpc.agent.peers import KnownPeers, Peer
from resilin.rpc.agent.stats import Stats
from resilin.rpc.autograd.contexts import ANSWER, Contexts, Frame, within
from resilin.rpc.references.rref_context import RRefContext
from resilin.rpc.references.states import GloballyUniqueId, OwnedValue
from resilin.rpc.serialization import function_names, remote_errors
from resilin.rpc.serialization.messages import (
    ANONYMOUS,
    BLOCKS,
    CALL,
    CONTEXT,
    ERROR,
    GRADIENTS,
    HEADER,
    HEADER_BYTES,
    JOB,
    PROFILED,
    REMOTE_CALL,
    REPLY,
    RREF,
    RREF_BYTES,
    RREFS,
    SMALL,
    context_mark,
    expires,
    marked_context,
)
from resilin.rpc.serialization.serializer import Serializer, dump_plain, take_back
from resilin.rpc.tracing import spans
from resilin.rpc.tracing.remote_events import Collected
from resilin.rpc.transports.base import REQUESTS, RpcMessage

_LOG = log.logger("rpc.server")
_REPLY_S = 30.0  # how long a caller may leave no room for a reply, before that is thrown away
monotonic = SYSTEM.monotonic


class Request:
    """A call that is being run, and where its reply goes."""

    __slots__ = (
        "at", "begun", "collected", "counted", "frame", "name", "number", "own_fork", "owner", "queue", "server",
        "source", "thread",
    )  # fmt: skip

    def __init__(
        self,
        server: Server,
        source: int,
        queue: int,
        number: int,
        at: float | None,
        name: bytes,
        counted: bool = True,
    ) -> None:
        self.server, self.source, self.queue, self.number, self.at, self.name = server, source, queue, number, at, name
        self.begun = monotonic()
        self.thread = 0  # that runs it, or is to say when it is done; 0: none does
        self.frame: Frame | None = None  # in which autograd context it is run
        self.collected: Collected | None = None  # what it does, for a caller who is profiled
        self.owner: OwnedValue | None = None
        self.own_fork: GloballyUniqueId | None = None  # of a value that this worker makes for itself, while it is made
        if counted:
            server.active[source, number] = self

    def finish(self, value: Any) -> None:
        """Answer with what the function returned."""
        if self.owner is not None:
            self.owner.settle(value, None)
            value = None
        size = 0
        try:
            size = self.server.answer(self, value)
        finally:
            self._end(size, failed=False)

    def fail(self, error: BaseException) -> None:
        """Answer with what the function raised."""
        log.event(_LOG, logging.WARNING, "a call from another worker failed", function=self.name, exc_info=error)
        try:
            if self.owner is not None:
                self.owner.told = remote_errors.described(error, self.owner.owner)
                self.owner.settle(None, error)
                self.server.answer(self, None)
            else:
                self.server.answer_error(self, error)
        finally:
            self._end(0, failed=True)

    def later(self, future: Future[Any]) -> None:
        """Answer when `future` is done."""
        self.thread = 0

        def settle(done: Future[Any]) -> None:
            error = done.exception()
            if error is None:
                self.finish(done.value())
            else:
                self.fail(error)

        future.when_done(settle)

    def _end(self, size: int, failed: bool) -> None:
        counts = self.server.stats.served(self.name)
        counts.add(monotonic() - self.begun, failed)
        counts.bytes += size
        self.server.active.pop((self.source, self.number), None)
        if self.collected is not None:
            self.collected.close()
        if self.own_fork is not None and self.owner is not None:
            self.server.let_go(self.owner, self.own_fork)


class Server:
    """The side of a worker that is called."""

    def __init__(
        self, peers: KnownPeers, serializer: Serializer, rrefs: RRefContext, stats: Stats, contexts: Contexts
    ) -> None:
        self._peers, self._serializer, self._rrefs, self.stats = peers, serializer, rrefs, stats
        self._contexts = contexts
        self.active: dict[tuple[int, int], Request] = {}
        """Calls that are not answered yet."""
        self._jobs: dict[int, Callable[[], None]] = {}
        self._job_numbers = count()

    def handle(self, message: RpcMessage) -> None:
        """Do what a message of the queue of requests asks for."""
        try:
            part = message.parts[0]
            kind, flags, queue, length, number, word = HEADER.unpack_from(part)
            if kind in (CALL, REMOTE_CALL):
                self._call(message, kind, flags, queue, length, number, expires(word))
            elif kind == JOB and message.source == self._peers.me.id:
                self._jobs.pop(number)()
            else:
                log.event(_LOG, logging.ERROR, "a message of no known kind", kind=kind, source=message.source)
        except BaseException as error:  # noqa: BLE001 - a worker thread's top: it goes on with the next message
            log.event(_LOG, logging.ERROR, "a message could not be handled", source=message.source, exc_info=error)

    def run_soon(self, job: Callable[[], None]) -> None:
        """Run `job` on a worker thread."""
        number = next(self._job_numbers)
        self._jobs[number] = job
        self._peers.send(self._peers.me.id, [HEADER.pack(JOB, 0, 0, 0, number, 0.0)], REQUESTS, Deadline(None))

    def _call(
        self, message: RpcMessage, kind: int, flags: int, queue: int, length: int, number: int, at: float | None
    ) -> None:
        view = memoryview(message.parts[0])
        offset = HEADER_BYTES + RREF_BYTES if kind == REMOTE_CALL else HEADER_BYTES
        name, data = bytes(view[offset : offset + length]), view[offset + length :]
        request = Request(self, message.source, queue, number, at, name)
        if flags & PROFILED:
            request.collected = Collected(self._peers.me.id, bytes(message.parts[-1]))
        try:
            if kind == REMOTE_CALL:
                ids = RREF.unpack_from(view, HEADER_BYTES)
                id, fork = GloballyUniqueId(*ids[:2]), GloballyUniqueId(*ids[2:])
                request.owner = self._rrefs.add_fork(id, fork, message.source)
                request.own_fork = fork if message.source == self._peers.me.id else None
                request.owner.begun = True
                if self._peers.is_gone(message.source, number):
                    self._rrefs.drop_fork(id, fork)
            if flags & CONTEXT:
                request.frame = self.frame_of(view)
            if at is not None and request.begun >= at:
                self._cancel(request, flags, data, message)
                return
            call, references = self._load(request, flags, data, message)
            if flags & ANONYMOUS:
                function, args, kwargs = call
                asynchronous = functions.is_async(function)
            else:
                function, asynchronous = function_names.find(name)
                args, kwargs = call
            if references and self._rrefs.when_confirmed(
                references,
                lambda: self.run_soon(lambda: self._run(request, function, asynchronous, args, kwargs, references)),
            ):
                return
        except Exception as error:  # noqa: BLE001 - a request's top: sent to the caller
            request.fail(error)
            return
        self._run(request, function, asynchronous, args, kwargs, references)

    def _cancel(self, request: Request, flags: int, data: memoryview, message: RpcMessage) -> None:
        """Throw away a call that nobody waits for; the references and the memory in it are taken in, and let go."""
        self.stats.cancelled += 1
        self.active.pop((request.source, request.number), None)
        if request.collected is not None:
            request.collected.close()
        if request.owner is not None:
            request.owner.settle(None, RpcError("the call that makes this value was late, and was never run"))
        if flags & (RREFS | BLOCKS | GRADIENTS):
            self._load(request, flags, data, message)

    def _load(self, request: Request, flags: int, data: memoryview, message: RpcMessage) -> tuple[Any, Sequence[Any]]:
        frame = request.frame
        if frame is None:
            return self._serializer.load(flags, data, message.parts[1:], message.source)
        return self._serializer.load(flags, data, message.parts[1:], message.source, frame.context, frame.place)

    def frame_of(self, part: memoryview) -> Frame | None:
        """Return the call of an autograd context that a message is; None where the context has ended."""
        id, place = marked_context(part)
        context = self._contexts.come(id)
        return None if context is None else Frame(context, place)

    def _run(
        self, request: Request, function: Any, asynchronous: bool, args: Any, kwargs: Any, references: Sequence[Any]
    ) -> None:
        request.thread = get_ident()
        try:
            for state in references:
                if state.error is not None:
                    raise copy_error(state.error)
            if trace.recorder is not None:
                function = spans.run(request.source, request.number, function, request.collected)
            if request.frame is None:
                value = function(*args, **kwargs) if kwargs else function(*args)
            else:
                with within(request.frame):
                    value = function(*args, **(kwargs or {}))
            if asynchronous:
                if not isinstance(value, Future):
                    raise RpcError(
                        "Functions decorated with @rpc.async_function must return a resilin.futures.Future object, "
                        f"but got {type(value).__name__}"
                    )
                request.later(value)
                return
        except BaseException as error:  # noqa: BLE001 - a request's top: sent to the caller
            request.fail(error)
            return
        request.finish(value)

    def let_go(self, owner: OwnedValue, fork: GloballyUniqueId) -> None:
        """Drop the fork that kept a value of this worker's own while it was made."""
        self._rrefs.drop_fork(owner.id, fork)

    # --- answers ---

    def answer(self, request: Request, value: Any) -> int:
        """Send what a call returned; return how many bytes it took."""
        peer = self._peers.answering(request.source)
        try:
            flags, data, blocks, forks = self._dumped(value, peer, request.frame)
        except Exception as error:  # noqa: BLE001 - what the parts of a value raise: the caller's to hear
            self.answer_error(request, error)
            return 0
        self._send(request, self._reply(REPLY, flags, request, data, blocks), forks)
        return len(data) + sum(len(block) for block in blocks)

    def _dumped(self, value: Any, peer: Peer, frame: Frame | None) -> tuple[int, bytes, Sequence[Any], Sequence[Any]]:
        """The flags, pickle, parts and forks of a value, by the quickest way there is for it."""
        data = dump_plain(value)
        if data is not None:
            return 0, data, (), ()
        data = self._serializer.dump_small(value, peer, is_recorded=frame is not None)
        if data is not None:
            return SMALL, data, (), ()
        if frame is None:
            return self._serializer.dump(value, peer)
        place = frame.place + ANSWER
        flags, data, blocks, forks = self._serializer.dump(value, peer, frame.context, place)
        if flags & GRADIENTS:
            return flags | CONTEXT, data + context_mark(frame.context.id, place), blocks, forks
        return flags, data, blocks, forks

    def answer_error(self, request: Request, error: BaseException) -> None:
        """Send what a call raised."""
        told = remote_errors.described(error, self._peers.me)
        flags, data, _, _ = self._serializer.dump(told, self._peers.answering(request.source))
        self._send(request, self._reply(ERROR, flags, request, data, ()), (), True)

    def _reply(self, kind: int, flags: int, request: Request, data: bytes, blocks: Sequence[Any]) -> list[Any]:
        """The parts of a reply."""
        if request.collected is None:
            return [HEADER.pack(kind, flags, 0, 0, request.number, 0.0) + data, *blocks]
        head = HEADER.pack(kind, flags | PROFILED, 0, 0, request.number, 0.0)
        return [head + data, *blocks, request.collected.encoded()]

    def _send(self, request: Request, parts: Sequence[Any], forks: Sequence[Any], is_error: bool = False) -> None:
        if self._peers.is_gone(request.source, request.number):  # another one in its place knows nothing of the call
            take_back(forks)
            return
        left = _REPLY_S if request.at is None else min(max(request.at - monotonic(), 0.01), _REPLY_S)
        try:
            self._peers.send(request.source, parts, request.queue, Deadline(left))
        except (PeerLost, RpcError):  # the caller is gone, or this worker ends
            take_back(forks)
        except TimeoutError:
            take_back(forks)
            self.stats.unsent += 1
            log.event(_LOG, logging.WARNING, "a caller left no room for a reply", source=request.source)
        except UsageError as error:  # it is too long, or the caller is not reached
            take_back(forks)
            if is_error:
                log.event(_LOG, logging.ERROR, "a reply could not be sent", source=request.source, exc_info=error)
            else:
                self.answer_error(request, error)
