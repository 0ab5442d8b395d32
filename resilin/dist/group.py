"""A process group: ranks that call the same collectives in the same order.

    caller ──> ProcessGroup ──> Backend (shm | stream)      bytes of collectives
                    │ │  └────> worker thread               async collectives, in call order
                    │ └───────> Messages ──> Mailbox        send and receive
                    └─────────> Control ──> Fate            deaths, aborts; how the group ends

`connect` makes one from agreed endpoints. The first failure ends a group: every blocked and later call raises it.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from resilin._base import env
from resilin._base.clock import Deadline
from resilin.dist import living, phases
from resilin.dist.backends.base import Aborted
from resilin.dist.backends.devices import DeviceBackends
from resilin.dist.backends.registry import BackendConfig
from resilin.dist.backends.select import choose, inherit, shared_memory_of
from resilin.dist.calls import Calls, Run
from resilin.dist.control import Control
from resilin.dist.endpoint import Endpoint, Listener
from resilin.dist.fate import Fate
from resilin.dist.mailbox import Mailbox
from resilin.dist.mesh import Mesh, Topology, Watched, assemble
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
    UsageError,
)

DEFAULT_TIMEOUT_S = 1800.0  # PyTorch's for CPU groups


class _Runs(Protocol):
    def __call__(
        self, kind: Kind, task: Run, outputs: Any = None, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Work | None: ...


class ProcessGroup:
    """One rank's end of a group. Made by `connect`, `init_process_group` or `new_group`; freed by `close`."""

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
        before: ProcessGroup | None = None,
    ) -> None:
        self.name = name
        self.group_desc = "undefined"  # what PyTorch calls a group without a description
        self.listener = listener  # not owned: subgroups connect through it
        self.secret = secret
        self.new_groups = 0  # made of this group so far by all its ranks; part of their names
        self.local_groups = Counter[str]()  # made so far by their members alone, by what their names begin with
        self.subgroups: list[ProcessGroup] = []  # that this rank is in; closed with this group
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
        self._control = Control(mesh.links, self, self._mailbox, name or "group")
        self._messages = Messages(self._control, self._mailbox, self._fate, self._log, self.title, self.ranks)
        living.add(self)
        self._control.start()

    def attach(self, deadline: Deadline) -> None:
        """Finish what needs the peers' help before the first collective."""
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

    def _inherit(self, before: ProcessGroup, mesh: Mesh) -> None:
        """Go on with the memory that `before` and its peers have mapped."""
        old = {endpoint: rank for rank, endpoint in enumerate(before._seats)}
        ranks = {old[link.endpoint]: rank for rank, link in mesh.links.items() if rank in mesh.mapped}
        ranks[old[self._seats[self._rank]]] = self._rank
        inherit(self._host, before._host, ranks)
        for link in mesh.links.values():
            while link.arenas:
                self._host.on_fd(link.rank, Frame.ARENA, 0, *link.arenas.popleft())

    def _share(self, peer: int, kind: Frame, payload: bytes, fd: int) -> None:
        try:
            self._control.send(peer, kind, 0, (payload,), Deadline(self.timeout_s), fd)
        except OSError as error:
            raise PeerLost(f"rank {peer} closed the connection", [peer]) from error

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

    def close(self) -> None:
        """Say goodbye to the peers and free sockets, memory and threads; subgroups first.

        Collectives that still run are aborted. In a signal handler that interrupted one, on the same thread, this does
        not wait for it: its memory is freed when it returns, with GroupAborted, after the handler. DistError, when all
        is freed, if a callback of a future has run for seconds and still does.
        """
        if phases.heard:
            phases.reached("start", "close", self)
        self.close_subgroups()
        busy = self._calls.close()
        if busy is None:
            return
        if busy:
            self.abort(GroupAborted(f"{self.title()}: closed with a collective in flight"))
        living.discard(self)
        try:
            with contextlib.ExitStack() as then:  # each of these, the last first, whatever another raises
                then.callback(self._calls.afterwards, self._free)
                then.callback(self._fail_messages)  # while the memory that they sleep on is there
                then.callback(self._control.close)
                then.callback(self._calls.worker.close)
        except TimeoutError as error:
            raise DistError(f"{self.title()}: closed, but {error}: a callback of a future still runs there") from error

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

    def close_subgroups(self) -> None:
        """Close what `new_group` made of this group on this rank."""
        while self.subgroups:
            self.subgroups.pop().close()

    # --- the next generation ---

    def reconfigure(
        self,
        generation: int,
        members: Sequence[str],
        *,
        group_name: str | None = None,
        timeout_s: float | None = None,
        connect_timeout_s: float | None = None,
        ranks: Sequence[int] | None = None,
        options: Any = None,
    ) -> ProcessGroup:
        """The group of a newer `generation`, of the endpoints `members`, among which this process is.

        This group may be well, aborted, or have lost peers. Every member that has it calls this, with the same list in
        any order of ranks; newcomers call `connect`. Connections between those that had the group, and the memory that
        they have mapped, are used again (`stats()["reused"]`). From the call on this group raises GroupAborted.
        Collectives of it that still run are aborted; its subgroups are closed; members left out hear GroupAborted.
        When it fails, as `connect` does, it can be called again on this group with a higher generation.
        `timeout_s` is the new group's (default: as this one); see `connect` for the rest.
        Raises: as `connect`, with `ranks` that count in `members`; UsageError for a generation that is not higher or
        members without this process.
        """
        topology = Topology(tuple(Endpoint.parse(text) for text in members))
        name = self.name if group_name is None else group_name
        limit = self.timeout_s if timeout_s is None else timeout_s
        deadline = Deadline(limit if connect_timeout_s is None else connect_timeout_s)
        if self._fate.closed:
            raise self._fate.error(None)
        if self.listener is None or self.listener.endpoint not in topology.endpoints:
            raise UsageError(f"{self.title()}: reconfigure: this process is not among the members: close the group")
        if name == self.name and generation <= self._newest:
            raise UsageError(
                f"{self.title()}: reconfigure: expected a generation above {self._newest}, got {generation}"
            )
        over = GroupAborted(f"{self.title()}: generation {generation} of group {name!r} takes its place")
        self._retire(over, deadline)
        self._newest = max(generation, self._newest)
        for link in self._links.values():
            if link.endpoint not in topology.endpoints:
                over = GroupAborted(f"generation {generation} of group {name!r} goes on without this rank")
                link.tell(Frame.ABORT, encode_reason(over, self._rank))
                link.close()
        return _form(
            self.listener,
            topology,
            topology.endpoints.index(self.listener.endpoint),
            deadline,
            self,
            name=name,
            generation=generation,
            timeout_s=limit,
            ranks=ranks,
            secret=self.secret,
            backends=self._backends,
            options=self._options if options is None else options,
        )

    def _retire(self, error: BaseException, deadline: Deadline) -> None:
        """Leave this generation: no call of this rank runs any more, and nothing more is read."""
        if self._fate.closed:
            raise self._fate.error(None)
        if self._calls.inside():
            raise UsageError(f"{self.title()}: reconfigure: called from a signal handler inside a collective")
        self.close_subgroups()
        if self._calls.busy():
            self.abort(error)
        elif self._fate.failure is None:
            self._fate.supersede(error)  # no call starts from here on
        self._control.halt()
        if not self._calls.drain(deadline):
            raise CollectiveTimeout(f"{self.title()}: a collective of this rank did not end", [self._rank])
        self._fate.supersede(error)  # calls that were running have raised what ended them
        self._mailbox.fail(error)
        self._messages.close()

    def _hand_over(self, made: ProcessGroup) -> None:
        """`made` has all that is left of this group."""
        made.group_desc = self.group_desc
        self._fate.closed = True
        living.discard(self)
        self._messages.close()
        self.backend.close()

    def _take_back(self, made: ProcessGroup, error: BaseException) -> None:
        """`made` failed as it was made: keep what it had for another attempt."""
        made.abort(error)
        made._control.halt()
        made._fate.closed = True
        living.discard(made)
        self._messages.close()
        self.backend.close()
        self._links, self._seats = made._links, made._seats
        self._host, self.backend = made._host, made.backend


def connect(
    listener: Listener,
    endpoints: Sequence[str],
    rank: int,
    *,
    group_name: str,
    generation: int = 0,
    secret: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    connect_timeout_s: float | None = None,
    ranks: Sequence[int] | None = None,
    backends: BackendConfig | None = None,
    options: Any = None,
    watched: Watched | None = None,
) -> ProcessGroup:
    """Make a group from the endpoints of its members: every member calls this with the same list.

    `timeout_s` limits this call (unless `connect_timeout_s` is given) and is the default of the group's collectives.
    `secret` defaults to RESILIN_SECRET. `ranks` are the members' ranks in the world, for subgroups. `backends`: what
    serves which device, equal on all; `options` for those of third parties. `watched`: see `ProcessGroup.watched`.
    Raises: CollectiveTimeout naming the ranks (in `endpoints`) that did not come; PeerLost when one is gone already;
    HandshakeError when one refuses (old generation, wrong secret); what `listener.interrupt(error)` is given from
    another thread.
    """
    topology = Topology(tuple(Endpoint.parse(text) for text in endpoints))
    key = secret if secret is not None else env.get("RESILIN_SECRET", "") or ""
    deadline = Deadline(timeout_s if connect_timeout_s is None else connect_timeout_s)
    return _form(
        listener,
        topology,
        rank,
        deadline,
        None,
        name=group_name,
        generation=generation,
        timeout_s=timeout_s,
        ranks=ranks,
        secret=key,
        backends=backends,
        options=options,
        watched=watched,
    )


def _form(
    listener: Listener,
    topology: Topology,
    rank: int,
    deadline: Deadline,
    before: ProcessGroup | None,
    *,
    name: str,
    generation: int,
    secret: str,
    ranks: Sequence[int] | None,
    watched: Watched | None = None,
    **facts: Any,
) -> ProcessGroup:
    """Make a group, of what `before` leaves where there is one."""
    kept = [] if before is None else list(before._links.values())
    maps = before is not None and shared_memory_of(before._host) is not None
    what = "connect" if before is None else "reconfigure"
    if phases.heard:
        phases.reached("start", what, before)
    mesh = assemble(
        listener,
        topology,
        rank,
        group=name,
        generation=generation,
        secret=secret,
        deadline=deadline,
        kept=kept,
        maps=maps,
        ranks=ranks,
        watched=watched,
    )
    try:
        group = ProcessGroup(
            mesh,
            topology,
            rank,
            name=name,
            generation=generation,
            ranks=ranks,
            listener=listener,
            secret=secret,
            before=before,
            **facts,
        )
    except BaseException:  # no descriptor is left, an interrupt: peers hear of it now, whoever keeps the traceback
        for link in mesh.links.values():
            if link not in kept:
                link.close()
        raise
    try:
        if phases.heard:
            phases.reached("agreed", what, group)
        group.attach(deadline)
        if phases.heard:
            phases.reached("end", what, group)
    except BaseException as error:
        if before is None:
            group.abort(error)  # peers that wait for this rank hear why it leaves
            group.close()
        else:
            before._take_back(group, error)
        raise
    if before is not None:
        before._hand_over(group)
    return group


WORLD: ProcessGroup | None = None
"""The default group, kept here by `dist.world`; None means the one at the call, as in torch.distributed."""
NON_GROUP_MEMBER: Any = object()
"""What `new_group` returns in a process outside the new group."""
