"""Makes sure that all ranks divide the same parameters: shapes when they are added, values before the first step; and
that an update which fails on one rank leaves none waiting."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import zip_longest
from typing import Any

import numpy as np

import resilin.dist as dist
from resilin.core.tensor import Tensor
from resilin.dist import objects
from resilin.dist.backends.base import Call
from resilin.dist.message import Kind
from resilin.dist.world import resolve
from resilin.errors import CollectiveMismatch, DistError, ElasticError, UsageError
from resilin.zero.owned import options_of

NAME = "ZeroRedundancyOptimizer"
MAKING = f"{NAME}(...)"
_SCALER = "GradScaler"
Entry = tuple[str, tuple[int, ...], str]


def group_of(name: str, process_group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """`process_group`, or the default group if there is one. UsageError on ranks that are not in it."""
    if process_group is None:
        return dist.default_group() if dist.is_initialized() else None
    group = resolve(process_group, name)
    if group is None:
        raise UsageError(f"{name}: this rank is not in process_group; call it on its members only")
    return group


def telling(process_group: Any, asked: str = MAKING) -> AbstractContextManager[None]:
    """Around the checks of this rank's arguments of the call `asked`: others, which would wait in `check_layout`, hear
    what it refuses."""
    return objects.telling(asked, lambda: group_of(NAME, process_group), everybodys)


@contextmanager
def of_call(asked: str) -> Iterator[None]:
    """Around collectives of the call `asked`: when other ranks make another one, the error says which this one was."""
    try:
        yield
    except CollectiveMismatch as error:
        if f"{NAME}: " in str(error):
            raise  # it has been named, in the same call
        raise CollectiveMismatch(
            f"{NAME}: {asked} met another call of another rank: {error}. All ranks make the same calls of an "
            "optimizer, in the same order: step, add_param_group, consolidate_state_dict, sharded_state_dict; and "
            "their loss scalers are all enabled, or none is"
        ) from None


def everybodys(asked: str, mine: Any, group: dist.ProcessGroup) -> list[Any]:
    """What every rank says in the call `asked`, by rank. CollectiveMismatch names both where another one was made."""
    said = [(asked, mine)]
    if group.size() > 1:
        with of_call(asked):
            said = objects.everybodys(NAME, (asked, mine), group)
    first = said[0][0]
    for rank, (call, _) in enumerate(said):
        if call != first:
            raise CollectiveMismatch(
                f"{NAME}: rank {group.ranks[0]} called {first}, rank {group.ranks[rank]} called {call}; all ranks "
                "must make the same call, with the same arguments"
            )
    return [one for _, one in said]


def check_layout(
    groups: Sequence[dict[str, Any]], first: int, setting: str, group: dist.ProcessGroup, asked: str
) -> None:
    """Compare parameter groups over the ranks: names where there are any, shapes, dtypes, options, and `setting`.

    first: the number of the first group that is compared, and all after it are; those before it have been. asked: the
    call that adds them.
    Raises CollectiveMismatch on every rank; it names the first parameter or option that differs, and both sides, or the
    rank that refused its arguments, and why.
    """
    everybody = everybodys(asked, (setting, _entries(groups, first), _options(groups, first)), group)
    objects.check_refusals(NAME, everybody)
    first_setting, first_entries, first_options = everybody[0]
    for rank, (their_setting, theirs, their_options) in enumerate(everybody):
        if their_setting != first_setting:
            raise CollectiveMismatch(f"{NAME}: rank 0 was made with {first_setting}, rank {rank} with {their_setting}")
        for zero, other in zip_longest(first_entries, theirs):
            if zero != other:
                sides = _text(zero), _text(other)
                if sides[0] == sides[1]:  # their names differ
                    sides = zero[0], other[0]
                raise CollectiveMismatch(
                    f"{NAME}: {(zero or other)[0]} is {sides[0]} on rank 0 and {sides[1]} on rank {rank}; all ranks "
                    "must give the same parameters, by the same names or all without, in the same groups and order"
                )
        for name in {**first_options, **their_options}:
            zero, other = first_options.get(name, "absent"), their_options.get(name, "absent")
            if zero != other:
                raise CollectiveMismatch(
                    f"{NAME}: {name} is {zero} on rank 0 and {other} on rank {rank}; each rank would update its range "
                    "in its own way, so all must give the same options"
                )


def _options(groups: Sequence[dict[str, Any]], first: int) -> dict[str, str]:
    """The options of each group from `first` on as text: "lr of group 0" and the like."""
    return {
        f"{name} of group {index}": repr(value.tolist() if isinstance(value, Tensor) else value)
        for index, group in enumerate(groups[first:], first)
        for name, value in options_of(group).items()
    }


def _entries(groups: Sequence[dict[str, Any]], first: int) -> list[Entry]:
    entries, number = [], sum(len(group["params"]) for group in groups[:first])
    for index, group in enumerate(groups[first:], first):
        for name, param in zip_longest(group.get("param_names", ()), group["params"]):
            label = f"parameter {number} (group {index}{'' if name is None else f', {name}'})"
            entries.append((label, param._array.shape, f"{param._array.dtype.name} on {param._dev.type}"))
            number += 1
    return entries


def _text(entry: Entry | None) -> str:
    return "absent" if entry is None else f"of shape {list(entry[1])} and dtype {entry[2]}"


def check_values(params: Sequence[Tensor], numbers: Sequence[int], group: dist.ProcessGroup) -> None:
    """Compare the parameters' values, by a checksum. Raises CollectiveMismatch on every rank, which names the first.

    Without this, a rank's own range would be trained from its own start.
    """
    mine = np.array([zlib.crc32(_bytes(param)) for param in params], np.int64)
    everybody = np.empty((group.size(), len(mine)), np.int64)
    dist.all_gather_into_tensor(Tensor._wrap(everybody.reshape(-1)), Tensor._wrap(mine), group=group)
    differs = np.argwhere(everybody != everybody[0])
    if len(differs):
        rank, place = (int(index) for index in differs[0])
        raise CollectiveMismatch(
            f"{NAME}: parameter {numbers[place]} of shape {list(params[place].shape)} has other values on rank {rank} "
            "than on rank 0; wrap the model in DistributedDataParallel, or broadcast its parameters, before the first "
            "step"
        )


def _bytes(param: Tensor) -> Any:
    array = np.ascontiguousarray(param.detach().cpu()._array)
    return array.reshape(-1).view(np.uint8).data if array.size else b""


def on_any_rank(said: Sequence[bool], scaler: Mapping[str, float], group: dist.ProcessGroup | None) -> list[bool]:
    """Of each of `said`, whether any rank of `group` (None: the world) says so. A collective.

    CollectiveMismatch on all ranks when a number of the loss scaler differs: its negative beside it, so that the
    largest of both are the extremes. So where a rank makes another call: its scaler is disabled, as a rule.
    """
    numbers = list(scaler.values())
    found = np.array([*said, *numbers, *(-each for each in numbers)], np.float64)
    try:
        _greatest(_SCALER, found, group)
    except CollectiveMismatch as error:
        raise CollectiveMismatch(
            f"GradScaler: enabled here, and another rank unscales nothing: {error}. All ranks make scalers with the "
            "same `enabled`, and step by them"
        ) from None
    most, least = np.split(found[len(said) :], 2)
    for (name, mine), high, low in zip(scaler.items(), most, -least, strict=True):
        if high != low:
            raise CollectiveMismatch(
                f"GradScaler: {name} is {low:g} on some rank and {high:g} on another, {mine:g} here; each rank would "
                "divide by its own factor: make scalers alike on all ranks, or load one rank's state_dict() on all"
            )
    return [bool(each) for each in found[: len(said)]]


def _greatest(function: str, array: np.ndarray[Any, Any], group: dist.ProcessGroup | None) -> None:
    """The greatest of all ranks' numbers, into `array`: an all_reduce that is one of `function` for other ranks."""
    pg = resolve(group, function)
    if pg is None:
        return
    backend = pg.backend

    def task(call: Call) -> None:
        call.begins(function)
        backend.all_reduce(call, array, dist.ReduceOp.MAX)

    pg.run(Kind.ALL_REDUCE, task)


@contextmanager
def or_abort(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Around what one rank does alone between two collectives: when it fails, end `group`, which would wait for it."""
    try:
        yield
    except (DistError, ElasticError):
        raise  # the group ends by itself, or the world changes
    except BaseException as error:  # an interrupt, too
        if group is not None and group.size() > 1:
            where = f"{NAME}, rank {group.rank()}, own part of the update"
            error.add_note(f"{where}: the group is aborted, so that no rank waits for this one")
            group.abort(UsageError(f"{where}: {error!r}"))
        raise
