"""Hold one rank's part in one generation of a group: what it is made of, who tells it what, and how it ends.

`group.ProcessGroup` adds how a generation is made, and how the next one goes on with what is left of it.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, Self

from resilin._base.clock import Deadline
from resilin.distributed.backends.base import Aborted, Call, Refused
from resilin.distributed.backends.choose_cpu_backend import choose, inherit, shared_memory_of
from resilin.distributed.backends.per_device import DeviceBackends
from resilin.distributed.backends.registry import BackendConfig
from resilin.distributed.connections.control_channel import ControlChannel
from resilin.distributed.connections.full_mesh import FullMesh, Topology
from resilin.distributed.connections.listener import Listener
from resilin.distributed.group import open_groups
from resilin.distributed.group.collective_queue import CollectiveQueue, Run
from resilin.distributed.group.p2p_transport import P2PTransport
from resilin.distributed.wire import call_phases
from resilin.distributed.wire.error_codec import abort_reason, decode_reason, encode_reason, mark_shared
from resilin.distributed.wire.flight_recorder import log_of
from resilin.distributed.wire.frames import Frame, Kind
from resilin.distributed.wire.p2p_matching import Mailbox
from resilin.distributed.wire.reduce_op import Array
from resilin.distributed.wire.trace_spans import GroupFacts
from resilin.distributed.work.comm_thread import CommThread
from resilin.distributed.work.group_failure import GroupFailure
from resilin.distributed.work.refusals import Refusals
from resilin.distributed.work.work import Work
from resilin.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DistError,
    DistNetworkError,
    GroupAborted,
    PeerLost,
    UsageError,
)

DEFAULT_TIMEOUT_S = 1800.0  # PyTorch's for CPU groups
_CLOSED = "destroy_process_group() was called"


class _Runs(Protocol):
    def __call__(
        self, kind: Kind, task: Run, outputs: Any = None, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Work | None: ...


class Member:
    """One rank's end of a group, in one generation."""

    subgroups: list[Self]
    """That this rank is in; closed with this group."""
    run: _Runs
    """Run `task(call)` as the group's next collective: here when it is free to, else on its worker thread.

    Returns a Work when `async_op`, else None once done. Errors of a sync call are raised here.
    """

    def __init__(
        self,
        mesh: FullMesh,
        topology: Topology,
        rank: int,
        *,
        name: str = "",
        generation: int = 0,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        ranks: Sequence[int] | None = None,
        listener: Listener | None = None,
        secret: str = "",
        backends: BackendConfig | None = None,
        options: Any = None,
        before: Member | None = None,
    ) -> None:
        self.name = name
        self.group_desc = "undefined"  # what PyTorch calls a group without a description
        self.listener = listener  # not owned: subgroups connect through it
        self.secret = secret
        self.new_groups = 0  # made of this group so far by all its ranks; part of their names
        self.successor: Any = None  # the group that took this one's place, once it has all that is left of it
        self.local_groups = Counter[str]()  # made so far by their members alone, by what their names begin with
        self.subgroups = []
        self.generation = generation
        self._newest = generation  # that was made or tried of this group
        self.timeout_s = timeout_s
        self.topology = topology
        self.ranks: tuple[int, ...] = tuple(range(len(topology.endpoints)) if ranks is None else ranks)
        self._seats = topology.endpoints  # by rank in _host
        self._rank = rank
        self._size = len(topology.endpoints)
        self._log = log_of(name, generation, rank, [str(endpoint) for endpoint in topology.endpoints])
        self.key = id(self)
        """What tells the group, in this generation, from others of the process."""
        self._group_failure = GroupFailure(self.title, self.ranks, self._end)
        self._mailbox = Mailbox()
        self._links = mesh.links
        data = {peer: link.wire for peer, link in mesh.links.items() if link.wire is not None}
        self._host = choose(topology, rank, data, self._share)
        self._kept = mesh.kept
        if before is not None:
            self._inherit(before, mesh)
        self._backends, self._options = backends or BackendConfig(), options
        self.backend = DeviceBackends(self._host, self._backends, options, self)
        worker = CommThread(name or "group") if before is None else before._queue.worker
        label = self._backends.device_backend_map.get("cpu", self._backends.name)
        facts = GroupFacts(name, lambda: self.group_desc, label, rank, self.ranks, generation)
        self._queue: CollectiveQueue = CollectiveQueue(self, self._group_failure, self._log, worker, facts)
        self.run = self._queue.run  # not a method: that would cost every call a frame
        self.row = self._queue.row
        self._control = ControlChannel(mesh.links, self, self._mailbox, name or "group")
        self.refusals = Refusals(self._tell_refusal, lambda: not self._control.reading())
        self._p2p = P2PTransport(self._control, self._mailbox, self._group_failure, self._log, self.title, facts)
        open_groups.add(self)

    def attach(self, deadline: Deadline) -> None:
        """Begin to read, and finish what needs the peers' help before the first collective."""
        self._control.start()  # not before somebody has this group, who ends the thread if it is not to be
        try:
            self.backend.attach(deadline)
        except (Aborted, PeerLost) as error:
            self._group_failure.hear_why(error.ranks if isinstance(error, PeerLost) else None)
            if self._group_failure.failure is None:
                raise PeerLost(
                    f"{self.title()}: a peer left before the group was made", self._group_failure.left
                ) from None
            raise self._group_failure.error(None) from None
        except CollectiveMismatch:  # all ranks have seen it
            raise
        except Exception as error:  # peers that wait for this rank hear why it leaves
            self.abort_with(error, "could not make its backends")
            raise
        shared = shared_memory_of(self._host)
        if shared is not None:
            self._p2p.join(shared.post(self._mailbox, self._p2p.call))

    def _inherit(self, before: Member, mesh: FullMesh) -> None:
        """Go on with the memory that `before` and its peers have mapped."""
        old = {endpoint: rank for rank, endpoint in enumerate(before._seats)}
        ranks = {old[link.endpoint]: rank for rank, link in mesh.links.items() if rank in mesh.mapped}
        ranks[old[self._seats[self._rank]]] = self._rank
        inherit(self._host, before._host, ranks)
        for link in mesh.links.values():
            while link.arenas:
                self._host.on_fd(link.rank, Frame.ARENA, 0, *link.arenas.popleft())

    def _share(self, peer: int, kind: Frame, payload: bytes, fd: int) -> bool:
        """See shm_memory.Share."""
        link = self._links[peer]
        try:
            if not link.has_left:
                self._control.send(peer, kind, 0, (payload,), Deadline(self.timeout_s), fd)
                return True
        except OSError as error:
            self._group_failure.hear_why([peer])  # a goodbye may be on its way
            if not link.has_left:
                raise PeerLost(f"rank {peer} closed the connection", [peer]) from error
        return False

    def server_address(self) -> str:
        """Return where every rank reaches a server of rank 0."""
        return self.topology.endpoints[0].address or "127.0.0.1"

    # --- facts ---

    def rank(self) -> int:
        """This process's rank in the group."""
        return self._rank

    @property
    def group_name(self) -> str:
        """The group's name, equal on all its ranks."""
        return self.name

    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def stats(self) -> dict[str, Any]:
        """Counters for people: collectives started, async ones in flight, transport, failure, what was reused."""
        shared = shared_memory_of(self._host)
        return {
            "collectives": self._queue.sequence,
            "in_flight": self._queue.queued,
            "transport": self.backend.name,
            "reused": {"sockets": self._kept, "arenas": 0 if shared is None else shared.adopted},
            "failure": None if self._group_failure.failure is None else repr(self._group_failure.failure),
        }

    def busy(self) -> bool:
        """Return whether a collective of this rank runs or waits for its turn, in a group that has not ended."""
        return self._group_failure.failure is None and self._queue.busy()

    def __repr__(self) -> str:
        end = self._group_failure
        state = "closed" if end.closed else "failed" if end.failure is not None else f"{self._queue.queued} in flight"
        at = f"gen={self.generation} rank={self._rank}/{self._size}"
        return f"<ProcessGroup {self.name!r} {at} {self.backend.name}, {state}>"

    def vanish(self) -> None:
        """End this rank's connections without a goodbye, as its death would; peers hear nothing else. For tests."""
        self._control.cut()
        self._group_failure.supersede(GroupAborted(f"{self.title()}: vanished"))

    def title(self) -> str:
        """Return how error messages name this end."""
        return f"group {self.name!r} generation {self.generation}, rank {self._rank} of {self._size}"

    # --- failure ---

    def abort(self, error: BaseException | None = None) -> None:
        """End the group: every blocked and later call of it, on this rank, raises `error` (a copy) within milliseconds.

        So do those of its subgroups. Peers are told and raise GroupAborted. Any thread; never blocks. Without `error`:
        GroupAborted.
        """
        self._group_failure.fail(error or GroupAborted(f"{self.title()}: abort() was called"), explain=False)
        for group in tuple(self.subgroups):
            group.abort(error)

    def abort_with(self, error: BaseException, where: str) -> None:
        """End the group because of an `error` of this rank that the others do not have. where: what it interrupted.

        All ranks' blocked and later calls raise GroupAborted that names this rank and `error`, and is of its class.
        """
        if self._size > 1:
            self._group_failure.fail(abort_reason(error, self._rank, where), explain=True)

    def refuse(self, call: Call, error: Exception, verb: str) -> None:
        """Make `call` as one that this rank refuses because of `error`: its peers raise an error of the same class.

        verb: what they say that this rank did. Returns when all have made theirs. CollectiveMismatch where any has not
        refused it, too; and what collectives raise.
        """
        if self._size > 1:
            mark_shared(error, self.key)
            self.refusals.tell(str(call.sequence), error, verb)
            try:
                self.backend.agree(call.refusal(), call.deadline())
            except Refused as mine:
                raise CollectiveMismatch(str(mine)) from None

    def peer_error(self, rank: int, call: str, where: str, other: str = "") -> Exception | None:
        """The error of `rank`, which refuses `call`, for this rank to raise; None when `rank` has not said why.

        where: the call as this rank made it, for the message. other: another one, as `rank` made it, and " of ".
        """
        error = self.refusals.error(rank, call, f"{where}, {self.title()}: {other}")
        if error is not None:
            mark_shared(error, self.key, arrived=True)
        return error

    @property
    def has_ended(self) -> bool:
        """Whether the group was aborted, or has failed."""
        return self._group_failure.failure is not None

    def watched(self, told: Callable[[BaseException], None]) -> contextlib.AbstractContextManager[None]:
        """Within it `told(error)` is called, in any thread, when this group ends; at once if it has ended."""
        return self._group_failure.watched(told)

    def _end(self, error: BaseException) -> None:
        """The first failure: every wait of this rank returns, and the peers are told."""
        lost = isinstance(error, PeerLost)
        self.backend.abort(min(error.ranks, default=self._rank) if isinstance(error, PeerLost) else self._rank, lost)
        self._control.abort(encode_reason(error, self._rank))
        self.refusals.end()
        self._mailbox.fail(self._group_failure.error(None))
        self._queue.give_up()

    # --- events of the control channel ---

    def on_gone(self, rank: int, goodbye: bool) -> None:
        """A peer's connection closed (control thread)."""
        where = self.topology.endpoints[rank]
        self._group_failure.gone(rank)
        if goodbye:
            self.backend.peer_left(rank)
        elif not self._group_failure.closed:
            self._group_failure.fail(
                PeerLost(f"rank {rank} ({where}) died or closed its connection", [rank]), explain=True
            )

    def on_broken(self, rank: int, error: Exception) -> None:
        """End the group: what a peer sent makes no sense, or cannot be used here (control thread)."""
        self._group_failure.gone(rank)
        where = self.topology.endpoints[rank]
        reason = f"rank {rank} ({where}) is alive, but its control channel cannot go on: {error}"
        self._group_failure.fail(DistNetworkError(reason), explain=True)

    def on_abort(self, rank: int, text: str) -> None:
        """A peer aborted the group (control thread)."""
        self._group_failure.fail(decode_reason(text, rank), explain=True)

    def on_late(self, rank: int, text: str) -> None:
        """A wait of `rank` was too long: those of this rank end, too, so that it can say whom it waits for."""
        said = decode_reason(text, rank)
        self._group_failure.waited(rank, said.ranks if isinstance(said, CollectiveTimeout) else ())
        if self._queue.busy():
            self.backend.abort(rank, lost=False)

    def on_refusal(self, rank: int, text: str) -> None:
        """A peer refuses a call (control thread)."""
        self.refusals.heard(rank, text)

    def _tell_refusal(self, text: str) -> None:
        limit = Deadline(self.timeout_s)
        for peer in self._links:
            with contextlib.suppress(OSError, UsageError):  # it is gone; or a signal handler has interrupted a message
                self._control.send(peer, Frame.REFUSAL, 0, (text.encode(),), limit)

    def waited(self, awaited: Collection[int]) -> frozenset[int]:
        """A wait of this rank for `awaited` has ended without them: tell the peers, hear from them who is to blame."""
        self._group_failure.waited(self._rank, awaited)
        self._control.tell(Frame.LATE, encode_reason(CollectiveTimeout("", awaited), self._rank))
        return self._group_failure.culprits(awaited)

    def left_half_way(self) -> None:
        """See calls.Owner."""
        shared = shared_memory_of(self._host)
        if shared is not None:
            shared.settle()

    def on_fd(self, rank: int, kind: Frame, tag: int, payload: bytes, fd: int) -> None:
        """A peer shares memory (control thread)."""
        self.backend.on_fd(rank, kind, tag, payload, fd)

    # --- point to point ---

    def send(self, array: Array, to: int, tag: int, timeout_s: float | None = None) -> None:
        """Send `array` to rank `to` of the group; returns when it may be reused."""
        self._p2p.send(array, to, tag, self.timeout_s if timeout_s is None else timeout_s)

    def isend(self, array: Array, tensor: Any, to: int, tag: int, awaited: bool = True) -> Work:
        """Send the array of `tensor`; return at once. Neither may change before the Work is complete.

        awaited: whether the Work completes by itself. False: inside a host no thread of this rank is woken when the
        bytes have been taken; the Work completes in its `wait()`, or when something is sent so again.
        """
        return self._p2p.start(array, tensor, to, tag, self.timeout_s, awaited)

    def recv(self, array: Array, source: int, tag: int) -> int:
        """Receive from rank `source` (ANY: whoever sends first) into contiguous `array`; the sender's rank."""
        return self._p2p.recv(array, source, tag, self.timeout_s)

    def receive(self, array: Array, source: int, tag: int, done: Callable[[], None] | None = None) -> Work:
        """Post a receive from rank `source` (ANY: whoever sends first) into contiguous `array`; `done` runs first."""
        return self._p2p.receive(array, source, tag, self.timeout_s, done)

    # --- end ---

    def close(self, why: str = _CLOSED) -> None:
        """Say goodbye to the peers and free sockets, memory and threads; subgroups first.

        Collectives that still run are aborted. In a signal handler that interrupted one, on the same thread, this does
        not wait for it: its memory is freed when it returns, with GroupAborted, after the handler. DistError, when all
        is freed, if a callback of a future has run for seconds and still does. `why`: what later calls say.
        """
        if call_phases.heard:
            call_phases.reached("start", "close", self)
        self._abort_calls()
        self.close_subgroups(why)
        self._group_failure.why_closed = self._group_failure.why_closed or why
        busy = self._queue.close()
        if busy is None:
            return
        if busy:
            self._abort_calls()
        open_groups.discard(self)
        try:
            with contextlib.ExitStack() as then:  # each of these, the last first, whatever another raises
                then.callback(self._queue.afterwards, self._free)
                then.callback(self._fail_messages)  # while the memory that they sleep on is there
                then.callback(self._control.close)
                then.callback(self._queue.worker.close)
        except TimeoutError as error:
            raise DistError(f"{self.title()}: closed, but {error}: a callback of a future still runs there") from error

    def _abort_calls(self) -> None:
        """Also of subgroups: a callback of one group may wait for a call of another, whichever is closed first."""
        if self._queue.busy():
            self.abort(GroupAborted(f"{self.title()}: closed with a collective in flight"))
        for group in self.subgroups:
            group._abort_calls()

    def _fail_messages(self) -> None:
        self._mailbox.fail(self._group_failure.error(None))

    def _free(self) -> None:
        self._p2p.close()
        self.backend.close()
        for link in self._links.values():
            link.close()

    def disown(self) -> None:
        """In a forked child, which is no rank: never join a call, say no goodbye for the parent."""
        self._group_failure.failure = DistError(  # no lock: another thread of the parent may have held it
            f"{self.title()}: this process (pid {os.getpid()}) was forked from that rank (pid {os.getppid()}) and is "
            "none itself: start workers before init_process_group, or with multiprocessing's 'spawn', and give each a "
            "rank of its own if it takes part"
        )
        self._group_failure.closed = True

    def close_subgroups(self, why: str = _CLOSED) -> None:
        """Close what `new_group` made of this group on this rank."""
        while self.subgroups:
            self.subgroups.pop().close(why)
