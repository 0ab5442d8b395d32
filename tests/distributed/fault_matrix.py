"""Calls, ways to carry them and faults for test_every_fault_at_every_phase.py: a case, and what must come of it."""

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from resilin import distributed as dist
from resilin._base.clock import SYSTEM
from resilin.distributed.backends import socket
from resilin.distributed.wire import schedules, shard_tree
from resilin.distributed.wire.frames import Kind
from resilin.errors import CollectiveTimeout, DistError, GroupAborted, PeerLost
from resilin.testing.faults import FaultPlan
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks

SIZE = 3
SMALL, LARGE = 300, 60_000  # float32: in the slots of shared memory; in arenas, and several pieces for sockets
HUGE = 420_000  # several guarded blocks for each rank


class Arrays:
    """One rank's tensors. `written` are those that calls write."""

    def __init__(self, rank, count):
        self.rank = rank
        self.one = np.full(count, rank + 1, np.float32)
        self.rows = np.ones((SIZE, count), np.float32)
        self.got = np.zeros((SIZE, count), np.float32)
        self.sum = np.zeros(count, np.float32)
        self.written = [self.one, self.got, self.sum]

    def lists(self, root):
        return list(self.rows) if self.rank == root else None


def _along_the_tree(a):
    dist.tree_all_reduce({shard_tree.Subtree(a.rank, a.rank + 1): a.one}, a.sum, shard_tree.plan(SIZE, SIZE))


def _ring(a):
    after, before = (a.rank + 1) % SIZE, (a.rank - 1) % SIZE
    pending = dist.irecv(a.got[0], src=before, tag=5)
    dist.send(a.one, dst=after, tag=5)
    pending.wait()


def _batch(a):
    after, before = (a.rank + 1) % SIZE, (a.rank - 1) % SIZE
    ops = [dist.P2POp(dist.isend, a.one, after), dist.P2POp(dist.irecv, a.got[0], before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def _objects(a):
    dist.all_gather_object([None] * SIZE, {"rank": a.rank})
    dist.broadcast_object_list([a.rank], src=1)


def _objects_to_one(a):
    dist.gather_object(a.rank, [None] * SIZE if a.rank == 2 else None, dst=2)
    dist.scatter_object_list([None], [1, 2, 3] if a.rank == 0 else None, src=0)


def _send_objects(a):
    if a.rank == 0:
        dist.send_object_list(["x" * 9000], dst=1)
    elif a.rank == 1:
        dist.recv_object_list([None], src=0)


def _together(a):
    with dist._coalescing_manager():
        dist.all_reduce(a.one)
        dist.all_reduce(a.sum)


def _later(a):
    first = dist.all_reduce(a.one, async_op=True)
    second = dist.broadcast(a.sum, src=1, async_op=True)
    second.wait()
    first.wait()


def _part(a):
    part = dist.new_group([0, 1, 2])
    dist.all_reduce(a.one, group=part)
    part.close()


CALLS = {
    "barrier": lambda a: dist.barrier(),
    "all_reduce": lambda a: dist.all_reduce(a.one),
    "broadcast": lambda a: dist.broadcast(a.one, src=1),
    "reduce": lambda a: dist.reduce(a.one, dst=2),
    "all_gather": lambda a: dist.all_gather_into_tensor(a.got, a.one),
    "reduce_scatter": lambda a: dist.reduce_scatter_tensor(a.sum, a.rows),
    "gather": lambda a: dist.gather(a.one, list(a.got) if a.rank == 1 else None, dst=1),
    "scatter": lambda a: dist.scatter(a.sum, a.lists(0), src=0),
    "all_to_all": lambda a: dist.all_to_all_single(a.got, a.rows),
    "tree_all_reduce": _along_the_tree,
    "async": _later,
    "coalesced": _together,
    "objects": _objects,
    "objects to one": _objects_to_one,
    "send objects": _send_objects,
    "send and recv": _ring,
    "batch": _batch,
    "monitored_barrier": lambda a: dist.monitored_barrier(),
    "new_group": _part,
}


@dataclass
class Way:
    """How bytes move, and which calls take another path there. `numpy`: without native code."""

    transport: str
    calls: dict[str, int]
    numpy: bool = False
    all_reduce: str = ""
    chain: bool | None = None

    def apply(self, monkeypatch):
        if self.numpy:
            monkeypatch.setattr(socket, "loader", SimpleNamespace(native=None))
        if self.all_reduce:
            chosen = getattr(schedules, f"{self.all_reduce}_all_reduce")
            monkeypatch.setattr(schedules, "all_reduce", lambda rank, size, nbytes: chosen(rank, size))
        if self.chain is not None:
            monkeypatch.setattr(schedules, "_by_chain", lambda size, nbytes: self.chain)


EACH = dict.fromkeys(CALLS, LARGE)
ALGORITHMS = {
    "doubling": Way("tcp", {"all_reduce": LARGE}, all_reduce="doubling"),
    "direct": Way("tcp", {"all_reduce": LARGE}, all_reduce="direct"),
    "halving": Way("tcp", {"all_reduce": LARGE}, all_reduce="halving"),
    "binomial": Way("tcp", {"broadcast": LARGE, "reduce": LARGE}, chain=False),
    "chain": Way("tcp", {"broadcast": LARGE, "reduce": LARGE}, chain=True),
}
WAYS = {
    "shm": Way("shm", {**EACH, "all_reduce": HUGE, "reduce": HUGE}),
    "pushed": Way("shm", {"broadcast": HUGE, "gather": HUGE}),
    "slots": Way("shm", dict.fromkeys(list(CALLS)[1:10], SMALL)),
    "tcp": Way("tcp", EACH),
    "hosts": Way("hosts", EACH),
    "numpy": Way("tcp", dict.fromkeys(list(CALLS)[:10], LARGE), numpy=True),
    **ALGORITHMS,
}

Point = tuple[str, int, str, int]  # what, number of the call, phase, how-manieth


def points(way, name, rounds=2):
    """Every point that a rank comes to in the second round of a call without faults: [(rank, point)], once each."""
    met = [[] for _ in range(SIZE)]
    second = [slice(0)] * SIZE

    def work(rank):
        a = Arrays(rank, way.calls[name])
        for _ in range(rounds):
            first = len(met[rank])
            CALLS[name](a)
            second[rank] = slice(first, len(met[rank]))
            dist.barrier()

    class Notes(FaultPlan):
        def _reached(self, rank, at, call, phase, nth, groups):
            met[rank].append((at, call, phase, nth))

    run_ranks(SIZE, work, transport=way.transport, faults=Notes()).results()
    return [(rank, point) for rank in range(SIZE) for point in dict.fromkeys(met[rank][second[rank]])]


@dataclass
class Story:
    """What came of a case, by rank."""

    errors: dict[int, BaseException] = field(default_factory=dict)
    at: dict[int, float] = field(default_factory=dict)
    after: dict[int, BaseException | None] = field(default_factory=dict)
    changed: list[int] = field(default_factory=list)
    fired_at: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


ROUNDS = 4  # the fault comes in the second; one at the end of a call is met by the next


def play(way, name, victim, kind, point, timeout_s=2 * PATIENCE_S, close=False):
    """Let `kind` strike `victim` at `point`. `close`: every rank closes its group as soon as it has its error."""
    what, call, phase, nth = point
    plan = getattr(FaultPlan(), kind)(victim, what, call, phase=phase, nth=nth)
    story, seen = Story(), {}

    def work(rank):
        group, a = dist.default_group(), Arrays(rank, way.calls[name])
        try:
            for _ in range(ROUNDS):
                CALLS[name](a)
                dist.barrier()  # for those that had no part in it
                a.one.fill(rank)
        except Exception as error:  # noqa: BLE001 - whatever it is: it is looked at later
            at = SYSTEM.monotonic()
            seen[rank] = [each.copy() for each in a.written], a.written
            with story.lock:
                story.errors[rank], story.at[rank] = error, at
                if len(set(story.errors) - {victim}) == SIZE - 1:
                    plan.thaw()
        else:
            plan.thaw()
            return
        try:
            group.run(Kind.BARRIER, group.backend.barrier)
            story.after[rank] = None
        except DistError as error:
            story.after[rank] = error
        if close:
            group.close()

    try:
        outcome = run_ranks(
            SIZE, work, transport=way.transport, faults=plan, abort=False, timeout_s=timeout_s, group_name="matrix"
        )
    finally:
        plan.thaw()
    for rank, error in outcome.errors.items():  # in the making of the group
        story.errors.setdefault(rank, error)
    story.changed = [
        rank for rank, (then, now) in seen.items() if any((x != y).any() for x, y in zip(then, now, strict=True))
    ]
    story.fired_at = plan.fired_at()
    return story


def wrong(story, victim, kind, point):
    """What is not as it should be in a story whose fault struck: a list of sentences."""
    found = []
    for rank in range(SIZE):
        error = story.errors.get(rank)
        if rank == victim:
            if kind != "kill" and not isinstance(error, Exception):
                found.append(f"the victim, rank {rank}, ended with {error!r}")
            continue
        if not _fits(error, victim, kind):
            found.append(f"rank {rank} ended with {error!r}")
        if rank not in story.after or not isinstance(story.after[rank], DistError):
            found.append(f"rank {rank}'s next call ended with {story.after.get(rank)!r}")
    changed = set(story.changed) - ({victim} if kind == "kill" else set())
    if kind == "close" and point[0] in ("send", "recv"):  # a goodbye ends what is for that rank, not other receives
        changed = set()
    if changed:
        found.append(f"tensors of ranks {changed} changed after the error")
    return found


def _fits(error, victim, kind):
    named = getattr(error, "ranks", frozenset())
    if kind == "kill":
        return isinstance(error, PeerLost) and named == {victim}
    if kind == "freeze":
        return isinstance(error, CollectiveTimeout) and named == {victim}
    if kind in ("close", "fail") and isinstance(error, PeerLost):  # left; or hung up in the middle of a message
        return named == {victim}
    return isinstance(error, GroupAborted) and f"rank {victim} " in str(error)
