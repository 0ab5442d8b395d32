"""Remove what killed processes of this user have left behind (`kill -9`): folders and sockets with a dead owner.

Shared memory and pipes have no names here: the kernel removes them. The last flight records stay, to be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from resilin._base import owned_folder
from resilin.launcher import local

_TOLD = 4


def clear() -> list[Path]:
    """Remove them; which these were."""
    return [*owned_folder.clear(), *local.clear()]


def told(found: Sequence[Path]) -> str:
    """Say what was removed."""
    more = f" and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
    return f"cleared what killed processes had left behind: {', '.join(map(str, found[:_TOLD]))}{more}"
