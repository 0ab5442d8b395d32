"""Makes the ranks' modules equal when they are wrapped: shapes and arithmetic compared, values from rank 0."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import zip_longest
from typing import Any

import numpy as np

import resilin.dist as dist
from resilin.core.machine import arithmetic
from resilin.core.tensor import Parameter, Tensor
from resilin.ddp import arguments
from resilin.dist import objects
from resilin.dist.objects import everybodys
from resilin.errors import CollectiveMismatch

_NAME = "DistributedDataParallel"
FLAT_BYTES = 16 << 20  # tensors smaller than this travel together, so that a broadcast's latency is paid rarely

Entry = tuple[str, tuple[int, ...], str, bool]


def telling(process_group: Any, init_sync: Any) -> AbstractContextManager[None]:
    """Around the checks of this rank's arguments: the others, which would wait in `check_equal`, hear what it refuses.

    With init_sync=False ranks compare nothing, and nobody is told.
    """
    return objects.telling(_NAME, lambda: arguments.group_of(process_group) if init_sync else None)


def check_equal(
    named: Sequence[tuple[str, Tensor]], settings: Mapping[str, str], group: dist.ProcessGroup, told: Any
) -> list[Any]:
    """Compare names, shapes, dtypes and `requires_grad` of all tensors, and `settings`, over the ranks; what each rank
    `told`.

    Raises CollectiveMismatch on every rank; it names the first tensor or setting that differs, and both sides, or the
    rank that refused its arguments, and why. Ranks whose arithmetic differs (native code on some only, other
    instruction sets) are allowed, with a warning on rank 0.
    """
    mine: list[Entry] = [
        (name, each._array.shape, each._array.dtype.name, isinstance(each, Parameter) and not each._rg)
        for name, each in named
    ]
    try:
        everybody = everybodys(_NAME, (mine, settings, arithmetic.describe(), told), group)
    except CollectiveMismatch as error:  # a rank that compares nothing went on to something else
        raise CollectiveMismatch(
            f"DistributedDataParallel: init_sync=True here; was it False on another rank? {error}"
        ) from None
    objects.check_refusals(_NAME, everybody)
    first, first_settings, _, _ = everybody[0]
    for rank, (theirs, their_settings, _, _) in enumerate(everybody):
        for name, value in first_settings.items():
            if their_settings.get(name) != value:
                raise CollectiveMismatch(
                    f"DistributedDataParallel: rank 0 was made with {name}={value}, rank {rank} with "
                    f"{name}={their_settings.get(name)}"
                )
        for zero, other in zip_longest(first, theirs):
            if zero != other:
                name = (zero or other)[0]
                raise CollectiveMismatch(
                    f"DistributedDataParallel: {name} is {_text(zero)} on rank 0 and {_text(other)} on rank {rank}; "
                    "all ranks must wrap the same model, with parameters registered in the same order"
                )
    if group.rank() == 0:
        _warn_of_mixed_arithmetic([theirs for _, _, theirs, _ in everybody])
    return [theirs for *_, theirs in everybody]


def _warn_of_mixed_arithmetic(everybody: Sequence[str]) -> None:
    other = next((rank for rank, theirs in enumerate(everybody) if theirs != everybody[0]), None)
    if other is not None:
        warnings.warn(
            f"DistributedDataParallel: rank 0 computes with {everybody[0]}; rank {other} with {everybody[other]}. Each "
            "rank applies the optimizer itself, so parameters drift apart by rounding errors, and fixed shards do not "
            "give the same bits in every world. Install the same build everywhere (`resilin doctor` shows what runs), "
            "or set RESILIN_NATIVE=0 and one OPENBLAS_CORETYPE on all hosts",
            stacklevel=4,
        )


def _text(entry: Entry | None) -> str:
    if entry is None:
        return "absent"
    name, shape, dtype, frozen = entry
    return f"{name} of shape {shape} and dtype {dtype}{', frozen' if frozen else ''}"


def broadcast(tensors: Sequence[Tensor], group: dist.ProcessGroup, source: int = 0) -> None:
    """Overwrite `tensors` with those of rank `source`, small ones packed together. Only what differed counts as
    written."""
    packs: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if tensor._array.size == 0:
            continue
        if tensor._array.nbytes >= FLAT_BYTES:
            packs[f"{len(packs)} alone"] = [tensor]
            continue
        packs.setdefault(tensor._array.dtype.name, []).append(tensor)
    for pack in packs.values():
        _broadcast_packed(pack, group, source)


def _broadcast_packed(pack: list[Tensor], group: dist.ProcessGroup, source: int) -> None:
    """Receive aside and compare: a module that is equal already (as after each recovery) stays untouched."""
    if len(pack) == 1 and pack[0].is_contiguous():
        own = pack[0]._array.reshape(-1)
        flat = own if group.rank() == source else np.empty_like(own)
    else:
        flat = np.concatenate([tensor._array.reshape(-1) for tensor in pack])
    dist.broadcast(Tensor._wrap(flat), group_src=source, group=group)
    if group.rank() == source:
        return
    at = 0
    for tensor in pack:
        array = tensor._array
        received = flat[at : at + array.size].reshape(array.shape)
        at += array.size
        if not np.array_equal(_bits(received), _bits(array)):
            array[...] = received
            tensor._bump()


def _bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
