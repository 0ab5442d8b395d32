"""A fault at every phase of every collective, algorithm and way to carry bytes: nobody hangs, everybody knows who.

What is bounded: from the fault to a survivor's error, in the median of the cases of a test 50 ms, 1 s at most; the
machine may be busy with something else.
"""

import contextlib
import gc
import os
import statistics
import threading

import pytest
from fault_matrix import CALLS, SIZE, WAYS, play, points, wrong

from resilin._base.clock import SYSTEM
from resilin.distributed.connections import full_mesh
from resilin.distributed.connections.connection import PeerConnection
from resilin.errors import UsageError
from resilin.testing.faults import PHASES, FaultPlan
from resilin.testing.patience import PATIENCE_S

KINDS = ("fail", "abort", "close")
EVERY = [(way, call) for way, how in WAYS.items() for call in how.calls]
MESSAGES = ("send objects", "send and recv", "batch", "monitored_barrier", "new_group")  # their timeouts end no group
AT_ONCE_S = 0.05  # of the quickest quarter: a busy machine delays the others


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    """No thread, descriptor or mapping of a group is left when all of it is over."""
    play(WAYS["hosts"], "all_reduce", 1, "kill", ("all_reduce", 1, "start", 0))
    before = _held()
    yield
    deadline = SYSTEM.monotonic() + 10
    while any(now > then for now, then in zip(_held(), before, strict=True)) and SYSTEM.monotonic() < deadline:
        gc.collect()
        SYSTEM.sleep(0.05)
    threads, files, maps = _held()
    assert threads <= before[0], [thread.name for thread in threading.enumerate()]
    assert files <= before[1]
    assert maps <= before[2]


def _held():
    kinds = ("socket:", "pipe:", "anon_inode:")
    files = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            files += os.readlink(f"/proc/self/fd/{fd}").startswith(kinds)
    with open("/proc/self/maps", encoding="ascii") as maps:
        mapped = sum("resilin-dist" in line or "resilin-stage" in line for line in maps)
    return threading.active_count(), files, mapped


def cases(way, call):
    """(victim, point): each phase of each call once, the first and the last time that it is come to; victims rotate."""
    found = {}
    for rank, point in points(way, call):
        found.setdefault(point[:3], {}).setdefault(rank, []).append(point)
    chosen = []
    for number, by_rank in enumerate(found.values()):
        ranks = sorted(by_rank)
        victim = ranks[number % len(ranks)]
        chosen.append((victim, by_rank[victim][0]))
        if len(by_rank[victim]) > 1:
            other = ranks[(number + 1) % len(ranks)]
            chosen.append((other, by_rank[other][-1]))
    return chosen


def own_affair(call, kind, point):
    """Not a fault of the whole group: what ends only its part, and exceptions with no message half-way."""
    return (call == "new_group" and kind != "kill") or (
        kind == "fail" and point[0] in ("send", "recv") and point[2] != "data"
    )


@pytest.mark.parametrize(("way", "call"), EVERY)
def test_a_fault_at_any_phase_is_an_error_that_names_its_rank_on_every_other(way, call, turns, monkeypatch):
    how = WAYS[way]
    how.apply(monkeypatch)
    took, errors, struck = [], [], set()
    for number, (victim, point) in enumerate(cases(how, call)):
        kinds = ("kill", KINDS[(number + number // len(KINDS)) % len(KINDS)])
        for kind in kinds if number % turns(short=len(KINDS), full=1) == 0 else kinds[:1]:
            if own_affair(call, kind, point):
                continue
            story = play(how, call, victim, kind, point, close=number % 2 == 0)
            if story.fired_at is None:  # how many pieces there are depends on what sockets take at once
                assert point[3] > 0 or point[2] in ("data", "agreeing")
                assert not story.errors
                continue
            struck.add(point[2])
            took += [at - story.fired_at for rank, at in story.at.items() if rank != victim]
            if found := wrong(story, victim, kind, point):
                errors.append(f"{kind} of rank {victim} at {point}: {found}")
    assert not errors, "\n".join(errors)
    assert {"start"} < struck <= set(PHASES)
    assert statistics.quantiles(took)[0] < AT_ONCE_S
    assert max(took) < PATIENCE_S  # of twice that, the group's limit


@pytest.mark.parametrize(
    ("way", "call"),
    [(way, call) for way, call in EVERY if way in ("shm", "tcp", "hosts", "numpy") and call not in MESSAGES],
)
def test_a_frozen_rank_is_named_by_all_at_the_timeout(way, call, monkeypatch):
    """Another point for each call. On a busy machine others may be late, too: it is tried again with more time."""
    how = WAYS[way]
    how.apply(monkeypatch)
    chosen = cases(how, call)
    victim, point = chosen[EVERY.index((way, call)) % len(chosen)]
    for limit_s in (0.25, 1.0, 5.0, 5.0, 5.0):
        story = play(how, call, victim, "freeze", point, timeout_s=limit_s)
        if story.fired_at is None:
            return
        found = wrong(story, victim, "freeze", point)
        late = [at - story.fired_at - limit_s for rank, at in story.at.items() if rank != victim]
        if not found and all(each < 1.0 for each in late):
            return
    pytest.fail(f"freeze of rank {victim} at {point}: {found}, seconds behind the limit: {late}")


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_who_died_while_a_part_is_made_is_named_also_where_others_leave_without_a_word(victim, monkeypatch):
    """A peer whose connection is only half made cannot say why it hangs up: the parent group says it."""
    monkeypatch.setattr(full_mesh, "encode_reason", lambda error, rank: "unsaid")
    told = PeerConnection.tell
    monkeypatch.setattr(
        PeerConnection, "tell", lambda link, kind, text: told(link, kind, text) if text != "unsaid" else None
    )
    for way in ("tcp", "hosts"):
        story = play(WAYS[way], "new_group", victim, "kill", ("connect", 2, "data", 0))
        assert not wrong(story, victim, "kill", ("connect", 2, "data", 0))


def test_every_phase_of_every_call_is_in_the_matrix():
    """Which phases a way has is announced by what carries the bytes: none may go missing unnoticed."""
    phases = {
        name: {point[2] for _, point in points(WAYS[name], "all_reduce")} for name in ("shm", "slots", "tcp", "hosts")
    }
    assert phases["shm"] == {"start", "arrived", "agreed", "data", "moved", "end"}
    assert phases["slots"] == {"start", "arrived", "agreed", "data", "end"}
    assert phases["tcp"] == {"start", "agreeing", "agreed", "data", "end"}
    assert phases["hosts"] == set(PHASES)
    assert len(CALLS) * 3 < len(EVERY)
    assert SIZE == 3


def test_a_plan_for_a_call_or_phase_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match=r"at='allreduce': expected one of barrier, all_reduce"):
        FaultPlan().kill(rank=0, at="allreduce")
    with pytest.raises(UsageError, match=r"phase='middle': expected one of start, arrived"):
        FaultPlan().freeze(rank=0, at="all_reduce", phase="middle")
