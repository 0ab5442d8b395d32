"""Track the groups of this process that are not closed, and end them when it ends or forks."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from typing import Protocol


class OpenGroups(Protocol):
    """A group."""

    def close(self) -> None:
        """Say goodbye to the peers."""

    def disown(self) -> None:
        """This process is a fork of the one that the group belongs to."""


_ALL: weakref.WeakSet[OpenGroups] = weakref.WeakSet()


def add(group: OpenGroups) -> None:
    """`group` was made."""
    _ALL.add(group)


def discard(group: OpenGroups) -> None:
    """`group` is closed."""
    _ALL.discard(group)


def close_all() -> None:
    """Close every group of this process; at interpreter exit, so that peers hear a goodbye and not a death."""
    with contextlib.ExitStack() as each:  # whatever another raises
        for group in list(_ALL):
            each.callback(group.close)


def _forget_in_child() -> None:
    for group in list(_ALL):
        group.disown()
    _ALL.clear()


atexit.register(close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
