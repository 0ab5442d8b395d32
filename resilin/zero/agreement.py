"""Makes sure that all ranks divide the same parameters: shapes when they are added, values before the first step; and
that an update which fails on one rank leaves none waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np

import resilin.distributed as dist
from resilin.core.tensor import Tensor
from resilin.distributed.agreement.checksum import first_that_differs
from resilin.distributed.agreement.compare import (
    Facts,
    TensorEntry,
    compare_parameters,
    explain_mismatch,
    gather_in_call,
)
from resilin.distributed.agreement.guard import abort_group_on_error
from resilin.distributed.agreement.options import options_of, parameter_names
from resilin.distributed.agreement.refuse import ARGUMENTS, propagate_errors
from resilin.distributed.backends.base import Call
from resilin.distributed.group.default_group import resolve
from resilin.distributed.wire.frames import Kind
from resilin.errors import CollectiveMismatch, UsageError

T = TypeVar("T")

NAME = "ZeroRedundancyOptimizer"
MAKING = f"{NAME}(...)"
_SCALER = "GradScaler"
_WHY = "each rank would update its range in its own way, so all must give the same options"


def group_of(name: str, process_group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """`process_group`, or the default group if there is one. UsageError on ranks that are not in it."""
    if process_group is None:
        return dist.default_group() if dist.is_initialized() else None
    group = resolve(process_group, name)
    if group is None:
        raise UsageError(f"{name}: this rank is not in process_group; call it on its members only")
    return group


def propagating(process_group: Any, asked: str = MAKING) -> propagate_errors:
    """Around the checks of this rank's arguments of the call `asked`: others, which would wait in `check_layout`, hear
    what it refuses."""
    return propagate_errors(
        lambda: group_of(NAME, process_group),
        Kind.ALL_GATHER,
        function=NAME,
        verb=ARGUMENTS if asked == MAKING else f"refused {asked}",
    )


def of_call(asked: str) -> AbstractContextManager[None]:
    """Around collectives of the call `asked`: when other ranks make another one, the error says which this one was."""
    return explain_mismatch(
        NAME,
        f"{asked} met another call of another rank: ",
        ". All ranks make the same calls of an optimizer, in the same order: step, add_param_group, "
        "consolidate_state_dict, sharded_state_dict; and their loss scalers are all enabled, or none is",
    )


def gather(asked: str, kind: Any, mine: T, group: dist.ProcessGroup) -> list[T]:
    """What every rank says, of type `kind`, in the call `asked`, by rank. CollectiveMismatch names both where another
    one was made, DistError who says something of another type."""
    with of_call(asked):
        return gather_in_call(NAME, asked, kind, mine, group)


def check_layout(
    groups: Sequence[dict[str, Any]], first: int, settings: Mapping[str, str], group: dist.ProcessGroup, asked: str
) -> None:
    """Compare parameter groups over the ranks: names where there are any, shapes, dtypes, options, and `settings`.

    first: the number of the first group that is compared, and all after it are; those before it have been. asked: the
    call that adds them.
    Raises CollectiveMismatch on every rank; it names the first parameter or option that differs, and both sides.
    """
    with of_call(asked):
        compare_parameters(
            NAME,
            _entries(groups, first),
            settings,
            group,
            same="all ranks must give the same parameters, by the same names or all without, in the same groups and "
            "order",
            call=asked,
            facts=Facts(NAME, [("", _options(groups, first))], _WHY),
        )


def _options(groups: Sequence[dict[str, Any]], first: int) -> dict[str, str]:
    """The options of each group from `first` on as text: "lr of group 0" and the like."""
    return {
        f"{name} of group {index}": repr(value.tolist() if isinstance(value, Tensor) else value)
        for index, group in enumerate(groups[first:], first)
        for name, value in options_of(group).items()
    }


def _entries(groups: Sequence[dict[str, Any]], first: int) -> list[TensorEntry]:
    params = [param for group in groups[first:] for param in group["params"]]
    return [
        TensorEntry(name, param._array.shape, f"{param._array.dtype.name} on {param._dev.type}")
        for name, param in zip(parameter_names(groups, first), params, strict=True)
    ]


def check_values(params: Sequence[Tensor], numbers: Sequence[int], group: dist.ProcessGroup) -> None:
    """Compare the parameters' values, by a checksum. Raises CollectiveMismatch on every rank, which names the first.

    Without this, a rank's own range would be trained from its own start.
    """
    found = first_that_differs(params, group)
    if found is not None:
        rank, place = found
        raise CollectiveMismatch(
            f"{NAME}: parameter {numbers[place]} of shape {list(params[place].shape)} has other values on rank {rank} "
            "than on rank 0; wrap the model in DistributedDataParallel, or broadcast its parameters, before the first "
            "step"
        )


def on_any_rank(said: Sequence[bool], scaler: Mapping[str, float], group: dist.ProcessGroup | None) -> list[bool]:
    """Of each of `said`, whether any rank of `group` (None: the world) says so. A collective.

    CollectiveMismatch on all ranks when a number of the loss scaler differs: its negative beside it, so that the
    largest of both are the extremes. So where a rank makes another call: its scaler is disabled, as a rule.
    """
    numbers = list(scaler.values())
    found = np.array([*said, *numbers, *(-each for each in numbers)], np.float64)
    with explain_mismatch(
        _SCALER,
        "enabled here, and another rank unscales nothing: ",
        ". All ranks make scalers with the same `enabled`, and step by them",
    ):
        _greatest(_SCALER, found, group)
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


def abort_on_error(group: dist.ProcessGroup | None) -> AbstractContextManager[None]:
    """Abort `group` if this rank fails in what it does alone between two collectives: the others would wait for it."""
    return abort_group_on_error(group, f"{NAME}, rank {0 if group is None else group.rank()}, own part of the update")
