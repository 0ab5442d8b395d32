"""Who this process is in the current world, as far as lower floors may know. `dist` says how to find out."""

from __future__ import annotations

from collections.abc import Callable

from resilin._base import env

Source = Callable[[], tuple[int, int] | None]

_source: Source | None = None


def set_source(source: Source | None) -> None:
    """Ask `source` for (rank, world size) from now on; it gives None while there is no group."""
    global _source
    _source = source


def current() -> tuple[int, int] | None:
    """(rank, world size) of the default group, else of the launcher's variables RANK and WORLD_SIZE, else None."""
    here = _source() if _source is not None else None
    if here is not None:
        return here
    rank, world_size = env.get_int("RANK"), env.get_int("WORLD_SIZE")
    return None if rank is None or world_size is None else (rank, world_size)
