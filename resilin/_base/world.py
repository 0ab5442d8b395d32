"""Who this process is in the current world, as far as lower floors may know. `dist` announces it."""

from __future__ import annotations

from resilin._base import env

_announced: tuple[int, int] | None = None


def announce(rank: int | None, world_size: int | None) -> None:
    """Record this process's rank and world size; None and None: there is no group any more."""
    global _announced
    _announced = None if rank is None or world_size is None else (rank, world_size)


def current() -> tuple[int, int] | None:
    """(rank, world size) of the default group, else of the launcher's variables RANK and WORLD_SIZE, else None."""
    if _announced is not None:
        return _announced
    rank, world_size = env.get_int("RANK"), env.get_int("WORLD_SIZE")
    return None if rank is None or world_size is None else (rank, world_size)
