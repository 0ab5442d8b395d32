"""One agent's view follows the store."""

import asyncio
import contextlib
from collections import Counter

import pytest

from resilin.elastic import records
from resilin.elastic.records import Closed, Generation, GenerationMember, Live, Node, Slot, Wanted
from resilin.elastic.rendezvous.options import RendezvousOptions as Options
from resilin.elastic.rendezvous.rendezvous import Rendezvous
from resilin.errors import Compacted, RendezvousError, StoreAmbiguous, StoreError, StoreRefused, StoreTimeout
from resilin.store import MemoryStore
from resilin.testing.patience import PATIENCE_S

KEYS = records.Keys("job")


def node(name, **changes):
    known = {"id": name, "host": name, "address": "127.0.0.1", "master_port": 1, "slots": (Slot(index=0),)}
    return Node(**{**known, **changes})


def generation(number):
    return Generation(
        number=number,
        kind="restart",
        members=(GenerationMember(node="a", slot=0, incarnation=1, rank=0),),
        nodes=("a",),
        master_addr="x",
        master_port=1,
        restarts_used=0,
        reason="r",
    )


def play(scenario, timeout_s=PATIENCE_S):
    """Run `scenario(open)`, where `await open(name, direct)` joins a node; all leave afterwards."""

    async def whole():
        with MemoryStore() as store:
            joined, changed = [], asyncio.Event()

            async def open_(name, direct=False):
                options = Options(job="job", node_id=name, lease_ttl_s=5, direct=direct)
                one = Rendezvous(store, options, changed.set)
                await one.join(node(name))
                joined.append(one)
                return one

            async def until(condition):
                while not condition():
                    changed.clear()
                    await asyncio.wait_for(changed.wait(), timeout_s)

            try:
                await scenario(store, open_, until)
            finally:
                for one in joined:
                    await one.leave()

    asyncio.run(whole())


@contextlib.contextmanager
def deaf(one):
    """What comes meanwhile is heard at the end, all at once."""
    in_loop, waiting = one._in_loop, []
    one._in_loop = waiting.append
    yield
    one._in_loop = in_loop
    for call in waiting:
        call()


async def carried_out(one):
    """Until the store has what `one` was told to do."""
    done = asyncio.Event()

    async def last():
        done.set()

    one.submit(last)
    await asyncio.wait_for(done.wait(), PATIENCE_S)


@pytest.mark.parametrize("direct", [True, False])
def test_nodes_see_one_another_and_the_oldest_leads(direct):
    async def scenario(store, open_, until):
        a = await open_("a", direct)
        b = await open_("b")
        await until(lambda: len(a.view.nodes) == len(b.view.nodes) == 2)
        assert a.view.leader() == b.view.leader() == "a"
        await a.leave()
        await until(lambda: b.view.leader() == "b")
        assert [seen.node.id for seen in b.view.nodes] == ["b"]

    play(scenario)


@pytest.mark.parametrize("direct", [True, False])
def test_only_what_the_leader_proposes_counts(direct):
    async def scenario(store, open_, until):
        a, b = await open_("a", direct), await open_("b")
        await until(lambda: a.view.leader() == b.view.leader() == "a")
        b.propose(generation(7))
        a.propose(generation(1))
        await until(lambda: a.view.generation is not None and b.view.generation is not None)
        await a.leave()
        await until(lambda: b.view.leader() == "b")
        b.propose(generation(2))
        await until(lambda: b.view.generation.number == 2)
        assert store.get(KEYS.generation).version == 2

    play(scenario)


def test_a_leader_that_does_not_know_yet_that_it_is_none_writes_nothing():
    async def scenario(store, open_, until):
        a = await open_("a")
        await until(lambda: a.view.leader() == "a")
        store.delete(KEYS.leader)
        store.put(KEYS.leader, b"b", store.lease(60.0))
        a.propose(generation(1))  # before it hears of that
        await until(lambda: a.view.leader() == "b")
        a.propose(generation(1))
        a.close_job(Closed(outcome="failed", reason="r"))
        a.show(Live(steps=(), at=1.0))  # done after these
        while not store.range(records.live_prefix("job"))[0]:
            await asyncio.sleep(0.01)
        assert store.get(KEYS.generation) is store.get(KEYS.closed) is None

    play(scenario)


def test_the_end_of_a_job_that_has_gone_on_meanwhile_is_not_written():
    async def scenario(store, open_, until):
        a = await open_("a")
        await until(lambda: a.view.leader() == "a")
        store.put(KEYS.generation, records.to_bytes(generation(5)))
        a.close_job(Closed(outcome="succeeded", reason="all are done"))  # before it hears of that
        await until(lambda: a.view.generation is not None)
        a.close_job(Closed(outcome="failed", reason="r"))
        await until(lambda: a.view.closed is not None)
        assert a.view.closed.outcome == "failed"

    play(scenario)


def test_only_the_leader_follows_the_records_of_nodes():
    async def scenario(store, open_, until):
        a, b = await open_("a"), await open_("b")
        await until(lambda: len(a.view.nodes) == len(b.view.nodes) == 2)
        subscribed = Counter(one.key for one in store.hub._subscriptions)
        assert subscribed == {KEYS.world: 2, KEYS.nodes: 1}

    play(scenario)


def test_a_new_leader_knows_what_the_old_one_had_not_told():
    async def scenario(store, open_, until):
        a, b = await open_("a"), await open_("b")
        await until(lambda: len(b.view.nodes) == 2)
        a._leading.tell = lambda gathering: None  # it tells nobody anything any more
        c = await open_("c")
        await until(lambda: len(a.view.nodes) == 3)
        assert len(b.view.nodes) == 2
        assert not c.view.nodes
        await a.leave()
        await until(lambda: {seen.node.id for seen in b.view.nodes} == {seen.node.id for seen in c.view.nodes})
        assert [seen.node.id for seen in c.view.nodes] == ["b", "c"]

    play(scenario)


def test_own_record_is_seen_at_once_and_by_others_soon():
    async def scenario(store, open_, until):
        a, b = await open_("a"), await open_("b")
        await until(lambda: len(a.view.nodes) == len(b.view.nodes) == 2)
        a.publish(node("a", leaving=True))
        assert a.view.node("a").leaving
        await until(lambda: b.view.node("a").leaving)

    play(scenario)


@pytest.mark.parametrize("late", [False, True], ids=["written in time", "not written yet"])
def test_the_leader_hears_that_a_node_was_asked_to_go_before_it_is_gone(late):
    async def scenario(store, open_, until):
        a = await open_("a")
        looks, on_view = [], a._on_view

        def look():
            looks.append({seen.node.id: seen.node.leaving for seen in a.view.nodes})
            on_view()  # what `until` waits for: without it, a view that comes after its first look is missed

        a._on_view = look
        b = await open_("b")
        await until(lambda: len(a.view.nodes) == len(b.view.nodes) == 2)
        with deaf(a):
            b.publish(node("b", leaving=True))
            if not late:
                await carried_out(b)
            await b.leave()
        await until(lambda: len(a.view.nodes) == 1)
        assert looks[-2:] == [{"a": False, "b": True}, {"a": False}]

    play(scenario)


def test_a_node_whose_lease_ends_registers_again_and_is_younger_then():
    async def scenario(store, open_, until):
        a = await open_("a")
        b = await open_("b")
        await until(lambda: len(a.view.nodes) == len(b.view.nodes) == 2)
        a._lease.revoke()  # what the end of a lease does
        a._on_lease_lost()
        for one in (a, b):
            await until(lambda one=one: [seen.node.id for seen in one.view.nodes] == ["b", "a"])
        await until(lambda: a.view.leader() == b.view.leader() is not None)
        assert store.get(KEYS.leader).lease in {a._lease.id, b._lease.id}

    play(scenario)


def test_remains_of_a_job_that_nobody_serves_are_removed():
    async def scenario(store, open_, until):
        store.put(KEYS.generation, records.to_bytes(generation(9)))
        store.put(KEYS.closed, records.to_bytes(Closed(outcome="failed", reason="long ago")))
        a = await open_("a")
        assert a.view.generation is None
        assert a.view.closed is None

    play(scenario)


def test_remains_are_removed_when_several_nodes_come_at_once():
    async def scenario(store, open_, until):
        store.put(KEYS.generation, records.to_bytes(generation(9)))
        store.put(KEYS.closed, records.to_bytes(Closed(outcome="failed", reason="long ago")))
        all_of_them = await asyncio.gather(*(open_(name) for name in "abcd"))
        for one in all_of_them:
            await until(lambda one=one: len(one.view.nodes) == 4)
            assert one.view.generation is None
            assert one.view.closed is None

    play(scenario)


def test_a_job_that_has_ended_and_is_still_served_keeps_its_records():
    async def scenario(store, open_, until):
        store.put(f"{KEYS.nodes}z", records.to_bytes(node("z")))
        store.put(KEYS.closed, records.to_bytes(Closed(outcome="succeeded", reason="done")))
        a = await open_("a")
        assert a.view.closed is not None
        assert store.get(KEYS.closed) is not None

    play(scenario)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_node_leads_though_the_answers_that_said_so_were_lost(lost):
    class Deaf(MemoryStore):
        left = lost

        def txn(self, compare, then, orelse=()):
            result = super().txn(compare, then, orelse)
            if compare and self.left:
                self.left -= 1
                raise StoreAmbiguous("the answer was lost")
            return result

    async def scenario():
        changed = asyncio.Event()
        with Deaf() as store:
            one = Rendezvous(store, Options(job="job", node_id="a"), changed.set)
            await one.join(node("a"))
            while one.view.leader() != "a":
                changed.clear()
                await asyncio.wait_for(changed.wait(), PATIENCE_S)
            assert len(store.hub.leases()) == 1, "what it does not need any more is given back"
            await one.leave()

    asyncio.run(scenario())


def test_a_leader_that_is_elected_again_before_it_has_heard_of_its_end_leads():
    class Late(MemoryStore):
        def watch(self, prefix, on_events, start_revision=None, on_error=None):
            def on_puts(events):
                on_events([event for event in events if event.kind == "put"])

            return super().watch(prefix, on_puts, start_revision, on_error)

    async def scenario():
        changed = asyncio.Event()

        async def until(condition):
            while not condition():
                changed.clear()
                await asyncio.wait_for(changed.wait(), PATIENCE_S)

        with Late() as store:
            one = Rendezvous(store, Options(job="job", node_id="a"), changed.set)
            await one.join(node("a"))
            await until(lambda: one.view.leader() == "a")
            first = store.get(KEYS.leader)
            store.hub.revoke(first.lease)
            await until(lambda: (now := store.get(KEYS.leader)) is not None and now.lease != first.lease)
            await until(lambda: one.view.leader() == "a" and one.view.nodes[0].create_revision > first.mod_revision)
            one.propose(generation(1))
            await until(lambda: one.view.generation is not None)
            await one.leave()

    asyncio.run(scenario())


class Unheard(MemoryStore):
    """Does not answer once, where a prefix in `silent` is to be watched. `on_error`: of the watches that there are."""

    def __init__(self, *silent):
        super().__init__()
        self.silent = set(silent)
        self.on_error = {}

    def watch(self, prefix, on_events, start_revision=None, on_error=None):
        if prefix in self.silent:
            self.silent.remove(prefix)
            raise StoreTimeout("no answer")
        self.on_error[prefix] = on_error
        return super().watch(prefix, on_events, start_revision, on_error)


def test_a_watch_that_cannot_be_begun_again_at_once_is_begun_when_the_store_answers():
    async def scenario():
        changed = asyncio.Event()
        with Unheard() as store:
            one = Rendezvous(store, Options(job="job", node_id="a"), changed.set)
            await one.join(node("a"))
            store.silent = {KEYS.world}
            store.on_error[KEYS.world](Compacted("what it has not heard is gone", 1))
            while store.silent or one.outage is not None:
                changed.clear()
                await asyncio.wait_for(changed.wait(), PATIENCE_S)
            store.put(KEYS.generation, records.to_bytes(generation(1)))
            while one.view.generation is None:
                changed.clear()
                await asyncio.wait_for(changed.wait(), PATIENCE_S)
            await one.leave()

    asyncio.run(scenario())


def test_a_leader_hears_of_the_others_though_the_store_did_not_answer_when_it_began_to_follow_them():
    async def scenario():
        changed = asyncio.Event()
        with Unheard(KEYS.nodes) as store:
            one = Rendezvous(store, Options(job="job", node_id="a"), changed.set)
            await one.join(node("a"))
            while store.silent or one.view.leader() != "a":
                changed.clear()
                await asyncio.wait_for(changed.wait(), PATIENCE_S)
            store.put(f"{KEYS.nodes}b", records.to_bytes(node("b")), store.lease(60))
            while one.view.node("b") is None:
                changed.clear()
                await asyncio.wait_for(changed.wait(), PATIENCE_S)
            await one.leave()

    asyncio.run(scenario())


def test_an_answer_that_was_read_before_a_deletion_and_comes_after_it_brings_nothing_back():
    async def scenario(store, open_, until):
        one = await open_("a")
        store.put(KEYS.generation, records.to_bytes(generation(1)))
        await until(lambda: one.agreed is not None)
        old = store.get(KEYS.generation)
        store.delete(KEYS.generation)
        await until(lambda: one.agreed is None)
        one.merge([old])
        assert one.agreed is None
        store.put(KEYS.generation, records.to_bytes(generation(2)))
        await until(lambda: one.agreed is not None)
        assert one.agreed.number == 2

    play(scenario)


def test_the_last_node_to_leave_removes_the_jobs_records():
    async def scenario(store, open_, until):
        a, b = await open_("a"), await open_("b")
        await until(lambda: a.view.leader() == "a")
        a.propose(generation(1))
        await until(lambda: a.view.generation is not None)
        a.close_job(Closed(outcome="succeeded", reason="done"))
        await until(lambda: b.view.closed is not None)
        await a.leave()
        assert store.get(KEYS.closed) is not None, "b still wants to know"
        await b.leave()
        assert store.range("/resilin/")[0] == []

    play(scenario)


def test_a_job_that_is_not_closed_keeps_counting_its_generations_when_all_have_left():
    async def scenario(store, open_, until):
        a = await open_("a")
        await until(lambda: a.view.leader() == "a")
        a.propose(generation(1))
        await until(lambda: a.view.generation is not None)
        await a.leave()
        assert store.get(KEYS.generation) is not None, "a node that was cut off may come back"
        b = await open_("b")
        await until(lambda: b.view.generation is not None)
        assert b.view.generation.number == 1

    play(scenario)


def test_what_only_says_that_a_world_is_over_is_not_written_when_a_new_one_comes_soon():
    async def scenario(store, open_, until):
        a = await open_("a")
        await until(lambda: a.view.leader() == "a")
        version = store.get("/resilin/job/nodes/a").version
        a.publish(node("a", slots=(Slot(index=0, over=3),)))
        a.publish(node("a"))
        a.propose(generation(1))  # done after what was submitted before
        await until(lambda: a.view.generation is not None)
        assert store.get("/resilin/job/nodes/a").version == version

    play(scenario)


@pytest.mark.parametrize("value", [b"\xff", b"[]", b"{}", b'{"id": 3}'])
def test_a_foreign_record_is_one_error_that_names_its_key(value):
    with pytest.raises(RendezvousError, match="/resilin/job/nodes/x"):
        records.node("/resilin/job/nodes/x", value)
    with pytest.raises(RendezvousError, match="generation"):
        records.generation("generation", value)


def test_records_survive_the_store():
    one = node("a", failure={"rank": 1}, leaving=True)
    assert records.node("k", records.to_bytes(one)) == one
    assert records.generation("k", records.to_bytes(generation(3))) == generation(3)
    assert records.closed("k", records.to_bytes(Closed(outcome="failed", reason="x"))).reason == "x"


def test_a_store_that_refuses_a_call_is_no_outage():
    class Full(MemoryStore):
        refused = 0

        def txn(self, compare, then, orelse=()):
            if any(len(op.value) > 500 for op in then):
                self.refused += 1
                raise StoreError("Put: trying to send a message larger than max (RESOURCE_EXHAUSTED)")
            return super().txn(compare, then, orelse)

    async def scenario():
        changed = asyncio.Event()
        with Full() as store:
            one = Rendezvous(store, Options(job="job", node_id="a"), changed.set)
            await one.join(node("a"))
            one.publish(node("a", failure={"message": "x" * 1000}))
            while one.refusal is None:
                changed.clear()
                await asyncio.wait_for(changed.wait(), PATIENCE_S)
            assert one.outage is None
            assert "larger than max" in str(one.refusal)
            assert store.refused == 1
            await one.leave()

    asyncio.run(scenario())


def test_what_people_asked_for_makes_the_view_and_who_watches_is_known():
    async def scenario(store, open_, until):
        one = await open_("a")
        await until(lambda: one.view.nodes)
        assert not one.watched
        store.put(KEYS.wanted, records.to_bytes(Wanted(drained=("a",))))
        await until(lambda: one.view.nodes[0].node.leaving)
        assert one.view.wanted.drained == ("a",)
        store.delete(KEYS.wanted)
        await until(lambda: not one.view.nodes[0].node.leaving)
        store.put(KEYS.watched, b"{}")
        await until(lambda: one.watched)
        one.show(Live(steps=((0, 7, "all_reduce"),), at=1.5))
        while not (entries := store.range(records.live_prefix("job"))[0]):
            await asyncio.sleep(0.01)
        assert records.live(entries[0].key, entries[0].value).steps == ((0, 7, "all_reduce"),)

    play(scenario)


def test_a_store_that_takes_no_steps_is_no_reason_to_give_up():
    class Confined(MemoryStore):
        def txn(self, compare, then, orelse=()):
            if any(op.key.startswith(records.live_prefix("job")) and op.kind == "put" for op in then):
                raise StoreRefused("permission denied")
            return super().txn(compare, then, orelse)

    async def scenario():
        with Confined() as store:
            changed = asyncio.Event()
            one = Rendezvous(store, Options(job="job", node_id="a"), changed.set)
            await one.join(node("a"))
            one.show(Live(steps=(), at=1.0))
            one.publish(node("a", unjoined=3))  # done after it
            while records.node("", store.get("/resilin/job/nodes/a").value).unjoined != 3:
                await asyncio.sleep(0.01)
            assert one.refusal is None
            await one.leave()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
