"""CPU memory of tensors: a caching allocator under numpy, in arenas that other processes can map.

`install()` makes the calling thread's numpy allocate from it (NEP 49). Blocks of a few KiB and more come from memfd
arenas; freed blocks are kept and reused last-in first-out, so that their pages stay warm. Without native code, or where
the kernel refuses memfds, arrays are ordinary ones and `locate` gives None.
"""

from __future__ import annotations

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel, native

_install = kernel("memory_install")
_locate = kernel("memory_locate")
_stats = kernel("memory_stats")
_empty_cache = kernel("memory_empty_cache")


def install() -> None:
    """Make numpy allocate from the arenas in this thread. Cheap and idempotent."""
    _install()


def locate(array: Array) -> tuple[int, int] | None:
    """(arena id, byte offset) of the array's first element when all of it lies in one arena, else None."""
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


def stats() -> dict[str, int]:
    """Bytes in use (`allocated`), the most ever in use (`peak`) and bytes in arenas (`reserved`); the number of
    `arenas`, of freed blocks reused (`hits`) and of blocks made fresh (`misses`)."""
    return _stats() or dict.fromkeys(("allocated", "peak", "reserved", "hits", "misses", "arenas"), 0)


def empty_cache() -> None:
    """Give arenas without any used block back to the operating system. Their ids are never used again."""
    _empty_cache()
