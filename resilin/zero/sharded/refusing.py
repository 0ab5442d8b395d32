"""How a backward ends that cannot be completed: no rank is left waiting."""

from __future__ import annotations

from typing import NoReturn

import resilin.dist as dist
from resilin.errors import UsageError


def refuse(group: dist.ProcessGroup, what: str) -> NoReturn:
    """UsageError, and `group` is aborted with it: others would wait for this rank's gradients for ever."""
    error = UsageError(f"zero.shard, rank {group.rank()}: {what}")
    group.abort(error)
    raise error
