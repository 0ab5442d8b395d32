"""Lay out messages: a header of fixed size, the function's name, and a pickle; blocks of tensors are further parts.

    part 0:  HEADER | RREF (a remote call) | name (a call) | pickle | place and id of the autograd context (CONTEXT)
    part 1:  with BLOCKS: the pickled table of blocks, one (channel, note, number of parts, start) each
    parts 2: with BLOCKS: what the channels packed
    last:    with PROFILED: what the caller wants to know, or what the call did

Nothing here is read before the transport has proved who sent it.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from resilin._base.clock import SYSTEM

REPLIES = 1
"""The number of the queue that takes replies to calls that nobody blocks for, and what workers tell one another."""


class MessageKind(IntEnum):
    """What a message is for; the names are those of PyTorch, by which plans of faults choose."""

    PYTHON_CALL = 1
    PYTHON_REMOTE_CALL = 2
    RREF_FETCH_CALL = 3
    RREF_FORK_REQUEST = 4
    RREF_CHILD_ACCEPT = 5
    RREF_USER_DELETE = 6
    REPLY = 7
    ERROR = 8
    NOTE = 9  # of a tensor channel
    MEMBER = 10  # somebody has joined or left
    LOST = 11  # put by the worker itself into the queues of threads that wait for a peer that is gone
    JOB = 12  # put by the worker itself: something to do on a worker thread
    BACKWARD_AUTOGRAD_REQ = 13  # what workers tell one another in a distributed backward
    CLEANUP_AUTOGRAD_CONTEXT_REQ = 14
    PUBLISHED = 15  # there is a newer version of something that is published
    WAITS = 16  # which calls the worker waits for, and runs?


CALL, REMOTE_CALL, FETCH = (
    int(MessageKind.PYTHON_CALL),
    int(MessageKind.PYTHON_REMOTE_CALL),
    int(MessageKind.RREF_FETCH_CALL),
)
FORK_REQUEST, CHILD_ACCEPT = int(MessageKind.RREF_FORK_REQUEST), int(MessageKind.RREF_CHILD_ACCEPT)
USER_DELETE, REPLY, ERROR, NOTE = (
    int(MessageKind.RREF_USER_DELETE),
    int(MessageKind.REPLY),
    int(MessageKind.ERROR),
    int(MessageKind.NOTE),
)
MEMBER, LOST, JOB = int(MessageKind.MEMBER), int(MessageKind.LOST), int(MessageKind.JOB)
BACKWARD, CLEANUP = int(MessageKind.BACKWARD_AUTOGRAD_REQ), int(MessageKind.CLEANUP_AUTOGRAD_CONTEXT_REQ)
PUBLISHED, WAITS = int(MessageKind.PUBLISHED), int(MessageKind.WAITS)

BLOCKS, RREFS, CLOSURE, ANONYMOUS, SMALL, CONTEXT, GRADIENTS, PROFILED = 1, 2, 4, 8, 16, 32, 64, 128
"""Flags: there are blocks; RRefs are in the pickle, which must be read even by who throws it away; code of functions
is; the function itself is, and its name in the message is for people; one small tensor is, as its bytes; behind the
pickle is the autograd context; gradients come back for tensors in the pickle; the caller is profiled, and the last part
is about that (tracing/remote_events.py)."""

HEADER = struct.Struct("<BBHIQd")
"""kind, flags, the queue that takes the reply, length of the name, number of the call, when the caller gives up."""
RREF = struct.Struct("<HQHQ")
"""The RRef's id and the fork's: who made it, and its number there."""
HEADER_BYTES = HEADER.size
TURN_BITS = 40
"""Above them, calls and references are numbered by which process under its worker's id a process is: what the dead are
still answered is nothing to those in their place, and no two references of theirs are one."""
RREF_BYTES = RREF.size
_CONTEXT = struct.Struct("<QH")


def context_mark(id: int, place: bytes) -> bytes:
    """Return what stands behind the pickle of a message of autograd context `id`, which is at `place` of it."""
    return place + _CONTEXT.pack(id, len(place))


def marked_context(part: bytes | memoryview) -> tuple[int, bytes]:
    """Return the autograd context and the place of a message, whose first part ends with a `context_mark`."""
    end = len(part) - _CONTEXT.size
    id, length = _CONTEXT.unpack_from(part, end)
    return id, bytes(part[end - length : end])


# When the caller gives up: 0 is never. Above 0: on the clock that all processes of one host share; below: seconds that
# were left when it was sent, for other hosts, counted from when it is read.


def expiry(at: float | None, same_host: bool) -> float:
    """Return the header's word for a caller that gives up at `at` of this host's clock (None: never)."""
    if at is None:
        return 0.0
    return at if same_host else min(SYSTEM.monotonic() - at, -1e-6)


def expires(word: float) -> float | None:
    """Return when the caller of a message that has come just now gives up, on this host's clock; None: never."""
    if word == 0.0:
        return None
    return word if word > 0 else SYSTEM.monotonic() - word
