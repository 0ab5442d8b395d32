"""An abort, an interrupt or a death may come between any two instructions: nobody waits for long, or hears nonsense."""

import contextlib
import gc
import sys
import threading
from unittest import mock

import extent
import numpy as np
import pytest
from company import expected, total
from instants import Instants

from resilin import distributed as dist
from resilin._base.clock import SYSTEM
from resilin.distributed.agreement import exchange
from resilin.distributed.api import collectives, objects
from resilin.distributed.backends.shm.mailbox import SharedMailbox
from resilin.distributed.connections import connection
from resilin.distributed.connections import listener as endpoint
from resilin.distributed.group import default_group
from resilin.distributed.group.default_group import use_group
from resilin.distributed.group.member import Member
from resilin.distributed.group.process_group import ProcessGroup, connect
from resilin.errors import DistError, GroupAborted, PeerLost
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import listener, run_ranks

LARGE = 20_000
FEW = 17  # instants: every call has more
LIMIT_S = 2 * PATIENCE_S
SOON_S = PATIENCE_S

CALLS = {
    "send": (lambda: dist.send(np.zeros(LARGE), 1), lambda: dist.recv(np.zeros(LARGE), 0)),
    "isend": (lambda: dist.isend(np.zeros(LARGE), 1).wait(), lambda: dist.recv(np.zeros(LARGE), 0)),
    "recv": (lambda: dist.recv(np.zeros(LARGE), 1), lambda: dist.send(np.zeros(LARGE), 0)),
    "small recv": (lambda: dist.recv(np.zeros(3), 1), lambda: dist.send(np.zeros(3), 0)),
    "recv from any": (lambda: dist.recv(np.zeros(LARGE)), lambda: dist.send(np.zeros(LARGE), 0)),
    "future of irecv": (
        lambda: dist.irecv(np.zeros(LARGE), 1).get_future().then(lambda done: done.value()).wait(),
        lambda: dist.send(np.zeros(LARGE), 0),
    ),
    "async all_reduce": 2 * (lambda: dist.all_reduce(np.zeros(3), async_op=True).wait(),),
}


class Pair:
    """Two ranks, as threads, with a new group for each trial."""

    def __init__(self, transport):
        self._listeners = [listener(transport, rank) for rank in range(2)]
        self._endpoints = [each.describe() for each in self._listeners]
        self._generation = 0

    def attempt(self, calls, at, act):
        """How many instants rank 0 had, and what both ranks raised or None; `act(group of rank 0)` at instant `at`."""
        self._generation += 1
        outcome, seen = {}, []
        meet = threading.Barrier(2)

        def run(rank):
            group = connect(
                self._listeners[rank],
                self._endpoints,
                rank,
                group_name="instants",
                generation=self._generation,
                secret=SECRET,
                timeout_s=LIMIT_S,
            )
            meet.wait(LIMIT_S)
            instants = Instants(at if rank == 0 else 0, lambda: act(group))
            try:
                with use_group(group):
                    if rank == 0:
                        with instants.counting():
                            calls[0]()
                    else:
                        calls[1]()
                outcome[rank] = None
            except BaseException as error:  # noqa: BLE001 - the interrupt, too
                outcome[rank] = error
            if rank == 0:
                seen.append(instants.count)
            if rank == 0 or outcome[rank] is not None:
                group.close()
            else:
                closing.append(group)

        closing = []
        begin = SYSTEM.monotonic()
        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S / 2)
            assert not thread.is_alive(), f"a rank hangs after instant {at}: {outcome}"
        for group in closing:
            group.close()
        assert SYSTEM.monotonic() - begin < SOON_S, f"after instant {at}: {outcome}"
        return seen[0], outcome

    def each_instant(self, calls, act, step):
        """Yield (instant, outcome) of each `step`th instant that rank 0 has, and at last of one that it has not."""
        at, count, most = 0, 0, 0
        while count == at or at <= FEW:  # on a busy machine an attempt may have fewer: the peer is ahead
            at += step
            count, outcome = self.attempt(calls, at, act)
            most = max(most, count)
            yield at, outcome
        assert most > FEW

    def close(self):
        for each in self._listeners:
            each.close()


@pytest.fixture
def pair():
    made = []

    def make(transport):
        made.append(Pair(transport))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("transport", "what"),
    [
        ("shm", "send"),
        ("shm", "isend"),
        ("shm", "recv"),
        ("shm", "small recv"),
        ("shm", "recv from any"),
        ("tcp", "recv"),
        ("tcp", "future of irecv"),
        ("tcp", "async all_reduce"),
    ],
)
def test_a_handler_that_aborts_at_any_instant_leaves_nobody_waiting(pair, turns, transport, what):
    step = turns(short=3, full=1)
    for at, outcome in pair(transport).each_instant(CALLS[what], lambda group: group.abort(), step):
        wrong = {
            rank: error for rank, error in outcome.items() if not isinstance(error, GroupAborted | PeerLost | None)
        }
        assert not wrong, f"after instant {at}: {wrong}"


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # one in a generator that ends is dropped
@pytest.mark.parametrize(
    ("transport", "what"),
    [("shm", "send"), ("shm", "recv from any"), ("shm", "future of irecv"), ("tcp", "send"), ("tcp", "recv")],
)
def test_an_interrupt_at_any_instant_of_a_message_ends_it_soon(pair, turns, monkeypatch, transport, what):
    monkeypatch.setattr(
        connection, "_TURN_S", PATIENCE_S
    )  # who waits for a frame that nobody writes any more is seen to

    def interrupt(group):
        raise KeyboardInterrupt

    for _ in pair(transport).each_instant(CALLS[what], interrupt, turns(short=3, full=1)):
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_interrupt_at_any_instant_of_recv_object_list_leaves_whole_messages_or_ends_the_group(
    pair, turns, transport
):
    got = []

    def receive():
        box = [None]
        try:
            dist.recv_object_list(box, 1)
        except KeyboardInterrupt:
            dist.recv_object_list(box, 1)
        got.append(box[0])

    def send():
        dist.send_object_list(["first"], 0)
        dist.send_object_list(["second"], 0)

    def interrupt(group):
        raise KeyboardInterrupt

    for at, outcome in pair(transport).each_instant((receive, send), interrupt, turns(short=2, full=1)):
        right = GroupAborted | PeerLost | KeyboardInterrupt | None  # the third after the call
        wrong = {rank: error for rank, error in outcome.items() if not isinstance(error, right)}
        assert not wrong, f"after instant {at}: {wrong}"
    assert set(got) == {"first", "second"}  # the second, where the interrupt came after all of the first


# what rank 0 does between the two, and the call
LEAVES_BETWEEN = {
    "all_gather_object": (exchange, "room_for", lambda rank: dist.all_gather_object([None] * 2, rank)),
    "gather_object": (objects, "room_for", lambda rank: dist.gather_object(rank, None if rank else [None] * 2)),
    "broadcast_object_list": (collectives, "broadcast", lambda rank: dist.broadcast_object_list([rank])),
    "scatter_object_list": (objects, "room_for", lambda rank: dist.scatter_object_list([None], [1, 2])),
    "send_object_list": (
        Member,
        "send",
        lambda rank: dist.recv_object_list([None], 0) if rank else dist.send_object_list([1], 1),
    ),
}


@pytest.mark.parametrize("what", LEAVES_BETWEEN)
def test_who_leaves_a_call_of_several_between_them_ends_the_group(monkeypatch, what):
    module, name, call = LEAVES_BETWEEN[what]
    usual, left = getattr(module, name), threading.Event()

    def leave(*given, **named):
        first = name == "send" and given[1].dtype == np.int64  # of the two messages, which says the size
        if dist.get_rank() == 0 and not first:
            raise KeyboardInterrupt
        return usual(*given, **named)

    monkeypatch.setattr(module, name, leave)

    def work(rank):
        if rank == 0:
            with pytest.raises(KeyboardInterrupt):
                call(rank)
            assert left.wait(PATIENCE_S)  # its own end would tell the others, too
            return
        with pytest.raises(GroupAborted, match=f"rank 0 aborted the group: KeyboardInterrupt: left {what} half-way"):
            call(rank)
        left.set()

    run_ranks(2, work, abort=False).results()


def test_who_leaves_a_monitored_barrier_half_way_ends_the_group(monkeypatch):
    left = threading.Event()

    def work(rank):
        group = dist.default_group()
        if rank == 0:
            monkeypatch.setattr(group, "receive", mock.Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                dist.monitored_barrier()
            assert left.wait(PATIENCE_S)
            return
        with pytest.raises(
            GroupAborted, match="rank 0 aborted the group: KeyboardInterrupt: left monitored_barrier half-way"
        ):
            dist.monitored_barrier()
        left.set()

    run_ranks(2, work, abort=False).results()


def test_who_leaves_a_list_of_calls_between_them_ends_the_group(monkeypatch):
    left = threading.Event()

    def work(rank):
        group = dist.default_group()
        run = group.run

        def second_fails(kind, *rest, **more):
            if group.stats()["collectives"] == 1:
                raise KeyboardInterrupt
            return run(kind, *rest, **more)

        tensors = [np.ones(3), np.ones(500_000)]  # too large to be reduced in one call
        if rank == 0:
            group.run = second_fails
            with pytest.raises(KeyboardInterrupt):
                dist.all_reduce_coalesced(tensors)
            assert left.wait(PATIENCE_S)
            return
        with pytest.raises(
            GroupAborted, match="rank 0 aborted the group: KeyboardInterrupt: left a block or list of calls half-way"
        ):
            dist.all_reduce_coalesced(tensors)
        left.set()

    run_ranks(2, work, abort=False).results()


@pytest.fixture
def collected():
    """What a test leaves is collected with it, after all other fixtures."""
    yield
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("transport", "first"),
    extent.short([(t, f) for t in ("shm", "tcp") for f in range(1, 8)], of=[("shm", 1), ("tcp", 4)]),
)
def test_a_reconfiguration_that_an_interrupt_ended_anywhere_can_be_tried_again(
    collected, company, monkeypatch, transport, first
):
    """All instants, each seventh in one test: the data connections, which count their bytes, frames half read."""
    them, members, at, count = company(transport, 2), [0, 1], first, 0
    groups = them.play(*2 * [lambda number: them.join(number, members)])
    generation, making, over = 1, [], threading.Event()
    attach = ProcessGroup.attach
    monkeypatch.setattr(ProcessGroup, "attach", lambda *arguments: (making.append(arguments[0]), attach(*arguments)))

    def interrupted(number):
        instants = Instants(at, interrupt)
        try:
            with instants.counting():
                made = groups[0].reconfigure(generation, them.endpoints)
        except BaseException as error:  # noqa: BLE001 - locks of `threading` may make another one of the interrupt
            stopped = GroupAborted(repr(error))
            them.listeners[1].interrupt(stopped, generation)
            while not over.wait(0.001):  # the other end may be a step further
                for group in making:
                    if group.listener is them.listeners[1] and group.generation == generation:
                        group.abort(stopped)
            made = groups[0]
        return made, instants.count

    def bystander(number):
        try:
            return groups[1].reconfigure(generation, them.endpoints)
        except DistError:
            return groups[1]
        finally:
            over.set()

    def again(number):
        made = groups[number].reconfigure(generation, them.endpoints)
        them.groups.append(made)
        assert total(made, 10) == expected(2)
        return made

    def interrupt():
        raise KeyboardInterrupt

    while True:
        generation += 1
        over.clear()
        (groups[0], count), groups[1] = them.play(interrupted, bystander)
        if count < at or "closed" in repr(groups[0]):  # it was over, or all but the return
            break
        generation += 1
        groups = them.play(again, again)
        at += 7
    them.groups += [group.successor or group for group in groups]
    assert at > 200


@pytest.mark.parametrize("place", ["default", "thread", "subgroup"])
def test_an_interrupt_as_a_group_takes_the_place_of_another_leaves_it_there(monkeypatch, place):
    """Not those in which `close` frees what another `close` would not see."""
    at, count, counted = 0, 0, []
    freed = ProcessGroup.close

    def alone(name):
        ear = listener("tcp", 0)
        return connect(ear, [ear.describe()], 0, group_name=name, generation=1, secret=SECRET, timeout_s=LIMIT_S), ear

    def handed_over(group, generation, members):
        group.successor = members[0]
        counted.append(Instants(at, interrupt))
        tracing.enter_context(counted[-1].counting())
        return group.successor

    def interrupt():
        raise KeyboardInterrupt

    def closed(group, *why):
        sys.settrace(None)
        freed(group, *why)

    monkeypatch.setattr(ProcessGroup, "reconfigure", handed_over)
    monkeypatch.setattr(ProcessGroup, "close", closed)
    while count == at:
        at += 1
        (before, ear), (after, other), (parent, third) = alone("before"), alone("after"), alone("parent")
        with contextlib.ExitStack() as ends:
            for each in (ear, other, third, parent, after):
                ends.callback(each.close)
            if place == "thread":
                ends.enter_context(use_group(before))
            else:
                dist.set_default_group(before if place == "default" else parent)
                ends.callback(dist.set_default_group, None)
            if place == "subgroup":
                parent.subgroups.append(before)
            default_group._WORLD.owned[before] = ["kept"]
            with contextlib.ExitStack() as tracing, contextlib.suppress(KeyboardInterrupt):
                default_group.reconfigured(before, 2, [after])
            count = counted[-1].count
            found = parent.subgroups[0] if place == "subgroup" else dist.default_group()
            assert found is after, f"after instant {at}"
            assert default_group._WORLD.owned.pop(after) == ["kept"]
            assert before not in default_group._WORLD.owned
            assert before._group_failure.closed
            assert total(after, 10) == expected(1)
    assert at > 5


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_connection_that_one_end_cannot_use_any_more_is_made_afresh_by_both(company, transport):
    them = company(transport, 2, limit=LIMIT_S)

    def work(number):
        before = them.join(number, [0, 1])
        assert total(before) == expected(2)
        them.met.wait(PATIENCE_S)
        if number == 0:
            before._links[1].spoiled = True  # as after a frame that makes no sense
        after = before.reconfigure(2, them.endpoints)
        them.groups.append(after)
        return total(after), after.stats()["reused"]["sockets"]

    assert them.play(work, work) == [(expected(2), 0)] * 2


@pytest.mark.parametrize("end", ["abort", "death"])
def test_a_receive_that_begins_just_after_the_end_hears_of_it_at_once(monkeypatch, end):
    ended = threading.Event()
    natively = SharedMailbox.receive

    def late(post, array, source, tag, until):
        if post._mailbox is mailboxes[0]:
            strike()
            assert ended.wait(PATIENCE_S)
        return natively(post, array, source, tag, until)

    monkeypatch.setattr(SharedMailbox, "receive", late)
    mailboxes, strikes, groups = {}, {}, {}
    ready = threading.Barrier(2)

    def strike():
        if end == "abort":
            groups[0].abort()
            ended.set()
            return
        gone = SharedMailbox.gone
        monkeypatch.setattr(SharedMailbox, "gone", lambda post, rank: (gone(post, rank), ended.set()))
        groups[1].vanish()

    def work(rank):
        groups[rank] = dist.default_group()
        mailboxes[rank] = groups[rank]._mailbox
        ready.wait(PATIENCE_S)
        if rank == 0:
            begin = SYSTEM.monotonic()
            with pytest.raises(GroupAborted if end == "abort" else PeerLost):
                dist.recv(np.zeros(3), 1)
            strikes["took"] = SYSTEM.monotonic() - begin
        return rank

    run_ranks(2, work, timeout_s=LIMIT_S, abort=False)
    assert strikes["took"] < SOON_S


class _Slow:
    """A lock after whose release another thread runs first."""

    def __init__(self):
        self._lock = threading.RLock()

    def __enter__(self):
        return self._lock.__enter__()

    def __exit__(self, *raised):
        self._lock.__exit__(*raised)
        SYSTEM.sleep(0.002)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_group_is_made_with_all_connections_whenever_the_last_one_comes(monkeypatch, transport):
    plain = endpoint.Expectation.__init__

    def slow(expectation, *arguments):
        plain(expectation, *arguments)
        expectation.changed = _Slow()

    monkeypatch.setattr(endpoint.Expectation, "__init__", slow)
    for _ in range(12):
        run_ranks(3, lambda rank: dist.barrier(), transport=transport, timeout_s=5).results()
