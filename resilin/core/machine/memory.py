"""CPU memory of tensors: a caching allocator under numpy, in arenas that other processes can map.

`install()` makes the calling thread's numpy allocate from it (NEP 49). Blocks of a few KiB and more come from memfd
arenas; freed blocks are kept and reused last-in first-out, so that their pages stay warm. A block that is larger than
what memory, swap and control groups have left is a MemoryError, not a promise that kills the process later.

Without native code, or where the kernel refuses memfds, arrays are ordinary ones and `locate` gives None.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel, native

_install = kernel("memory_install")
_locate = kernel("memory_locate")
_stats = kernel("memory_stats")
_empty_cache = kernel("memory_empty_cache")
_begin_readers = kernel("memory_begin_readers")
_fork_readers = kernel("memory_fork_readers")
_end_readers = kernel("memory_end_readers")


def install() -> None:
    """Make numpy allocate from the arenas in this thread. Cheap and idempotent."""
    _install()


def locate(array: Array) -> tuple[int, int] | None:
    """(arena id, byte offset) of the array's first element when all of it lies in one arena, else None.

    None, too, of memory that was lent (`lending`); what was located is not lent before it is freed.
    """
    return _locate(array)  # type: ignore[no-any-return]


def arena_fd(arena_id: int) -> int:
    """The arena's memfd; it belongs to the allocator and is closed when the arena is released: duplicate it to keep it.

    Raises: KeyError for an arena that never was or is gone.
    """
    if native is None:
        raise KeyError(arena_id)
    return int(native.memory_arena_fd(arena_id))


def arena_size(arena_id: int) -> int:
    """The arena's length in bytes. KeyError for an arena that never was or is gone."""
    if native is None:
        raise KeyError(arena_id)
    return int(native.memory_arena_size(arena_id))


class Readers:
    """Forked children that read this process's arrays where they lie, instead of copying them as any other child does.

    Arrays that are alive at a child's fork stay as they are for it, whatever this process frees: such memory is kept
    (and counts as in use) until `close()`. Only what this process writes into such an array in place may show in the
    child, torn too, unless the child has written there itself. What the child writes nobody else sees.

    Owner: who forks the children; it ends them, waits for them, and calls `close()`.
    """

    def __init__(self) -> None:
        self._group = _begin_readers()

    @contextmanager
    def forking(self) -> Iterator[None]:
        """Within this, what the calling thread forks are such children."""
        _fork_readers(self._group)
        try:
            yield
        finally:
            _fork_readers(0)

    def close(self) -> None:
        """All children are gone: memory kept for them may be used again. A second call does nothing."""
        _end_readers(self._group)


def stats() -> dict[str, int]:
    """Bytes in use (`allocated`), the most ever in use (`peak`) and bytes in arenas (`reserved`); the number of
    `arenas`, of freed blocks reused (`hits`), of blocks made fresh (`misses`), of `loans` to other processes and of
    `windows` on what those have lent."""
    return _stats() or dict.fromkeys(
        ("allocated", "peak", "reserved", "hits", "misses", "arenas", "loans", "windows"), 0
    )


def empty_cache() -> None:
    """Give arenas without any used block back to the operating system. Their ids are never used again."""
    _empty_cache()
