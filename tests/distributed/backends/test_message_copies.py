"""Large messages inside a host: both ends copy them, whole or not at all, and never once a receive has ended."""

import itertools
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import extent
import numpy as np
import pytest

from resilin import distributed as dist
from resilin._base.clock import Deadline
from resilin.distributed.backends.shm.mailbox import SharedMailbox
from resilin.distributed.backends.shm.message import FETCHED, SharedMessage
from resilin.distributed.group.default_group import default_group
from resilin.distributed.wire.frames import Descriptor, Kind
from resilin.distributed.wire.p2p_matching import Receive
from resilin.distributed.wire.reduce_op import DTYPE_CODES
from resilin.errors import CollectiveTimeout, PeerLost
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks, start_ranks

KIB, MIB = 1 << 10, 1 << 20
LARGE = 100_000  # float64: far above what travels with its message


def noise(seed, size):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("size", [256 * KIB - 1, 256 * KIB, 256 * KIB + 1, MIB, MIB + 64 * KIB - 1, 20 * MIB + 7])
def test_a_message_arrives_whole_whatever_its_size(size):
    def work(rank):
        for turn in range(3):
            got = np.zeros(size + 2, np.uint8)
            if rank == 0:
                dist.send(noise(turn, size), 1)
                dist.recv(got[1:-1], 1)
            else:
                dist.recv(got[1:-1], 0)
                dist.send(noise(turn, size), 0)
            assert (got[1:-1] == noise(turn, size)).all()
            assert got[0] == got[-1] == 0

    run_ranks(2, work).results()


def test_receives_into_memory_from_elsewhere_and_parts_of_arrays_are_whole():
    def work(rank):
        if rank == 0:
            for turn in range(3):
                dist.send(noise(turn, 2 * MIB), 1)
            return
        elsewhere = np.frombuffer(bytearray(2 * MIB), np.uint8)
        dist.recv(elsewhere, 0)
        rows = np.zeros((3, 2 * MIB), np.uint8)
        dist.recv(rows[1], 0)
        strided = np.zeros((2 * MIB, 2), np.uint8)
        dist.recv(strided[:, 1], 0)
        for turn, got in enumerate([elsewhere, rows[1], strided[:, 1]]):
            assert (got == noise(turn, 2 * MIB)).all()
        assert not rows[0].any()
        assert not rows[2].any()
        assert not strided[:, 0].any()

    run_ranks(2, work).results()


def _messages(seed):
    """(source, target, tag, size, isend, way of receiving), in an order in which all ranks can take them."""
    chance = random.Random(seed)
    for number in range(60):
        source, target = chance.sample(range(3), 2)
        way = chance.choice(["recv", "irecv", "anybody"])
        tag = 100 + number if way == "anybody" else chance.randrange(2)
        size = chance.choice([0, 5, 4096, 4097, 60_000, 300_000, MIB])
        yield source, target, tag, size, chance.random() < 0.5, way


@pytest.mark.parametrize("transport", ["shm", "hosts"])
@pytest.mark.parametrize("seed", range(4))
def test_all_ways_to_send_and_to_receive_can_follow_one_another(seed, transport):
    def work(rank):
        sending, receiving = [], []
        for number, (source, target, tag, size, later, way) in enumerate(_messages(seed)):
            if rank == source:
                send = dist.isend if later else dist.send
                sending.append(send(noise(number, size), target, tag=tag))
            elif rank == target:
                got = np.empty(size, np.uint8)
                if way == "irecv":
                    receiving.append((number, got, dist.irecv(got, source, tag=tag)))
                    continue
                assert dist.recv(got, None if way == "anybody" else source, tag=tag) == source
                assert (got == noise(number, size)).all(), number
        for number, got, posted in receiving:
            posted.wait(PATIENCE_S)
            assert (got == noise(number, len(got))).all(), number
        assert all(sent is None or sent.wait(PATIENCE_S) for sent in sending)

    run_ranks(3, work, transport=transport).results()


def test_a_receive_that_timed_out_before_its_senders_memory_was_mapped_is_not_written_and_the_next_one_is():
    posted, busy, announced, free = (threading.Event() for _ in range(4))

    def hold(_):
        busy.set()  # in the thread that maps memory
        assert free.wait(PATIENCE_S)

    def work(rank):
        mine = np.full(LARGE, 3.0)
        if rank == 1:
            # else the message could be here first, and `hold` in the receiver's own thread
            assert posted.wait(PATIENCE_S)
            dist.send(np.ones(1), 0, tag=1)
            assert busy.wait(PATIENCE_S)
            sending = dist.isend(mine, 0)
            announced.set()
            assert sending.wait(PATIENCE_S)
            return
        dist.irecv(np.zeros(1), 1, tag=1).get_future().add_done_callback(hold)
        posted.set()
        assert announced.wait(PATIENCE_S)
        late, got = np.zeros(LARGE), np.zeros(LARGE)
        with pytest.raises(CollectiveTimeout):
            dist.irecv(late, 1).wait(0.1)
        free.set()
        dist.recv(got, 1)
        assert (got == 3).all()
        assert not late.any()

    run_ranks(2, work).results()


STREAM = """
import os
import numpy as np
from resilin import dist
from resilin.errors import DistError
from resilin.testing.ranks import join_from_environment
join_from_environment(timeout_s=float(os.environ["LIMIT"]))
array = np.zeros(4 << 20)
number = 0
try:
    while True:
        number += 1
        if dist.get_rank() == 0:
            array[:] = number
            dist.send(array, 1)
        else:
            dist.recv(array, 0)
            assert (array == number).all(), number
            print("whole", flush=True)
except DistError as error:
    print(type(error).__name__, sorted(error.ranks), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "blow", "after"), extent.pairwise([0, 1], [signal.SIGKILL, signal.SIGSTOP], [3, 8]))
def test_a_rank_that_dies_or_stops_while_both_copy_leaves_whole_messages_and_an_error(victim, blow, after, tmp_path):
    limit = "20" if blow == signal.SIGKILL else "1"
    sender, receiver = ranks = start_ranks(2, STREAM, str(tmp_path), LIMIT=limit)
    with sender, receiver:
        for _ in range(after):
            assert receiver.read_line() == "whole"
        os.kill(ranks[victim].pid, blow)
        while (said := ranks[1 - victim].read_line()) == "whole":
            pass
        if blow == signal.SIGSTOP:
            os.kill(ranks[victim].pid, signal.SIGKILL)
        assert said == f"{'PeerLost' if blow == signal.SIGKILL else 'CollectiveTimeout'} [{victim}]"


INTERRUPT = """
import os, signal
import numpy as np
from resilin import dist
from resilin.errors import DistError
from resilin.testing.ranks import join_from_environment
join_from_environment(timeout_s=20)
class Alarm(Exception): pass
def ring(*_): raise Alarm
signal.signal(signal.SIGALRM, ring)
rank, what, size = dist.get_rank(), os.environ["WHAT"], int(os.environ["SIZE"])
first, second = np.zeros(size), np.zeros(size)
try:
    if rank == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            dist.send(first, 1) if what == "send" else dist.recv(first, 1)
        except Alarm:
            print("interrupted", flush=True)
    if what == "recv":
        dist.barrier()
        if rank == 1:
            dist.send(np.ones(size), 0)
        else:
            dist.recv(second, 1)
            print("got", first.any(), second.all(), flush=True)
    elif rank == 1:
        dist.recv(second, 0, tag=3)
    else:
        dist.barrier()
except DistError as error:
    print(type(error).__name__, "half-way" in str(error), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 100_000])
def test_a_receive_that_a_signal_ended_takes_no_later_message(size, tmp_path):
    ranks = start_ranks(2, INTERRUPT, str(tmp_path), WHAT="recv", SIZE=str(size))
    with ranks[0], ranks[1]:
        assert ranks[0].read_line() == "interrupted"
        assert ranks[0].read_line() == "got False True"


@pytest.mark.slow
def test_a_large_send_that_a_signal_ended_ends_the_group_for_its_array_may_change_now(tmp_path):
    ranks = start_ranks(2, INTERRUPT, str(tmp_path), WHAT="send", SIZE="100000")
    with ranks[0], ranks[1]:
        assert ranks[0].read_line() == "interrupted"
        assert [each.read_line() for each in ranks] == ["GroupAborted True"] * 2


@pytest.mark.parametrize("first", ["hand_over", "keep", "refuse"])
def test_a_message_that_two_threads_take_in_is_acknowledged_once(first):
    """A second time may be after its ticket was given to another message, whose sender would wait for ever."""
    acknowledged, buffer = [], memoryview(bytearray(8))
    post = SimpleNamespace(
        members=[0, 1], fetch=lambda *_: FETCHED, acknowledge=lambda *of: acknowledged.append(of), stall=None
    )
    what = Descriptor(0, Kind.P2P, DTYPE_CODES[np.dtype(np.uint8)], shape=(8,))
    letter = SharedMessage(post, (1, 5, what.pack(), 8, None, (3, 0), 77, 2))
    letter.receive = Receive(1, 5, what, buffer, lambda error, source: None)
    getattr(letter, first)()
    for again in ("keep", "hand_over") if first == "keep" else ("keep",):
        getattr(letter, again)()
    assert acknowledged == [(1, 2, 77)]


@pytest.mark.parametrize("size", [8 * KIB, 64 * KIB, MIB])
@pytest.mark.parametrize("crosswise", [False, True])
def test_threads_of_a_rank_that_send_at_once_each_hear_that_their_messages_were_copied(size, crosswise):
    def work(rank):
        def talk(thread):
            for turn in range(50):
                sends = (rank == 0) != (crosswise and thread % 2 == 1)
                mine = np.full(size, (turn + 100 * thread) % 256, np.uint8)
                if sends:
                    dist.send(mine, 1 - rank, tag=thread, group=group)
                else:
                    got = np.zeros(size, np.uint8)
                    dist.recv(got, 1 - rank, tag=thread, group=group)
                    assert (got == mine).all(), (thread, turn)

        group = default_group()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(talk, range(4)))

    run_ranks(2, work).results()


INTERRUPTED_OFTEN = """
import os, random, signal
import numpy as np
from resilin import dist
from resilin.errors import DistError
from resilin.testing.ranks import join_from_environment
join_from_environment(timeout_s=20)
class Alarm(Exception): pass
def ring(*_): raise Alarm
signal.signal(signal.SIGALRM, ring)
size, chance = int(os.environ["SIZE"]), random.Random(int(os.environ["SEED"]))
array = np.zeros(size, np.uint8)
def send(number):
    array.fill(number)
    if os.environ["WAY"] == "send":
        dist.send(array, 1)
        return
    sending = dist.isend(array, 1)
    while not sending.is_completed():
        signal.sigtimedwait([signal.SIGUSR1], 0.001)
    sending.wait()
def receive(number):
    array.fill(0)
    while not (array == number).all():
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 1e-4 + size * 1e-9))
                dist.recv(array, 0)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert (array == number).all(), (array[0], array[-1], number)
        except Alarm:
            pass
try:
    for number in range(1, 201):
        send(number) if dist.get_rank() == 0 else receive(number)
    dist.barrier()
    print("all", flush=True)
except DistError as error:
    print(type(error).__name__, "half-way" in str(error), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "way"),
    extent.short(
        itertools.product([8 * KIB, 64 * KIB, MIB, 16 * MIB], ["send", "isend"]),
        of=[(8 * KIB, "isend"), (64 * KIB, "send"), (MIB, "isend")],
    ),
)
def test_a_message_whose_receive_a_signal_ended_is_received_later_or_the_group_ends_for_both(
    size, way, turns, tmp_path
):
    for seed in range(turns(short=1, full=3)):
        here = tmp_path / str(seed)
        here.mkdir()
        ranks = start_ranks(2, INTERRUPTED_OFTEN, str(here), SIZE=str(size), WAY=way, SEED=str(seed))
        with ranks[0], ranks[1]:
            said = [each.read_line() for each in ranks]
        if said != ["all"] * 2:
            assert said[1] == "GroupAborted True"
            assert said[0] in (said[1], "PeerLost False")  # the latter after half of a control frame


class TestSendsThatNobodyAwaits:
    """`isend(awaited=False)`: who copies the bytes calls no thread of the sender."""

    @pytest.fixture
    def calls(self, monkeypatch):
        """What the control thread of rank 0 was called for."""
        found = []
        real = SharedMailbox.heard
        monkeypatch.setattr(SharedMailbox, "heard", lambda self: (0 in self._seats or found.append(1), real(self)))
        return found

    @pytest.mark.parametrize("awaited", [True, False])
    def test_only_those_that_are_awaited_have_the_control_thread_called(self, calls, awaited):
        taken, late = threading.Event(), Deadline(PATIENCE_S)

        def work(rank):
            group = default_group()
            got = np.zeros(MIB, np.uint8)
            if rank == 0:
                group.send(noise(9, MIB), 1, 5)  # the memory is known from here on
                group.recv(got[:1], 1, 5)
                calls.clear()
                works = [group.isend(noise(turn, MIB), None, 1, 5, awaited=awaited) for turn in range(3)]
                assert taken.wait(PATIENCE_S)  # computes: looks after nothing
                if not awaited:
                    assert not calls
                for each in works:
                    while awaited and not each.is_completed():  # by itself
                        assert not late.passed()
                    each.wait()
                assert bool(calls) is awaited
            else:
                group.recv(got, 0, 5)
                group.send(got[:1], 0, 5)
                for turn in range(3):
                    group.recv(got, 0, 5)
                    assert (got == noise(turn, MIB)).all()
                taken.set()

        run_ranks(2, work).results()

    def test_the_next_one_sees_the_end_of_those_before(self):
        taken = threading.Event()

        def work(rank):
            group = default_group()
            if rank == 0:
                first = group.isend(noise(0, MIB), None, 1, 5, awaited=False)
                assert taken.wait(PATIENCE_S)  # others of the group may have looked after it already, or not
                group.isend(noise(1, 8), None, 1, 6, awaited=False)
                assert first.is_completed()
            else:
                group.recv(np.zeros(MIB, np.uint8), 0, 5)
                taken.set()
                group.recv(np.zeros(8, np.uint8), 0, 6)

        run_ranks(2, work).results()

    def test_more_of_them_than_there_are_tickets_all_arrive(self):
        count = 600  # there are 256

        def work(rank):
            group, other = default_group(), 1 - rank
            works = [group.isend(np.full(5000, turn, np.int32), None, other, 5, awaited=False) for turn in range(count)]
            got = np.zeros(5000, np.int32)
            for turn in range(count):
                group.recv(got, other, 5)
                assert (got == turn).all()
            for each in works:
                each.wait()

        run_ranks(2, work, timeout_s=PATIENCE_S).results()

    def test_they_fail_with_the_rank_that_they_were_for(self):
        begun = threading.Event()

        def work(rank):
            group = default_group()
            if rank == 1:
                assert begun.wait(PATIENCE_S)
                group.vanish()
                return
            sent = group.isend(noise(0, MIB), None, 1, 5, awaited=False)
            begun.set()
            with pytest.raises(PeerLost):
                sent.wait()

        run_ranks(2, work, abort=False, timeout_s=PATIENCE_S).results()
