"""What workers are told of a new world by the generation they are in, which need not be the one before it."""

import io
from types import SimpleNamespace

from membership_script import Script

from resilin.elastic.agent.reports import Reporter
from resilin.elastic.agent.worker_notifier import WorkerNotifier


def slot_in(generation):
    """The worker of a node, which was last told of `generation`."""
    sent = []
    return SimpleNamespace(
        index=0, incarnation=1, endpoint="e", running=True, state="ready", sent=generation, sent_at=0.0, aborted=0,
        pending=0, standing_by=False, send=sent.append, said=sent,
    )  # fmt: skip


def played(*lines):
    script = Script()
    for line in ("job 1:3 restarts 3", *lines):
        script.do(line)
    return script


def told(script, generation):
    """What the worker of node `a` hears of the newest world when the last it had heard of was `generation`."""
    slot = slot_in(generation)
    WorkerNotifier("a", [slot], Reporter(io.StringIO())).worlds(script.view, 0.0)
    return [(type(message).__name__, getattr(message, "number", None) or message.generation) for message in slot.said]


DIED_AND_REPLACED = ("join a", "join b", "wait 1", "hello all", "die b/0 external", "replace b/0", "hello b/0")


def test_a_worker_that_missed_the_world_in_which_a_peer_was_gone_does_not_wait_for_that_peer_in_the_next():
    """As where the store was away while the peer died: two worlds are agreed on at once when it is back."""
    script = played(*DIED_AND_REPLACED)
    now, commit = script.generations[-2:]
    assert (now.boundary, commit.boundary) == ("now", "commit")
    assert told(script, now.number) == [("Pending", commit.number), ("World", commit.number)]
    assert told(script, now.number - 1) == [("Abort", now.number - 1), ("World", commit.number)]


def test_a_worker_that_missed_a_world_that_began_at_a_commit_finishes_its_step_as_all_others_do():
    script = played(*DIED_AND_REPLACED, "join c", "replace c/0", "hello c/0")
    newest = script.generations[-1].number
    assert [one.boundary for one in script.generations[-3:]] == ["now", "commit", "commit"]
    assert told(script, newest - 2) == [("Pending", newest), ("World", newest)]
    assert told(script, newest - 3) == [("Abort", newest - 3), ("World", newest)]


def test_a_restart_breaks_off_what_was_before_it():
    script = played("join a", "join b", "wait 1", "hello all", "die b/0 external")
    assert script.generations[-1].broken_off == script.generations[-1].number - 1
    assert script.generations[0].broken_off == 0


def test_who_is_left_out_hears_once_that_the_others_wait_for_its_commit_or_that_its_world_was_broken_off():
    """It may still form the last one, with ranks that have skipped that for the newest."""
    script = played(*DIED_AND_REPLACED, "leave a")
    now, commit, without = script.generations[-3:]
    assert {member.node for member in without.members} == {"b"}
    for number, heard in ((commit.number, ("Pending", without.number)), (now.number - 1, ("Abort", now.number - 1))):
        slot = slot_in(number)
        notifier = WorkerNotifier("a", [slot], Reporter(io.StringIO()))
        for _ in range(2):
            notifier.deaths(script.view, "a leaves")
        told = [
            (type(message).__name__, getattr(message, "number", None) or message.generation) for message in slot.said
        ]
        assert told == [heard]
