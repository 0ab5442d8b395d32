"""Who is slower than the others for long: from the times of collectives alone."""

import asyncio
from dataclasses import replace

import pytest

from resilin._base.flight_record import Call, CallState
from resilin.elastic.agent import stragglers
from resilin.elastic.agent.stragglers import LOOKS, Looked, Stragglers, from_json, slow, slow_prefix, tempo
from resilin.elastic.hangs import process_probe
from resilin.errors import RendezvousError
from resilin.testing.clock import FakeClock


def calls(work_s, slowest_s, count=50, group="world", key=1):
    """Of a rank that works for `work_s` before each collective, in a world whose slowest needs `slowest_s`."""
    made = []
    for number in range(count):
        begin = number * (slowest_s + 0.001)
        made.append(
            Call(
                state=CallState.DONE, group=group, key=key, generation=1, rank=0, size=4, sequence=number,
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
    assert found[2].factor == pytest.approx(2.4, abs=0.05)
    assert found[2].step_s == 0


def test_where_steps_are_known_their_times_are_told():
    tempos = {rank: replace(mark, own_step_s=5 * mark.own_s) for rank, mark in marks(0.1, 0.1, 0.3).items()}
    assert slow(tempos)[2].sentence.endswith("(last 49), 1.500 s instead of 0.500 s a step; the others wait for it")
    unknown = {**tempos, 0: replace(tempos[0], own_step_s=0.0), 1: replace(tempos[1], own_step_s=0.0)}
    assert slow(unknown)[2].sentence.endswith("(last 49); the others wait for it")


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
            def __init__(self, key, value):
                self.key, self.value = key, value

        return [Entry(key, value) for key, value in self.keys.items() if key.startswith(prefix)], 1


@pytest.fixture
def looks(tmp_path, monkeypatch):
    """`looks(count)`: two agents look so often; rank 1, of agent b, is slow. What was said, and the store's keys."""
    monkeypatch.setattr(stragglers, "tempo", lambda made, host, pid: replace(made[0], host=host, pid=pid))
    times = marks(0.1, 0.3)
    monkeypatch.setattr(process_probe, "calls", lambda folder, pid: process_probe.Calls((times[pid],)))
    store, said, clock = Aside(), [], FakeClock()
    agents = [
        Stragglers("job", node, node, store, lambda text, node=node: said.append((node, text)), clock)
        for node in ("a", "b")
    ]

    async def look(step):
        for rank, agent in reversed(list(enumerate(agents))):
            who = Looked(folder=tmp_path, pid=rank, step=step)
            await agent.look(1, {rank: who}, leads=rank == 0)

    def run(count):
        for _ in range(count):
            run.step += 40
            asyncio.run(look(run.step))
            clock.advance(20.0)
        return said, store.keys

    run.step = 0
    return run


def test_it_is_said_once_when_it_lasts_and_by_the_leader_alone(looks):
    said, _ = looks(LOOKS - 1)
    assert said == []
    said, _ = looks(3)
    ((node, text),) = said
    assert node == "a"
    assert text.startswith("rank 1 (host b, pid 1) is slow: it takes 3.0x the time of the median rank between coll")


def test_every_look_is_set_down_for_who_asks(looks):
    _, keys = looks(1)
    key = f"{slow_prefix('job')}found"
    (found,) = from_json(key, keys[key], 1)
    assert (found.rank, found.host, found.for_s, found.step_s) == (1, "b", 0.0, 0.0)
    assert found.factor == pytest.approx(3.0, abs=0.05)
    _, keys = looks(2)
    (found,) = from_json(key, keys[key], 1)
    assert found.for_s == 40.0
    assert found.step_s == pytest.approx(0.5 * 0.3 / 0.3, abs=0.01)  # 40 steps in 20 s, in which it never waits
    assert found.usual_step_s == pytest.approx(0.5 * 0.1 / 0.3, abs=0.01)
    assert from_json(key, keys[key], 2) == ()  # of another world
    with pytest.raises(RendezvousError, match="the same version"):
        from_json(key, b'{"generation": 1, "slow": [7]}', 1)
