"""Makes sure that all ranks shard the same module, and makes buffers equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import zip_longest
from typing import Any

import resilin.dist as dist
from resilin.core.tensor import Tensor, wrap
from resilin.dist import objects
from resilin.errors import CollectiveMismatch
from resilin.zero import agreement

_NAME = "zero.shard"
Entry = tuple[str, tuple[int, ...], str, bool]


def telling(process_group: Any, init_sync: Any) -> AbstractContextManager[None]:
    """Around the checks of this rank's arguments: the others, which would wait in `check`, hear what it refuses.

    With init_sync=False ranks compare nothing, and nobody is told.
    """
    return objects.telling(_NAME, lambda: agreement.group_of(_NAME, process_group) if init_sync else None)


def check(named: Sequence[tuple[str, Tensor]], settings: Mapping[str, str], group: dist.ProcessGroup) -> None:
    """Compare names, shapes, dtypes, `requires_grad` and `settings` (arguments, as text) over the ranks.

    Raises CollectiveMismatch on every rank; it names the first tensor that differs, or the settings, and both sides, or
    the rank that refused its arguments, and why.
    """
    mine = (settings, [(name, t._array.shape, t._array.dtype.name, t._rg) for name, t in named])
    try:
        everybody = objects.everybodys(_NAME, mine, group)
    except CollectiveMismatch as error:  # a rank that compares nothing went on to something else
        raise CollectiveMismatch(f"zero.shard: init_sync=True here; was it False on another rank? {error}") from None
    objects.check_refusals(_NAME, everybody)
    first_settings, first = everybody[0]
    for rank, (their_settings, theirs) in enumerate(everybody):
        for zero, other in zip_longest(first, theirs):
            if zero != other:
                raise CollectiveMismatch(
                    f"zero.shard: {(zero or other)[0]} is {_text(zero)} on rank 0 and {_text(other)} on rank {rank}; "
                    "all ranks must shard the same module, with parameters registered in the same order"
                )
        apart = [name for name, value in first_settings.items() if their_settings.get(name, value) != value]
        if apart:
            zero, other = (
                ", ".join(f"{name}={settings[name]}" for name in apart) for settings in (first_settings, their_settings)
            )
            raise CollectiveMismatch(f"zero.shard: rank 0 was called with {zero}, rank {rank} with {other}")


def _text(entry: Entry | None) -> str:
    if entry is None:
        return "absent"
    name, shape, dtype, trained = entry
    return f"{name} of shape {list(shape)} and dtype {dtype}{'' if trained else ', frozen'}"


def broadcast(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Make `tensors` equal to those of rank 0, those of one dtype and device in one call."""
    kinds: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        if tensor._array.size:
            kinds.setdefault((tensor._array.dtype.name, str(tensor._dev)), []).append(tensor)
    for pack in kinds.values() if group.size() > 1 else ():
        dev = pack[0]._dev
        flat = dev.xp.concatenate([tensor._array.reshape(-1) for tensor in pack])
        dist.broadcast(wrap(flat, dev), group_src=0, group=group)
        at = 0
        for tensor in pack if group.rank() else ():
            size = int(tensor._array.size)
            tensor._array[...] = flat[at : at + size].reshape(tensor._array.shape)
            tensor._bump()
            at += size
