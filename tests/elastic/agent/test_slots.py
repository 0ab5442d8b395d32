"""One place for a worker: what its end is told as."""

import asyncio
import errno
import os
import signal
from dataclasses import replace

import pytest

from resilin.elastic import control
from resilin.elastic.agent import assignment, slots
from resilin.elastic.agent.slots import LocalSlot, Owner
from resilin.elastic.agent.stream_selection import StreamSelection
from resilin.elastic.agent.streams import Plan
from resilin.elastic.records import Generation, GenerationMember
from resilin.elastic.spawn.program import Program


class Process:
    """A worker that the test makes speak and end."""

    def __init__(self, on_message):
        self.pid, self.code, self.refused = os.getpid(), None, None
        self.ended = asyncio.get_running_loop().create_future()
        self.say = on_message

    @property
    def alive(self):
        return self.code is None

    async def end(self, code):
        self.code = code
        self.ended.set_result(code)
        await asyncio.sleep(0)  # callbacks run


class Starts:
    """Starts `Process`es."""

    def start(self, command, on_message):
        self.last = Process(on_message)
        return self.last


class Asked(Plan):
    """Remembers whom lines come from, as they are asked for each time."""

    def open(self, attempt, local_rank, role, host, who):
        object.__setattr__(self, "who", who)
        return super().open(attempt, local_rank, role, host, who)


@pytest.fixture
def play(tmp_path):
    """`play(story)`: awaits `story(slot, process)` of a worker that was started as rank 2 of generation 1."""

    def run(story):
        async def whole():
            starts, plan = Starts(), Asked(base=tmp_path, keep=False)
            owner = Owner(
                node_id="n",
                host="box",
                role="default",
                program=Program(command=("x",), argv=("x",)),
                plan=plan,
                supervisor=starts,
                inherited={},
                on_message=lambda slot, message: None,
                on_end=lambda slot: None,
            )
            slot = LocalSlot(0, owner)
            slot.start(1, 2, 1, lambda error_file: {})
            starts.last.say(control.Hello(pid=1, endpoint="e"))
            slot.who = plan.who
            await story(slot, starts.last)
            return slot

        return asyncio.run(whole())

    return run


def moved(number, rank):
    """A generation in which the worker has this rank."""
    member = GenerationMember(node="n", slot=0, incarnation=1, rank=rank)
    return Generation(
        number=number, kind="inplace", members=(member,), nodes=("n",), master_addr="", master_port=1,
        restarts_used=0, reason="",
    )  # fmt: skip


def test_who_is_killed_before_it_takes_up_its_new_rank_has_the_one_that_people_know(play):
    async def story(slot, process):
        process.say(control.Progress(generation=1, step=7))
        for new in (moved(2, rank=1), moved(3, rank=0)):
            assignment.place(new, [slot], new.members)
        assert slot.known_as == (2, 1)
        await process.end(-signal.SIGKILL)

    failure = play(story).failure
    assert failure.sentence.startswith("rank 2 (host box, pid ")
    assert failure.sentence.endswith("killed by SIGKILL at step 7, before it became rank 0")
    assert (failure.rank, failure.generation, failure.became) == (2, 1, 0)


def test_its_record_says_which_parts_of_divided_state_it_has_since_it_took_up_its_world(play):
    async def story(slot, process):
        process.say(control.Progress(generation=1, step=7))
        assert (slot.record.has_state, slot.record.parts, slot.record.parts_in) == (True, (), 0), "it has everything"
        process.say(control.Progress(generation=2, step=7, parts=(0, 2), parts_of=4))
        process.say(control.Progress(generation=2, step=8))
        assert (slot.record.parts, slot.record.parts_in, slot.record.parts_of) == ((0, 2), 2, 4)
        process.say(control.Progress(generation=3, step=8, parts=(0,), parts_of=1))
        assert (slot.record.parts, slot.record.parts_in, slot.record.parts_of) == ((0,), 3, 1)
        await process.end(-signal.SIGKILL)

    play(story)


def test_its_record_says_of_which_world_its_state_is_when_it_was_left_out_of_later_ones(play):
    async def story(slot, process):
        elsewhere = Generation(
            number=2, kind="inplace", members=(GenerationMember("b", 0, 1, 0),), nodes=("b",), master_addr="",
            master_port=1, restarts_used=0, reason="",
        )  # fmt: skip
        assignment.place(elsewhere, (slot,), ())
        assert slot.record.left_out_after == 0, "it has no state"
        process.say(control.Progress(generation=1, step=7))
        assert slot.record.left_out_after == 1
        process.say(control.Progress(generation=2, step=9))
        assert slot.record.left_out_after == 0
        assignment.place(replace(elsewhere, number=4), (slot,), ())
        process.say(control.Progress(generation=3, step=9))
        assert slot.record.left_out_after == 3, "it took up its world late, when the newest was agreed on"
        await process.end(-signal.SIGKILL)

    play(story)


def test_who_asks_to_leave_once_more_is_answered_once_more(play):
    async def story(slot, process):
        slot.stays = True
        process.say(control.Leaving(reason="SIGTERM"))
        assert not slot.stays
        await process.end(-signal.SIGKILL)

    play(story)


def test_who_is_killed_after_it_took_up_its_new_rank_has_that_one(play):
    async def story(slot, process):
        process.say(control.Progress(generation=1, step=7))
        for new in (moved(2, rank=1), moved(3, rank=0)):
            assignment.place(new, [slot], new.members)
        process.say(control.Progress(generation=2, step=7))  # said before it heard of the third
        assert slot.known_as == (1, 2)
        process.say(control.Progress(generation=3, step=8))
        await process.end(-signal.SIGKILL)

    failure = play(story).failure
    assert (failure.rank, failure.generation, failure.became, failure.step) == (0, 3, None, 8)


def test_who_dies_before_its_first_step_has_the_rank_it_was_given_last(play):
    async def story(slot, process):
        assignment.place(moved(2, rank=0), [slot], moved(2, rank=0).members)
        await process.end(1)

    failure = play(story).failure
    assert (failure.rank, failure.generation, failure.became) == (0, 2, None)


def test_lines_have_the_rank_that_people_know_before_them(play):
    async def story(slot, process):
        process.say(control.Progress(generation=1, step=7))
        assignment.place(moved(2, rank=1), [slot], moved(2, rank=1).members)
        shown.append(slot.who())
        process.say(control.Progress(generation=2, step=7))
        shown.append(slot.who())

    shown = []
    play(story)
    assert shown == [(0, 2), (0, 1)]


@pytest.mark.parametrize("gone_at", ["streams", "process"])
def test_a_worker_for_which_no_descriptor_is_left_starts_when_there_is_one(tmp_path, monkeypatch, caplog, gone_at):
    monkeypatch.setattr(slots, "_RETRY_S", 0.01)
    left = iter([False, False, True])

    def taken(what):
        if what == gone_at and not next(left):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    class Scarce(Starts):
        def start(self, command, on_message):
            taken("process")
            return super().start(command, on_message)

    class ScarceToo(Asked):
        def open(self, *arguments):
            taken("streams")
            return super().open(*arguments)

    async def whole():
        starts = Scarce()
        owner = Owner(
            node_id="n",
            host="box",
            role="default",
            program=Program(command=("x",), argv=("x",)),
            plan=ScarceToo(base=tmp_path, keep=False, redirects=StreamSelection(default=3)),
            supervisor=starts,
            inherited={},
            on_message=lambda slot, message: None,
            on_end=lambda slot: None,
        )
        slot = LocalSlot(0, owner)
        slot.start(1, 2, 1, lambda error_file: {})
        assert (slot.state, slot.running) == ("running", False)
        while not slot.running:
            await asyncio.sleep(0.005)
        slot.streams.close()

    asyncio.run(whole())
    told = [record for record in caplog.records if "no file descriptor is left to start a worker" in record.message]
    assert len(told) == 1
    assert "ulimit -n" in told[0].fields["advice"]
