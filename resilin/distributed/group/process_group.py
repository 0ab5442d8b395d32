"""Define a process group: ranks that call the same collectives in the same order.

    caller ──> ProcessGroup ──> Backend (shm | sockets)     bytes of collectives
                    │ │  └────> CommThread                  async collectives, in call order
                    │ └───────> P2PTransport ──> Mailbox    send and receive
                    └─────────> ControlChannel ──> GroupFailure: deaths, aborts; how the group ends

`connect` makes one from agreed endpoints, `reconfigure` the next generation of one. The first failure ends a group:
every blocked and later call raises it. What a group is and does in one generation is in `member.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin._base import descriptors
from resilin._base import secret as job_secret
from resilin._base.clock import Deadline
from resilin.distributed.backends.choose_cpu_backend import shared_memory_of
from resilin.distributed.backends.registry import BackendConfig
from resilin.distributed.connections.full_mesh import Topology, Watched, assemble
from resilin.distributed.connections.listener import Endpoint, Listener
from resilin.distributed.group import open_groups
from resilin.distributed.group.member import DEFAULT_TIMEOUT_S as DEFAULT_TIMEOUT_S
from resilin.distributed.group.member import Member
from resilin.distributed.wire import call_phases
from resilin.distributed.wire.error_codec import encode_reason
from resilin.distributed.wire.frames import Frame
from resilin.errors import CollectiveTimeout, DistError, ElasticError, GroupAborted, UsageError


class ProcessGroup(Member):
    """One rank's end of a group. Made by `connect`, `init_process_group` or `new_group`; freed by `close`."""

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
        if self._group_failure.closed:
            raise self._group_failure.error(None)
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
        if self._group_failure.closed:
            raise self._group_failure.error(None)
        if self._queue.inside():
            raise UsageError(f"{self.title()}: reconfigure: called from a signal handler inside a collective")
        self.close_subgroups(f"group {self.name!r}, of which it was made, was shrunk or reconfigured: make it anew")
        if self._queue.busy():
            self.abort(error)
        elif self._group_failure.failure is None:
            self._group_failure.supersede(error)  # no call starts from here on
        self._control.halt()
        if not self._queue.drain(deadline):
            raise CollectiveTimeout(f"{self.title()}: a collective of this rank did not end", [self._rank])
        self._group_failure.supersede(error)  # calls that were running have raised what ended them
        self._mailbox.fail(error)
        self._p2p.close()

    def _hand_over(self, made: ProcessGroup) -> None:
        """`made` has all that is left of this group. Idempotent; until it is closed `_take_back` undoes this."""
        made.group_desc = self.group_desc
        self._p2p.close()
        self.backend.close()
        self.successor = made
        self._group_failure.closed = True
        open_groups.discard(self)

    def _take_back(self, made: ProcessGroup, error: BaseException) -> None:
        """`made` failed as it was made: keep what it had for another attempt."""
        made.abort(error)
        made._control.halt()
        made._group_failure.closed = True
        open_groups.discard(made)
        self._p2p.close()
        self.backend.close()
        self.successor = None
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
    key = job_secret.from_environment() if secret is None else job_secret.checked(secret, "connect: secret")
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
        secret=key or "",
        backends=backends,
        options=options,
        watched=watched,
    )


def _form(
    listener: Listener, topology: Topology, rank: int, deadline: Deadline, *rest: Any, **facts: Any
) -> ProcessGroup:
    """See `_formed`. OSError that says where and what to do when this process has no file descriptor left."""
    try:
        return _formed(listener, topology, rank, deadline, *rest, **facts)
    except OSError as error:
        if not descriptors.are_gone(error):
            raise
        where = (
            f"making group {facts['name']!r} generation {facts['generation']}, rank {rank} of {len(topology.endpoints)}"
        )
        raise descriptors.named(error, where, "a group takes a few for each peer") from error


def _formed(
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
    shared = None if before is None else shared_memory_of(before._host)
    maps = shared is not None and shared.holds()  # else peers send theirs again
    what = "connect" if before is None else "reconfigure"
    if call_phases.heard:
        call_phases.reached("start", what, before)
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
    except BaseException as error:  # no descriptor is left, an interrupt: peers hear of it now
        text = encode_reason(error, rank)
        for link in mesh.links.values():
            if link in kept:
                link.tell(Frame.ABORT, text)  # and it stays, for another attempt
            else:
                link.close()  # whoever keeps the traceback
        raise
    _begin(group, before, deadline, what)
    return group


def _begin(group: ProcessGroup, before: ProcessGroup | None, deadline: Deadline, what: str) -> None:
    """Let a group that was made begin, in the place of `before`; else all is as it was there, or `group` is closed."""
    try:
        if call_phases.heard:
            call_phases.reached("agreed", what, group)
        group.attach(deadline)
        if call_phases.heard:
            call_phases.reached("end", what, group)
        if before is not None:
            before._hand_over(group)
    except BaseException as error:
        if before is not None and not before._group_failure.closed:
            before._take_back(group, error)
        else:
            if before is not None:  # an interrupt in the middle of it
                before._hand_over(group)
            if isinstance(error, DistError | ElasticError):  # peers that wait for this rank hear why it leaves
                group.abort(error)
            else:
                group.abort_with(error, "left the making of the group half-way")
            group.close()
        raise
