"""Encode what an agent and its worker say to each other. Pure: bytes in, messages out; no socket, no thread.

One socketpair per worker, inherited as the descriptor named by `RESILIN_CONTROL_FD`, carries frames of
`_base.framing`; each holds one JSON object whose `kind` names a row of `MESSAGES`.

    worker -> agent   hello  entering  progress  committed  pause  interrupted  stuck  waiting  leaving  left  failed
                      done  recorded
    agent -> worker   world  standby  abort  pending  leave  stay  record  finish

How they go together, seen by a worker that recovers in place:

    hello ──> world(1) ──> committed, committed, ... ──> done ──> finish ──> exit 0
                 │
                 ├─ abort(g): every generation up to g is over now; redo the step in the next world with number > g
                 └─ pending(n), then world(n): everybody switches to n at the next commit all ranks agree on
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from resilin._base import framing, json_text
from resilin._base.text import shown
from resilin.elastic import typed
from resilin.elastic.spawn.spawner import ENV_FD as ENV_FD
from resilin.errors import HandshakeError


class ControlError(HandshakeError):
    """The other end of the control descriptor sent something that is no message."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """Base of every message; `kind` is its name on the wire."""

    kind: ClassVar[str] = ""


# ------------------------------------------------------------------------------------- worker -> agent


@dataclass(frozen=True, kw_only=True)
class Hello(Message):
    """This program recovers in place; `endpoint` is what `dist.listener.Listener.describe()` returned.

    `limit` is the size of the largest world this program has work for (the number of shards of its sampler); 0: any.
    `timeout_s` is how long its collectives wait for a rank that does not answer; 0: for ever.
    """

    kind: ClassVar[str] = "hello"
    pid: int
    endpoint: str
    limit: int = 0
    timeout_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Entering(Message):
    """The worker has left what was before, and forms `generation` with the others."""

    kind: ClassVar[str] = "entering"
    generation: int


@dataclass(frozen=True, kw_only=True)
class Progress(Message):
    """The worker works on `step`; `at` says where in it ("forward", "all_reduce #17"), empty when unknown.

    Said when it has taken `generation` up, with `parts` where its state is divided: the ranks of that world whose parts
    it has, its own and those of which it is the buddy, of as many as `parts_of`.
    """

    kind: ClassVar[str] = "progress"
    generation: int
    step: int
    at: str = ""
    parts: tuple[int, ...] = ()
    parts_of: int = 0


@dataclass(frozen=True, kw_only=True)
class Committed(Message):
    """Step `step` is applied on this rank. `wall`: seconds since the epoch, for people only."""

    kind: ClassVar[str] = "committed"
    generation: int
    step: int
    wall: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Pause(Message):
    """No step is to be expected from this worker for `at_most_s`, because of `reason`; 0: the pause has ended."""

    kind: ClassVar[str] = "pause"
    reason: str = ""
    at_most_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Interrupted(Message):
    """The worker lost others of `generation`, or one of them aborted it: `reason`. It waits for a later one."""

    kind: ClassVar[str] = "interrupted"
    generation: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Stuck(Message):
    """The worker waited for `ranks` of `generation` as long as its group allows; they neither answered nor died.

    The worker lives on: it rolls back and waits for an `Abort` and the next `World`. The agents end the workers of
    `ranks`, which then count as failed. `reason` is what the wait's error said.
    """

    kind: ClassVar[str] = "stuck"
    generation: int
    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Waiting(Message):
    """`generation` has ended for this worker; it waits for the next world."""

    kind: ClassVar[str] = "waiting"
    generation: int


@dataclass(frozen=True, kw_only=True)
class Leaving(Message):
    """The worker was asked to leave (SIGTERM). A `Leave` answers, or a `Stay` and a `Leave` when its state is safe.

    Said again when a world has ended: a `Leave` holds for the world it was said in.
    """

    kind: ClassVar[str] = "leaving"
    reason: str


@dataclass(frozen=True, kw_only=True)
class Left(Message):
    """The worker was asked to leave, has committed its last step, and ends with code 0."""

    kind: ClassVar[str] = "left"
    reason: str


@dataclass(frozen=True, kw_only=True)
class Failed(Message):
    """The worker is about to end because of an exception.

    `report` holds: `type`, `message`, `traceback` (text), and, when known, `step`, `at`, `generation`, `rank` there.
    """

    kind: ClassVar[str] = "failed"
    report: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Done(Message):
    """The worker's program has nothing left to do in this generation; it waits for `Finish` or a new `World`."""

    kind: ClassVar[str] = "done"
    generation: int


@dataclass(frozen=True, kw_only=True)
class Recorded(Message):
    """Answers `Record`: the worker records into the file `path`, or, when it is `over`, has; or cannot: `error`."""

    kind: ClassVar[str] = "recorded"
    id: str
    path: str = ""
    error: str = ""
    over: bool = False


# ------------------------------------------------------------------------------------- agent -> worker


@dataclass(frozen=True, kw_only=True)
class Member:
    """One worker of a world. The same (node, slot, incarnation) in two worlds is the same living process."""

    rank: int
    node: str
    slot: int
    incarnation: int
    host: str = ""


@dataclass(frozen=True, kw_only=True)
class World(Message):
    """One agreed generation, seen by one of its members. `endpoints` and `members` are in rank order."""

    kind: ClassVar[str] = "world"
    number: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    node_count: int
    endpoints: tuple[str, ...]
    members: tuple[Member, ...]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Standby(Message):
    """There is no place for this worker now, for `reason`: it waits, however long, for a `World` or a `Leave`."""

    kind: ClassVar[str] = "standby"
    reason: str


@dataclass(frozen=True, kw_only=True)
class Abort(Message):
    """Every generation up to `generation` is over: `ranks` (of that generation) are gone, for `reason`."""

    kind: ClassVar[str] = "abort"
    generation: int
    reason: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pending(Message):
    """Generation `number` waits for this worker at its next commit; its `World` follows."""

    kind: ClassVar[str] = "pending"
    number: int


@dataclass(frozen=True, kw_only=True)
class Leave(Message):
    """Finish the running step, commit it with the others, then exit with code 0."""

    kind: ClassVar[str] = "leave"
    reason: str


@dataclass(frozen=True, kw_only=True)
class Stay(Message):
    """Go on, although asked to leave: others need the state that this worker alone has. A `Leave` follows."""

    kind: ClassVar[str] = "stay"


@dataclass(frozen=True, kw_only=True)
class Record(Message):
    """Record spans into a file in `folder` for `seconds`, and answer with `Recorded`."""

    kind: ClassVar[str] = "record"
    id: str
    folder: str
    seconds: float
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Finish(Message):
    """Every member is done: exit."""

    kind: ClassVar[str] = "finish"


MESSAGES: dict[str, type[Message]] = {
    cls.kind: cls
    for cls in (
        Hello,
        Entering,
        Progress,
        Committed,
        Pause,
        Interrupted,
        Stuck,
        Waiting,
        Leaving,
        Left,
        Failed,
        Done,
        Recorded,
        World,
        Standby,
        Abort,
        Pending,
        Leave,
        Stay,
        Record,
        Finish,
    )
}

# ----------------------------------------------------------------------------------------------- codec


def encode(message: Message) -> bytes:
    """`message` as one frame, ready to be written to the descriptor."""
    body = {"kind": message.kind, **asdict(message)}
    return framing.encode(json.dumps(body, separators=(",", ":")).encode())


def decode(payload: bytes) -> Message:
    """The message in one frame's payload. ControlError says what is wrong with it."""
    try:
        body = json_text.parse(payload)
    except ValueError as error:
        raise ControlError(f"control message is not JSON: {payload[:80]!r}") from error
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str) or body["kind"] not in MESSAGES:
        kind = body.get("kind") if isinstance(body, dict) else body
        raise ControlError(f"control message of unknown kind {shown(kind)}, expected one of {', '.join(MESSAGES)}")
    try:
        return typed.build(MESSAGES[body.pop("kind")], body)
    except typed.Misfit as error:
        raise ControlError(str(error)) from None


class Decoder:
    """Cuts what arrives on the descriptor into messages."""

    def __init__(self) -> None:
        self._frames = framing.FrameDecoder()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add `data`; yield each message that is now complete."""
        for payload in self._frames.feed(data):
            yield decode(payload)
