"""Whether the right one was blamed is read from what people see."""

import pytest

from resilin.elastic.chaos import judge
from resilin.elastic.chaos.judge import Run
from resilin.elastic.chaos.records import Fired, Result
from resilin.elastic.chaos.schedule import Fault, Schedule
from resilin.elastic.ledger import LedgerVerdict
from resilin.launcher.chaos import report

GOOD = LedgerVerdict(1, {0: 4}, 0, ())


def fired(number, pid, rank=1, node=0):
    return Fired(fault=number, pid=pid, rank=rank, node=node)


def run(*said, faults, hits, codes=(0,), ends=("a", "a"), counted=GOOD):
    results = tuple(Result(pid=n, rank=n, fingerprint=end, step=1, position=0) for n, end in enumerate(ends))
    return Run(
        schedule=Schedule(faults=tuple(faults)), codes=codes, said=tuple(said), agents=((70,), (71,))[: len(said)],
        fired=tuple(hits), results=results, counted=counted, seconds=1.0,
    )  # fmt: skip


KILL = Fault(do="kill", rank=1, at="backward")
DIED = "elastic-run: worker died: rank 1 (pid 42) killed by SIGKILL at step 7"


def verdicts(one):
    return [(told.rank_named, told.cause_named) for told in judge.attribute(one)]


def test_the_line_that_names_rank_process_and_cause_attributes_the_fault():
    assert verdicts(run(DIED, faults=[KILL], hits=[fired(0, 42)])) == [(True, True)]


@pytest.mark.parametrize(
    ("do", "line"),
    [
        ("raise", "worker died: rank 1 (pid 42) raised RuntimeError: mul(): chaos fault 0 at step 7"),
        ("exit", "job failed: rank 1 (host box, pid 42) exited with code 23 at step 7"),
        ("segfault", "worker died: rank 1 (host box, pid 42) killed by SIGSEGV"),
        ("disk-full", "worker died: rank 1 (pid 42) raised StateError: x cannot be written: No space left on device"),
        (
            "stop",
            "worker died: rank 1 (pid 42) did not answer and was killed (it is stopped (SIGSTOP); ranks 0, 2 wait)",
        ),
        ("term", "rank 1 left (SIGTERM)"),
        ("kill", "a replacement (pid 42) killed by SIGKILL before it joined"),
    ],
)
def test_every_kind_of_line_is_understood(do, line):
    fault = Fault(do=do, rank=1, at="ledger")
    assert verdicts(run(f"noise\nelastic-run: {line}\nmore", faults=[fault], hits=[fired(0, 42)])) == [(True, True)]


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("worker died: rank 0 (pid 42) killed by SIGKILL", (False, True)),
        ("worker died: rank 1 (pid 42) raised PeerLost: rank 0", (True, False)),
        ("worker died: rank 0 (pid 41) killed by SIGKILL", (False, False)),
        ("generation 2: 1 worker (was 2)", (False, False)),
    ],
)
def test_a_wrong_rank_or_cause_or_silence_is_no_attribution(line, verdict):
    assert verdicts(run(f"elastic-run: {line}", faults=[KILL], hits=[fired(0, 42)])) == [verdict]


def test_whoever_was_not_hit_and_is_reported_dead_spoils_it():
    said = f"{DIED}\nelastic-run: worker died: rank 0 (pid 41) raised PeerLost: rank 1"
    assert verdicts(run(said, faults=[KILL], hits=[fired(0, 42)])) == [(False, True)]


@pytest.mark.parametrize("do", ["stop", "hang", "hold-gil"])
def test_a_hang_that_only_the_groups_timeout_has_ended_is_not_named_and_counted_apart(do):
    hang = Fault(do=do, rank=1, at="backward")
    how = "did not answer within its group's timeout and was killed (all_reduce: rank 1 did not answer)"
    told = run(f"elastic-run: worker died: rank 1 (pid 42) {how}", faults=[hang], hits=[fired(0, 42)])
    assert verdicts(told) == [(True, False)]
    found = judge.judge(told, "a")
    assert not found.attributed
    assert report.lines(found)[1].startswith(f"  {hang}: NOT NAMED, only its group's timeout has ended it: elas")
    row = judge.tally([judge.as_json(found)])[f"{do} worker"]
    assert (row.reports, row.rank_named, row.cause_named, row.timed_out) == (1, 1, 0, 1)


def test_two_faults_each_have_their_line_in_whatever_order_they_are_told():
    stop = Fault(do="stop", rank=0, at="backward")
    said = f"{DIED}\nelastic-run: worker died: rank 0 (pid 41) did not answer and was killed (x)"
    hits = [fired(1, 41, rank=0), fired(0, 42)]
    assert verdicts(run(said, faults=[KILL, stop], hits=hits)) == [(True, True), (True, True)]


def test_every_node_has_lines_of_its_own():
    raised = Fault(do="raise", rank=0, at="ledger")
    other = "elastic-run: worker died: rank 0 (pid 43) raised RuntimeError: chaos fault 1 at step 9"
    hits = [fired(0, 42), fired(1, 43, rank=0, node=1)]
    assert verdicts(run(DIED, other, faults=[KILL, raised], hits=hits)) == [(True, True), (True, True)]


def test_a_lost_node_is_named_by_the_other_one():
    fault = Fault(do="kill", to="agent", node=1, at="backward")
    gone = "elastic-run: node box-71-ab12 is gone, and with it rank 1"
    assert verdicts(run(gone, "", faults=[fault], hits=[fired(0, 42)])) == [(True, True)]
    assert verdicts(run("", gone, faults=[fault], hits=[fired(0, 42)])) == [(False, False)]
    assert verdicts(run("", faults=[fault], hits=[fired(0, 42)])) == [], "a single node leaves nobody who could say it"


def test_a_run_is_good_when_it_ended_with_the_expected_bits_and_a_whole_ledger():
    good = dict(faults=[KILL], hits=[fired(0, 42)])
    assert judge.judge(run(DIED, **good), "a").ok
    assert judge.judge(run(DIED, **good), None).ok
    assert not judge.judge(run(DIED, **good), "b").ok
    assert not judge.judge(run(DIED, **good, ends=("a", "b")), None).ok
    assert not judge.judge(run(DIED, **good, codes=(1,)), "a").ok
    assert not judge.judge(run(DIED, **good, codes=(None,)), "a").ok
    broken = LedgerVerdict(1, {0: 4}, 0, ("lost",))
    assert not judge.judge(run(DIED, **good, counted=broken), "a").ok


def test_counts_are_of_runs_in_which_the_fault_came_about():
    other = Fault(do="raise", rank=0, at="saving")
    one = judge.judge(run(DIED, faults=[KILL, other], hits=[fired(0, 42)]), "a")
    two = judge.judge(run("", faults=[KILL], hits=[fired(0, 42)], codes=(1,)), "a")
    ((name, row),) = judge.tally([judge.as_json(one), judge.as_json(two)]).items()
    assert name == "kill worker"
    assert (row.runs, row.recovered, row.same, row.reports, row.rank_named, row.cause_named) == (2, 1, 2, 2, 1, 1)


def test_whoever_was_ended_because_a_link_was_cut_is_no_innocent_reported_dead():
    cut = Fault(do="cut", to="link", at="collective")
    silent = "elastic-run: worker died: rank 0 (host box, pid 41) did not answer and was killed (all_reduce: ...)"
    told = run(silent, DIED, faults=[cut, KILL], hits=[fired(0, 40, rank=0), fired(1, 42, node=1)])
    assert verdicts(told) == [(True, True)]
    crashed = silent.replace("did not answer and was killed (all_reduce: ...)", "killed by SIGKILL")
    told = run(crashed, DIED, faults=[cut, KILL], hits=[fired(0, 40, rank=0), fired(1, 42, node=1)])
    assert verdicts(told) == [(False, True)], "a link kills nobody"
