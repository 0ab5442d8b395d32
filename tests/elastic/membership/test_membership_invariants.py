"""What holds for every sequence of events, whatever their order."""

import extent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membership_script import Script

from resilin.elastic.membership import decision, queries, scaling
from resilin.elastic.records import Generation

MOST_NODES = 4
EVENTS = st.one_of(
    st.tuples(st.just("join"), st.integers(1, 3)),
    st.tuples(st.just("lost"), st.integers(0, 3)),
    st.tuples(st.just("leave"), st.integers(0, 3)),
    st.tuples(st.just("wait")),
    st.tuples(st.just("hello"), st.integers(0, 11)),
    st.tuples(st.just("die"), st.integers(0, 11), st.sampled_from(["own", "external"])),
    st.tuples(st.just("done"), st.integers(0, 11)),
    st.tuples(st.just("drain"), st.integers(0, 4)),
    st.tuples(st.just("scale"), st.integers(1, 3), st.integers(0, 2)),
    st.tuples(st.just("duties")),
)
JOBS = st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 6), st.sampled_from([0, 0, 1, 3]))


def command(script: Script, event: tuple) -> str | None:
    """The script's line for a random event, or None when it makes no sense now."""
    kind = event[0]
    known = [seen.node.id for seen in script.view.nodes]
    if kind == "join":  # a node's name is never used again
        return f"join n{script.revision} slots {event[1]}" if len(known) < MOST_NODES else None
    if kind in ("lost", "leave"):
        return f"{kind} {known[event[1] % len(known)]}" if known else None
    if kind == "wait":
        return "wait 0.6"
    if kind == "scale":
        return f"scale {event[1]}:{event[1] + event[2]}"
    if kind == "drain":  # the last of the choices: nobody
        return f"drain {known[event[1] % len(known)] if known and event[1] < 4 else ''}"
    alive = [(n, s) for n, s in script._places(("all",)) if kind != "hello" or s.state == "running"]
    if not alive:
        return None
    node, slot = alive[event[1] % len(alive)]
    return f"{kind} {node}/{slot.index}" + (f" {event[2]}" if kind == "die" else "")


def duties(script: Script) -> list[str]:
    """What agents do on their own account: stop workers, say hello, replace, answer an invitation."""
    (view, config), lines = script.seen(), []
    situation = decision.assess(view, config, script.now)
    if situation.action == "stop":
        return ["stop all"]
    for node, slot in script._places(("all",)):
        if slot.state == "running":
            lines.append(f"hello {node}/{slot.index}")
    dismissed = [s.node.id for s in view.nodes if scaling.is_dismissed(view, config, s.node.id)]
    if dismissed:
        lines = [line for line in lines if line.partition(" ")[2].partition("/")[0] not in dismissed]
        lines.append(f"stop {' '.join(dismissed)}")
    for name in queries.invited(view, config):
        node = view.node(name)
        lines += [f"replace {name}/{slot.index}" for slot in node.slots if slot.state == "idle"]
    return lines


def check(old: Generation | None, new: Generation, script: Script) -> None:
    _, config = script.seen()
    assert new.number == (old.number if old else 0) + 1
    assert [m.rank for m in new.members] == list(range(len(new.members)))
    assert len({(m.node, m.slot) for m in new.members}) == len(new.members) > 0
    assert set(new.nodes) == {m.node for m in new.members}
    assert len(new.nodes) <= config.max_nodes
    if not script.shards or new.kind == "restart":
        assert config.min_nodes <= len(new.nodes)
    else:  # nodes whose workers all stand by count, but are not part of it
        assert len(new.members) <= script.shards
    assert 0 <= new.restarts_used <= config.max_restarts
    if old is None or new.kind == "restart":
        return
    before = {(m.node, m.slot, m.incarnation): m.rank for m in old.members}
    for member in new.members:
        known = before.get((member.node, member.slot, member.incarnation))
        if known is not None and known < len(new.members):
            assert member.rank == known, "a survivor lost its rank though the world still has it"


@settings(max_examples=extent.examples(150), deadline=None)
@given(JOBS, st.lists(EVENTS, max_size=40))
def test_generations_are_numbered_dense_and_bounded_whatever_happens(job, events):
    low, more, restarts, shards = job
    script = Script()
    script.do(f"job {low}:{low + more} restarts {restarts} shards {shards}")
    for event in events:
        lines = duties(script) if event[0] == "duties" else [command(script, event)]
        for line in filter(None, lines):
            before, count = script.view.generation, len(script.generations)
            script.do(line)
            for new in script.generations[count:]:
                check(before, new, script)
                before = new


@pytest.mark.slow
@settings(max_examples=extent.examples(100), deadline=None)
@given(JOBS, st.lists(EVENTS, max_size=30))
def test_the_job_comes_to_rest_once_faults_stop(job, events):
    low, more, restarts, shards = job
    script = Script()
    script.do(f"job {low}:{low + more} restarts {restarts} shards {shards}")
    for event in events:
        line = command(script, event) if event[0] != "duties" else None
        if line:
            script.do(line)
    for leaving in [seen.node.id for seen in script.view.nodes if seen.node.leaving]:
        script.do(f"lost {leaving}")
    for _ in range(60):
        script.do("wait 1")
        for line in duties(script):
            script.do(line)
    view, config = script.seen()
    low = config.min_nodes
    situation = decision.assess(view, config, script.now)
    assert situation.action in ("steady", "wait", "fail", "succeed")
    if situation.action == "wait":
        staying = [seen for seen in view.nodes if not seen.node.leaving]
        places = {seen.node.id for seen in staying if any(slot.alive for slot in seen.node.slots)}
        assert len(places) < low or len(staying) < low


@settings(max_examples=extent.examples(50), deadline=None)
@given(JOBS, st.lists(EVENTS, max_size=25))
def test_all_nodes_with_the_same_view_decide_the_same(job, events):
    low, more, restarts, shards = job
    scripts = [Script(), Script()]
    for script in scripts:
        script.do(f"job {low}:{low + more} restarts {restarts} shards {shards}")
        for event in events:
            line = command(script, event) if event[0] != "duties" else None
            if line:
                script.do(line)
    assert scripts[0].generations == scripts[1].generations
