"""One rank's error before a collective: its peers, which wait there, raise one of its class; the group stays usable.

The rank that fails makes the collective all the same, as a call that it refuses. Every collective compares what its
ranks call, so this costs nothing where no rank fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from resilin.distributed.agreement.guard import abort_group
from resilin.distributed.backends.base import Call
from resilin.distributed.group.coalescing_buffer import open_block
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire.error_codec import is_shared, mark_shared
from resilin.distributed.wire.frames import Kind
from resilin.errors import DistError, ElasticError, UsageError

GroupOf = Callable[[], ProcessGroup | None]
"""Finds the group of a call when there is something to tell it; None: there is nobody to tell."""

ARGUMENTS = "refused its arguments"


def refuse_call(
    group: ProcessGroup, kind: Kind, error: Exception, verb: str = ARGUMENTS, function: str = "", async_op: bool = False
) -> None:
    """Make the call of `kind`, or the first one of `function`, as one that this rank refuses because of `error`.

    Peers that make it raise an error of the same class, which says that this rank did what `verb` says, and why.
    Returns when all ranks have made theirs, with `async_op` at once, and so in an open block, whose calls are not made
    any more. Raises nothing: the caller has the error that matters. Ranks that all refuse have nothing to tell.
    """

    def task(call: Call) -> None:
        if function:
            call.begins(function)
        group.refuse(call, error, verb)

    if open_block(group) is None:
        mark_shared(error, group.key)
        with contextlib.suppress(DistError, ElasticError, UsageError):
            group.run(kind, task, async_op=async_op)


class propagate_errors:
    """Tell the group's other ranks of an error of this block, which comes before their common collective.

        with propagate_errors(group, Kind.ALL_REDUCE):
            check(arguments)
        group.run(Kind.ALL_REDUCE, ...)

    They raise an error of its class in that collective, with this rank and its words; here it is raised unchanged, and
    the group stays usable. What ends a program, as KeyboardInterrupt does, waits for nobody: the group is aborted. What
    all ranks have already, as the end of the group, is told to nobody.

    group: or what finds it when there is an error. function: what the collective is the first one of. verb: what the
    others say that this rank did.
    """

    __slots__ = ("_async_op", "_function", "_group", "_kind", "_verb")

    def __init__(
        self,
        group: ProcessGroup | GroupOf,
        kind: Kind,
        async_op: bool = False,
        *,
        function: str = "",
        verb: str = ARGUMENTS,
    ) -> None:
        self._group, self._kind, self._async_op, self._function, self._verb = group, kind, async_op, function, verb

    def __enter__(self) -> None:
        """Nothing is done before there is an error."""

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Tell, where there is something to tell."""
        if error is not None:
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        try:
            group = self._group if isinstance(self._group, ProcessGroup) else self._group()
        except (UsageError, DistError, ElasticError):  # what this rank fails with matters more
            return
        if group is None or group.size() == 1 or is_shared(error, group.key):
            return
        if isinstance(error, Exception):
            refuse_call(group, self._kind, error, self._verb, self._function, self._async_op)
        else:
            abort_group(group, error, f"{self._function or self._kind.name.lower()}, {group.title()}")


def refuse(group: ProcessGroup, where: str, what: str, part: str = "") -> NoReturn:
    """Raise UsageError, and abort `group` with it: the others are in the middle of what this rank cannot go on with.

    where: what was called, which the message begins with; part: of it, as ", shard 3".
    """
    error = UsageError(f"{where}, rank {group.rank()}{part}: {what}")
    abort_group(group, error, "")
    raise error
