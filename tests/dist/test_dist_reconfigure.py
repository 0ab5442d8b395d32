"""A group becomes the next one without restarting: who stays keeps connections and memory, and nothing old is read."""

import contextlib
import gc
import os
import threading

import numpy as np
import pytest

import resilin
from resilin import dist
from resilin._base.clock import SYSTEM
from resilin._base.threads import OwnedThread
from resilin.core.machine import memory
from resilin.dist import phases, tree
from resilin.dist.group import connect
from resilin.errors import (
    CollectiveTimeout,
    DistError,
    GroupAborted,
    HandshakeError,
    PeerLost,
    UsageError,
    WorldChanged,
)
from resilin.testing.ranks import TRANSPORTS, RankProcess, listener, run_ranks, start_ranks

SECRET = "test"


class Company:
    """Processes that may be ranks, as threads: each has a listener of its own."""

    def __init__(self, transport, count, limit=15.0):
        self.listeners = [listener(transport, number) for number in range(count)]
        self.endpoints = [each.describe() for each in self.listeners]
        self.met = threading.Barrier(count)
        self.limit = limit
        self.groups = []

    def join(self, number, members, generation=1, secret=SECRET):
        """Connect as a newcomer."""
        mine, names = members.index(number), self.names(members)
        group = connect(
            self.listeners[number],
            names,
            mine,
            group_name="world",
            generation=generation,
            secret=secret,
            timeout_s=self.limit,
        )
        self.groups.append(group)
        return group

    def names(self, members):
        return [self.endpoints[number] for number in members]

    def play(self, *parts):
        """Run each part in a thread of its own; their results, or the first error."""
        outcome, errors = {}, []

        def run(number, part):
            memory.install()
            try:
                outcome[number] = part(number)
            except BaseException as error:
                errors.append(error)
                raise

        threads = [OwnedThread(f"number-{n}", lambda n=n, p=p: run(n, p)) for n, p in enumerate(parts)]
        for thread in threads:
            try:
                thread.join(60)
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors:
            self.met.abort()
            raise errors[0]
        return [outcome[number] for number in range(len(parts))]

    def close(self):
        for each in [*self.groups, *self.listeners]:
            each.close()


@pytest.fixture
def company():
    made = []

    def make(transport, count, **options):
        made.append(Company(transport, count, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def total(group, count=100_000, like=resilin.ones):
    """What an all_reduce of rank + 1 gives; checks all of it."""
    with dist.use_group(group):
        tensor = like(count) * (group.rank() + 1)
        dist.all_reduce(tensor)
        values = np.asarray(tensor)
        assert (values == values[0]).all()
        return float(values[0])


def expected(size):
    return float(sum(range(1, size + 1)))


def along_tree(group, shards=8):
    """The bits of a canonical sum of fixed shards, whoever holds them."""
    plan = tree.Plan(shards, group.size())
    data = [np.random.default_rng(n).normal(size=5000).astype(np.float32) for n in range(shards)]

    def value(node):
        children = node.children()
        return data[node.start].copy() if children is None else value(children[0]) + value(children[1])

    out = np.empty(5000, np.float32)
    with dist.use_group(group):
        dist.tree_all_reduce({node: value(node) for node in plan.subtrees(group.rank())}, out, plan)
    return out.tobytes()


def channels(transport):
    return 1 if transport == "shm" else 2


def end_of(group, call=lambda: dist.all_reduce(resilin.ones(1000))):
    """The error that ends the group, sooner or later."""
    with dist.use_group(group):
        while True:
            try:
                call()
            except DistError as error:
                return error


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_survivors_of_a_death_go_on_over_the_same_connections(company, transport):
    them = company(transport, 4)
    members = [3, 0, 1]  # numbered anew

    def part(number):
        group = them.join(number, [0, 1, 2, 3])
        assert total(group) == expected(4)
        before = along_tree(group)
        them.met.wait(20)
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
            them.met.wait(20)
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
        joined.wait(20)
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
        alone.wait(20)
        both = them.join(number, [1, 0], generation=3)
        assert total(both) == expected(2)
        both.close()

    them.play(first, second)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_reconfigurations_leave_nothing_behind(company, transport):
    them = company(transport, 3)
    figures = []

    def part(number):
        group = them.join(number, [0, 1, 2])
        for generation in range(2, 26):
            group = group.reconfigure(generation, them.names([(n + generation) % 3 for n in range(3)]))
            assert total(group) == expected(3)
            assert total(group, like=lambda count: np.ones(count)) == expected(3)
            with dist.use_group(group):
                dist.all_reduce(resilin.ones(10), async_op=True).wait()
            if generation in (5, 25):
                them.met.wait(20)
                if number == 0:
                    gc.collect()
                    with open("/proc/self/maps", encoding="ascii") as maps:
                        mapped = sum("memfd" in line for line in maps)
                    figures.append((threading.active_count(), len(os.listdir("/proc/self/fd")), mapped))
                them.met.wait(20)
        group.close()

    them.play(*[part] * 3)
    assert figures[0] == figures[1]


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
            with dist.use_group(group), phases.listening(note):
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
        them.met.wait(20)
        group.close()

    them.play(part, part)


def test_a_process_that_is_no_member_cannot_reconfigure(company):
    them = company("shm", 2)

    def part(number):
        group = them.join(number, [0, 1])
        with pytest.raises(UsageError, match="this process is not among the members"):
            group.reconfigure(2, them.names([1 - number]))
        assert total(group) == expected(2)
        them.met.wait(20)
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
        first.wait(10)
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
            them.join(number, [0, 1, 2], generation=2, secret="guessed")

    them.play(staying, staying, stranger)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_survivor_that_is_late_is_waited_for(company, transport):
    them = company(transport, 3)
    left = [threading.Event(), threading.Event()]

    def part(number):
        group = them.join(number, [0, 1, 2])
        total(group)
        if number == 1:
            assert all(each.wait(10) for each in left)  # one that is still in its call would hear of our failure
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
        them.met.wait(20)
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
    assert max(heard) - died[0] < 1.0


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
        them.met.wait(20)
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
        gone_on.wait(10)
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
        them.met.wait(20)
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
        them.met.wait(20)
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


MEMBER = """
import os, sys
import resilin
from resilin import dist
from resilin.dist.kv import FileStore
rank = int(os.environ["RANK"])
store = FileStore(os.environ["TEST_INIT_METHOD"].removeprefix("file://"), 3, timeout=20)
dist.init_process_group(store=store, rank=rank, world_size=3, timeout=20, enable_reconfigure=True)
assert dist._supports_reconfigure()
try:
    dist.barrier()
except dist.DistError as error:
    assert "call _reconfigure(uuid, handles) first" in str(error), error
def handles(prefix, ranks):
    store.set(f"{prefix}/{rank}", dist._get_reconfigure_handle())
    return [store.get(f"{prefix}/{each}").decode() for each in ranks]
def total():
    tensor = resilin.ones(70_000) * (dist.get_rank() + 1)
    dist.all_reduce(tensor)
    return tensor[0].item()
work = dist._reconfigure(1, handles("first", [0, 1, 2]), timeout=20)
assert work.wait()
assert (dist.get_rank(), dist.get_world_size(), total()) == (rank, 3, 6.0)
if rank == 1:
    os.kill(os.getpid(), 9)
try:
    while True:
        total()
except dist.DistError as error:
    print(type(error).__name__, flush=True)
for uuid, given in ((2, list), (3, set)):
    members = given(handles(f"next {uuid}", [2, 0]))
    assert dist._reconfigure(uuid, members, hints={"any": "thing"}).wait()
    assert (dist.get_world_size(), total()) == (2, 3.0)
if uuid == 3:
    assert dist.default_group().stats()["reused"]["sockets"] == 1
dist.destroy_process_group()
print("done", flush=True)
"""


@pytest.mark.multiproc
def test_the_experimental_names_of_torch_reconfigure_the_default_group(tmp_path):
    ranks = start_ranks(3, MEMBER, str(tmp_path))
    ends = [rank.finish() for rank in ranks]
    assert [code for code, _, _ in ends] == [0, -9, 0], [err for _, _, err in ends]
    assert [out for _, out, _ in ends] == ["PeerLost\ndone\n", "", "PeerLost\ndone\n"]


def test_handles_must_be_a_list_or_a_set():
    def work(rank):
        with pytest.raises(UsageError, match="expected a list or a set of handles, got str"):
            dist._reconfigure(2, dist._get_reconfigure_handle())

    run_ranks(1, work).results()


SURVIVOR = """
import os, sys, time
import numpy as np
import resilin
from resilin import dist
from resilin.testing.ranks import join_from_environment
group = join_from_environment()
rank = group.rank()
big = resilin.ones(2_000_000)
dist.all_reduce(big)
print("ready", flush=True)
sys.stdin.readline()
try:
    while True:
        dist.all_reduce(big)
        big.fill_(1.0)
except dist.DistError as error:
    heard = time.monotonic()
    named = sorted(getattr(error, "ranks", []))
    kind = type(error).__name__
members = [group.topology.endpoints[peer].describe() for peer in (0, 2)]
after = group.reconfigure(2, members)
made = time.monotonic()
with dist.use_group(after):
    for count in (10, 100_000, 2_000_000):
        tensor = resilin.ones(count) * (after.rank() + 1)
        dist.all_reduce(tensor)
        values = np.asarray(tensor)
        assert (values == 3.0).all(), values
print(kind, named, heard, after.stats()["reused"]["sockets"], flush=True)
after.close()
"""


@pytest.mark.multiproc
@pytest.mark.parametrize(("transport", "delay"), [("shm", 0.0), ("shm", 0.011), ("tcp", 0.004), ("tcp", 0.03)])
def test_survivors_of_a_real_kill_hear_of_it_at_once_and_go_on(tmp_path, transport, delay):
    ranks = start_ranks(3, SURVIVOR, str(tmp_path), TEST_TRANSPORT=transport)
    try:
        assert [rank.read_line() for rank in ranks] == ["ready"] * 3
        for rank in ranks:
            rank.process.stdin.write("go\n")
            rank.process.stdin.flush()
        SYSTEM.sleep(delay)
        ranks[1].process.kill()
        killed = SYSTEM.monotonic()
        for rank in (ranks[0], ranks[2]):
            code, out, err = rank.finish()
            assert code == 0, err
            kind, named, heard, reused = out.split()
            assert (kind, named) == ("PeerLost", "[1]")
            assert float(heard) - killed < 0.5  # about 2 ms; generous, because cores are shared
            assert int(reused) == channels(transport)
    finally:
        for rank in ranks:
            rank.__exit__()


ACROSS = """
import os, sys
import numpy as np
import resilin
from resilin import dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group(init_method=os.environ["METHOD"], rank=rank, world_size=size, timeout=20.0)
group = dist.default_group()
def total():
    tensor = resilin.ones(300_000) * (dist.get_rank() + 1)
    dist.all_reduce(tensor)
    values = np.asarray(tensor)
    assert (values == values[0]).all()
    return values[0]
assert total() == 10.0
print("ready", flush=True)
sys.stdin.readline()
try:
    while True:
        total()
except dist.DistError as error:
    named = sorted(getattr(error, "ranks", []))
for generation, ranks in ((1, (0, 2, 3)), (2, (3, 2, 0)), (3, (2, 3))):
    if rank in ranks:
        members = [group.topology.endpoints[peer].describe() for peer in ranks]
        current = (group if generation == 1 else current).reconfigure(generation, members)
        with dist.use_group(current):
            assert total() == {3: 6.0, 2: 3.0}[len(ranks)]
        print(current.stats()["transport"], current.stats()["reused"]["sockets"], flush=True)
print(named, flush=True)
"""


@pytest.mark.multiproc
def test_two_hosts_go_on_without_a_rank_that_was_killed(hosts):
    shared = {"WORLD_SIZE": "4", "METHOD": f"tcp://{hosts[0].address}:29400", "RESILIN_SECRET": "test"}
    ranks = [RankProcess(ACROSS, {**shared, "RANK": str(rank)}, hosts[rank // 2].enter) for rank in range(4)]
    try:
        for rank in ranks:
            line = rank.read_line()
            assert line == "ready", rank.finish()
        for rank in ranks:
            rank.process.stdin.write("go\n")
            rank.process.stdin.flush()
        ranks[1].process.kill()
        ends = {number: ranks[number].finish() for number in (0, 2, 3)}
        assert all(code == 0 for code, _, _ in ends.values()), ends
        assert ends[0][1] == "shm+stream 4\nshm+stream 4\n[1]\n"
        for number in (2, 3):
            assert ends[number][1] == "shm+stream 4\nshm+stream 4\nshm 1\n[1]\n"
    finally:
        for rank in ranks:
            rank.__exit__()
