"""One rank's error in the middle of what ranks do together: the group is aborted, and no rank waits for this one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire.error_codec import is_shared, telling_once


def abort_group(group: ProcessGroup | None, error: BaseException, where: str) -> None:
    """Abort `group` because of `error`, raised `where` it says on this rank, which the others do not have.

    Peers raise GroupAborted that names this rank and `error`, and is of its class, too. Never blocks.
    """
    if group is not None and group.size() > 1:
        group.abort_with(error, where)


@contextlib.contextmanager
def abort_group_on_error(
    group: ProcessGroup | None, what: str, *, begun: Callable[[], bool] = lambda: True, always: bool = False
) -> Iterator[None]:
    """Abort the group if this block raises, an interrupt included: other ranks may wait for what this one did not do.

    The error is raised here unchanged, with a note of `what` failed; on the other ranks as by `abort_group`. Errors
    that all ranks have, as of a collective inside, end nothing. begun: whether anything was begun that others wait for.
    always: also then, where one rank may have caught what the others raise.
    """
    with telling_once():
        try:
            yield
        except BaseException as error:
            if group is None or group.size() == 1:
                error.add_note(what)
            elif not group.has_ended and begun() and (always or not is_shared(error, group.key)):
                group.abort_with(error, what)
                error.add_note(f"{what}: the group is aborted, so that no rank waits for this one")
            raise
