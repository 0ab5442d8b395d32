"""Who is slower than the others for long: from the times of collectives alone."""

import asyncio
import json
from dataclasses import replace

import pytest

from resilin._base.flight import Call, State
from resilin.elastic import looking, stragglers
from resilin.elastic.stragglers import LOOKS, Stragglers, slow, tempo
from resilin.testing.clock import FakeClock


def calls(work_s, slowest_s, count=50, group="world", key=1):
    """Of a rank that works for `work_s` before each collective, in a world whose slowest needs `slowest_s`."""
    made = []
    for number in range(count):
        begin = number * (slowest_s + 0.001)
        made.append(
            Call(
                state=State.DONE, group=group, key=key, generation=1, rank=0, size=4, sequence=number,
                what="all_reduce", dtype="", shape=(), op="", root=-1, line="", made=begin + work_s,
                started=begin + work_s, ended=begin + slowest_s + 0.001,
            )
        )  # fmt: skip
    return made


def test_time_inside_collectives_is_no_work():
    mark = tempo(calls(0.1, 0.4))
    assert mark.own_s == pytest.approx(0.1, abs=0.002)
    assert mark.whole_s == pytest.approx(0.401)


def test_overlapping_waits_count_once():
    overlapping = [replace(call, started=call.started - 0.05) for call in calls(0.1, 0.4)]
    both = sorted([*calls(0.1, 0.4), *(replace(c, key=2) for c in overlapping)], key=lambda call: call.made)
    assert tempo(both).own_s == pytest.approx(0.05, abs=0.002)


def test_a_few_collectives_say_nothing():
    assert tempo(calls(0.1, 0.4, count=5)) is None
    assert tempo([]) is None


def marks(*work_s):
    return {rank: tempo(calls(own, max(work_s))) for rank, own in enumerate(work_s)}


def test_the_slow_rank_is_named_with_its_factor():
    found = slow(marks(0.10, 0.11, 0.24, 0.10))
    assert list(found) == [2]
    assert found[2] == pytest.approx(2.4, abs=0.05)


def test_of_two_the_slower_one_is_named():
    assert list(slow(marks(0.1, 0.3))) == [1]


@pytest.mark.parametrize("work_s", [(0.1, 0.1, 0.1), (0.1, 0.11, 0.14), (0.3,)])
def test_equal_ranks_and_a_single_one_are_not_slow(work_s):
    assert slow(marks(*work_s)) == {}


def test_a_factor_that_costs_nothing_is_nobodys_concern():
    fast = {rank: replace(mark, whole_s=1.0) for rank, mark in marks(0.001, 0.001, 0.003).items()}
    assert slow(fast) == {}


class Aside:
    """A store of one process, for keys that nobody follows."""

    def __init__(self):
        self.keys = {}

    async def aside(self, call):
        return call(self, None)

    def put(self, key, value, lease):
        self.keys[key] = value

    def range(self, prefix):
        class Entry:
            def __init__(self, value):
                self.value = value

        return [Entry(value) for key, value in self.keys.items() if key.startswith(prefix)], 1


def test_it_is_said_once_when_it_lasts_and_by_the_leader_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(stragglers, "tempo", lambda made, host, pid: replace(made[0], host=host, pid=pid))
    times = marks(0.1, 0.3)
    monkeypatch.setattr(looking, "calls", lambda folder, pid: [times[pid]])
    store, said = Aside(), []
    leader, other = (
        Stragglers("job", node, node, store, lambda text, node=node: said.append((node, text)), FakeClock())
        for node in ("a", "b")
    )

    async def look():
        await other.look(1, {1: (tmp_path, 1)}, leads=False)
        await leader.look(1, {0: (tmp_path, 0)}, leads=True)

    for _ in range(LOOKS - 1):
        asyncio.run(look())
    assert said == []
    for _ in range(3):
        asyncio.run(look())
    ((node, text),) = said
    assert node == "a"
    assert text.startswith("rank 1 (host b, pid 1) is slow: it takes 3.0x the time of the median rank between coll")
    assert len(store.keys) == 2
    assert all(json.loads(value)["generation"] == 1 for value in store.keys.values())
