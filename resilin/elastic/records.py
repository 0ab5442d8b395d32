"""Define what stands in the store of a job: one record per node, the current generation, the end of the job. Pure.

Layout under `/resilin/<job>/`: `nodes/<node id>` (under that node's lease), which the leader alone follows; and what
all follow, under `world/`: `leader` (whose id it is, and whose lease it is under), `roster` (the leader's copy of all
nodes' records, under its lease), `generation` (compare-and-put by the leader), `closed`; and from people, by `resilin
drain`, `scale`, `top` and `trace record`: `wanted`, `recording` (compare-and-put), `watched` (under a lease of whoever
watches). While that is there, every node writes `/resilin//live/<job>/<node id>` now and then; nobody follows these
keys. Values are JSON objects with the fields below (those that have their default are left out of slots and nodes; a
generation names its members by numbers), but for `leader`, which is an id, and `roster`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from resilin._base import json_text
from resilin.elastic import typed
from resilin.elastic.failure import Failure
from resilin.elastic.hangs import stall_record
from resilin.elastic.hangs.stall_record import Stall
from resilin.elastic.typed import Misfit
from resilin.errors import RendezvousError

INTERRUPTED = 7  # the exit code of a job whose workers were all asked to leave before training had finished

_MOST_TOLD = 500  # letters of a key and of what is wrong with its value, in an error
MAX_BYTES = 4 << 20  # of a record: no store takes more in one call
MOST_RECORDING_S = 86_400  # that people may have spans recorded for at once
MAX_ID_CHARS = 512  # of a node's id: a host's name and two numbers

SlotState = Literal["idle", "running", "ready", "done", "failed", "left"]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A place for one worker on a node."""

    index: int
    incarnation: int = 0
    """How many processes this slot has had; the current one is the last."""
    state: SlotState = "idle"
    """idle: no process, or stopped on purpose. running: alive. ready: alive and said hello. done: succeeded.
    failed: died. left: ended well before the others."""
    endpoint: str = ""
    pid: int = 0
    ended: int = 0
    """The pid that its process had, of a program that does not recover in place, which ended well (`done`)."""
    fault: Literal["", "own", "external"] = ""
    """How the last failed process ended: by its own doing (exception, exit status, SIGSEGV) or killed from outside."""
    limit: int = 0
    """The size of the largest world its program has work for; 0: any."""
    done_in: int = 0
    """For a worker that recovers in place: the generation it is done in. A later one may have work for it again, unless
    it has left meanwhile."""
    over: int = 0
    """The last generation that its worker was told is over: it waits for a later one."""
    stopped: int = 0
    """The last of its incarnations that was ended on purpose: the one after it answers no failure."""
    asked: str = ""
    """Why it left, when it was asked to ("SIGTERM"); empty when its program ended by itself."""
    committed: int = 0
    """The last step that it had committed when it left; 0: none."""
    missed: tuple[int, ...] = ()
    """Ranks that this worker waited for in vain, as long as its group allows."""
    missed_in: int = 0
    """The generation these ranks are of."""
    missed_worked: bool = False
    """Whether this worker had made a step in that generation before."""
    missed_at: str = ""
    """What the wait's error said."""
    has_state: bool = False
    """Whether its worker has the job's state: it has worked on a step since its start."""
    left_out_after: int = 0
    """The last generation that this worker has worked in, when it was left out of later ones: its state is of that one.
    0: it was left out of none since."""
    parts: tuple[int, ...] = ()
    """Of divided state: the ranks whose parts its worker has, its own and those of which it is the buddy. Empty: what
    it has is whole."""
    parts_in: int = 0
    """The generation these ranks are of: the last one that it took up."""
    parts_of: int = 0
    """How many ranks, and so parts, that one had."""
    leaving: bool = False
    """Whether its worker was asked to leave and has not yet."""

    @property
    def redoing(self) -> bool:
        """Return whether it was done in a world that is over, was told so, and waits for the next one."""
        return self.state == "done" and 0 < self.done_in <= self.over

    @property
    def alive(self) -> bool:
        """Return whether a process runs that has work left."""
        return self.state in ("running", "ready") or self.redoing


@dataclass(frozen=True, kw_only=True)
class EarlyFailures:
    """Errors that workers of one node have raised at one line before `@elastic.run` began, start by start."""

    place: str
    """Which, and where: "KeyError at /home/me/train.py:12"."""
    starts: tuple[tuple[int, int], ...]
    """By generation, in their order: how many starts in it have failed so."""
    slots: tuple[int, ...]
    """Whose processes these were."""
    latest: tuple[int, ...]
    """Those of the last start."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine, as its agent describes it."""

    id: str
    host: str
    address: str
    """Where others reach it; MASTER_ADDR when it has rank 0."""
    master_port: int
    """Held for rank 0's use as MASTER_PORT."""
    slots: tuple[Slot, ...]
    leaving: bool = False
    """Asked to go (SIGTERM): it takes no part in the next generation."""
    rank_hint: int = -1
    """`--node-rank` of a static job; -1: any."""
    failure: Mapping[str, Any] | None = None
    """The first failure on this node in the current generation, as `failure.Failure.to_json`."""
    unjoined: int = 0
    """How many of its workers have failed before they were members of a generation."""
    min_nodes: int = 0
    """Of its `--nnodes`, for people; 0: unknown."""
    max_nodes: int = 0
    terms: tuple[str, ...] = ()
    """What else it was started with that should be the same on all nodes, see `terms.of`."""
    failures: int = 0
    """How many of its workers have failed, those left out that another's end had caused."""
    excluded: str = ""
    """Why it takes no part for a while: its workers kept failing. Empty: it does."""
    stall: Stall | None = None
    """Where its workers stand, while training stands still."""
    tried_in: int = 0
    """The last generation in which ranks were missed, and this node has tried whom it reaches: those that its own
    workers missed, or everybody, when one of its own was missed."""
    cut_in: int = 0
    """That generation, if a try took long or failed at first: the network was cut when ranks were missed."""
    unreachable: tuple[str, ...] = ()
    """Ids of nodes with whose workers this one could not connect when it last tried, though both reach the store."""
    stateful: bool = False
    """Whether its rank 0 has trained for a while, and lives: the job has state to lose. One node says it for all."""
    early: EarlyFailures | None = None
    """Errors of its workers at one line, each time before `@elastic.run`."""
    put_back: bool = False
    """Another node has written this record into a store that had lost it; this one has said nothing there yet."""


class GenerationMember(NamedTuple):
    """One worker of a generation. The same (node, slot, incarnation) is the same process.

    A tuple, because every node makes one for each worker of the job.
    """

    node: str
    slot: int
    incarnation: int
    rank: int


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One agreed world. `members` are in rank order, `nodes` in node-rank order."""

    number: int
    kind: Literal["restart", "inplace"]
    members: tuple[GenerationMember, ...]
    nodes: tuple[str, ...]
    master_addr: str
    master_port: int
    restarts_used: int
    reason: str
    broken_off: int = 0
    """The newest generation that ended amid a step, which is redone. Later ones ended, or end, at a commit: a worker
    that has heard of none between may be in either."""
    fresh: bool = False
    """Whether some members were not in the one before: they take the state over."""
    failed_step: int = -1
    """The step at which the last failure of a worker's own doing was; -1: none, or unknown;
    `repeated_failures.ENTERING`."""
    failed_times: int = 0
    """How many generations in a row ended by a failure at that step."""
    failed_on: tuple[str, ...] = ()
    """On which nodes these were: one, or two of several."""
    failed_in: int = 0
    """The generation that the last one of these worked in, or was about to enter."""
    retried: int = 0
    """How many worlds of the same members in a row, this one counted, followed one in which ranks waited for one
    another in vain, though all of them answered."""
    unjoined: tuple[tuple[str, int], ...] = ()
    """By node: how many failures of workers that were no members `restarts_used` holds."""
    origin: str = ""
    """The first node of the first generation that this one goes back to: numbers of other origins mean nothing."""
    refills: tuple[tuple[int, str], ...] = ()
    """Each time that a node which went on put the last generation into a store that had lost it: the number that it has
    there, and a mark of its own (`succession`)."""

    @property
    def boundary(self) -> Literal["now", "commit"]:
        """In place: whether the step of the generation before is redone (`now`) or finished first (`commit`)."""
        return "now" if self.broken_off >= self.number - 1 else "commit"


@dataclass(frozen=True, kw_only=True)
class Closed:
    """The job's end. `failure`: the first one, when it failed."""

    outcome: Literal["succeeded", "failed"]
    reason: str
    failure: Mapping[str, Any] | None = None
    code: int = 1
    """The exit code of all nodes, when it failed."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Record what people asked of a running job."""

    min_nodes: int = 0
    """Instead of what `--nnodes` says; 0: as that says."""
    max_nodes: int = 0
    drained: tuple[str, ...] = ()
    """Ids or hosts of nodes that take no part."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Record that people want the spans of all workers."""

    id: str
    """Another one each time."""
    folder: str
    seconds: float
    nbytes: int
    """Of each worker's file."""


@dataclass(frozen=True, kw_only=True)
class Live:
    """Record where a node's workers are."""

    steps: tuple[tuple[int, int, str], ...]
    """Of each worker that works on one: its slot, the step, and where in it ("" when unknown)."""
    at: float
    """Seconds of the node's own monotonic clock."""
    failure: str = ""
    """The last failure of a worker of this node, as a sentence."""
    recording: str = ""
    """The id of the `Recording` that this node's workers were told of last."""
    recorded: tuple[tuple[int, int, str, str], ...] = ()
    """What has become of that: of each worker its rank, process, state (`RECORDING_STATES`), and file or reason."""


RECORDING_STATES = ("asked", "recording", "recorded", "failed", "ended", "deaf")
"""It has not answered; it records; it has; it cannot; its process has ended before; its program does not listen."""


class Keys:
    """Record where the records of one job stand."""

    def __init__(self, job: str) -> None:
        self.job = f"/resilin/{job}/"
        self.nodes = f"{self.job}nodes/"
        self.world = f"{self.job}world/"
        self.leader, self.roster = f"{self.world}leader", f"{self.world}roster"
        self.generation, self.closed = f"{self.world}generation", f"{self.world}closed"
        self.wanted, self.watched = f"{self.world}wanted", f"{self.world}watched"
        self.recording = f"{self.world}recording"
        self.lasting = (self.generation, self.closed, self.wanted)  # under nobody's lease


def live_prefix(job: str) -> str:
    """Return where the nodes of `job` write their `Live`: no other job's keys begin so, a name is never empty."""
    return f"/resilin//live/{job}/"


def to_bytes(record: Node | Generation | Closed | Wanted | Recording | Live) -> bytes:
    """A record as it stands in the store."""
    return json.dumps(_body(record), default=_body, separators=(",", ":")).encode()


def _body(record: Any) -> dict[str, Any]:
    if isinstance(record, Generation):  # it goes to every node and names every member: short
        places = {name: number for number, name in enumerate(record.nodes)}
        members = [(places[m.node], m.slot, m.incarnation) for m in record.members]
        return {**vars(record), "members": members}
    if isinstance(record, (Node, Slot)):
        return {f.name: value for f in fields(record) if (value := getattr(record, f.name)) != f.default}
    return dict(vars(record))


def node(key: str, value: bytes) -> Node:
    """The inverse of `to_bytes`; RendezvousError names `key` when the value is no such record."""
    body = _load(key, value)
    with _expected(key, value):
        found = typed.build(Node, body)
        _check_failure(found.failure)
        if [slot.index for slot in found.slots] != list(range(len(found.slots))):
            raise Misfit("Node.slots: expected the slots 0, 1 and so on")
        if found.stall is None:
            return found
        stall = stall_record.from_json(body["stall"])
        for worker in stall.workers:
            for call in worker.flight().calls:
                typed.check(call)
        return replace(found, stall=stall)


@lru_cache(maxsize=2)  # the many agents of a simulation read the same one; it cannot be changed
def generation(key: str, value: bytes) -> Generation:
    """The inverse of `to_bytes`."""
    body = _load(key, value)
    with _expected(key, value):
        places = typed.convert("Generation.members", tuple[tuple[int, int, int], ...], body.get("members"))
        found = typed.build(Generation, {**body, "members": ()})
        if not all(0 <= place < len(found.nodes) and slot >= 0 for place, slot, _ in places):
            raise Misfit("Generation.members: expected numbers of its nodes and of their slots")
        members = (
            GenerationMember(found.nodes[place], slot, incarnation, rank)
            for rank, (place, slot, incarnation) in enumerate(places)
        )
        return replace(found, members=tuple(members))


def closed(key: str, value: bytes) -> Closed:
    """The inverse of `to_bytes`."""
    body = _load(key, value)
    with _expected(key, value):
        found = typed.build(Closed, body)
        _check_failure(found.failure)
        return found


def wanted(key: str, value: bytes) -> Wanted:
    """The inverse of `to_bytes`."""
    body = _load(key, value)
    with _expected(key, value):
        found = typed.build(Wanted, body)
        if min(found.min_nodes, found.max_nodes) < 0:
            raise Misfit("Wanted: expected numbers of nodes")
        return found


def recording(key: str, value: bytes) -> Recording:
    """The inverse of `to_bytes`."""
    body = _load(key, value)
    with _expected(key, value):
        found = typed.build(Recording, body)
        if not 0 < found.seconds <= MOST_RECORDING_S or not 0 < found.nbytes < 1 << 40:
            raise Misfit(f"Recording: expected up to {MOST_RECORDING_S} seconds, and bytes of a file")
        return found


def live(key: str, value: bytes) -> Live:
    """The inverse of `to_bytes`."""
    body = _load(key, value)
    with _expected(key, value):
        return typed.build(Live, body)


def leader(key: str, value: bytes) -> str:
    """The id in the record of who leads."""
    with _expected(key, value):
        name = value.decode()
        if not name.isprintable() or not 0 < len(name) <= MAX_ID_CHARS:
            raise Misfit("expected the id of a node")
        return name


def _load(key: str, value: bytes) -> dict[str, Any]:
    with _expected(key, value):
        if len(value) > MAX_BYTES:
            raise Misfit(f"it has {len(value)} bytes")
        body = json_text.parse(value)
        if not isinstance(body, dict):
            raise Misfit("expected an object")
        return body


def _check_failure(failure: Mapping[str, Any] | None) -> None:
    if failure is not None:
        typed.check_some(Failure, failure)


@contextmanager
def _expected(key: str, value: bytes) -> Iterator[None]:
    """Around the reading of a record: whatever is wrong with it is an error that names its key."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise misplaced(key, value, "a record of this version of resilin", error) from error


def misplaced(key: str, value: bytes, expected: str, error: Exception | None = None) -> RendezvousError:
    """The error for a key that holds something else than it should."""
    name = key.encode("utf-8", "backslashreplace").decode()[:_MOST_TOLD]
    why = f" ({error!s:.{_MOST_TOLD}})" if isinstance(error, Misfit) else ""
    return RendezvousError(
        f"{name} in the store holds {value[:80]!r}, expected {expected}{why}; do all nodes run the same version, and "
        "does nothing else use this job's name?"
    )
