"""Deaths, interruptions and misunderstandings while a group becomes the next one; nothing old is read."""

import contextlib
import threading

import pytest
from company import channels, end_of, expected, total

import resilin
from resilin import distributed as dist
from resilin._base.clock import SYSTEM
from resilin.errors import (
    CollectiveTimeout,
    DistError,
    HandshakeError,
    PeerLost,
    WorldChanged,
)
from resilin.testing.job_secret import OTHER_SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import TRANSPORTS


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_newcomer_without_the_secret_is_refused_and_the_others_go_on_without_it(company, transport):
    them = company(transport, 3, limit=1.0)

    def staying(number):
        group = them.join(number, [0, 1])
        with pytest.raises((CollectiveTimeout, PeerLost)) as caught:
            group.reconfigure(2, them.names([0, 1, 2]))
        assert caught.value.ranks == {2}
        after = group.reconfigure(3, them.names([0, 1]), timeout_s=10.0)
        assert total(after) == expected(2)
        assert after.stats()["reused"]["sockets"] == channels(transport)
        after.close()

    def stranger(number):
        with pytest.raises(HandshakeError, match="secret"):
            them.join(number, [0, 1, 2], generation=2, secret=OTHER_SECRET)

    them.play(staying, staying, stranger)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_survivor_that_is_late_is_waited_for(company, transport):
    them = company(transport, 3)
    left = [threading.Event(), threading.Event()]

    def part(number):
        group = them.join(number, [0, 1, 2])
        total(group)
        if number == 1:
            # one that is still in its call would hear of our failure
            assert all(each.wait(PATIENCE_S) for each in left)
            end_of(group)  # the others have left for generation 2: this is no hang
        else:
            left[number // 2].set()
        after = group.reconfigure(2, them.names([0, 1, 2]))
        assert total(after) == expected(3)
        assert after.stats()["reused"]["sockets"] == 2 * channels(transport)
        after.close()

    them.play(part, part, part)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_death_during_a_reconfiguration_is_told_and_the_next_generation_works(company, transport, victim):
    them = company(transport, 3)
    staying = [number for number in range(3) if number != victim]

    def part(number):
        group = them.join(number, [0, 1, 2])
        total(group)
        them.met.wait(PATIENCE_S)
        if number == victim:
            SYSTEM.sleep(0.2)
            died.append(SYSTEM.monotonic())
            them.listeners[number].close()
            group.vanish()
            return None
        with pytest.raises(PeerLost) as caught:
            group.reconfigure(2, them.names([0, 1, 2]))
        heard = SYSTEM.monotonic()
        assert caught.value.ranks == {victim}
        after = group.reconfigure(3, them.names(staying))
        assert total(after) == expected(2)
        assert after.stats()["reused"]["sockets"] == channels(transport)
        after.close()
        return heard

    died = []
    heard = [at for at in them.play(part, part, part) if at is not None]
    assert max(heard) - died[0] < PATIENCE_S  # of three times that, the group's limit


@pytest.mark.parametrize("transport", ["tcp", "unix", "hosts"])
def test_bytes_of_an_interrupted_collective_never_reach_the_next_generation(company, transport):
    them = company(transport, 3)

    def part(number):
        group = them.join(number, [0, 1, 2])
        for generation in range(2, 8):
            work = None
            with dist.use_group(group):
                dist.barrier()
                if number != generation % 3:  # the third rank never comes: the others stand half-way
                    work = dist.all_reduce(resilin.full((4_000_000,), 7.0), async_op=True)
                SYSTEM.sleep(0.03)
                if number == (generation + 1) % 3:
                    group.abort()
            if work is not None:
                with pytest.raises(DistError):
                    work.wait()
            group = group.reconfigure(generation, them.names([0, 1, 2]))
            assert total(group, 300_000) == expected(3)
            assert group.stats()["reused"]["sockets"] == 4
        group.close()

    them.play(part, part, part)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_messages_of_an_older_generation_are_never_received(company, transport):
    them = company(transport, 2)

    def part(number):
        group = them.join(number, [0, 1])
        them.met.wait(PATIENCE_S)  # else the first abort may end the other's joining
        for generation in range(2, 6):
            with dist.use_group(group):
                work = None
                buffer = resilin.zeros(3_000_000)
                if number == 0:
                    with contextlib.suppress(DistError):  # the other may have aborted already
                        dist.isend(resilin.ones(3_000_000), 1, tag=5)
                elif generation % 2:
                    with contextlib.suppress(DistError):
                        work = dist.irecv(buffer, 0, tag=6)  # none comes
            group.abort()
            after = group.reconfigure(generation, them.names([0, 1]))
            if work is not None:
                with pytest.raises(DistError):
                    work.wait()
            with dist.use_group(after):
                if number == 0:
                    dist.send(resilin.full((3,), float(generation)), 1, tag=5)
                else:
                    got = resilin.zeros(3)
                    dist.recv(got, 0, tag=5)
                    assert got.tolist() == [float(generation)] * 3
            them.met.wait(PATIENCE_S)  # else the next abort may come before the message is received, and end that
            group = after
        group.close()

    them.play(part, part)


@pytest.mark.parametrize("transport", ["tcp", "unix", "hosts"])
@pytest.mark.parametrize("cut", ["control", "data"])
def test_what_was_cut_between_two_that_live_is_made_anew(company, transport, cut):
    them = company(transport, 3)

    def part(number):
        group = them.join(number, [0, 1, 2])
        total(group)
        them.met.wait(PATIENCE_S)
        if number == 2:
            link = group._links[0]
            (link.hang_up if cut == "control" else link.wire.shut)()
        end_of(group)
        after = group.reconfigure(2, them.names([0, 1, 2]))
        assert total(after, 300_000) == expected(3)
        reused = after.stats()["reused"]["sockets"]
        after.close()
        return reused

    lost = 2 if cut == "control" else 1
    assert them.play(part, part, part) == [4 - lost, 4, 4 - lost]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_reconfiguration_can_be_interrupted(company, transport):
    them = company(transport, 2)
    gone_on = threading.Event()

    def waiting(number):
        group = them.join(number, [0, 1])
        threading.Timer(0.1, them.listeners[number].interrupt, (WorldChanged("another world", 2), 2)).start()
        with pytest.raises(WorldChanged):
            group.reconfigure(2, them.names([0, 1]))
        gone_on.set()
        after = group.reconfigure(3, them.names([0, 1]))
        assert total(after) == expected(2)
        after.close()

    def other(number):
        group = them.join(number, [0, 1])
        gone_on.wait(PATIENCE_S)
        after = group.reconfigure(3, them.names([0, 1]))
        assert total(after) == expected(2)
        after.close()

    them.play(waiting, other)


def test_subgroups_end_with_their_group(company):
    them = company("shm", 2)

    def part(number):
        group = them.join(number, [0, 1])
        with dist.use_group(group):
            small = dist.new_group([0, 1])
            after = group.reconfigure(2, them.names([1, 0]))
            with pytest.raises(DistError, match="closed"):
                dist.barrier(small)
        with dist.use_group(after):
            again = dist.new_group([0, 1])
            dist.barrier(again)
        after.close()

    them.play(part, part)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_who_comes_late_hears_that_it_was_given_other_members(company, transport):
    them = company(transport, 2)

    def part(number):
        group = them.join(number, [0, 1])
        total(group)
        if number == 0:
            with pytest.raises(CollectiveTimeout):
                group.reconfigure(2, them.names([1, 0]), connect_timeout_s=0.3)
            group.close()
            them.listeners[0].close()
        them.met.wait(PATIENCE_S)
        if number == 1:
            with pytest.raises(HandshakeError, match="of other members"):
                group.reconfigure(2, them.names([0, 1]))

    them.play(part, part)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_ahead_of_the_others_hears_which_generation_they_made(company, transport):
    them = company(transport, 2)

    def part(number):
        group = them.join(number, [0, 1])
        total(group)
        try:
            if number == 0:
                with pytest.raises(HandshakeError, match="rank 1 is at generation 3 of group 'world' already"):
                    group.reconfigure(2, them.names([0, 1]))
                return
            with pytest.raises(PeerLost, match="last heard to make generation 2") as caught:
                group.reconfigure(3, them.names([0, 1]))
            assert caught.value.ranks == {0}
        finally:
            group.close()
            them.listeners[number].close()

    them.play(part, part)


def test_shrink_group_goes_on_over_the_connections_of_those_that_stay(company):
    them = company("tcp", 3)

    def part(number):
        group = them.join(number, [0, 1, 2])
        total(group)
        them.met.wait(PATIENCE_S)
        if number == 0:
            group.vanish()
            return
        end_of(group)
        with dist.use_group(group):
            made = dist.shrink_group([0])
            assert dist.default_group() is made
        assert made.stats()["reused"]["sockets"] == 2
        assert total(made) == expected(2)
        made.close()

    them.play(part, part, part)
