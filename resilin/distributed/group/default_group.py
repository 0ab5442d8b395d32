"""Keep the groups of this process: the default group, its subgroups, and how `init_process_group` makes them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from resilin._base import env
from resilin._base import secret as job_secret
from resilin._base import world as base_world
from resilin._base.clock import Deadline, spell
from resilin._base.interfaces import own_address
from resilin.distributed.backends.registry import Backend, BackendConfig, checked
from resilin.distributed.connections.listener import Listener
from resilin.distributed.group import endpoint_exchange
from resilin.distributed.group.process_group import DEFAULT_TIMEOUT_S, ProcessGroup, connect
from resilin.distributed.group.rendezvous import check_rank, meeting_place, store_of
from resilin.distributed.stores.adapter import CoordinationStore
from resilin.distributed.stores.base import PrefixStore, Store
from resilin.distributed.stores.tcp import ServerGone, TCPStore
from resilin.distributed.work.work import seconds
from resilin.errors import DistError, DistStoreError, NoGroupError, UsageError, UsageTypeError

if TYPE_CHECKING:
    from resilin.store.base import Store as Coordination


default_pg_timeout = timedelta(seconds=DEFAULT_TIMEOUT_S)


class _GroupMemberType(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The default group of now; None when there is none."""
        return default_group() if is_initialized() else None


class GroupMember(metaclass=_GroupMemberType):
    """`GroupMember.WORLD` is the default group; NON_GROUP_MEMBER what `new_group` returns outside the new group."""

    NON_GROUP_MEMBER: Any = object()


class _Round(NamedTuple):
    """What groups that follow one another have alike. Ranks may have had unlike many with others elsewhere."""

    met: str
    """Where; empty in a store that was given."""
    name: str
    generation: int


class _World:
    """The process's registry. Threads that act as ranks have a default group of their own (`use_group`)."""

    def __init__(self) -> None:
        self.default: ProcessGroup | None = None
        self.thread = threading.local()
        self.owned: dict[ProcessGroup, list[Any]] = {}  # by default group: what destroy closes after it
        self.rounds: dict[_Round, int] = {}  # groups that were made so far


_WORLD = _World()


def default_group() -> ProcessGroup:
    """The default group. NoGroupError when there is none."""
    group = getattr(_WORLD.thread, "group", None) or _WORLD.default
    if group is None:
        raise NoGroupError("no default process group: call init_process_group() first")
    return group


def set_default_group(group: ProcessGroup | None) -> None:
    """Make `group` the default group (WORLD); None takes it away. The caller keeps owning it.

    The subgroups of the one it replaces are closed: nobody can name them any more.
    """
    before, _WORLD.default = _WORLD.default, group
    if before is not None and before is not group:
        before.close_subgroups(f"group {before.name!r}, of which it was made, is the default group no more")


def replace_group(before: ProcessGroup, after: ProcessGroup) -> None:
    """`after` takes the place of `before` as default group or subgroup, and what it owns; `before` is closed.

    Called again after an interrupt it does what is left: each step may be taken twice.
    """
    if getattr(_WORLD.thread, "group", None) is before:
        _WORLD.thread.group = after
    elif _WORLD.default is before:
        _WORLD.default = after
    else:
        _exchange(default_group(), before, after)
    if before in _WORLD.owned:
        _WORLD.owned[after] = _WORLD.owned[before]
        _WORLD.owned.pop(before)
    before.close()


def reconfigured(before: ProcessGroup, generation: int, members: Sequence[str], **facts: Any) -> ProcessGroup:
    """`before.reconfigure(...)`, and `replace_group`, also where an interrupt comes as the group is returned or takes
    its place."""
    try:
        return before.reconfigure(generation, members, **facts)
    finally:
        if before.successor is not None:
            try:
                replace_group(before, before.successor)
            except BaseException:
                replace_group(before, before.successor)
                raise


def _exchange(parent: ProcessGroup, before: ProcessGroup, after: ProcessGroup) -> None:
    parent.subgroups = [after if group is before else group for group in parent.subgroups]
    for group in parent.subgroups:
        _exchange(group, before, after)


def _drop(parent: ProcessGroup, gone: ProcessGroup) -> None:
    parent.subgroups = [group for group in parent.subgroups if group is not gone]
    for group in parent.subgroups:
        _drop(group, gone)


def _here() -> tuple[int, int] | None:
    group = getattr(_WORLD.thread, "group", None) or _WORLD.default
    return None if group is None else (group.rank(), group.size())


base_world.set_source(_here)  # data's samplers ask there who they are


@contextlib.contextmanager
def use_group(group: ProcessGroup) -> Iterator[Callable[[], ProcessGroup | None]]:
    """Inside the block, and in this thread only, `group` is the default group: for ranks that are threads.

    What the block gets says which group has taken that one's place, if any; that one is the caller's to close.
    """
    before = getattr(_WORLD.thread, "group", None)
    _WORLD.thread.group = group
    try:
        yield lambda: getattr(_WORLD.thread, "group", None)
    finally:
        _WORLD.thread.group = before


def resolve(group: Any, function: str) -> ProcessGroup | None:
    """The group that the `group` of `function` means: None is the default group; None is returned outside the group."""
    if group is None:
        return default_group()
    if group is GroupMember.NON_GROUP_MEMBER:
        return None
    if not isinstance(group, ProcessGroup):
        raise UsageTypeError(f"{function}: group: expected a ProcessGroup, as new_group() returns, got {group!r}")
    return group


def is_available() -> bool:
    """True: resilin always has the `cpu` backend."""
    return True


def is_initialized() -> bool:
    """Return whether there is a default group."""
    return getattr(_WORLD.thread, "group", None) is not None or _WORLD.default is not None


def is_torchelastic_launched() -> bool:
    """Return whether `elastic-run` (or torchrun) started this process."""
    return env.get("TORCHELASTIC_RUN_ID") is not None


def get_rank(group: Any = None) -> int:
    """This process's rank in `group`; -1 outside it."""
    found = resolve(group, "get_rank")
    return -1 if found is None else found.rank()


def get_world_size(group: Any = None) -> int:
    """Number of ranks in `group`; -1 outside it."""
    found = resolve(group, "get_world_size")
    return -1 if found is None else found.size()


def get_backend(group: Any = None) -> Backend:
    """The backend of `group` as it was given, in lower case; "cpu" when none was."""
    return _config("get_backend", group).name


def get_backend_config(group: Any = None) -> str:
    """The backend for each device type of `group`: "cpu:cpu,cuda:nccl"."""
    return str(_config("get_backend_config", group))


def _config(where: str, group: Any) -> BackendConfig:
    found = resolve(group, where)
    if found is None:
        raise UsageError(f"{where}: this process is not in the group")
    return found.backend.config


def get_pg_count() -> int:
    """Count the groups that this process is in: the default group and what was made of it."""
    return _count(default_group()) if is_initialized() else 0


def _count(group: ProcessGroup) -> int:
    return 1 + sum(_count(part) for part in group.subgroups)


def _get_process_group_name(pg: ProcessGroup) -> str:
    """The group's name, which is the same on all its ranks."""
    return pg.name


def get_process_group_ranks(group: Any = None) -> list[int]:
    """Global ranks of the members, in group order."""
    found = resolve(group, "get_process_group_ranks")
    return [] if found is None else list(found.ranks)


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """Rank in `group` of a global rank. UsageError when it is not a member."""
    known = _members(group, "get_group_rank")
    try:
        return known.ranks.index(global_rank)
    except ValueError:  # also of what is no rank
        raise UsageError(f"global rank {global_rank!r} is not in {known!r} with ranks {list(known.ranks)}") from None


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """Global rank of a rank in `group`. UsageError when it has none such."""
    known = _members(group, "get_global_rank")
    if not isinstance(group_rank, Integral) or not 0 <= group_rank < known.size():
        raise UsageError(f"get_global_rank: group_rank: {group_rank!r:.80} is not in {known!r}")
    return known.ranks[int(group_rank)]


def _members(group: Any, function: str) -> ProcessGroup:
    found = resolve(group, function)
    if found is None:
        raise UsageError(f"{function}: group: this rank is not in it, so it does not know its ranks")
    return found


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """LOCAL_RANK as the launcher set it, else `fallback_rank`."""
    rank = env.get_int("LOCAL_RANK", fallback_rank)
    if rank is None:
        raise UsageError("LOCAL_RANK is not set: start with elastic-run, or pass fallback_rank")
    return rank


def set_timeout(timeout: timedelta | float, group: Any = None) -> None:
    """Change the default timeout of a group's collectives on this rank."""
    found = resolve(group, "set_timeout")
    if timeout is None:
        raise UsageError("set_timeout: timeout: expected seconds or a timedelta, got None")
    limit = seconds(timeout, "set_timeout: timeout") or 0.0
    if found is not None:
        found.timeout_s = limit


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | float | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | Coordination | None = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
    _ranks: Sequence[int] | None = None,
    enable_reconfigure: bool = False,
) -> None:
    """Make the default group; every rank calls it. Blocks until all have, at most `timeout` (30 min).

    `init_method`: `env://` (default: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE), `tcp://host:port`, `file:///path`; or
    pass a `store` (a key-value store of this package or a coordination store) with `rank` and `world_size`. Backend
    "mpi" needs none of these under `mpiexec`. `backend`: see `dist.backends.registry`; equal on all ranks. `device_id`
    changes nothing. `_ranks`, of a part of a job: default groups of other ranks may meet in the same store.
    `enable_reconfigure`: the group waits for nobody and has no members until `_reconfigure(uuid, handles)` names them.
    Raises: UsageError for a bad combination; CollectiveMismatch on all ranks for different backends; SecretRequired
    beyond loopback without RESILIN_SECRET; DistStoreError or CollectiveTimeout naming the ranks that never joined.
    """
    if is_initialized():
        raise UsageError("init_process_group: there is a default group already; destroy_process_group() first")
    backends = checked("init_process_group", backend)
    for argument, number in (("rank", rank), ("world_size", world_size)):
        if not isinstance(number, Integral):
            raise UsageTypeError(f"init_process_group: {argument}: expected an integer, got {number!r}")
    limit = DEFAULT_TIMEOUT_S if timeout is None else seconds(timeout, "init_process_group: timeout") or 0.0
    deadline = Deadline(limit)
    if store is not None and init_method is not None:
        raise UsageError("init_process_group: give init_method or store, not both")
    given: Store | None = None
    if store is not None:
        given = store if isinstance(store, Store) else CoordinationStore(store, timeout=limit)
        check_rank(rank, world_size)
    default = "mpi://" if Backend.MPI in backends.device_backend_map.values() and rank < 0 > world_size else "env://"
    name = group_name or ("default" if not _ranks else f"ranks-{'-'.join(map(str, _ranks))}")
    joined = partial(connect, timeout_s=limit, backends=backends, options=pg_options)
    gone: ServerGone | None = None
    while True:
        owned: list[Any] = []
        try:
            keys = given
            if keys is None:
                keys, rank, world_size = store_of(init_method or default, rank, world_size, deadline.left() or 0.0)
                owned.append(keys)
            if enable_reconfigure:
                group = _unformed(keys, owned, rank, name, joined)
            else:
                met = meeting_place(init_method or default) if given is None else ""
                round_ = _Round(met, name, env.get_int("RESILIN_GENERATION", 0) or 0)
                group = _join(keys, owned, rank, world_size, round_, joined, deadline)
            break
        except BaseException as error:
            for thing in owned:
                thing.close()
            # rank 0 of the round before closed its store just after it had let us in: its next one is on the way
            gone = error if isinstance(error, ServerGone) else gone
            if isinstance(error, ServerGone) and given is None and rank != 0 and not deadline.passed():
                continue
            if gone is not None and given is None and isinstance(error, DistStoreError):
                raise DistStoreError(
                    f"init_process_group, rank {rank} of {world_size}: {gone}; no other store of rank 0 came there "
                    f"within {spell(limit)}: did rank 0 end?"
                ) from None
            raise
    group.group_desc = "default_pg"
    _WORLD.owned[group] = owned
    set_default_group(group)


def _unformed(keys: Store, owned: list[Any], rank: int, name: str, joined: Callable[..., ProcessGroup]) -> ProcessGroup:
    """A group of this process alone, older than every generation, that only `reconfigure` works on."""
    owned.insert(0, Listener(_own_address(keys)))
    secret = _secret(PrefixStore(f"{name}/reconfigured", keys), rank)
    group = joined(owned[0], [owned[0].describe()], 0, group_name=name, generation=-1, secret=secret)
    group.abort(DistError(f"group {name!r} has no members yet: call _reconfigure(uuid, handles) first"))
    return group


def _join(
    keys: Store,
    owned: list[Any],
    rank: int,
    world_size: int,
    round_: _Round,
    joined: Callable[..., ProcessGroup],
    deadline: Deadline,
) -> ProcessGroup:
    """Meet the others in the store, and `connect` as `joined`. What this makes beside the group is put into `owned`."""
    listener = Listener(_own_address(keys))
    owned.insert(0, listener)
    turn = _WORLD.rounds.get(round_, 0)  # equal on all ranks: what earlier rounds left is never read
    place = endpoint_exchange.place_of(keys, f"{round_.name}/{round_.generation}/{turn}")
    endpoints = endpoint_exchange.exchange(place, listener.describe(), rank, world_size, deadline)
    group = joined(
        listener,
        endpoints,
        rank,
        group_name=round_.name,
        generation=round_.generation,
        connect_timeout_s=deadline.left(),
        secret=_secret(place, rank),
    )
    _WORLD.rounds[round_] = turn + 1
    return group


def destroy_process_group(group: Any = None) -> None:
    """Free `group`; for the default group also its subgroups, and the listener and store that `init` made for it."""
    found = resolve(group, "destroy_process_group")
    if found is None:
        return
    try:
        found.close()
    finally:  # also where a callback keeps a thread
        if is_initialized():
            _drop(default_group(), found)
        if found is _WORLD.default:
            _WORLD.default = None
        for thing in _WORLD.owned.pop(found, []):
            thing.close()


def _own_address(store: Store) -> str:
    """The address that peers are told to reach this process at."""
    base = store
    while isinstance(base, PrefixStore):
        base = base.underlying_store
    return own_address((base.host, base.port) if isinstance(base, TCPStore) else None)


def _secret(store: Store, rank: int) -> str:
    """The job's secret; without one, a fresh one that only those who can read the store learn."""
    given = job_secret.from_environment()
    if given is not None:
        return given
    if rank == 0:
        store.set("secret", job_secret.new_secret())
    return store.get("secret").decode()
