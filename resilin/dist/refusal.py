"""What a rank does that refuses its own arguments where the others may be right: it tells them, so that nobody waits.

So it is where ranks bring different things, as a list on the root alone. Where all bring the same, a mistake is most
often one of all ranks, who raise it at once.
"""

from __future__ import annotations

import contextlib

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
