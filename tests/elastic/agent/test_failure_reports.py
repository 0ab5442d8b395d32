"""What people are told: one sentence first, nothing twice."""

import dataclasses
import io
import json
import signal

import pytest

from resilin.elastic import failure
from resilin.elastic.agent.config import Outcome
from resilin.elastic.agent.reports import Reporter
from resilin.elastic.failure import Failure
from resilin.elastic.records import Generation, GenerationMember


def failed(**changes):
    known = {"rank": 3, "local_rank": 1, "node": "n", "host": "box", "pid": 42, "generation": 2, "code": 1}
    return Failure(**{**known, **changes})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "rank 3 (host box, pid 42) exited with code 1"),
        ({"code": -9}, "rank 3 (host box, pid 42) killed by SIGKILL"),
        ({"code": -9, "step": 37}, "rank 3 (host box, pid 42) killed by SIGKILL at step 37"),
        (
            {"type": "ValueError", "message": "bad\nmore", "step": 4, "at": "all_reduce #17"},
            "rank 3 (host box, pid 42) raised ValueError: bad at step 4 in all_reduce #17",
        ),
        ({"late": True}, "rank 3 (host box, pid 42) exited with code 1 after training had finished: not restarted"),
        ({"type": "KeyboardInterrupt"}, "rank 3 (host box, pid 42) raised KeyboardInterrupt"),
    ],
)
def test_the_first_line_names_rank_host_pid_cause_and_step(changes, sentence):
    assert failed(**changes).sentence == sentence


def test_a_traceback_is_told_only_when_the_terminal_has_not_shown_it():
    hidden = failed(type="E", traceback="Traceback: x\nE: y", shown=False)
    assert hidden.details() == ["Traceback: x", "E: y"]
    assert failed(type="E", traceback="Traceback: x", shown=True).details() == []
    assert failed(log_tail=("a", "b")).details()[1:] == ["  a", "  b"]


def test_a_failure_of_unknown_cause_says_where_its_words_are():
    (line,) = failed(shown=True).details()
    assert line == "its standard error went to that of elastic-run on box; --tee 2 keeps its end for here"
    assert failed(shown=True, code=-9).details() == []


def test_a_reason_that_is_the_failure_itself_is_not_told_twice():
    stream = io.StringIO()
    one = failed(late=True, shown=True, type="E")
    Reporter(stream).outcome(Outcome(code=1, reason=one.sentence, failure=one))
    assert stream.getvalue() == f"elastic-run: job failed: {one.sentence}\n"


def test_a_long_text_loses_its_middle_and_says_how_much():
    assert failure.shorten("a" * 20 + "b" * 100 + "c" * 10, 30) == f"{'a' * 20} [... 100 characters cut ...] {'c' * 10}"
    assert failure.shorten("short", 5) == "short"
    assert len(failed(type="E", message="m" * 5000).sentence) < 1200


def test_the_cause_in_several_records_is_the_first_that_no_other_one_has_caused():
    lost = failed(type="PeerLost", message="rank 3", pid=7).to_json()
    killed = failed(code=-9, step=5, at="all_reduce #2 of group 'world'").to_json()
    text = "pid 42 on box killed by SIGKILL at step 5 in all_reduce #2 of group 'world'"
    assert failure.cause_in([lost, killed]) == text
    assert failure.cause_in([lost]) == "pid 7 on box raised PeerLost: rank 3"
    assert failure.cause_in([]) == ""


def test_in_a_job_of_several_nodes_the_line_of_a_death_names_the_host():
    stream = io.StringIO()
    reporter = Reporter(stream, clock=Ticks())
    reporter.generation(dataclasses.replace(world(1, [(0, 1), (1, 1)], "restart"), nodes=("n", "m")))
    reporter.death(failed(rank=1, code=-11, step=37, at="all_reduce #41 of group 'default'"))
    (line,) = stream.getvalue().splitlines()
    said = "killed by SIGSEGV at step 37 in all_reduce #41 of group 'default'"
    assert line == f"elastic-run: worker died: rank 1 (host box, pid 42) {said}"


def test_a_failure_survives_the_store():
    one = failed(log_tail=("a",), step=None)
    assert Failure.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize(
    ("code", "fault"),
    [(1, "own"), (-signal.SIGSEGV, "own"), (-signal.SIGABRT, "own"), (-signal.SIGKILL, "external"), (-15, "external")],
)
def test_a_crash_is_the_programs_own_fault_and_a_kill_is_not(code, fault):
    assert failure.fault_of(code) == fault


def test_torchs_error_file_is_understood(tmp_path):
    path = tmp_path / "error.json"
    body = {"message": "RuntimeError: boom: twice", "extraInfo": {"py_callstack": "Traceback...", "timestamp": "1"}}
    path.write_text(json.dumps({"message": body}))
    found = failure.read_error_file(path)
    assert found == {"type": "RuntimeError", "message": "boom: twice", "traceback": "Traceback..."}
    path.write_text("{broken")
    assert failure.read_error_file(path) == {}
    assert failure.read_error_file(tmp_path / "none") == {}


def test_the_exception_is_guessed_from_a_log_that_ends_with_a_traceback():
    tail = ("Traceback (most recent call last):", '  File "x", line 1', "pkg.errors.Bad: no way")
    assert failure.guess_exception(tail) == {"type": "Bad", "message": "no way"}
    assert failure.guess_exception(("just a line: with colon",)) == {}
    assert failure.guess_exception(()) == {}


class Ticks:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def wall(self):
        return 1.0

    def sleep(self, seconds):
        raise AssertionError("reports never wait")


def world(number, ranks, kind="inplace"):
    members = tuple(GenerationMember(node="n", slot=s, incarnation=i, rank=r) for r, (s, i) in enumerate(ranks))
    return Generation(
        number=number,
        kind=kind,
        members=members,
        nodes=("n",),
        master_addr="",
        master_port=1,
        restarts_used=0,
        reason="x",
    )


def test_a_recovery_is_told_line_by_line_and_measured_from_death_to_commit(tmp_path):
    clock, stream = Ticks(), io.StringIO()
    reporter = Reporter(stream, tmp_path / "events", clock=clock)
    reporter.generation(world(1, [(0, 1), (1, 1)], "restart"))
    reporter.committed(1, 36)
    clock.now = 1.0
    reporter.death(failed(rank=1, code=-9, step=37))
    clock.now = 1.001
    reporter.generation(world(2, [(0, 1)]))
    reporter.committed(1, 37)  # a late message of the old generation recovers nothing
    clock.now = 1.004
    reporter.progress(2)
    clock.now = 1.0123
    reporter.committed(2, 37)
    reporter.committed(2, 38)
    reporter.generation(world(3, [(0, 1), (1, 2)]))
    reporter.close()
    assert stream.getvalue().splitlines() == [
        "elastic-run: worker died: rank 1 (pid 42) killed by SIGKILL at step 37",
        "elastic-run: generation 2: 1 worker (was 2), rank 0 goes on",
        "elastic-run: recovered in 12.3 ms (death seen -> next committed step)",
        "elastic-run: generation 3: 2 workers, replacement joined as rank 1",
    ]
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    (recovered,) = [event for event in events if event["event"] == "recovered"]
    assert recovered["step"] == 37
    split = [recovered[key] for key in ("agree_ms", "rewire_ms", "first_step_ms", "total_ms")]
    assert split == pytest.approx([1.0, 3.0, 8.3, 12.3])


def test_a_smaller_world_says_why_unless_that_was_told_before():
    stream = io.StringIO()
    reporter = Reporter(stream, clock=Ticks())
    reporter.generation(world(1, [(0, 1), (1, 1), (2, 1)], "restart"))
    reporter.generation(world(2, [(0, 1), (1, 1)]))
    reporter.left(1, "SIGTERM")
    reporter.generation(world(3, [(0, 1)]))
    assert stream.getvalue().splitlines() == [
        "elastic-run: generation 2: 2 workers (was 3), rank 0 goes on, rank 1 goes on (x)",
        "elastic-run: rank 1 left (SIGTERM)",
        "elastic-run: generation 3: 1 worker (was 2), rank 0 goes on",
    ]


def test_quiet_says_only_how_the_job_ended():
    stream = io.StringIO()
    reporter = Reporter(stream, quiet=True, clock=Ticks())
    reporter.death(failed())
    assert stream.getvalue() == ""
    reporter.always("job failed")
    assert stream.getvalue() == "elastic-run: job failed\n"
