"""Provide torch.distributed's experimental names for a group whose members change, over `ProcessGroup.reconfigure`."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import timedelta
from numbers import Integral
from typing import Any

from resilin.distributed.connections.listener import Endpoint
from resilin.distributed.group.default_group import reconfigured, resolve
from resilin.distributed.wire.timeouts import seconds
from resilin.distributed.work.work import Work
from resilin.errors import UsageError, UsageTypeError


def _supports_reconfigure(group: Any = None) -> bool:
    """Whether `_reconfigure` works on `group`: on every group that this process is in and that can reach others."""
    found = resolve(group, "_supports_reconfigure")
    return found is not None and found.listener is not None


def _get_reconfigure_handle(group: Any = None) -> str:
    """How members of a later generation of `group` reach this process: opaque text, the same for its whole life."""
    found = resolve(group, "_get_reconfigure_handle")
    if found is None or found.listener is None:
        raise UsageError("_get_reconfigure_handle: this process is not in the group, or the group has no Listener")
    return found.listener.describe()


def _reconfigure(
    uuid: int,
    handles: list[str] | set[str],
    group: Any = None,
    timeout: timedelta | float | None = None,
    hints: Mapping[str, str] | None = None,
) -> Work:
    """Make the next generation of `group` (default: the default group) of the processes behind `handles`.

    Every one of them calls this with the same `uuid`, greater than any before, and the same handles. A list numbers the
    ranks; of a set they are numbered in the order of their texts. The new group takes the place of `group`, which ends;
    see `ProcessGroup.reconfigure` for what is used again and for errors, which are raised here, with `ranks` in that
    numbering: the Work is finished. UsageError for arguments that mean nothing, before anything is sent.
    `hints` are for other backends and change nothing.
    """
    found = resolve(group, "_reconfigure")
    if found is None:
        raise UsageError("_reconfigure: this process is not in the group")
    generation, members = _generation_of(uuid), _members_of(handles)
    made = reconfigured(found, generation, members, connect_timeout_s=seconds(timeout, "_reconfigure: timeout"))
    work = Work(f"_reconfigure, {made.title()}")
    work._future.settle([], None)
    return work


def _generation_of(uuid: Any) -> int:
    """The generation that `uuid` numbers. UsageError for what is no number of one."""
    if not isinstance(uuid, Integral):
        raise UsageTypeError(f"_reconfigure: uuid: expected an integer, greater than any before, got {uuid!r:.80}")
    if int(uuid) >= _GENERATIONS:
        raise UsageError(f"_reconfigure: uuid: expected an integer below 2**63, got {uuid}")
    return int(uuid)


def _members_of(handles: Any) -> list[str]:
    """The handles by rank. UsageError unless each is one and none comes twice."""
    if not isinstance(handles, list | tuple | AbstractSet):
        raise UsageTypeError(
            f"_reconfigure: handles: expected a list or a set of handles, got {type(handles).__name__}"
        )
    seen: dict[Endpoint, int] = {}
    for rank, handle in enumerate(handles):
        what = f"_reconfigure: handles[{rank}]"
        if not isinstance(handle, str):
            raise UsageTypeError(f"{what}: expected a text of _get_reconfigure_handle(), got {handle!r:.80}")
        try:
            endpoint = Endpoint.parse(handle)
        except UsageError as error:
            raise UsageError(f"{what}: {error}") from None
        if endpoint in seen:
            raise UsageError(f"{what} is that of rank {seen[endpoint]} again: name each process once")
        seen[endpoint] = rank
    return sorted(handles) if isinstance(handles, AbstractSet) else list(handles)


_GENERATIONS = 1 << 63
