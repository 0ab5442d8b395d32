"""Long names, long timeouts, long callbacks; groups of the same ranks; what `env://` may carry."""

import errno
import re
import threading
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest

import resilin
from benchmarks.cases import dist_overhead
from resilin import distributed as dist
from resilin._base.clock import SYSTEM
from resilin._base.threads import OwnedThread
from resilin.distributed.backends import socket
from resilin.distributed.connections.handshake import MAX_BYTES, Hello, name_on_wire
from resilin.distributed.group import member
from resilin.distributed.wire import timeouts
from resilin.errors import CollectiveMismatch, DistError, PeerLost, UsageError, UsageTypeError
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import TRANSPORTS, run_ranks

FOREVER = [30 * 86400.0, float("inf"), timedelta(days=30), timedelta.max]


@pytest.mark.parametrize("limit", FOREVER)
def test_a_limit_that_the_system_cannot_wait_for_is_the_longest_that_it_can(limit):
    assert timeouts.seconds(limit) == timeouts.LONGEST_S


def test_a_limit_that_is_no_number_is_refused():
    with pytest.raises(UsageError, match="nan"):
        timeouts.seconds(float("nan"))


@pytest.mark.parametrize("wrong", [-1, -0.5, float("nan"), float("-inf"), timedelta(seconds=-1), "5", [1]])
def test_a_limit_below_zero_or_that_is_no_number_is_refused_at_once_by_every_call_that_takes_one(wrong):
    def work(rank):
        pending = dist.irecv(np.empty(1), 1 - rank)
        calls = {
            "set_timeout: timeout": lambda: dist.set_timeout(wrong),
            "barrier: timeout": lambda: dist.barrier(timeout=wrong),
            "monitored_barrier: timeout": lambda: dist.monitored_barrier(timeout=wrong),
            "new_group: timeout": lambda: dist.new_group([0, 1], timeout=wrong),
            "split_group: timeout": lambda: dist.split_group(split_ranks=[[0, 1]], timeout=wrong),
            "_reconfigure: timeout": lambda: dist._reconfigure(7, [dist._get_reconfigure_handle()], timeout=wrong),
            "Work.wait: timeout": lambda: pending.wait(wrong),
            "Future.wait: timeout": lambda: pending.get_future().wait(wrong),
        }
        for what, call in calls.items():
            with pytest.raises(UsageError, match=f"^{what}: expected seconds or a timedelta, .*got "):
                call()
        dist.send(np.ones(1), 1 - rank)
        assert pending.wait()
        dist.barrier()

    run_ranks(2, work).results()
    with pytest.raises(UsageError, match=r"^init_process_group: timeout: expected seconds or a timedelta, .*got "):
        dist.init_process_group(timeout=wrong, rank=0, world_size=1)


def test_no_limit_is_refused_where_one_is_to_be_set():
    with pytest.raises(UsageError, match=r"^set_timeout: timeout: .*got None"):
        run_ranks(1, lambda rank: dist.set_timeout(None)).results()


@pytest.mark.parametrize("native", [True, False])
def test_a_send_that_waits_for_room_takes_any_limit(monkeypatch, native):
    if not native:
        monkeypatch.setattr(socket, "loader", SimpleNamespace(native=None))
    begun = threading.Event()

    def work(rank):
        dist.set_timeout(timedelta.max)
        array = np.full(4 << 20, float(rank))
        if rank == 0:
            begun.set()
            dist.send(array, 1)
            dist.all_reduce(array)
            return
        assert begun.wait(PATIENCE_S)
        SYSTEM.sleep(0.05)  # the sockets are full by now
        dist.recv(array, 0)
        assert not array.any()
        SYSTEM.sleep(0.05)
        dist.all_reduce(array)

    run_ranks(2, work, transport="tcp").results()


def test_every_group_has_a_name_that_fits_the_wire():
    many = "default/local/" + "-".join(map(str, range(5000)))
    other = many.replace("4999", "5000")
    for name in ("short", "d" * 2000, "\N{MUSICAL SYMBOL G CLEF}" * 300, "\x01" * 300, many):
        assert len(Hello(name_on_wire(name), 1 << 40, 10_000, 10_000, 1).pack()) <= MAX_BYTES
    assert name_on_wire("short") == "short"
    assert name_on_wire(many) != name_on_wire(other)
    assert name_on_wire(many) == name_on_wire(many[:])


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_group_with_a_long_description_can_be_made_and_shrunk(transport):
    passed = threading.Barrier(3)

    def work(rank):
        made = dist.new_group([0, 1, 2], group_desc="all of them, " * 200)
        dist.barrier(made)
        passed.wait(PATIENCE_S)  # or it is shrunk away while somebody is in the middle of the barrier
        if rank == 2:
            return 0
        smaller = dist.shrink_group([2], group=made)
        total = np.ones(1)
        dist.all_reduce(total, group=smaller)
        return total[0]

    assert run_ranks(3, work, transport=transport).results() == [2, 2, 0]


def test_groups_of_the_same_ranks_that_only_they_make_have_names_of_their_own():
    def work(rank):
        made = [dist.new_group([0, 1], use_local_synchronization=True) for _ in range(3)]
        dist.destroy_process_group(made[1])
        made.append(dist.new_group([0, 1], use_local_synchronization=True))
        for number in (0, 2, 3):
            total = np.full(1, float(number))
            dist.all_reduce(total, group=made[number])
            assert total[0] == 2 * number
        return [dist._get_process_group_name(group) for group in made]

    first, second = run_ranks(2, work).results()
    assert first == second
    assert len(set(first)) == 4


@pytest.mark.parametrize("where", ["a collective", "a message"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_group_whose_callback_does_not_end_is_freed_and_says_so(monkeypatch, transport, where):
    join = OwnedThread.join
    monkeypatch.setattr(OwnedThread, "join", lambda thread, timeout_s=0.2: join(thread, timeout_s))
    added, answered, over, waiting = (threading.Event() for _ in range(4))

    def hold(_):
        waiting.set()
        assert over.wait(PATIENCE_S)

    def work(rank):
        group = dist.default_group()
        if rank == 1:
            assert added.wait(PATIENCE_S)
            dist.all_reduce(np.ones(1)) if where == "a collective" else dist.send(np.ones(1), 0)
            answered.set()
            with pytest.raises(DistError, match="rank 0"):
                dist.barrier()  # hears of the end
            return
        call = dist.all_reduce(np.ones(1), async_op=True) if where == "a collective" else dist.irecv(np.ones(1), 1)
        call.get_future().add_done_callback(hold)
        added.set()
        assert waiting.wait(PATIENCE_S)
        assert answered.wait(PATIENCE_S)  # the call has ended here, and perhaps not there yet
        try:
            with pytest.raises(DistError, match="a callback of a future still runs"):
                group.close()
        finally:
            over.set()
        assert "closed" in repr(group)

    run_ranks(2, work, transport=transport).results()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_cannot_make_its_end_of_a_group_is_lost_at_once(monkeypatch, transport):
    plain, mine = member.ControlChannel, []

    def control(links, group, *rest):
        if group.rank() == 0:
            mine.extend(links.values())
            raise OSError(errno.EMFILE, "Too many open files")
        return plain(links, group, *rest)

    monkeypatch.setattr(member, "ControlChannel", control)
    begin = SYSTEM.monotonic()
    outcome = run_ranks(2, lambda rank: dist.barrier(), transport=transport, timeout_s=2 * PATIENCE_S)
    assert SYSTEM.monotonic() - begin < PATIENCE_S
    assert isinstance(outcome.errors[0], OSError)
    assert re.search(r"making group 'test' .*, rank 0 of 2: Too many open files; .*ulimit -n", str(outcome.errors[0]))
    assert isinstance(outcome.errors[1], PeerLost)
    assert all(link.sock.fileno() < 0 for link in mine)  # closed, though the traceback has them


def test_a_list_of_another_length_than_the_one_sent_is_refused_and_stays():
    def work(rank):
        if rank == 0:
            dist.send_object_list(["a", "b"], 1)
            dist.send_object_list(["c"], 1)
            return None
        places = [None]
        with pytest.raises(UsageError, match="rank 0 sent 2 objects, this list has 1"):
            dist.recv_object_list(places, 0)
        assert places == [None]
        dist.recv_object_list(places, 0)
        return places

    assert run_ranks(2, work).results() == [None, ["c"]]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("lengths", [(2, 1), (1, 2), (0, 1), (1, 0), (1, 1, 3)])
def test_lists_of_unequal_lengths_are_refused_on_every_rank_and_nothing_is_sent(lengths, transport):
    def work(rank):
        places = [rank] * lengths[rank]
        with pytest.raises(CollectiveMismatch, match=rf"lists of one length .* here {lengths[rank]}: ") as caught:
            dist.broadcast_object_list(places, 0)
        assert {f"[{lengths[0]}]", f"[{lengths[-1]}]"} <= {word.strip(",;") for word in _words(caught.value)}
        assert places == [rank] * lengths[rank]
        with pytest.raises(UsageTypeError, match=r"broadcast_object_list: object_list: expected a list, got str"):
            dist.broadcast_object_list("ab", 0)
        same = (rank, "x") if rank == 0 else [None, None]
        dist.broadcast_object_list(same, 0)
        assert list(same) == [0, "x"]
        dist.broadcast_object_list([], 0)

    run_ranks(len(lengths), work, transport=transport).results()


def _words(error):
    return str(error).replace("int64", "").split()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_the_root_of_a_broadcast_brings_is_only_read(transport):
    def work(rank):
        for count in (3, 100_000):
            array = np.arange(float(count)) * (rank + 1)
            array.flags.writeable = rank != 1
            dist.broadcast(array, 1)
            assert (array == np.arange(float(count)) * 2).all()
        if rank == 1:
            dist.broadcast(resilin.ones(1).expand(5), 1)
        else:
            tensor = resilin.zeros(5)
            dist.broadcast(tensor, 1)
            assert tensor.tolist() == [1.0] * 5

    run_ranks(3, work, transport=transport).results()


def test_arrays_that_are_mapped_files_are_taken_as_what_they_are_and_other_kinds_are_refused(tmp_path):
    def work(rank):
        for count in (5, 100_000):
            array = np.memmap(tmp_path / f"{rank}-{count}", np.float32, "w+", shape=(count,))
            array[:] = rank + 1
            dist.all_reduce(array)
            assert type(array) is np.memmap
            assert (array == 3).all()
            assert (np.fromfile(tmp_path / f"{rank}-{count}", np.float32) == 3).all()
        for wrong, said in (
            (np.ones((1, 2)).view(np.matrix), r"all_reduce: tensor: expected .* got a matrix.*np\.asarray"),
            (np.ma.array([1.0, 2.0], mask=[0, 1]), r"all_reduce: tensor: expected .* got a MaskedArray.*filled"),
        ):
            with pytest.raises(UsageTypeError, match=said):
                dist.all_reduce(wrong)

    run_ranks(2, work).results()


@pytest.mark.parametrize("size", [2, 3, 10])
def test_outputs_that_lie_in_one_another_are_refused_with_their_places(size):
    def work(rank):
        one, places = resilin.zeros(8), list(resilin.zeros(size, 8))
        whole, apart = np.zeros(8 * size + 4), np.zeros((8, size))
        last = size - 1
        lapping = [whole[8 * i : 8 * i + 8] for i in range(last)] + [whole[8 * last - 4 : 8 * last + 4]]
        mine = np.ones(8)
        for call, what, wrong, like, seen in (
            (dist.all_gather, "all_gather: tensor_list", [one] * size, resilin.ones(8), (0, 1)),
            (dist.all_gather, "all_gather: tensor_list", [*places[:-1], places[0]], resilin.ones(8), (0, last)),
            (dist.all_gather, "all_gather: tensor_list", lapping, mine, (last - 1, last)),
            (dist.all_to_all, "all_to_all: output_tensor_list", lapping, [mine] * size, (last - 1, last)),
        ):
            with pytest.raises(UsageError, match=rf"^{what}\[{seen[1]}\] lies in the memory of \[{seen[0]}\]"):
                call(wrong, like)
        for good in ([row for row in apart.T], [whole[8 * i : 8 * i + 8] for i in range(size)]):
            dist.all_gather(good, mine * rank)
            assert all((part == i).all() for i, part in enumerate(good))
        dist.all_gather([resilin.zeros(0)] * size, resilin.zeros(0))

    run_ranks(size, work, timeout_s=PATIENCE_S).results()


def test_a_rank_that_is_not_in_the_group_is_refused_by_the_argument_that_named_it():
    def work(rank):
        array = np.ones(1)
        for name, call in (
            ("src", dist.broadcast),
            ("dst", dist.reduce),
            ("dst", dist.send),
            ("src", dist.recv),
            ("dst", dist.isend),
        ):
            with pytest.raises(UsageError, match=rf"^{call.__name__}: {name}: global rank 99 is not in "):
                call(array, 99)
        dist.barrier()

    run_ranks(2, work).results()


@pytest.mark.parametrize("wrong", ["0", 0.5, [0]])
def test_a_rank_that_is_no_integer_is_a_type_error(wrong):
    def work(rank):
        array = np.ones(1)
        for call in (dist.broadcast, dist.reduce, dist.send, dist.recv):
            with pytest.raises(TypeError, match="expected a rank, an integer"):
                call(array, wrong)
        with pytest.raises(TypeError, match=r"group_src: expected a rank in .*, an integer"):
            dist.broadcast(array, group_src=wrong)
        dist.barrier()

    run_ranks(2, work).results()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_benchmark_of_what_comparing_and_recording_cost_switches_both_off_and_on(transport):
    class Log:
        def __init__(self):
            self.calls = 0

        def collective(self, kind):
            self.calls += 1

    def work(rank):
        group = dist.default_group()
        log = group._queue._log = Log()
        switch = dist_overhead._Switch(group)
        array = np.ones((4,) if rank else (2, 2))
        dist.barrier()
        switch.turn(False, False)
        dist.all_reduce(array)
        switch.turn(True, True)
        assert (array == 2).all()
        assert log.calls == 1
        with pytest.raises(CollectiveMismatch):
            dist.all_reduce(array)
        assert log.calls == 2

    run_ranks(2, work, transport=transport).results()


def test_rank_and_number_of_ranks_may_stand_in_the_address_of_the_environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    dist.init_process_group("cpu", "env://?rank=0&world_size=1")
    try:
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    finally:
        dist.destroy_process_group()
