"""send and recv between ranks of one host: what completes when, in which order, and what each hears of the other."""

import contextlib
import os
import signal
import threading
import time

import extent
import numpy as np
import pytest

from resilin import distributed as dist
from resilin.distributed.backends.shm.mailbox import SharedMailbox
from resilin.distributed.backends.shm.memory import SharedMemory
from resilin.distributed.group.default_group import default_group
from resilin.distributed.group.p2p_transport import P2PTransport
from resilin.distributed.wire.p2p_matching import Mailbox
from resilin.errors import CollectiveMismatch, CollectiveTimeout, DistError, PeerLost
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import TRANSPORTS, run_ranks, start_ranks

LARGE = 100_000  # float64: far above what travels with its message


def numbers(seed, count=LARGE):
    return np.random.default_rng(seed).standard_normal(count)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("count", [10, LARGE])
def test_ranks_that_all_send_first_and_then_receive_do_not_wait_for_one_another(count, transport):
    def work(rank):
        dist.send(numbers(rank, count), dst=(rank + 1) % 3)
        got = np.empty(count)
        dist.recv(got, src=(rank - 1) % 3)
        assert (got == numbers((rank - 1) % 3, count)).all()

    run_ranks(3, work, transport=transport).results()


def test_ranks_that_all_send_first_go_on_though_their_memory_is_mapped_late(monkeypatch):
    mapping = SharedMemory._map

    def late(self, *arena):
        time.sleep(0.2)  # who waits in its send has looked, and sleeps
        mapping(self, *arena)

    monkeypatch.setattr(SharedMemory, "_map", late)

    def work(rank):
        dist.send(numbers(rank), dst=(rank + 1) % 3)
        got = np.empty(LARGE)
        dist.recv(got, src=(rank - 1) % 3)
        assert (got == numbers((rank - 1) % 3)).all()

    run_ranks(3, work).results()


def test_a_large_isend_is_complete_once_the_receiver_has_copied_it():
    posted = threading.Event()

    def work(rank):
        if rank == 0:
            mine = numbers(0)
            sending = dist.isend(mine, dst=1)
            assert not sending.is_completed()
            posted.set()
            assert sending.wait(PATIENCE_S)
            mine[:] = 0
            assert sending.result()[0] is mine
        else:
            assert posted.wait(PATIENCE_S)
            got = np.empty(LARGE)
            assert dist.recv(got, src=0) == 0
            assert (got == numbers(0)).all()

    run_ranks(2, work).results()


def test_a_small_isend_is_complete_at_once():
    def work(rank):
        if rank == 0:
            assert dist.isend(np.ones(4), dst=1).is_completed()
        else:
            dist.recv(np.empty(4), src=0)

    run_ranks(2, work).results()


@pytest.mark.parametrize("transport", ["shm", "hosts"])
def test_messages_of_one_rank_and_tag_arrive_in_order_whatever_their_sizes(transport):
    sizes = [1 if i % 3 else 3000 for i in range(150)]  # more than an inbox holds

    def work(rank):
        if rank == 0:
            works = [dist.isend(np.full(size, i, np.float64), dst=1, tag=i % 2) for i, size in enumerate(sizes)]
            for sending in works:
                sending.wait(PATIENCE_S)
        elif rank == 1:
            for tag in (1, 0):
                for i in range(tag, len(sizes), 2):
                    got = np.empty(sizes[i])
                    dist.recv(got, src=0, tag=tag)
                    assert (got == i).all()

    run_ranks(2, work, transport=transport).results()


def test_more_large_messages_than_a_rank_can_have_on_their_way_are_all_received():
    count = 300

    def work(rank):
        if rank == 0:
            works = [dist.isend(np.full(1000, i, np.float64), dst=1) for i in range(count)]
            assert all(sending.wait(PATIENCE_S) for sending in works)
        else:
            for i in range(count):
                got = np.empty(1000)
                dist.recv(got, src=0)
                assert (got == i).all()

    run_ranks(2, work).results()


def test_a_receive_from_any_rank_takes_small_and_large_messages():
    def work(rank):
        if rank:
            dist.send(np.full(LARGE if rank == 1 else 3, rank, np.float64), dst=0, tag=rank)
            return
        large, small = np.empty(LARGE), np.empty(3)
        assert dist.recv(small, tag=2) == 2
        assert dist.recv(large, tag=1) == 1
        assert (large == 1).all()
        assert (small == 2).all()

    run_ranks(3, work).results()


def test_a_posted_receive_is_served_while_its_rank_is_in_a_collective():
    def work(rank):
        got = np.empty(LARGE)
        receiving = dist.irecv(got, src=1) if rank == 0 else None
        if rank == 1:
            dist.send(numbers(7), dst=0)  # returns only when rank 0, which is in the barrier, has it
        dist.barrier()
        if receiving is not None:
            assert receiving.wait(PATIENCE_S)
            assert (got == numbers(7)).all()

    run_ranks(2, work).results()


def test_a_future_of_a_receive_is_set_though_nobody_waits_for_the_work():
    def work(rank):
        if rank == 1:
            dist.send(numbers(3), dst=0)
            return
        got = np.empty(LARGE)
        done = threading.Event()
        dist.irecv(got, src=1).get_future().add_done_callback(lambda _: done.set())
        assert done.wait(PATIENCE_S)
        assert (got == numbers(3)).all()

    run_ranks(2, work).results()


def flood(rank, between):
    """Rank 0 sends more than there is room for, then both are `between(rank)`, then rank 1 receives. At last a message
    for a receive that nobody waits for."""
    many = 200
    if rank == 0:
        works = [dist.isend(np.full(1, float(number)), 1) for number in range(many)]
        between(rank)
        for one in works:
            one.wait()
        dist.barrier()
        dist.send(np.full(1, -1.0), 1)
        return
    between(rank)
    got = np.zeros(1)
    for number in range(many):
        dist.recv(got, 0)
        assert got[0] == number
    over = threading.Event()
    dist.irecv(got, 0).get_future().add_done_callback(lambda _: over.set())
    dist.barrier()
    assert over.wait(PATIENCE_S)
    assert got[0] == -1.0


def test_a_receive_nobody_waits_for_is_served_after_messages_that_found_no_room():
    """The one that found none has called the receiver, which had posted nothing; or nobody ever calls it again."""
    run_ranks(2, flood, lambda _: dist.barrier()).results()


def test_a_rank_that_was_called_before_it_could_hear_is_called_again(monkeypatch):
    """The other one has finished its group, and sent all."""
    sent, joined = threading.Event(), P2PTransport.join

    def late(self, post):
        if 1 not in post._seats:
            assert sent.wait(PATIENCE_S)
        joined(self, post)

    monkeypatch.setattr(P2PTransport, "join", late)
    run_ranks(2, flood, lambda rank: sent.set() if rank == 0 else None).results()


def test_a_sender_that_is_about_to_wait_is_not_called(monkeypatch):
    """A call wakes a thread that takes the core of one of the two: a message of 64 KiB took four times as long."""
    called, taken, delivered = [], threading.Event(), SharedMailbox.delivered
    monkeypatch.setattr(P2PTransport, "call", lambda self, rank: called.append(rank))

    def later(self, *arguments):
        assert taken.wait(PATIENCE_S)  # it has been copied before its sender looks
        return delivered(self, *arguments)

    monkeypatch.setattr(SharedMailbox, "delivered", later)

    def work(rank):
        if rank == 0:
            dist.send(numbers(0), 1)
        else:
            got = np.zeros(LARGE)
            dist.recv(got, 0)
            taken.set()
            assert (got == numbers(0)).all()

    run_ranks(2, work).results()
    assert called == []


@pytest.mark.parametrize("large", [True, False])
def test_a_send_to_a_rank_that_left_before_this_one_could_hear_names_it(monkeypatch, large):
    """The other one has finished its group, and left it."""
    left, joined, gone = threading.Event(), P2PTransport.join, Mailbox.gone

    def late(self, post):
        if 1 in post._seats:
            assert left.wait(PATIENCE_S)
        joined(self, post)

    def told(self, rank):
        gone(self, rank)
        if rank == 1:
            left.set()

    monkeypatch.setattr(P2PTransport, "join", late)
    monkeypatch.setattr(Mailbox, "gone", told)

    def work(rank):
        if rank == 0:
            with pytest.raises(PeerLost, match=r"rank 1 with tag 0.*the peer left the group") as caught:
                dist.send(numbers(0) if large else np.ones(3), dst=1)
            assert caught.value.ranks == {1}
        else:
            dist.destroy_process_group()

    run_ranks(2, work, abort=False).results()


def test_arrays_from_elsewhere_and_read_only_ones_are_sent():
    def work(rank):
        if rank == 0:
            foreign = np.frombuffer(numbers(5).tobytes(), np.float64)
            assert not foreign.flags.writeable
            dist.send(foreign, dst=1)
            dist.send(np.empty((0, 3)), dst=1)
        else:
            got = np.frombuffer(bytearray(LARGE * 8), np.float64)
            dist.recv(got, src=0)
            assert (got == numbers(5)).all()
            dist.recv(np.empty((0, 3)), src=0)

    run_ranks(2, work).results()


def test_several_threads_of_a_rank_send_and_receive_at_once():
    def work(rank):
        def talk(tag):
            for turn in range(20):
                mine, got = numbers((rank, tag, turn), 2000), np.empty(2000)
                sending = dist.isend(mine, dst=1 - rank, tag=tag, group=group)
                dist.recv(got, src=1 - rank, tag=tag, group=group)
                sending.wait(PATIENCE_S)
                assert (got == numbers((1 - rank, tag, turn), 2000)).all()
            spoken.append(tag)

        group, spoken = default_group(), []
        threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(spoken) == [0, 1, 2, 3]

    run_ranks(2, work).results()


def test_a_large_message_of_another_size_is_a_mismatch_for_the_receiver_alone():
    def work(rank):
        if rank == 0:
            dist.send(numbers(0), dst=1)
        else:
            with pytest.raises(CollectiveMismatch, match=r"rank 0 sent float64\[100000\], which is gone"):
                dist.recv(np.empty(LARGE + 1), src=0)
        dist.barrier()

    run_ranks(2, work).results()


def test_a_send_that_nobody_receives_ends_at_the_timeout_and_names_the_receiver():
    def work(rank):
        if rank == 0:
            dist.send(numbers(0), dst=1)
        else:
            dist.recv(np.empty(3), src=0, tag=9)

    begin = time.monotonic()
    outcome = run_ranks(2, work, timeout_s=0.5, abort=False)
    assert time.monotonic() - begin < PATIENCE_S
    assert isinstance(outcome.errors[0], CollectiveTimeout)
    assert isinstance(outcome.errors[1], DistError)


def test_a_send_to_a_rank_that_leaves_without_receiving_names_it():
    def work(rank):
        if rank == 0:
            with pytest.raises(PeerLost) as caught:
                dist.send(numbers(0), dst=1)
            assert caught.value.ranks == {1}
        else:
            dist.destroy_process_group()

    run_ranks(2, work, abort=False).results()


def test_what_a_rank_leaves_behind_unreceived_is_an_error_and_not_other_bytes():
    left = threading.Event()

    def work(rank):
        if rank == 0:
            mine = numbers(0)
            dist.isend(mine, dst=1)
            dist.destroy_process_group()
            mine[:] = 0
            left.set()
        else:
            assert left.wait(PATIENCE_S)
            got = np.ones(LARGE)
            with pytest.raises(DistError):
                dist.recv(got, src=0)

    run_ranks(2, work, abort=False).results()


FATES = """
import os, sys, time
from datetime import timedelta
import numpy as np
from resilin import dist
from resilin.errors import DistError
from resilin.testing.ranks import join_from_environment
join_from_environment()
group = dist.new_group([0, 1], timeout=timedelta(seconds=float(sys.stdin.readline())))  # of messages, not of the start
rank, role = dist.get_rank(), os.environ["ROLES"].split(",")[dist.get_rank()]
mine = np.full(1 << 20, rank + 1.0)
print("ready", flush=True)
sys.stdin.readline()
begin = time.monotonic()
try:
    if role == "send":
        dist.send(mine, dst=1 - rank, group=group)
    elif role == "receive":
        dist.recv(mine, src=1 - rank, group=group)
    elif role == "isend":
        work = dist.isend(mine, dst=1 - rank, group=group)
        print("sent", flush=True)
        work.wait()
    else:
        time.sleep(60)
    print("done", mine[0], flush=True)
except DistError as error:
    print(type(error).__name__, sorted(error.ranks), round(time.monotonic() - begin, 2), error, flush=True)
"""


@pytest.mark.parametrize("role", ["send", "receive"])
@pytest.mark.parametrize(
    ("blow", "name", "timeout_s"), [(signal.SIGKILL, "PeerLost", 20), (signal.SIGSTOP, "CollectiveTimeout", 1)]
)
def test_a_rank_that_waits_for_a_message_hears_of_the_death_of_its_peer_or_gives_up(
    role, blow, name, timeout_s, tmp_path
):
    ranks = start_ranks(2, FATES, str(tmp_path), ROLES=f"{role},sleep")
    with ranks[0], ranks[1]:
        for each in ranks:
            each.process.stdin.write(f"{timeout_s}\n")
            each.process.stdin.flush()
        assert [each.read_line() for each in ranks] == ["ready", "ready"]
        for each in ranks:
            each.process.stdin.write("\n")
            each.process.stdin.flush()
        time.sleep(0.2)
        os.kill(ranks[1].pid, blow)
        error, who, seconds, *words = ranks[0].read_line().split(" ")
        if blow == signal.SIGSTOP:
            os.kill(ranks[1].pid, signal.SIGKILL)
        assert (error, who) == (name, "[1]")
        assert float(seconds) < timeout_s + 2
        call = "send to rank 1 with tag" if role == "send" else "recv from rank 1 with tag"
        assert " ".join(words).count(call) == 1


def test_a_message_whose_sender_was_killed_is_whole_or_an_error(tmp_path):
    ranks = start_ranks(2, FATES, str(tmp_path), ROLES="isend,receive")
    with ranks[0], ranks[1]:
        for each in ranks:
            each.process.stdin.write("20\n")
            each.process.stdin.flush()
        assert [each.read_line() for each in ranks] == ["ready", "ready"]
        ranks[0].process.stdin.write("\n")
        ranks[0].process.stdin.flush()
        assert ranks[0].read_line() == "sent"
        os.kill(ranks[0].pid, signal.SIGKILL)
        ranks[1].process.stdin.write("\n")
        ranks[1].process.stdin.flush()
        said = ranks[1].read_line()
        assert said.startswith(("done 1.0", "PeerLost [0]"))


MANY = 2000


@pytest.mark.parametrize(
    ("transport", "sizes"),
    extent.short(
        [(transport, sizes) for transport in ("shm", "hosts") for sizes in ([1000], [13], [1000, 13, 513])],
        of=[("shm", [1000]), ("hosts", [13]), ("shm", [1000, 13, 513])],
    ),
    ids=str,
)
def test_isend_returns_at_once_however_many_messages_are_outstanding(sizes, transport):
    def size(i):
        return sizes[i % len(sizes)]

    def work(rank):
        works = [dist.isend(np.full(size(i), i + rank * MANY, np.float64), dst=1 - rank) for i in range(MANY)]
        dist.barrier()
        for i in range(MANY):
            got = np.empty(size(i))
            dist.recv(got, src=1 - rank)
            assert (got == i + (1 - rank) * MANY).all()
        assert all(sending.wait(PATIENCE_S) for sending in works)

    run_ranks(2, work, transport=transport).results()


def test_messages_that_wait_for_room_go_out_while_their_sender_is_in_a_collective_and_waits_for_nothing():
    def work(rank):
        if rank == 0:
            works = [dist.isend(np.full(1000, i, np.float64), dst=1) for i in range(MANY)]
            dist.barrier()  # which rank 1 enters when it has them all
            assert all(sending.wait(PATIENCE_S) for sending in works)
        else:
            for i in range(MANY):
                got = np.empty(1000)
                dist.recv(got, src=0)
                assert (got == i).all()
            dist.barrier()

    run_ranks(2, work).results()


@pytest.mark.parametrize("last", [3, 1000])
def test_a_message_behind_many_of_another_tag_is_received_before_them(last):
    def work(rank):
        if rank == 0:
            works = [dist.isend(np.full(1000, i, np.float64), dst=1) for i in range(MANY)]
            dist.send(np.full(last, 7.0), dst=1, tag=1)
            assert all(sending.wait(PATIENCE_S) for sending in works)
        else:
            got = np.empty(last)
            dist.recv(got, src=0, tag=1)
            assert (got == 7).all()
            for i in range(MANY):
                got = np.empty(1000)
                dist.recv(got, src=0)
                assert (got == i).all()

    run_ranks(2, work).results()


def test_a_rank_that_receives_nothing_does_not_keep_messages_from_the_others():
    def work(rank):
        if rank == 0:
            works = [dist.isend(np.full(1000, i, np.float64), dst=1) for i in range(600)]
            dist.send(numbers(0), dst=2)
            dist.barrier()
            assert all(sending.wait(PATIENCE_S) for sending in works)
            return
        got = np.empty(LARGE)
        if rank == 2:
            dist.recv(got, src=0)
            assert (got == numbers(0)).all()
        dist.barrier()
        for i in range(600 if rank == 1 else 0):
            dist.recv(got[:1000], src=0)
            assert (got[:1000] == i).all()

    run_ranks(3, work).results()


@pytest.mark.parametrize("count", [13, 9000])
def test_messages_that_wait_for_room_fail_when_their_receiver_leaves(count):
    queued = threading.Event()

    def work(rank):
        if rank == 0:
            mine = np.ones(count)
            works = [dist.isend(mine, dst=1) for _ in range(MANY)]
            queued.set()
            with pytest.raises(PeerLost) as caught:
                dist.send(numbers(0), dst=1)
            assert caught.value.ranks == {1}
            for sending in works:  # this thread may hear of the end before they do
                with contextlib.suppress(PeerLost):
                    sending.wait(PATIENCE_S)
            assert all(sending.is_completed() for sending in works)
            failed = [sending.exception() for sending in works if not sending.is_success()]
            assert all(isinstance(error, PeerLost) and error.ranks == {1} for error in failed)
            assert len(failed) == MANY or count == 13
            return
        assert queued.wait(PATIENCE_S)
        dist.destroy_process_group()

    run_ranks(2, work, abort=False).results()


@pytest.mark.parametrize("count", [13, 9000])
def test_messages_that_wait_for_room_are_errors_on_both_sides_when_their_sender_leaves(count):
    left = threading.Event()

    def work(rank):
        if rank == 0:
            works = [dist.isend(np.full(count, i, np.float64), dst=1) for i in range(MANY)]
            dist.destroy_process_group()
            left.set()
            assert all(sending.is_completed() for sending in works)
            return sum(sending.is_success() for sending in works)
        assert left.wait(PATIENCE_S)
        got = np.empty(count)
        for came in range(MANY):
            try:
                dist.recv(got, src=0)
            except DistError:
                return came
            assert (got == came).all()
        return MANY

    sent, came = run_ranks(2, work, abort=False).results()
    assert sent == came


FLOOD = """
import sys
import numpy as np
from resilin import dist
from resilin.errors import DistError
from resilin.testing.ranks import join_from_environment
join_from_environment(timeout_s=20)
count = int(sys.stdin.readline())
if dist.get_rank() == 0:
    mine = np.ones(count)
    works = [dist.isend(mine, dst=1) for _ in range(2000)]
    print("sent", flush=True)
    names = set()
    for work in works:
        try:
            work.wait()
            names.add("done")
        except DistError as error:
            names.add(f"{type(error).__name__} {sorted(error.ranks)}")
    print(" ".join(sorted(names)), flush=True)
else:
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("count", [13, 9000])
def test_messages_that_wait_for_room_fail_when_their_receiver_is_killed(count, tmp_path):
    ranks = start_ranks(2, FLOOD, str(tmp_path))
    with ranks[0], ranks[1]:
        ranks[1].process.stdin.write(f"{count}\n")
        ranks[1].process.stdin.flush()
        assert ranks[1].read_line() == "ready"
        os.kill(ranks[1].pid, signal.SIGSTOP)  # its control thread makes no room either
        ranks[0].process.stdin.write(f"{count}\n")
        ranks[0].process.stdin.flush()
        assert ranks[0].read_line() == "sent"
        os.kill(ranks[1].pid, signal.SIGKILL)
        said = ranks[0].read_line()
        assert said == ("PeerLost [1]" if count == 9000 else "PeerLost [1] done")
