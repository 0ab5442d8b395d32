"""How groups end and begin again: rounds, handlers of signals, interrupted dials, subgroups, memory that was shared."""

import itertools
import mmap
import os
import socket
import threading

import extent
import numpy as np
import pytest

from resilin import distributed as dist
from resilin._base.clock import SYSTEM, Deadline
from resilin.distributed.backends.base import Aborted
from resilin.distributed.backends.shm import memory
from resilin.distributed.backends.shm.collectives import ShmBackend
from resilin.distributed.connections.listener import Endpoint, Listener
from resilin.distributed.group.default_group import set_default_group
from resilin.distributed.group.process_group import connect
from resilin.distributed.wire import loader
from resilin.distributed.wire.frames import HEADER, Descriptor, Frame, Kind
from resilin.distributed.wire.reduce_op import DTYPE_CODES, ReduceOp
from resilin.errors import DistError, DistNetworkError, GroupAborted, PeerLost, WorldChanged
from resilin.testing import ports
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import RankProcess, run_ranks, start_ranks

ROUNDS = """
import os, sys
import numpy as np
from resilin import dist
for number in range(20):
    dist.init_process_group("cpu", timeout=20)
    x = np.full(3, float(number))
    dist.all_reduce(x)
    assert x.tolist() == [number * 2.0] * 3
    dist.destroy_process_group()
print("done", flush=True)
"""

WAITS_IN_A_THREAD = """
import sys, threading, time
import numpy as np
from resilin import dist
from resilin.testing.ranks import join_from_environment
join_from_environment()
other = 1 - dist.get_rank()
dist.barrier()
def wait():
    begun.set()
    try:
        WAIT
    except dist.DistError:
        pass
begun = threading.Event()
threading.Thread(target=wait, daemon=True).start()
begun.wait()
time.sleep(0.1)  # it sleeps in the call by now
sys.exit(3)
"""

HANDLER = """
import os, signal, sys
import numpy as np
from resilin import dist
from resilin.testing.ranks import join_from_environment
join_from_environment()
def leave(*_):
    dist.destroy_process_group()
    print("destroyed", flush=True)
    if os.environ["THEN"] == "exit":
        sys.exit(7)
signal.signal(signal.SIGUSR1, leave)
dist.barrier()
if dist.get_rank() == 1:
    sys.stdin.readline()
    sys.exit(0)
print("ready", flush=True)
try:
    dist.all_reduce(np.ones(int(os.environ["COUNT"])))
except dist.DistError as error:
    print(type(error).__name__, flush=True)
"""

BUSY = "while True: pass"


@pytest.fixture
def port():
    with ports.held() as (number,):
        yield number


@pytest.mark.multiproc
@pytest.mark.parametrize("secret", extent.short([SECRET, ""], of=[""]))
def test_twenty_groups_in_a_row_on_one_port_form_on_a_busy_machine(secret, port):
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RESILIN_SECRET": secret}
    load = [RankProcess(BUSY, {}) for _ in range(2)]
    ranks = [RankProcess(ROUNDS, {**shared, "RANK": str(rank)}) for rank in range(2)]
    try:
        ended = [rank.finish(90.0) for rank in ranks]
        assert [(code, out) for code, out, _ in ended] == [(0, "done\n")] * 2, ended
    finally:
        for each in [*ranks, *load]:
            each.__exit__()


def asleep(pid):
    """Wait until the main thread of `pid` sleeps in a futex or a poll."""
    deadline, pause = Deadline(10.0), threading.Event()
    while True:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            if file.read().rpartition(")")[2].split()[0] == "S":
                return
        assert not deadline.passed()
        pause.wait(0.01)


@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("transport", "count", "then"),
    extent.short(
        [(*how, then) for how in (("shm", 4), ("shm", 100_000), ("unix", 4)) for then in ("exit", "return")],
        of=[("shm", 4, "return"), ("shm", 100_000, "exit"), ("unix", 4, "return")],
    ),
)
def test_a_signal_handler_may_destroy_the_group_in_the_middle_of_a_collective(tmp_path, transport, count, then):
    ranks = start_ranks(2, HANDLER, str(tmp_path), TEST_TRANSPORT=transport, THEN=then, COUNT=str(count))
    try:
        assert ranks[0].read_line() == "ready"
        asleep(ranks[0].pid)
        ranks[0].process.send_signal(10)
        code, out, err = ranks[0].finish(PATIENCE_S)
        assert out.splitlines() == (["destroyed"] if then == "exit" else ["destroyed", "GroupAborted"]), err
        assert code == (7 if then == "exit" else 0), err
    finally:
        for rank in ranks:
            rank.__exit__()


@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("wait", "transport"),
    extent.short(
        itertools.product(
            [
                "dist.recv(np.ones(2), other)",
                "dist.recv(np.ones(2))",
                "dist.irecv(np.ones(2), other).wait()",
                "dist.recv_object_list([None], other)",
                "dist.send(np.ones(1_000_000), other)",
                "dist.get_rank() or dist.all_reduce(np.ones(2))",
            ],
            ["shm", "tcp"],
        ),
        of=lambda wait, transport: ("all_reduce" in wait or "send" in wait) == (transport == "shm"),
    ),
)
def test_a_daemon_thread_that_waits_as_the_process_ends_leaves_its_exit_code_alone(tmp_path, wait, transport):
    source = WAITS_IN_A_THREAD.replace("WAIT", wait)
    ranks = start_ranks(2, source, str(tmp_path), TEST_TRANSPORT=transport)
    try:
        for rank in ranks:
            code, _, err = rank.finish()
            assert code == 3, err
    finally:
        for rank in ranks:
            rank.__exit__()


def test_an_interrupt_ends_a_connect_that_dials_a_host_which_never_answers():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, Listener(secret=SECRET, shm=False) as here:
        port = full.getsockname()[1]
        fillers = []
        for _ in range(4):  # what does not fit the backlog is not even answered
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
            fillers.append(sock)
        gone = Endpoint("another host", "", "127.0.0.1", port, False).describe()
        started = SYSTEM.monotonic()
        timer = threading.Timer(0.2, here.interrupt, [WorldChanged("generation over", 1), 1])
        timer.start()
        them = [gone, here.describe()]
        with pytest.raises(WorldChanged):
            connect(here, them, 1, group_name="g", generation=1, secret=SECRET, connect_timeout_s=3 * PATIENCE_S)
        assert SYSTEM.monotonic() - started < PATIENCE_S
        timer.join()
        for sock in fillers:
            sock.close()


def control_threads():
    return {thread for thread in threading.enumerate() if "dist-control" in thread.name}


@pytest.mark.parametrize("how", ["close", "replace"])
def test_subgroups_end_with_their_group_and_with_its_time_as_the_default(how):
    others = control_threads()  # an interrupt within `Thread.start` leaves one that never begins
    with Listener(secret=SECRET) as zero, Listener(secret=SECRET) as one:
        endpoints, parts = [zero.describe(), one.describe()], []

        def member(rank, listener):
            world = connect(listener, endpoints, rank, group_name="g", secret=SECRET, timeout_s=10)
            part = connect(listener, endpoints, rank, group_name="g/part", secret=SECRET, timeout_s=10)
            world.subgroups.append(part)
            parts.append((world, part))

        threads = [threading.Thread(target=member, args=pair) for pair in enumerate((zero, one))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(control_threads() - others) == 4
        for world, part in parts:
            if how == "replace":
                set_default_group(world)
                set_default_group(None)
                assert "closed" in repr(part)
                assert "closed" not in repr(world)
            world.close()
            assert "closed" in repr(part)
        assert control_threads() <= others


def failure():
    """What the next collectives end with: the control thread needs a moment."""
    deadline = Deadline(10.0)
    while not deadline.passed():
        try:
            dist.all_reduce(np.ones(100))
        except DistError as error:
            return error
    raise AssertionError("no collective failed")


def test_a_peer_that_breaks_the_protocol_is_not_called_dead():
    met = threading.Barrier(2)

    def work(rank):
        group = dist.default_group()
        met.wait(PATIENCE_S)
        if rank == 1:
            group._control._links[0].sock.send(HEADER.pack(99, 0, 0))
        error = failure()
        return type(error), str(error)

    (kind, text), (other, _) = run_ranks(2, work, abort=False).results()
    assert kind is DistNetworkError
    assert "rank 1" in text
    assert "is alive" in text
    assert "99 is not a valid Frame" in text
    assert other is GroupAborted


@pytest.mark.skipif(loader.native is None, reason="needs the native code")
def test_memory_of_a_peer_that_cannot_be_mapped_is_named_at_once():
    met = threading.Barrier(2)

    def work(rank):
        group = dist.default_group()
        met.wait(PATIENCE_S)
        if rank == 1:
            fd = os.memfd_create("short")
            group._share(0, Frame.ARENA, np.array([1 << 40, 1 << 20], np.uint64).tobytes(), fd)
            os.close(fd)
        return str(failure())

    assert "1048576 bytes of shared memory of rank 1 cannot be mapped" in run_ranks(2, work, abort=False).results()[0]


@pytest.fixture
def two_ends():
    """Both ends of a control segment of two ranks."""
    fd = os.memfd_create("test")
    zero = loader.native.Segment(fd, 0, 2, 4096)
    one = loader.native.Segment(fd, 1, 2, 0)
    yield zero, one
    zero.close()
    one.close()
    os.close(fd)


OK, ABORTED, TIMEOUT = 0, 1, 2


@pytest.fixture
def arenas(two_ends):
    """An array of 1 MiB for each of two ranks, which the other has mapped as arena 0: 1 and 2 everywhere."""
    size, arrays = 1 << 20, []
    for rank, end in enumerate(reversed(two_ends)):  # each maps the other's
        fd = os.memfd_create("arena")
        os.ftruncate(fd, size)
        assert end.add_arena(rank, 0, fd, size)
        arrays.append(np.frombuffer(mmap.mmap(fd, size), np.float32))
        arrays[rank][:] = rank + 1
        os.close(fd)
    return arrays


def run_native(end, kind, root, array, inputs, outputs, limit_s):
    """One collective of `array`, which peers find as arena 0, among the inputs or as an output that they may write."""
    targets = [(0, 0)] * len(outputs) or None
    op, code, here = int(ReduceOp.SUM), DTYPE_CODES[array.dtype], [(0, 0)] * len(inputs)
    until = SYSTEM.monotonic() + limit_s
    return loader.native.Collectives(end).run(
        array, 0, int(kind), code, op, root, inputs, here, outputs, until, 0.0, None, targets
    )


@pytest.mark.skipif(loader.native is None, reason="needs the native code")
@pytest.mark.parametrize("kind", [Kind.ALL_REDUCE, Kind.BROADCAST])
def test_a_rank_that_comes_after_a_peer_has_given_up_writes_nothing_into_its_memory(two_ends, arenas, kind):
    zero, one = two_ends
    (first, second), broadcast = arenas, kind == Kind.BROADCAST
    alone = ([], [first]) if broadcast else ([first], [])
    assert run_native(zero, kind, 1, first, *alone, limit_s=0.2) == TIMEOUT
    assert zero.aborted() == one.aborted() != 0
    assert run_native(one, kind, 1, second, [second], [], limit_s=10.0) == ABORTED
    float32 = DTYPE_CODES[first.dtype]
    assert one.write(float32, int(ReduceOp.SUM), [second, second], [first], first.size) == ABORTED
    assert (first == 1).all()


@pytest.mark.skipif(loader.native is None, reason="without native code ranks of a host share no memory")
@pytest.mark.parametrize("stopped", [(memory.LOST, True), (memory.ABORTED, False)], ids=["lost", "aborted"])
def test_a_group_that_ends_before_its_control_segment_is_there_waits_in_it_for_nobody(stopped):
    """As when the group of which a part is made ends, seen by another thread than the one that takes the segment in."""
    code, dead = stopped
    backend = ShmBackend(0, 2, lambda *_: True)
    backend._memory.stop(code, 1, dead)
    backend.attach(Deadline(PATIENCE_S))
    begin = SYSTEM.monotonic()
    with pytest.raises(PeerLost if dead else Aborted):
        backend.agree(Descriptor(0, Kind.BARRIER), Deadline(3 * PATIENCE_S))
    assert SYSTEM.monotonic() - begin < PATIENCE_S
    backend.close()
