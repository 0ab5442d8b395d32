"""Make groups of the ranks of another one: some of them, its parts, what is left of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from numbers import Integral
from typing import Any

from resilin.distributed.agreement.guard import abort_group
from resilin.distributed.agreement.refuse import propagate_errors
from resilin.distributed.backends.registry import BackendConfig, checked
from resilin.distributed.group.default_group import GroupMember, default_group, reconfigured, resolve
from resilin.distributed.group.process_group import ProcessGroup, connect
from resilin.distributed.wire.error_codec import in_world
from resilin.distributed.wire.frames import Descriptor, Kind
from resilin.distributed.work.work import seconds
from resilin.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DistError,
    ElasticError,
    GroupAborted,
    PeerLost,
    UsageError,
    UsageTypeError,
)

_NEWS_S = 0.25  # a peer that left a part half-way: this long for the parent to say because of whom
SHRINK_DEFAULT = 0
SHRINK_ABORT = 1
"""`shrink_group`: collectives of the group that still run are aborted first."""


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | float | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    sort_ranks: bool = True,
) -> Any:
    """A group of some ranks of the default group; every rank of it calls this, in the same order.

    It waits for all of them to do so. With `use_local_synchronization`, and where the default group has lost a rank,
    only the members need to call it. Returns GroupMember.NON_GROUP_MEMBER elsewhere.
    Raises CollectiveMismatch on all ranks when one makes another group, or another call; else as `connect`. `ranks` of
    these errors, here and in the functions below, count in the group that is cut up.
    """
    world = default_group()
    with nullcontext() if use_local_synchronization else propagate_errors(world, Kind.NEW_GROUP):
        backends = _config("new_group", backend, world)
        members = list(range(world.size())) if ranks is None else _listed("new_group", ranks)
        _check_members("new_group", [members], world)
        limit = _limit("new_group", timeout)
        _check_description("new_group", group_desc)
    if sort_ranks:
        members.sort()
    if not use_local_synchronization:
        _agree("new_group", [members], world, limit, group_desc)
        return _join_part(world, members, _next_name(world, group_desc), timeout, backends, pg_options, group_desc)
    among = f"{world.name}/{group_desc or 'local'}/{'-'.join(map(str, members))}"
    before = world.local_groups[among]  # as many as the other members have made
    name = f"{among}/{before}" if before else among
    try:
        made = _join_part(world, members, name, timeout, backends, pg_options, group_desc)
    except CollectiveTimeout as error:
        error.add_note("new_group: use_local_synchronization=True is to be given on every one of its ranks, or on none")
        raise
    world.local_groups[among] += 1
    return made


def new_subgroups(
    group_size: int | None = None,
    group: Any = None,
    timeout: timedelta | float | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """`group` (default: all ranks) cut into runs of `group_size` ranks; every rank of it calls this.

    Without `group_size`: the ranks of each host, of which all must have equally many. Returns the subgroup of this rank
    and the list of all, in which the others are GroupMember.NON_GROUP_MEMBER.
    """
    parent = resolve(group, "new_subgroups")
    if parent is None:
        return GroupMember.NON_GROUP_MEMBER, []
    with propagate_errors(parent, Kind.NEW_GROUP):
        runs = _runs(parent, group_size)
    return _part(parent, runs, "new_subgroups", timeout, backend, group_desc, pg_options)


def _runs(parent: ProcessGroup, group_size: int | None) -> list[list[int]]:
    """The ranks of each host, or runs of `group_size` ranks."""
    hosts = parent.topology.hosts()
    if group_size is None:
        if len({len(members) for members in hosts}) != 1:
            raise UsageError(
                f"new_subgroups: hosts of {parent!r} have {[len(members) for members in hosts]} ranks: give group_size"
            )
        return [list(members) for members in hosts]
    size = parent.size()
    if not isinstance(group_size, Integral) or group_size <= 0 or size % group_size:
        raise UsageError(
            f"new_subgroups: group_size: expected a positive number that divides the {size} ranks of {parent!r}, got "
            f"{group_size!r}"
        )
    return [list(range(first, first + group_size)) for first in range(0, size, group_size)]


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | float | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """A subgroup for each list of ranks of the default group, of which no rank may be in two; every rank calls this.

    Returns the subgroup of this rank (NON_GROUP_MEMBER when it is in none) and the list of all, as `new_subgroups`.
    """
    world, where = default_group(), "new_subgroups_by_enumeration"
    with propagate_errors(world, Kind.NEW_GROUP):
        parts = _lists(where, "ranks_per_subgroup_list", ranks_per_subgroup_list)
    return _part(world, parts, where, timeout, backend, group_desc, pg_options)


def _lists(where: str, which: str, lists: Any) -> list[list[int]]:
    if lists is None or (isinstance(lists, Iterable) and not lists):
        raise UsageError(f"{where}: {which} is empty: give a list of ranks for each part")
    if not isinstance(lists, Iterable) or isinstance(lists, str):
        raise UsageTypeError(f"{where}: expected lists of ranks, got {lists!r:.80}")
    return [_listed(where, ranks) for ranks in lists]


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | float | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """A group for each list of ranks in `parent_pg` (default: the default group); every rank of it calls this.

    Returns the one that this rank is in; None when it is in none.
    """
    parent = resolve(parent_pg, "split_group")
    if parent is None:
        return None
    with propagate_errors(parent, Kind.NEW_GROUP):
        parts = _lists("split_group", "split_ranks", split_ranks)
    found, _ = _part(parent, parts, "split_group", timeout, backend, group_desc, pg_options)
    return None if found is GroupMember.NON_GROUP_MEMBER else found


def shrink_group(
    ranks_to_exclude: list[int],
    group: ProcessGroup | None = None,
    shrink_flags: int = SHRINK_DEFAULT,
    pg_options: Any = None,
) -> ProcessGroup:
    """`group` without some of its ranks, which may be dead: only those that stay call this, with the same list.

    `group` is closed, as are its subgroups; the new one goes on over its connections (`ProcessGroup.reconfigure`).
    Without it the default group shrinks: the new one, whose ranks count from 0 again, becomes the default. SHRINK_ABORT
    aborts collectives that still run; else they must be over: UsageError, and nothing has changed.
    Raises: UsageError for ranks that are not in the group, for all of them, and on one of them; what `connect` raises
    when those that stay do not all come. `ranks` of a PeerLost or CollectiveTimeout then count in `group`, which is
    still there: call this again without them, too, as `shrink_group([0, *error.ranks])`.
    """
    parent = resolve(group, "shrink_group")
    if parent is None:
        raise UsageError("shrink_group: this process is not in the group")
    if not isinstance(ranks_to_exclude, list):
        raise UsageTypeError(
            "shrink_group: ranks_to_exclude: expected a list of ranks, as [1, 3], got "
            f"{type(ranks_to_exclude).__name__}"
        )
    if shrink_flags not in (SHRINK_DEFAULT, SHRINK_ABORT):
        raise UsageError(f"shrink_group: shrink_flags: expected SHRINK_DEFAULT or SHRINK_ABORT, got {shrink_flags!r}")
    if not ranks_to_exclude:
        raise UsageError("shrink_group: ranks_to_exclude is empty: name at least one rank that leaves")
    _check_members("shrink_group", [_listed("shrink_group", ranks_to_exclude)], parent)
    staying = [rank for rank in range(parent.size()) if rank not in ranks_to_exclude]
    if parent.rank() not in staying:
        raise UsageError(f"shrink_group: rank {parent.rank()} is excluded itself: only ranks that stay call this")
    if shrink_flags == SHRINK_ABORT:
        parent.abort(GroupAborted(f"{parent.title()}: the group shrinks"))
    elif parent.busy():
        raise UsageError(
            f"shrink_group, {parent.title()}: a collective of this rank still runs: wait for its Work first, or give "
            "shrink_flags=SHRINK_ABORT"
        )
    is_default = parent is default_group()
    out = "-".join(map(str, sorted(ranks_to_exclude)))
    with _counted_in(parent, staying, "shrink_group"):
        return reconfigured(
            parent,
            parent.generation,
            [parent.topology.endpoints[rank].describe() for rank in staying],
            group_name=f"{parent.name}/without-{out}",
            ranks=None if is_default else [parent.ranks[rank] for rank in staying],
            options=pg_options,
        )


def _part(
    parent: ProcessGroup,
    parts: list[list[int]],
    where: str,
    timeout: timedelta | float | None,
    backend: str | None,
    group_desc: str | None,
    options: Any,
) -> tuple[Any, list[Any]]:
    """A subgroup of `parent` for each of the disjoint `parts` (ranks in it): this rank's, and all."""
    with propagate_errors(parent, Kind.NEW_GROUP):
        backends = _config(where, backend, parent)
        _check_members(where, parts, parent)
        limit = _limit(where, timeout)
        _check_description(where, group_desc)
    _agree(where, parts, parent, limit, group_desc)
    made = [
        _join_part(parent, part, _next_name(parent, group_desc), timeout, backends, options, group_desc)
        for part in parts
    ]
    mine = [found for found in made if found is not GroupMember.NON_GROUP_MEMBER]
    return (mine[0] if mine else GroupMember.NON_GROUP_MEMBER), made


def _config(where: str, backend: str | None, parent: ProcessGroup) -> BackendConfig:
    """What `backend` means; the parent's backends when it is not given."""
    return parent.backend.config if backend is None else checked(where, backend)


def _listed(where: str, ranks: Iterable[int]) -> list[int]:
    if not isinstance(ranks, Iterable) or isinstance(ranks, str):
        raise UsageTypeError(f"{where}: expected a list of ranks, got {ranks!r:.80}")
    found = list(ranks)
    if not all(isinstance(rank, Integral) and not isinstance(rank, bool) for rank in found):
        raise UsageTypeError(f"{where}: ranks {found!r:.80} must be distinct ranks, which are integers")
    return found


def _check_members(where: str, parts: Sequence[Sequence[int]], parent: ProcessGroup) -> None:
    """UsageError unless no part is empty and all ranks are distinct ranks of `parent`."""
    named = [rank for part in parts for rank in part]
    twice = sorted(rank for rank, times in Counter(named).items() if times > 1)
    if twice or not all(parts) or not set(range(parent.size())).issuperset(named):
        wrong = parts[0] if len(parts) == 1 else list(parts)
        raise UsageError(f"{where}: ranks {wrong} must be distinct ranks of {parent!r} of {parent.size()}")


def _check_description(where: str, description: Any) -> None:
    if not isinstance(description, str | None):
        raise UsageTypeError(f"{where}: group_desc: expected a text or None, got {description!r:.80}")


def _limit(where: str, timeout: timedelta | float | None) -> float | None:
    return None if timeout is None else seconds(timeout, f"{where}: timeout")


def _agree(
    where: str, parts: Sequence[Sequence[int]], parent: ProcessGroup, limit: float | None, description: str | None
) -> None:
    """CollectiveMismatch on all ranks of `parent` unless all make the same `parts`.

    The ranks of a group meet by its number, so those of different ones would meet, too. A parent that has lost a rank
    cannot be asked any more; parts of it go on.
    """
    ended: list[BaseException] = []
    with parent.watched(ended.append):
        if ended or parent.size() == 1:
            return
    named, backend = tuple(int(rank) for part in parts for rank in part), parent.backend

    def task(call: Any) -> None:
        if len(parts) > 1 or description:  # by it, too, members find one another
            call.carry([*map(tuple, parts), tuple(str(description or "").encode())])
        call.note(None, ())
        backend.agree(Descriptor(call.stamp, call.kind, shape=named), call.deadline())

    try:
        parent.run(Kind.NEW_GROUP, task, timeout_s=limit)
    except CollectiveMismatch as error:
        groups = ", ".join(str(list(part)) for part in parts)
        raise CollectiveMismatch(
            f"{where}: ranks must make the same groups in the same order, of one group_desc; here {groups:.200}"
            f"{(description and f' {description!r}') or ''}; {error}"
        ) from None


def _next_name(parent: ProcessGroup, description: str | None) -> str:
    name = f"{parent.name}/{description or 'group'}/{parent.new_groups}"
    parent.new_groups += 1
    return name


def _join_part(
    parent: ProcessGroup,
    members: list[int],
    name: str,
    timeout: timedelta | float | None,
    backends: BackendConfig,
    options: Any,
    description: str | None,
) -> Any:
    if parent.rank() not in members:
        return GroupMember.NON_GROUP_MEMBER
    made = _connect_part(parent, members, name, timeout, backends, options)
    made.group_desc = description or made.group_desc
    parent.subgroups.append(made)
    return made


def _connect_part(
    parent: ProcessGroup,
    members: list[int],
    name: str,
    timeout: timedelta | float | None,
    backends: BackendConfig | None = None,
    options: Any = None,
) -> ProcessGroup:
    """Connect with `members` (ranks in `parent`), of which this process is one, through the parent's listener."""
    if parent.listener is None:
        raise UsageError(f"{parent!r} was made without a Listener: no group can be made of its ranks")
    try:
        with _counted_in(parent, members, "new group"):
            return connect(
                parent.listener,
                [parent.topology.endpoints[rank].describe() for rank in members],
                members.index(parent.rank()),
                group_name=name,
                generation=parent.generation,
                secret=parent.secret,
                timeout_s=parent.timeout_s if timeout is None else seconds(timeout) or 0.0,
                backends=backends or parent.backend.config,
                options=options,
                ranks=[parent.ranks[rank] for rank in members],
                watched=lambda told: parent.watched(lambda error: _end_of_part(error, members, name, told)),
            )
    except (DistError, ElasticError):  # of which the others have heard, or which they see themselves
        raise
    except BaseException as error:  # of this rank alone: they wait for it, in a group that is not there yet
        abort_group(parent, error, "left the making of a group half-way")
        raise


@contextmanager
def _counted_in(parent: ProcessGroup, members: Sequence[int], what: str) -> Iterator[None]:
    """Errors inside name ranks of a group of `members` that is not made: outside they name ranks of `parent`."""
    try:
        yield
    except (PeerLost, CollectiveTimeout) as error:
        lost = in_world(error.ranks, members)
        if isinstance(error, PeerLost):  # one that left the part because of another one may have had no time to say so
            lost = _culprits(parent, _NEWS_S) & frozenset(members) or lost
        also = [f"rank {rank} (there rank {members.index(rank)})" for rank in sorted(lost)]
        lost = lost or _culprits(parent)
        text = f"{what}, {parent.title()}: {', '.join(also) or 'a rank'} did not take part: {error}"
        if isinstance(error, PeerLost):
            raise PeerLost(text, lost) from error
        raise CollectiveTimeout(text, lost, in_world(lost, parent.ranks)) from error


def _culprits(parent: ProcessGroup, within_s: float = 0.0) -> frozenset[int]:
    """Whom the end of `parent` names, if it ends within that time: what is made of it ended with it, whoever is in
    that."""
    ends: list[BaseException] = []
    ended = threading.Event()

    def told(end: BaseException) -> None:
        ends.append(end)
        ended.set()

    with parent.watched(told):
        ended.wait(within_s)
        return frozenset[int]().union(*(getattr(end, "ranks", ()) for end in ends))


def _end_of_part(error: BaseException, members: list[int], name: str, told: Callable[[BaseException], None]) -> None:
    """The parent has ended while its part `name` is made: so does this, unless only others are lost."""
    if isinstance(error, PeerLost | CollectiveTimeout):
        gone = [number for number, rank in enumerate(members) if rank in error.ranks]
        names = ", ".join(f"rank {rank}" for rank in gone)
        if isinstance(error, CollectiveTimeout):
            error = CollectiveTimeout(f"connect, group {name!r}: {error}", gone)
        elif gone:
            error = PeerLost(f"connect, group {name!r}: {names} will not come: {error}", gone)
        else:
            return
    told(error)
