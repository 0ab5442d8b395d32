"""A group becomes the next one without restarting: who stays keeps connections and memory."""

import errno
import gc
import os
import threading
from collections import Counter

import extent
import numpy as np
import pytest
from company import along_tree, channels, end_of, expected, total

import resilin
from resilin import distributed as dist
from resilin.distributed.connections.control_channel import ControlChannel
from resilin.distributed.wire import call_phases
from resilin.errors import (
    CollectiveTimeout,
    DistError,
    GroupAborted,
    HandshakeError,
    PeerLost,
    UsageError,
    UsageTypeError,
)
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import TRANSPORTS, run_ranks


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_survivors_of_a_death_go_on_over_the_same_connections(company, transport):
    them = company(transport, 4)
    members = [3, 0, 1]  # numbered anew

    def part(number):
        group = them.join(number, [0, 1, 2, 3])
        assert total(group) == expected(4)
        before = along_tree(group)
        them.met.wait(PATIENCE_S)
        if number == 2:
            group.vanish()
            return None
        error = end_of(group)
        assert isinstance(error, PeerLost)
        assert error.ranks == {2}
        after = group.reconfigure(2, them.names(members))
        assert (after.rank(), after.size(), after.generation) == (members.index(number), 3, 2)
        assert total(after) == expected(3)
        assert along_tree(after) == before
        reused = after.stats()["reused"]
        with pytest.raises(GroupAborted, match="generation 2 of group 'world' takes its place"):
            total(group)
        group.close()
        total(after)
        after.close()
        return reused

    found = [reused for reused in them.play(*[part] * 4) if reused is not None]
    assert [reused["sockets"] for reused in found] == [2 * channels(transport)] * 3
    if transport == "shm":
        assert all(reused["arenas"] >= 2 for reused in found)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", ["barrier", "broadcast", "all_gather", "reduce_scatter", "all_to_all"])
def test_survivors_go_on_whatever_collective_the_death_interrupts(company, transport, kind):
    them = company(transport, 3)
    calls = {
        "barrier": dist.barrier,
        "broadcast": lambda: dist.broadcast(resilin.ones(200_000), 1),
        "all_gather": lambda: dist.all_gather([resilin.empty(200_000) for _ in range(3)], resilin.ones(200_000)),
        "reduce_scatter": lambda: dist.reduce_scatter(
            resilin.empty(200_000), [resilin.ones(200_000) for _ in range(3)]
        ),
        "all_to_all": lambda: dist.all_to_all(
            [resilin.empty(200_000) for _ in range(3)], [resilin.ones(200_000) for _ in range(3)]
        ),
    }

    def part(number):
        group = them.join(number, [0, 1, 2])
        with dist.use_group(group):
            calls[kind]()
            them.met.wait(PATIENCE_S)
            if number == 1:
                group.vanish()
                return
        end_of(group, calls[kind])
        after = group.reconfigure(2, them.names([0, 2]))
        assert total(after) == expected(2)
        with dist.use_group(after):
            dist.barrier()
        after.close()

    them.play(*[part] * 3)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_healthy_group_takes_a_newcomer_in(company, transport):
    them = company(transport, 3)

    def staying(number):
        group = them.join(number, [0, 1])
        assert total(group) == expected(2)
        after = group.reconfigure(2, them.names([0, 2, 1]))
        assert total(after) == expected(3)
        assert after.stats()["reused"]["sockets"] == (channels(transport) if transport != "hosts" else 1)
        after.close()

    def newcomer(number):
        group = them.join(number, [0, 2, 1], generation=2)
        assert total(group) == expected(3)
        assert group.stats()["reused"] == {"sockets": 0, "arenas": 0}
        group.close()

    them.play(staying, staying, newcomer)


def test_data_connections_are_made_when_the_group_leaves_its_host_and_dropped_when_it_is_back(company):
    them = company("hosts", 3)  # 0 and 1 share memory, 2 is elsewhere

    def staying(number):
        group = them.join(number, [0, 1])
        assert total(group) == expected(2)
        wide = group.reconfigure(2, them.names([0, 1, 2]))
        assert total(wide) == expected(3)
        assert wide.stats()["transport"] == "shm+stream"
        assert wide.stats()["reused"]["sockets"] == 1
        home = wide.reconfigure(3, them.names([1, 0]))
        assert home.stats()["transport"] == "shm"
        assert home.stats()["reused"]["sockets"] == 1
        assert home.stats()["reused"]["arenas"] >= 1
        assert total(home) == expected(2)
        home.close()

    def visitor(number):
        group = them.join(number, [0, 1, 2], generation=2)
        assert total(group) == expected(3)
        over = end_of(group)
        assert isinstance(over, GroupAborted)
        assert "generation 3 of group 'world' goes on without this rank" in str(over)
        group.close()

    them.play(staying, staying, visitor)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_member_that_died_is_replaced(company, transport):
    them = company(transport, 4)
    joined = threading.Barrier(3)

    def member(number):
        group = them.join(number, [0, 1, 2])
        total(group)
        joined.wait(PATIENCE_S)
        if number == 1:
            group.vanish()
            return
        end_of(group)
        after = group.reconfigure(2, them.names([0, 3, 2]))
        assert total(after) == expected(3)
        assert after.stats()["reused"]["sockets"] == channels(transport)
        after.close()

    def replacement(number):
        group = them.join(number, [0, 3, 2], generation=2)
        assert total(group) == expected(3)
        group.close()

    them.play(member, member, member, replacement)


def test_a_group_shrinks_to_one_and_grows_again(company):
    them = company("shm", 2)
    alone = threading.Event()

    def first(number):
        group = them.join(number, [0, 1])
        total(group)
        single = group.reconfigure(2, them.names([0]))
        assert total(single) == 1.0
        alone.set()
        both = single.reconfigure(3, them.names([1, 0]))
        assert total(both) == expected(2)
        both.close()

    def second(number):
        group = them.join(number, [0, 1])
        total(group)
        end_of(group)
        group.close()
        alone.wait(PATIENCE_S)
        both = them.join(number, [1, 0], generation=3)
        assert total(both) == expected(2)
        both.close()

    them.play(first, second)


def mapped(name):
    """How often each shared file of that name is mapped, by inode."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        return Counter(line.split()[4] for line in maps if f"memfd:{name}" in line)


@pytest.mark.parametrize("transport", extent.short(TRANSPORTS, of=["shm", "hosts"]))
def test_many_reconfigurations_leave_nothing_behind(company, transport):
    them = company(transport, 3)
    figures = []
    before = mapped("resilin-arena")  # what other tests have lent lies in mappings of its own

    def part(number):
        group = them.join(number, [0, 1, 2])
        for generation in range(2, 26):
            group = group.reconfigure(generation, them.names([(n + generation) % 3 for n in range(3)]))
            assert total(group) == expected(3)
            assert total(group, like=lambda count: np.ones(count)) == expected(3)
            with dist.use_group(group):
                dist.all_reduce(resilin.ones(10), async_op=True).wait()
            if generation in (5, 25):
                them.met.wait(PATIENCE_S)
                if number == 0:
                    gc.collect()
                    segments = sum(mapped("resilin-dist").values())
                    figures.append((threading.active_count(), len(os.listdir("/proc/self/fd")), segments))
                    # own memory is mapped when a tensor first lies in it: once by its owner, and by each for each peer
                    more = mapped("resilin-arena") - before
                    assert all(times <= 1 + 3 * 2 for times in more.values()), more
                them.met.wait(PATIENCE_S)
        group.close()

    them.play(*[part] * 3)
    assert figures[0] == figures[1]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_memory_that_a_failed_attempt_has_lost_is_sent_again(company, monkeypatch, transport):
    """One rank has no descriptor left as it makes the next group, of what the one before had mapped."""
    them, init, full = company(transport, 3), ControlChannel.__init__, [True]

    def without_descriptors(self, links, events, *rest):
        if full and events.rank() == 0 and events.generation == 2:
            full.clear()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        init(self, links, events, *rest)

    monkeypatch.setattr(ControlChannel, "__init__", without_descriptors)

    def part(number):
        group = them.join(number, [0, 1, 2])
        assert total(group) == expected(3)
        them.met.wait(PATIENCE_S)
        with pytest.raises(OSError if number == 0 else DistError, match="Too many open files"):
            group.reconfigure(2, them.endpoints)
        them.met.wait(PATIENCE_S)
        after = group.reconfigure(3, them.endpoints)
        them.groups.append(after)
        assert total(after) == expected(3)
        assert total(after, 1_000_000) == expected(3)

    them.play(*[part] * 3)
    assert not full


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_worker_thread_goes_on(company, transport):
    them = company(transport, 2)

    def part(number):
        names = []

        def note(phase, what, group):
            if (phase, what) == ("start", "all_reduce"):
                names.append(threading.get_ident())

        group = them.join(number, [0, 1])
        for generation in (2, 3):
            with dist.use_group(group), call_phases.listening(note):
                dist.all_reduce(resilin.ones(5), async_op=True).wait()
            group = group.reconfigure(generation, them.names([0, 1]))
        group.close()
        return len(set(names))

    assert them.play(part, part) == [1, 1]


def test_a_generation_that_is_not_newer_is_refused(company):
    them = company("shm", 2)

    def part(number):
        group = them.join(number, [0, 1], generation=4)
        for generation in (3, 4):
            with pytest.raises(UsageError, match=f"expected a generation above 4, got {generation}"):
                group.reconfigure(generation, them.names([0, 1]))
        assert total(group) == expected(2)  # it is as it was
        them.met.wait(PATIENCE_S)
        group.close()

    them.play(part, part)


def test_a_process_that_is_no_member_cannot_reconfigure(company):
    them = company("shm", 2)

    def part(number):
        group = them.join(number, [0, 1])
        with pytest.raises(UsageError, match="this process is not among the members"):
            group.reconfigure(2, them.names([1 - number]))
        assert total(group) == expected(2)
        them.met.wait(PATIENCE_S)
        group.close()

    them.play(part, part)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_member_at_an_older_generation_hears_that_it_is_over(company, transport):
    them = company(transport, 2, limit=3.0)
    first = threading.Event()

    def ahead(number):
        group = them.join(number, [0, 1])
        with pytest.raises((GroupAborted, CollectiveTimeout)):  # the other gave up, or did not come
            group.reconfigure(3, them.names([0, 1]), connect_timeout_s=1.0)
        first.set()
        after = group.reconfigure(4, them.names([0, 1]))
        assert total(after) == expected(2)
        after.close()

    def behind(number):
        group = them.join(number, [0, 1])
        first.wait(PATIENCE_S)
        with pytest.raises(HandshakeError, match=r"rank 0 is at generation [34] .* already, generation 2 is over"):
            group.reconfigure(2, them.names([0, 1]))
        after = group.reconfigure(4, them.names([0, 1]))
        assert total(after) == expected(2)
        after.close()

    them.play(ahead, behind)


def test_ranks_that_name_other_members_say_so(company):
    them = company("shm", 3, limit=3.0)

    def part(number):
        group = them.join(number, [0, 1, 2])
        members = [0, 1, 2] if number else [0, 2, 1]
        with pytest.raises((HandshakeError, GroupAborted), match=r"of other members, or in another order|is over"):
            group.reconfigure(2, them.names(members))
        after = group.reconfigure(3, them.names([0, 1, 2]))
        assert total(after) == expected(3)
        after.close()

    them.play(part, part, part)


def test_the_experimental_name_of_reconfigure_refuses_arguments_that_mean_nothing_and_the_group_goes_on():
    def work(rank):
        handles = [None] * 2
        dist.all_gather_object(handles, dist._get_reconfigure_handle())
        for wrong in ("5", None, 6.5, [7]):
            with pytest.raises(UsageTypeError, match=r"^_reconfigure: uuid: expected an integer"):
                dist._reconfigure(wrong, handles)
        with pytest.raises(UsageError, match=r"^_reconfigure: uuid: expected an integer below"):
            dist._reconfigure(2**80, handles)
        for wrong in (None, 3, handles[0]):
            with pytest.raises(UsageTypeError, match=r"^_reconfigure: handles: expected a list or a set"):
                dist._reconfigure(5, wrong)
        for wrong in ([3, 4], [handles[0], None]):
            with pytest.raises(UsageTypeError, match=r"^_reconfigure: handles\[[01]\]: expected .*a text"):
                dist._reconfigure(5, wrong)
        with pytest.raises(UsageError, match=r"^_reconfigure: handles\[1\]: not an endpoint"):
            dist._reconfigure(5, [handles[0], "x"])
        with pytest.raises(UsageError, match=r"^_reconfigure: handles\[2\] is that of rank 0 again"):
            dist._reconfigure(5, [*handles, handles[0]])
        assert total(dist.default_group()) == 3
        with dist.use_group(dist.default_group()):
            assert dist._reconfigure(np.int64(5), handles).wait()
            made = dist.default_group()
            assert made.generation == 5
            assert total(made) == 3
            made.close()

    run_ranks(2, work).results()
