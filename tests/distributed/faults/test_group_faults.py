"""A dead, frozen or departed peer, an abort, a late rank: every blocked call ends, and says who."""

import contextlib
import gc
import itertools
import os
import signal
import socket
import threading
import time

import extent
import numpy as np
import pytest

from resilin import distributed as dist
from resilin._base.clock import SYSTEM
from resilin.distributed.connections.listener import Listener
from resilin.distributed.group.process_group import connect
from resilin.errors import (
    CollectiveTimeout,
    DistNetworkError,
    GroupAborted,
    HandshakeError,
    PeerLost,
    SecretRequired,
    WorldChanged,
)
from resilin.testing.job_secret import OTHER_SECRET, SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import TRANSPORTS, run_ranks, start_ranks

WORK = """
import os, signal, sys, time
import numpy as np
from resilin import dist
from resilin.errors import ResilinError
from resilin.testing.ranks import join_from_environment
group = join_from_environment()
rank, size = group.rank(), group.size()
mode = os.environ["MODE"]
small, large = np.ones(100, np.float32), np.ones(400_000, np.float32)
print("ready", flush=True)
try:
    for call in range(10**9):
        if mode == "blocked" and rank == size - 1 and call == 3:
            print("stuck", flush=True)
            signal.pause()
        if mode == "running" and rank == size - 1 and call == 30:
            print("busy", flush=True)
        if mode == "frozen" and call == 3:
            dist.set_timeout(0.6)
            if rank == size - 1:
                print("stuck", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(small if call % 2 else large)
        dist.broadcast(small, src=call % size)
        small.fill(1)
        large.fill(1)
except ResilinError as error:
    print(type(error).__name__, sorted(getattr(error, "ranks", ())), time.monotonic(), str(error), sep="|", flush=True)
"""


def names(line):
    kind, ranks, at, text = line.split("|", 3)
    return kind, ranks, float(at), text


@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("transport", "mode"),
    extent.short(
        itertools.product(TRANSPORTS, ["blocked", "running"]),
        of=[("shm", "running"), ("tcp", "blocked"), ("hosts", "running")],
    ),
)
def test_survivors_name_a_killed_rank_within_100_ms(tmp_path, transport, mode):
    delays = []
    while not delays or (min(delays) > 0.1 and len(delays) < 10):  # a busy machine may schedule us late, not always
        directory = tmp_path / str(len(delays))
        directory.mkdir()
        delays.append(kill_one_of_three(directory, transport, mode))
    assert min(delays) < 0.1


def kill_one_of_three(directory, transport, mode):
    """Seconds from the kill to the last survivor's error."""
    ranks = start_ranks(3, WORK, str(directory), TEST_TRANSPORT=transport, MODE=mode)
    try:
        assert [rank.read_line() for rank in ranks] == ["ready"] * 3
        if mode == "blocked":
            assert ranks[2].read_line() == "stuck"
        else:
            assert ranks[2].read_line() == "busy"
        killed_at = time.monotonic()
        ranks[2].process.kill()
        last = 0.0
        for rank in ranks[:2]:
            kind, lost, at, text = names(rank.read_line())
            assert (kind, lost) == ("PeerLost", "[2]")
            assert "group 'test' generation 1" in text
            assert "rank 2" in text
            last = max(last, at - killed_at)
        return last
    finally:
        for rank in ranks:
            rank.__exit__()


@pytest.mark.multiproc
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_frozen_rank_is_named_at_the_timeout(tmp_path, transport):
    ranks = start_ranks(3, WORK, str(tmp_path), TEST_TRANSPORT=transport, MODE="frozen")
    try:
        assert [rank.read_line() for rank in ranks] == ["ready"] * 3
        assert ranks[2].read_line() == "stuck"
        kinds = []
        for rank in ranks[:2]:
            kind, late, _, text = names(rank.read_line())
            kinds.append(kind)
            assert "rank 2" in text or transport == "tcp"
            assert "2" in late or transport == "tcp"  # on a busy machine another rank may be late too
        assert set(kinds) == {"CollectiveTimeout"}
        os.kill(ranks[2].pid, signal.SIGCONT)
        assert names(ranks[2].read_line())[0] in ("CollectiveTimeout", "PeerLost", "GroupAborted")
    finally:
        for rank in ranks:
            rank.__exit__()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_abort_returns_a_blocked_call_with_a_copy_of_its_error(transport):
    delays = []
    while not delays or (min(delays) > 0.2 and len(delays) < 10):  # a busy machine may schedule us late, not always
        delays.append(abort_a_blocked_call(transport))
    assert min(delays) < 0.2


def abort_a_blocked_call(transport):
    """Seconds from the abort to the error of the call."""
    blocked = threading.Event()
    aborted_at = []

    def work(rank):
        group = dist.default_group()
        dist.barrier()
        if rank == 1:
            assert blocked.wait(PATIENCE_S)
            with pytest.raises(GroupAborted, match="rank 0 aborted the group: WorldChanged: generation 1 ended"):
                dist.recv(np.ones(5), src=0)
            return None
        error = WorldChanged("generation 1 ended", 1)

        def abort():
            aborted_at.append(time.monotonic())
            group.abort(error)

        timer = threading.Timer(0.1, abort)
        timer.start()
        blocked.set()
        with pytest.raises(WorldChanged) as caught:
            dist.all_reduce(np.ones(5))
        late = time.monotonic() - aborted_at[0]
        timer.join()
        assert caught.value is not error
        assert caught.value.generation == 1
        with pytest.raises(WorldChanged):
            dist.barrier()
        return late

    late, _ = run_ranks(2, work, transport=transport, abort=False).results()
    return late


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_abort_fails_queued_async_work(transport):
    def work(rank):
        dist.barrier()
        if rank == 1:
            with pytest.raises((GroupAborted, PeerLost)):
                dist.recv(np.ones(1), src=0)
            return
        works = [dist.all_reduce(np.ones(5), async_op=True) for _ in range(3)]
        dist.default_group().abort(WorldChanged("over", 1))
        for each in works:
            with pytest.raises(WorldChanged):
                each.wait()
            assert isinstance(each.exception(), WorldChanged)

    run_ranks(2, work, transport=transport, abort=False).results()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_leaves_is_named_and_finished_calls_are_not_hurt(transport):
    others = threading.Barrier(2)  # a rank that is ahead aborts the group, which ends the other's call as well

    def work(rank):
        group = dist.default_group()
        for _ in range(20):
            dist.all_reduce(np.ones(3000, np.float32))
        if rank == 2:
            group.close()
            return
        others.wait(PATIENCE_S)
        with pytest.raises(PeerLost) as caught:
            dist.all_reduce(np.ones(3000, np.float32))
        assert 2 in caught.value.ranks

    run_ranks(3, work, transport=transport, abort=False).results()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_timeout_names_the_rank_the_call_and_the_time(transport):
    done = threading.Event()

    def work(rank):
        dist.barrier()
        if rank == 1:
            assert done.wait(PATIENCE_S)
            return
        try:
            with pytest.raises(CollectiveTimeout) as caught:
                dist.barrier(timeout=0.1)
        finally:
            done.set()
        assert caught.value.ranks == {1}
        assert "barrier #1, group 'test' generation 1, rank 0 of 2: rank 1 did not" in str(caught.value)
        assert "of 0.1 s" in str(caught.value)

    run_ranks(2, work, transport=transport, abort=False).results()


@pytest.mark.parametrize("way", ["collective", "receive", "monitored_barrier"])
def test_a_timeout_in_a_subgroup_names_the_rank_in_the_world_too(way):
    done = threading.Event()

    def work(rank):
        part = dist.new_group([1, 2])
        dist.barrier()
        if rank != 1:
            assert done.wait(PATIENCE_S)
            return
        part.timeout_s = 0.1
        calls = {
            "collective": lambda: dist.barrier(part),
            "receive": lambda: dist.recv(np.ones(1), src=2, group=part),
            "monitored_barrier": lambda: dist.monitored_barrier(part, timeout=0.1),
        }
        try:
            with pytest.raises(CollectiveTimeout) as caught:
                calls[way]()
        finally:
            done.set()
        assert (caught.value.ranks, caught.value.world_ranks) == ({1}, {2})

    run_ranks(3, work, abort=False).results()


def test_a_receive_from_a_rank_that_died_fails():
    def work(rank):
        if rank == 1:
            dist.default_group().close()
            return
        with pytest.raises(PeerLost, match="recv from rank 1 with tag 3"):
            dist.recv(np.ones(3), src=1, tag=3)

    run_ranks(2, work, abort=False).results()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_monitored_barrier_names_every_missing_rank(transport):
    done = threading.Event()

    def work(rank):
        if rank in (1, 2):
            assert done.wait(PATIENCE_S)
            return
        begin = SYSTEM.monotonic()
        try:
            if rank == 3:
                with pytest.raises((CollectiveTimeout, PeerLost)):
                    dist.monitored_barrier()
                return
            with pytest.raises(CollectiveTimeout, match=r": rank 1, rank 2 did not come within 0\.1 s$") as caught:
                dist.monitored_barrier(timeout=0.1, wait_all_ranks=True)
            assert caught.value.ranks == {1, 2}
        finally:
            done.set()
            assert SYSTEM.monotonic() - begin < PATIENCE_S  # of twice that, the group's limit

    run_ranks(4, work, transport=transport, timeout_s=2 * PATIENCE_S, abort=False).results()


def test_connect_names_every_rank_that_never_joins():
    with Listener() as here, Listener() as other, Listener() as third:
        endpoints = [other.describe(), here.describe(), third.describe()]
        with pytest.raises(CollectiveTimeout, match=r"rank 0, rank 2 did not join within 0.1 s") as caught:
            connect(here, endpoints, 1, group_name="g", generation=0, timeout_s=0.1)
        assert caught.value.ranks == {0, 2}


def test_connect_says_at_once_that_a_peer_is_gone():
    gone = Listener()
    gone.close()
    with Listener() as here, pytest.raises(PeerLost, match="rank 0") as caught:
        connect(here, [gone.describe(), here.describe()], 1, group_name="g", generation=0, timeout_s=5.0)
    assert caught.value.ranks == {0}


@pytest.mark.parametrize("rank", [0, 1])
def test_interrupt_ends_a_running_connect(rank):
    with Listener() as here, Listener() as other:
        endpoints = [other.describe(), other.describe()]
        endpoints[rank] = here.describe()
        timer = threading.Timer(0.05, here.interrupt, [WorldChanged("newer generation", 3)])
        timer.start()
        with pytest.raises(WorldChanged):
            connect(here, endpoints, rank, group_name="g", generation=3, timeout_s=5.0)
        timer.join()


@pytest.mark.parametrize("unix", [True, False])
def test_an_old_generation_is_refused(unix):
    with Listener(unix=unix) as here, Listener(unix=unix) as other:
        endpoints = [other.describe(), here.describe()]
        with pytest.raises(CollectiveTimeout):
            connect(other, endpoints, 0, group_name="g", generation=5, timeout_s=0.05)
        with pytest.raises(HandshakeError, match="at generation 5 here, generation 4 is over"):
            connect(here, endpoints, 1, group_name="g", generation=4, timeout_s=5.0)


def test_a_wrong_secret_is_refused_and_does_not_disturb_the_group():
    with Listener() as zero, Listener() as one, Listener() as stranger:
        endpoints = [zero.describe(), one.describe()]
        groups = {}

        def member(rank, listener):
            groups[rank] = connect(listener, endpoints, rank, group_name="g", secret=SECRET, timeout_s=5.0)

        first = threading.Thread(target=member, args=(0, zero))
        first.start()
        with pytest.raises(HandshakeError, match="refused our proof of the job's secret"):
            connect(stranger, endpoints, 1, group_name="g", secret=OTHER_SECRET, timeout_s=5.0)
        member(1, one)
        first.join()
        for group in groups.values():
            group.close()


def test_strangers_who_talk_nonsense_or_nothing_are_dropped():
    with Listener(secret=SECRET) as zero, Listener(secret=SECRET) as one:
        port = zero.endpoint.port
        with (
            socket.create_connection(("127.0.0.1", port)) as silent,
            socket.create_connection(("127.0.0.1", port), timeout=5.0) as rude,
        ):
            rude.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(46))
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while more := rude.recv(100):
                    answer += more
            assert answer[32:] == bytes(32)  # a nonce and a refusal, whatever was said
            endpoints = [zero.describe(), one.describe()]
            join = {"group_name": "g", "secret": SECRET, "timeout_s": 5.0}
            other = threading.Thread(target=lambda: connect(zero, endpoints, 0, **join).close())
            other.start()
            group = connect(one, endpoints, 1, **join)
            other.join()
            group.close()
            assert silent.fileno() > 0


def test_beyond_loopback_a_secret_is_required(monkeypatch):
    monkeypatch.delenv("RESILIN_SECRET", raising=False)
    with pytest.raises(SecretRequired, match="RESILIN_SECRET"):
        Listener("192.0.2.1")
    with pytest.raises(SecretRequired, match="RESILIN_SECRET"):
        dist.TCPStore("192.0.2.1", 5000, is_master=True)
    with pytest.raises(DistNetworkError, match="cannot listen"):
        Listener("192.0.2.1", secret=SECRET)


def open_files():
    return sorted(
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}")
    )


def shared_memory():
    with open("/proc/self/maps", encoding="ascii") as maps:
        return {line for line in maps if "resilin-dist" in line or "resilin-stage" in line}


@pytest.mark.parametrize("transport", extent.short(TRANSPORTS, of=["shm", "hosts"]))
def test_nothing_is_left_after_close(transport):
    def work(rank):
        foreign = np.frombuffer(bytearray(1 << 20), np.float32)
        dist.all_reduce(foreign)
        dist.all_reduce(np.ones(5000), async_op=True).wait()
        dist.barrier()

    gc.collect()  # what errors of other tests refer to
    maps = shared_memory()  # before anything here: what interrupted threads of other tests hold, if that is not freed
    run_ranks(2, work, transport=transport).results()  # warm: arenas of this process stay
    gc.collect()
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run_ranks(2, work, transport=transport).results()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files
    assert shared_memory() - maps == set()


INTERRUPTED = """
import os, sys, time, threading, _thread, signal
import numpy as np
from resilin import dist
from resilin.testing.ranks import join_from_environment
group = join_from_environment()
print("ready", flush=True)
if group.rank() == 0:
    before = time.process_time()
    threading.Timer(0.4, os.kill, [os.getpid(), signal.SIGINT]).start()
    try:
        dist.all_reduce(np.ones(5))
    except KeyboardInterrupt:
        print("interrupted", time.process_time() - before < 0.1, flush=True)
else:
    sys.stdin.readline()
    try:
        for _ in range(2):  # over sockets rank 0 has sent its part of the first one before, and that may be read first
            dist.all_reduce(np.ones(5))
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


@pytest.mark.multiproc
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_waiting_burns_no_core_and_ends_at_ctrl_c(tmp_path, transport):
    ranks = start_ranks(2, INTERRUPTED, str(tmp_path), TEST_TRANSPORT=transport)
    try:
        assert [rank.read_line() for rank in ranks] == ["ready"] * 2
        assert ranks[0].read_line() == "interrupted True"
        ranks[1].process.stdin.write("go\n")
        ranks[1].process.stdin.flush()
        assert ranks[1].read_line().startswith("GroupAborted")
    finally:
        for rank in ranks:
            rank.__exit__()


FORKED = WORK.replace(
    'print("ready", flush=True)',
    """
if rank == 1 and os.fork() == 0:
    os.close(1)
    os.close(2)
    signal.alarm(300)
    signal.pause()
print("ready", flush=True)
""",
)


FORK_CALLS = """
import os, sys
from resilin import dist
from resilin.testing.ranks import join_from_environment
join_from_environment()
dist.barrier()
child = os.fork()
if child == 0:
    try:
        dist.barrier()
    except dist.DistError as error:
        print(error, flush=True)
    dist.destroy_process_group()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.multiproc
def test_a_collective_in_a_forked_child_says_so_and_the_child_ends_quietly(tmp_path):
    for rank, process in enumerate(start_ranks(2, FORK_CALLS, str(tmp_path))):
        code, out, err = process.finish()
        assert (code, err) == (0, "")
        assert f"rank {rank} of 2: this process (pid " in out
        assert f"was forked from that rank (pid {process.pid}) and is none itself: start workers before" in out


@pytest.mark.multiproc
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_forked_child_does_not_hide_its_parents_death(tmp_path, transport):
    ranks = start_ranks(2, FORKED, str(tmp_path), TEST_TRANSPORT=transport, MODE="blocked")
    try:
        assert [rank.read_line() for rank in ranks] == ["ready"] * 2
        assert ranks[1].read_line() == "stuck"
        killed_at = time.monotonic()
        os.kill(ranks[1].pid, signal.SIGKILL)
        kind, lost, at, _ = names(ranks[0].read_line())
        assert (kind, lost) == ("PeerLost", "[1]")
        assert at - killed_at < PATIENCE_S  # the child lives for three times that
    finally:
        for rank in ranks:
            rank.__exit__()
