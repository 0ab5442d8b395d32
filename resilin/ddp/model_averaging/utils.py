"""Averages of tensors over a group, packed: one collective for all of a dtype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import resilin.distributed as dist
from resilin.core.tensor import Tensor, wrap
from resilin.ddp.traffic import Traffic
from resilin.distributed.agreement.refuse import propagate_errors
from resilin.distributed.group.coalescing_buffer import buffer_of, parts_of
from resilin.distributed.group.default_group import resolve
from resilin.distributed.wire.frames import Kind
from resilin.errors import UsageTypeError


def get_params_to_average(params: Iterable[Any]) -> list[Tensor]:
    """The parameters with a gradient, of parameters or of an optimizer's groups."""
    found: list[Tensor] = []
    for entry in params:
        if isinstance(entry, Tensor):
            found.append(entry)
        elif isinstance(entry, dict) and "params" in entry:
            found.extend(entry["params"])
        else:
            raise UsageTypeError(
                f"model averaging: expected parameters or an optimizer's param_groups, got {type(entry).__name__}"
            )
    return [param for param in found if param._grad is not None]


def average_parameters(params: Sequence[Tensor], process_group: Any, traffic: Traffic | None = None) -> None:
    """Overwrite `params` with their means over `process_group`, the same bits on all its ranks.

    Every rank brings parameters of the same shapes in the same order; nothing happens in a process outside the group.
    Needs memory for a copy of the parameters.
    """
    if process_group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    packs: dict[tuple[str, int], list[Tensor]] = {}
    places: dict[Any, int] = {}  # devices by number: their names may differ between ranks
    with _propagating(process_group):
        for param in params:
            if not isinstance(param, Tensor):
                raise UsageTypeError(f"model averaging: expected parameters, got {type(param).__name__}")
            place = places.setdefault(param._dev, len(places))
            packs.setdefault((param._array.dtype.name, place), []).append(param)
    for _, pack in sorted(packs.items()):
        means = averaged(pack, process_group, traffic)
        for param, mean in zip(pack, means, strict=True):
            param._array[...] = mean
            param._bump()


def average_parameters_or_parameter_groups(
    params: Iterable[Any], process_group: Any, traffic: Traffic | None = None
) -> None:
    """`average_parameters` of those with a gradient among `params`: parameters, or an optimizer's groups."""
    with _propagating(process_group):
        found = get_params_to_average(params)
    average_parameters(found, process_group, traffic)


def _propagating(process_group: Any) -> propagate_errors:
    """Around what one rank may refuse: the others hear of it in the first sum."""
    return propagate_errors(lambda: resolve(process_group, "model averaging"), Kind.ALL_REDUCE)


def averaged(tensors: Sequence[Tensor], group: dist.ProcessGroup, traffic: Traffic | None = None) -> list[Any]:
    """The means of `tensors`, of one dtype and device, over `group`: new arrays of the same shapes there."""
    arrays, place = [tensor._array for tensor in tensors], tensors[0]._dev
    flat = buffer_of(arrays, place.xp)
    if traffic is not None:
        traffic.all_reduce(flat.nbytes, group.size())
    dist.all_reduce(wrap(flat, place), op=dist.ReduceOp.AVG, group=group)
    return parts_of(flat, arrays)
