"""What a trace says of the ranks: its own, and the groups that it is in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any


def distributed_info() -> dict[str, Any] | None:
    """Return backend, rank, world size and groups of this process under PyTorch's names; None without a group."""
    dist: Any = sys.modules.get("resilin.distributed")  # whoever has a group has loaded it, nobody else needs to
    if dist is None or not dist.is_initialized():
        return None
    return {
        "backend": str(dist.get_backend()),
        "rank": dist.get_rank(),
        "world_size": dist.get_world_size(),
        "pg_count": dist.get_pg_count(),
        "pg_config": [
            {
                "pg_name": group.name,
                "pg_desc": "default_pg" if number == 0 else group.group_desc,
                "backend_config": dist.get_backend_config(group),
                "pg_size": dist.get_world_size(group),
                "ranks": dist.get_process_group_ranks(group),
            }
            for number, group in enumerate(_groups(dist.default_group()))
        ],
    }


def _groups(group: Any) -> Iterator[Any]:
    """The group, and all that were made of it."""
    yield group
    for part in group.subgroups:
        yield from _groups(part)
