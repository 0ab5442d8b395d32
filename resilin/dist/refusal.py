"""What a rank does that refuses its own arguments: it tells the others, whose may be right, so that nobody waits."""

from __future__ import annotations

import contextlib
from types import TracebackType

from resilin.dist.backends.base import Call
from resilin.dist.block import open_block
from resilin.dist.group import ProcessGroup
from resilin.dist.message import Kind
from resilin.errors import DistError


def tell(group: ProcessGroup, kind: Kind, async_op: bool = False, function: str = "") -> None:
    """Make the call of `kind`, or the first one of `function`, as one that this rank refuses: CollectiveMismatch there.

    Returns when all ranks have made theirs, with `async_op` at once, and so in an open block, whose calls are not made
    any more. Raises nothing: the caller has the error that matters. Ranks that all refuse have nothing to tell.
    """

    def task(call: Call) -> None:
        if function:
            call.begins(function)
        group.backend.agree(call.refusal(), call.deadline())

    if open_block(group) is None:
        with contextlib.suppress(DistError):
            group.run(kind, task, async_op=async_op)


class Telling:
    """Around what looks at a call's arguments: what is raised there, but errors of the group, is told to the others.

    Also what an argument raises that is looked at, as a list of one's own; not what ends the program, which waits for
    nobody.
    """

    __slots__ = ("_async_op", "_function", "_group", "_kind")

    def __init__(self, group: ProcessGroup, kind: Kind, async_op: bool = False, function: str = "") -> None:
        self._group, self._kind, self._async_op, self._function = group, kind, async_op, function

    def __enter__(self) -> None:
        """Nothing is done before there is an error."""

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Tell, where there is something to tell."""
        if isinstance(error, Exception) and not isinstance(error, DistError):
            tell(self._group, self._kind, self._async_op, self._function)
