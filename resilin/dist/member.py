"""One rank's part in one generation of a group: what it is made of, who tells it what, and how it ends.

`group.ProcessGroup` adds how a generation is made, and how the next one goes on with what is left of it.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, Self

from resilin._base.clock import Deadline
from resilin.dist import living, phases
from resilin.dist.backends.base import Aborted
from resilin.dist.backends.devices import DeviceBackends
from resilin.dist.backends.registry import BackendConfig
from resilin.dist.backends.select import choose, inherit, shared_memory_of
from resilin.dist.calls import Calls, Run
from resilin.dist.control import Control
from resilin.dist.endpoint import Listener
from resilin.dist.fate import Fate
from resilin.dist.mailbox import Mailbox
from resilin.dist.mesh import Mesh, Topology
from resilin.dist.message import Frame, Kind
from resilin.dist.messages import Messages
from resilin.dist.reasons import decode_reason, encode_reason
from resilin.dist.recorder import log_of
from resilin.dist.reduce_op import Array
from resilin.dist.work import Work
from resilin.dist.worker import Worker
from resilin.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DistError,
    DistNetworkError,
    GroupAborted,
    PeerLost,
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
        mesh: Mesh,
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
        self._fate = Fate(self.title, self.ranks, self._end)
        self._mailbox = Mailbox()
        self._links = mesh.links
        data = {peer: link.wire for peer, link in mesh.links.items() if link.wire is not None}
        self._host = choose(topology, rank, data, self._share)
        self._kept = mesh.kept
        if before is not None:
            self._inherit(before, mesh)
        self._backends, self._options = backends or BackendConfig(), options
        self.backend = DeviceBackends(self._host, self._backends, options, self)
        worker = Worker(name or "group") if before is None else before._calls.worker
        self._calls: Calls = Calls(self, self._fate, self._log, worker)
        self.run = self._calls.run  # not a method: that would cost every call a frame
        self.row = self._calls.row
        self.whole = self._calls.whole
        self._control = Control(mesh.links, self, self._mailbox, name or "group")
        self._messages = Messages(self._control, self._mailbox, self._fate, self._log, self.title, self.ranks)
        living.add(self)

    def attach(self, deadline: Deadline) -> None:
        """Begin to read, and finish what needs the peers' help before the first collective."""
        self._control.start()  # not before somebody has this group, who ends the thread if it is not to be
        try:
            self.backend.attach(deadline)
        except (Aborted, PeerLost) as error:
            self._fate.hear_why(error.ranks if isinstance(error, PeerLost) else None)
            if self._fate.failure is None:
                raise PeerLost(f"{self.title()}: a peer left before the group was made", self._fate.left) from None
            raise self._fate.error(None) from None
        except CollectiveMismatch:  # all ranks have seen it
            raise
        except Exception as error:  # peers that wait for this rank hear why it leaves
            self._fate.fail(GroupAborted(f"rank {self._rank} could not make its backends: {error}"), explain=True)
            raise
        shared = shared_memory_of(self._host)
        if shared is not None:
            self._messages.join(shared.post(self._mailbox, self._messages.call))

    def _inherit(self, before: Member, mesh: Mesh) -> None:
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
            self._fate.hear_why([peer])  # a goodbye may be on its way
            if not link.has_left:
                raise PeerLost(f"rank {peer} closed the connection", [peer]) from error
        return False

    def server_address(self) -> str:
        """Where every rank reaches a server of rank 0."""
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
            "collectives": self._calls.sequence,
            "in_flight": self._calls.queued,
            "transport": self.backend.name,
            "reused": {"sockets": self._kept, "arenas": 0 if shared is None else shared.adopted},
            "failure": None if self._fate.failure is None else repr(self._fate.failure),
        }

    def busy(self) -> bool:
        """Whether a collective of this rank runs or waits for its turn, in a group that has not ended."""
        return self._fate.failure is None and self._calls.busy()

    def __repr__(self) -> str:
        fate = self._fate
        state = "closed" if fate.closed else "failed" if fate.failure is not None else f"{self._calls.queued} in flight"
        at = f"gen={self.generation} rank={self._rank}/{self._size}"
        return f"<ProcessGroup {self.name!r} {at} {self.backend.name}, {state}>"

    def vanish(self) -> None:
        """End this rank's connections without a goodbye, as its death would; peers hear nothing else. For tests."""
        self._control.cut()
        self._fate.supersede(GroupAborted(f"{self.title()}: vanished"))

    def title(self) -> str:
        """How error messages name this end."""
        return f"group {self.name!r} generation {self.generation}, rank {self._rank} of {self._size}"

    # --- failure ---

    def abort(self, error: BaseException | None = None) -> None:
        """End the group: every blocked and later call of it, on this rank, raises `error` (a copy) within milliseconds.

        Peers are told and raise GroupAborted. Any thread; never blocks. Without `error`: GroupAborted.
        """
        self._fate.fail(error or GroupAborted(f"{self.title()}: abort() was called"), explain=False)

    def watched(self, told: Callable[[BaseException], None]) -> contextlib.AbstractContextManager[None]:
        """Within it `told(error)` is called, in any thread, when this group ends; at once if it has ended."""
        return self._fate.watched(told)

    def _end(self, error: BaseException) -> None:
        """The first failure: every wait of this rank returns, and the peers are told."""
        lost = isinstance(error, PeerLost)
        self.backend.abort(min(error.ranks, default=self._rank) if isinstance(error, PeerLost) else self._rank, lost)
        self._control.abort(encode_reason(error, self._rank))
        self._mailbox.fail(self._fate.error(None))
        self._calls.give_up()

    # --- events of the control channel ---

    def on_gone(self, rank: int, goodbye: bool) -> None:
        """A peer's connection closed (control thread)."""
        where = self.topology.endpoints[rank]
        self._fate.gone(rank)
        if goodbye:
            self.backend.peer_left(rank)
        elif not self._fate.closed:
            self._fate.fail(PeerLost(f"rank {rank} ({where}) died or closed its connection", [rank]), explain=True)

    def on_broken(self, rank: int, error: Exception) -> None:
        """What a peer sent makes no sense, or cannot be used here (control thread)."""
        self._fate.gone(rank)
        where = self.topology.endpoints[rank]
        reason = f"rank {rank} ({where}) is alive, but its control channel cannot go on: {error}"
        self._fate.fail(DistNetworkError(reason), explain=True)

    def on_abort(self, rank: int, text: str) -> None:
        """A peer aborted the group (control thread)."""
        self._fate.fail(decode_reason(text, rank), explain=True)

    def on_late(self, rank: int, text: str) -> None:
        """A wait of `rank` was too long: those of this rank end, too, so that it can say whom it waits for."""
        said = decode_reason(text, rank)
        self._fate.waited(rank, said.ranks if isinstance(said, CollectiveTimeout) else ())
        if self._calls.busy():
            self.backend.abort(rank, lost=False)

    def waited(self, awaited: Collection[int]) -> frozenset[int]:
        """A wait of this rank for `awaited` has ended without them: tell the peers, hear from them who is to blame."""
        self._fate.waited(self._rank, awaited)
        self._control.tell(Frame.LATE, encode_reason(CollectiveTimeout("", awaited), self._rank))
        return self._fate.culprits(awaited)

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
        self._messages.send(array, to, tag, self.timeout_s if timeout_s is None else timeout_s)

    def isend(self, array: Array, tensor: Any, to: int, tag: int) -> Work:
        """As send, of the array of `tensor`; returns at once. Neither may change before the Work is complete."""
        return self._messages.start(array, tensor, to, tag, self.timeout_s)

    def recv(self, array: Array, source: int, tag: int) -> int:
        """Receive from rank `source` (ANY: whoever sends first) into contiguous `array`; the sender's rank."""
        return self._messages.recv(array, source, tag, self.timeout_s)

    def receive(self, array: Array, source: int, tag: int, done: Callable[[], None] | None = None) -> Work:
        """Post a receive from rank `source` (ANY: whoever sends first) into contiguous `array`; `done` runs first."""
        return self._messages.receive(array, source, tag, self.timeout_s, done)

    # --- end ---

    def close(self, why: str = _CLOSED) -> None:
        """Say goodbye to the peers and free sockets, memory and threads; subgroups first.

        Collectives that still run are aborted. In a signal handler that interrupted one, on the same thread, this does
        not wait for it: its memory is freed when it returns, with GroupAborted, after the handler. DistError, when all
        is freed, if a callback of a future has run for seconds and still does. `why`: what later calls say.
        """
        if phases.heard:
            phases.reached("start", "close", self)
        self._abort_calls()
        self.close_subgroups(why)
        self._fate.why_closed = self._fate.why_closed or why
        busy = self._calls.close()
        if busy is None:
            return
        if busy:
            self._abort_calls()
        living.discard(self)
        try:
            with contextlib.ExitStack() as then:  # each of these, the last first, whatever another raises
                then.callback(self._calls.afterwards, self._free)
                then.callback(self._fail_messages)  # while the memory that they sleep on is there
                then.callback(self._control.close)
                then.callback(self._calls.worker.close)
        except TimeoutError as error:
            raise DistError(f"{self.title()}: closed, but {error}: a callback of a future still runs there") from error

    def _abort_calls(self) -> None:
        """Also of subgroups: a callback of one group may wait for a call of another, whichever is closed first."""
        if self._calls.busy():
            self.abort(GroupAborted(f"{self.title()}: closed with a collective in flight"))
        for group in self.subgroups:
            group._abort_calls()

    def _fail_messages(self) -> None:
        self._mailbox.fail(self._fate.error(None))

    def _free(self) -> None:
        self._messages.close()
        self.backend.close()
        for link in self._links.values():
            link.close()

    def disown(self) -> None:
        """In a forked child, which is no rank: never join a call, say no goodbye for the parent."""
        self._fate.failure = DistError(  # no lock: another thread of the parent may have held it
            f"{self.title()}: this process (pid {os.getpid()}) was forked from that rank (pid {os.getppid()}) and is "
            "none itself: start workers before init_process_group, or with multiprocessing's 'spawn', and give each a "
            "rank of its own if it takes part"
        )
        self._fate.closed = True

    def close_subgroups(self, why: str = _CLOSED) -> None:
        """Close what `new_group` made of this group on this rank."""
        while self.subgroups:
            self.subgroups.pop().close(why)
