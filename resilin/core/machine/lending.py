"""Lend the memory of arrays to other processes of this host, as it is now, without a copy.

Lender: `lend` (or `give`, which copies first) names a block of an arena; the borrower maps it from the arena's file
(`lender_arena`) and shows it in a window (`open_window`). Both map it privately, so the kernel gives each a copy of
every page that it writes, by whatever means: a ufunc, a kernel, a pointer. The pages of the file are never written
while they are on loan, and stay as long as anybody maps them, even when the lender is dead.

docs/design/lending.md tells the whole of it.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel, native
from resilin.core.machine import memory

_lend = kernel("memory_lend")
_give = kernel("memory_give")
_open_window = kernel("memory_open_window")
_look_at_window = kernel("memory_look_at_window")

available: bool = native is not None and hasattr(os, "memfd_create")
"""Whether this process can lend at all."""


class LentPlace(NamedTuple):
    """Where a block that is on loan begins."""

    arena: int
    offset: int


class Shown(NamedTuple):
    """What memory in a window is."""

    number: int
    """That the window was opened with."""
    offset: int
    """In the lender's arena."""
    written: bool
    """Whether this process has changed any of it."""


def lend(owner: Array, begin: int, size: int, *, again: bool = False) -> LentPlace | None:
    """Keep `size` bytes from address `begin` on as they are now until `end_loan`, even if `owner` is written or freed.

    None when only a copy would do: `owner` (whose memory it is) has no block of an arena, was lent before and written
    since, was located (others may write there), or is more than four times as large. And, with `again`, the first time
    that the block is to be lent: mapping anew what is small costs more than a copy, unless it is lent several times.
    """
    found = _lend(owner, begin, size, again)
    return None if found is None else LentPlace(*found)


def give(begin: int, size: int) -> LentPlace | None:
    """Copy `size` bytes from address `begin` on into a block that is nobody's here: its borrower may write to it.

    None when there is no room in an arena.
    """
    found = _give(begin, size)
    return None if found is None else LentPlace(*found)


def lend_again(place: LentPlace) -> bool:
    """Begin another loan of a block that is on loan. False when it is not."""
    return bool(native is not None and native.memory_lend_again(*place))


def end_loan(place: LentPlace) -> None:
    """End one loan of a block: without any it may be used again, once it is free."""
    if native is not None:
        native.memory_end_loan(*place)


def collapse_lent() -> None:
    """Move blocks that were lent more than once into huge pages (2 MiB), once, where the kernel has some.

    What the kernel does for a loan, whoever touched the block, then takes as long for 2 MiB as for 4 KiB before.
    """
    if native is not None:
        native.memory_collapse_lent()


def drop_originals() -> int:
    """Free what lies under this process's own copies of the pages of blocks that are lent no more.

    How many such blocks have pages that may yet be copied: worth another look later.
    """
    return 0 if native is None else int(native.memory_drop_originals())


def lender_arena(descriptor: int, size: int) -> Any:
    """A lender's arena of `size` bytes, to open windows on. It owns `descriptor` from now on."""
    return native.LenderArena(descriptor, size)


def own_arena(arena: int) -> Any:
    """An arena of this process as `lender_arena`. KeyError for one that is gone."""
    return lender_arena(os.dup(memory.arena_fd(arena)), memory.arena_size(arena))


def closed_windows() -> Any:
    """The numbers of closed windows: `take()` gives those since the last time; `fd` can be read when there are some."""
    return None if native is None else native.ClosedWindows()


def keep_windows(closed: Any) -> bool:
    """Copy what the windows that tell `closed` show, so that their lenders may write there. False: not all of it."""
    return bool(native.memory_keep_windows(closed))


def open_window(
    arena: Any, offset: int, size: int, *, shared: bool, closed: Any, number: int, own: LentPlace | None = None
) -> Array | None:
    """`size` bytes from `offset` on of a lender's arena, as an array whose writes show nowhere else.

    `closed` is told of `number` once the array and all views of it are gone. `shared`: the lender has given the block
    away. `own`: the block, when it is this process's; its loan ends with the window. None when the kernel maps no more.

    Raises: ValueError when the arena has no such bytes.
    """
    place = (-1, 0) if own is None else own
    return _open_window(arena, offset, size, shared, closed, number, *place)  # type: ignore[no-any-return]


def look_at_window(owner: Array, begin: int, size: int) -> Shown | None:
    """What `size` bytes from address `begin` on of `owner` are; None when it is no array of `open_window`.

    From then on the lender may lend them to others, too: what is written here shows only here, also when given away.
    """
    found = _look_at_window(owner, begin, size)
    return None if found is None else Shown(*found)
