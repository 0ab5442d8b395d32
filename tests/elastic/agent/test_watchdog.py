"""When the watchdog looks at workers that say nothing, without processes."""

from dataclasses import replace
from types import SimpleNamespace

from resilin._base.flight_record import Call, CallState
from resilin.elastic import control
from resilin.elastic.agent.watchdog import TAKE_UP_S, Watchdog
from resilin.elastic.hangs import stall_record
from resilin.elastic.hangs.stall_record import Stall, Standing
from resilin.elastic.hangs.step_time import FIRST_S
from resilin.elastic.membership.view import Seen, View
from resilin.elastic.records import Generation, GenerationMember, Node
from resilin.testing.clock import FakeClock


def generation(number):
    return Generation(
        number=number, kind="inplace", members=(GenerationMember("a", 0, 1, 0),), nodes=("a",), master_addr="h",
        master_port=1, restarts_used=0, reason="",
    )  # fmt: skip


def test_from_its_first_step_in_a_world_on_a_worker_may_be_silent_for_its_limit_and_no_longer():
    clock = FakeClock()
    slot = SimpleNamespace(
        index=0, incarnation=1, rank=0, state="ready", endpoint="here", sent=1, sent_at=clock.monotonic(), entered=1,
        running=True, stopping=False, aborted=0,
    )  # fmt: skip
    config = SimpleNamespace(
        node_id="a", host="h", hang_timeout_s=1.0, compare_ranks=False, job=SimpleNamespace(name="job")
    )
    reporter = SimpleNamespace(line=None)
    looks = []

    def step():
        view = View(generation=generation(slot.sent))
        looks.append(watchdog.look(view, clock.monotonic()) - clock.monotonic())

    watchdog = Watchdog(config, [slot], None, reporter, None, step, None, clock)
    step()
    for number in (1, 2):
        slot.sent, slot.sent_at, slot.entered = number, clock.monotonic(), number
        watchdog.heard(slot, control.Committed(generation=number, step=1))
    assert looks == [FIRST_S, 1.0, 1.0]


def test_who_hung_before_the_world_changed_is_looked_at_when_its_own_limit_is_over():
    clock = FakeClock()
    slot = SimpleNamespace(
        index=0, incarnation=1, rank=0, state="ready", endpoint="here", sent=1, sent_at=clock.monotonic(), entered=1,
        running=True, stopping=False, aborted=0,
    )  # fmt: skip
    config = SimpleNamespace(
        node_id="a", host="h", hang_timeout_s=5.0, compare_ranks=False, job=SimpleNamespace(name="job")
    )
    watchdog = Watchdog(config, [slot], None, SimpleNamespace(line=None), None, lambda: None, None, clock)
    begun = clock.monotonic()
    watchdog.heard(slot, control.Committed(generation=1, step=1))
    for number, later_s in ((2, 3.0), (3, 1.5)):  # it does not take up either: it hangs in the first
        clock.advance(later_s)
        slot.sent, slot.sent_at = number, clock.monotonic()
        due = watchdog.look(View(generation=generation(number)), clock.monotonic())
        assert due == max(begun + 5.0, clock.monotonic() + TAKE_UP_S), "as if the world had not changed"
    slot.entered = 3
    watchdog.heard(slot, control.Entering(generation=3))
    assert watchdog.look(View(generation=generation(3)), clock.monotonic()) == clock.monotonic() + FIRST_S
    slot.aborted = 3
    assert watchdog.look(View(generation=generation(3)), clock.monotonic()) is None, "it waits for another world"


def receives(rank, other):
    """A worker that waits for a message."""
    call = Call(
        state=CallState.RUNNING, group="world", key=1, generation=1, rank=rank, size=2, sequence=-1, what="recv",
        root=other, dtype="float32", shape=(8,), op="", line="", made=1.0, started=0.0, ended=0.0,
    )  # fmt: skip
    return Standing(rank=rank, pid=rank + 1, doing="idle", calls=stall_record.compact([call]))


def test_nobody_is_blamed_while_a_link_between_members_is_cut():
    """Two that wait for one another are a deadlock only where their messages arrive."""
    clock, told = FakeClock(), []
    ring = receives(0, 1), receives(1, 0)
    members = (GenerationMember("a", 0, 1, 0), GenerationMember("b", 0, 1, 1))
    current = replace(generation(1), members=members, nodes=("a", "b"))
    slot = SimpleNamespace(
        index=0, incarnation=1, rank=1, state="ready", endpoint="here", sent=1, sent_at=clock.monotonic(), entered=1,
        running=True, stopping=False, aborted=0, worker=SimpleNamespace(pid=2),
    )  # fmt: skip
    config = SimpleNamespace(
        node_id="b", host="b", hang_timeout_s=1.0, compare_ranks=False, job=SimpleNamespace(name="job")
    )
    reporter = SimpleNamespace(line=told.append, event=lambda *_, **__: None)
    stalls = [Stall(generation=1, round=1, workers=(who,)) for who in ring]

    def judged(unreachable):
        nodes = [
            Node(id=name, host=name, address=name, master_port=1, slots=(), stall=stall, unreachable=unreachable[name])
            for name, stall in zip("ab", stalls, strict=True)
        ]
        seen = tuple(Seen(node=node, create_revision=number) for number, node in enumerate(nodes, 1))
        watchdog = Watchdog(config, [slot], None, reporter, None, lambda: None, None, clock)
        watchdog.heard(slot, control.Committed(generation=1, step=1))
        watchdog.stall, watchdog._seen = stalls[1], (1, 1)
        told.clear()
        watchdog.look(View(nodes=seen, generation=current, elected="b"), clock.monotonic())
        return " ".join(told)

    assert "a deadlock" in judged({"a": (), "b": ()})
    cut = judged({"a": (), "b": ("a",)})
    assert "a and b cannot connect with one another" in cut
    assert "nobody is ended" in cut
