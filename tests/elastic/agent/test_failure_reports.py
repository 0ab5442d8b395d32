"""What people are told: one sentence first, nothing twice."""

import dataclasses
import io
import json
import signal

import pytest
from membership_script import Script

from resilin.elastic import failure
from resilin.elastic.agent.config import Outcome
from resilin.elastic.agent.reports import Reporter
from resilin.elastic.agent.worker_notifier import WorkerNotifier
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
        (
            {"type": "ValueError", "message": "\x1b[31mred\x00 \ud800 größe"},
            "rank 3 (host box, pid 42) raised ValueError: \\x1b[31mred\\x00 \\ud800 größe",
        ),
        ({"type": "KeyboardInterrupt"}, "rank 3 (host box, pid 42) raised KeyboardInterrupt"),
        ({"step": 4, "became": 1}, "rank 3 (host box, pid 42) exited with code 1 at step 4, before it became rank 1"),
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
    assert failed(shown=True, kept=True).details() == [], "it is kept already, and was empty"
    assert failed(shown=True, kept=True, log_tail=("why",)).details()[1:] == ["  why"]


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
    text = "rank 3, pid 42 on box, killed by SIGKILL at step 5 in all_reduce #2 of group 'world'"
    assert failure.cause_in([lost, killed]) == text
    assert failure.cause_in([lost]) == "pid 7 on box raised PeerLost: rank 3"
    assert failure.cause_in([]) == ""


def test_what_gloo_says_of_a_peer_that_is_gone_follows_from_its_end_too():
    lost = failed(type="RuntimeError", message="[pair.cc:553] Connection closed by peer [127.0.0.1]:34010").to_json()
    first = failed(type="ValueError", message="boom", pid=7).to_json()
    assert failure.cause_in([lost, first]).endswith("pid 7 on box, raised ValueError: boom")


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


HEAD = "Traceback (most recent call last):"
FRAME = ('  File "x", line 1, in f', "    raise it", "    ^^^^^^^^")


@pytest.mark.parametrize(
    ("tail", "kind", "message"),
    [
        ((HEAD, *FRAME, "ValueError: one", "second line: of the message", ""), "ValueError", "one"),
        ((HEAD, *FRAME, "KeyError: 'k'", "", "During ...", "", HEAD, *FRAME, "OSError: last"), "OSError", "last"),
        ((HEAD, *FRAME, "AssertionError", "sys:1: ResourceWarning: unclosed file"), "AssertionError", ""),
        (tuple(f"[rank1]: {line}" for line in (HEAD, *FRAME, "RuntimeError: torch's")), "RuntimeError", "torch's"),
        (
            (
                "  + Exception Group Traceback (most recent call last):", '  |   File "x", line 1', "  |     raise it",
                "  | ExceptionGroup: many (2 sub-exceptions)", "  +-+---------------- 1 ----------------",
                f"    | {HEAD}", '    |   File "x", line 2', "    | ValueError: 1", "    +----------------",
            ),
            "ExceptionGroup", "many (2 sub-exceptions)",
        ),
        (('  File "x", line 1', "ValueError: its traceback begins before these lines"), None, None),
        ((HEAD, *FRAME), None, None),
    ],
)  # fmt: skip
def test_the_last_traceback_of_a_log_is_read_whatever_its_form(tail, kind, message):
    assert failure.guess_exception(tail) == ({"type": kind, "message": message} if kind else {})


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


def world(number, ranks, kind="inplace", reason="x"):
    members = tuple(GenerationMember(node="n", slot=s, incarnation=i, rank=r) for r, (s, i) in enumerate(ranks))
    return Generation(
        number=number,
        kind=kind,
        members=members,
        nodes=("n",),
        master_addr="",
        master_port=1,
        restarts_used=0,
        reason=reason,
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
    reporter.progress(2, 37)  # it is one commit behind the one that died: that is redone
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


def test_a_loss_of_all_state_is_told_though_a_newcomer_is_left():
    stream = io.StringIO()
    reporter = Reporter(stream, clock=Ticks())
    reporter.generation(world(1, [(0, 1), (1, 1)], "restart"))
    for step in (36, 37):
        reporter.committed(1, step)
        reporter.committed(1, step)
    reporter.generation(world(2, [(0, 1), (1, 2)]), stateful=True)
    reporter.generation(world(3, [(1, 2)]), stateful=True)
    reporter.progress(3, 1)
    reporter.progress(3, 1)
    told = stream.getvalue().splitlines()[-1]
    assert told.startswith("elastic-run: training goes on at step 1, though step 37 was committed; no worker is left")
    assert stream.getvalue().count("no worker is left") == 1


@pytest.mark.parametrize("step", [1, 38])
def test_a_newcomer_that_begins_anew_since_the_state_was_lost_with_a_node_says_so(step):
    stream = io.StringIO()
    reporter = Reporter(stream, clock=Ticks())
    reporter.generation(world(2, [(0, 1), (1, 1)]))
    reporter.lost([0], "m")
    reporter.generation(world(3, [(1, 1)]))
    for _ in range(2):
        reporter.progress(3, step)
    lines = [line for line in stream.getvalue().splitlines() if "training begins at step 1: node m was gone" in line]
    assert len(lines) == (step == 1), "another one had the state"
    reporter.lost([0], "m")
    reporter.progress(4, 1)
    assert stream.getvalue().count("training begins") == len(lines), "it had worked here before"


@pytest.mark.parametrize(("asked", "how"), [(True, "has left"), (False, "is gone")])
def test_a_node_that_was_asked_to_leave_is_not_told_as_one_that_is_gone(asked, how):
    script = Script()
    for line in ("job 2", "join a", "join b", "hello all", *(("leave b",) if asked else ())):
        script.do(line)
    stream = io.StringIO()
    teller = WorkerNotifier("a", [], Reporter(stream, clock=Ticks()))
    teller.deaths(script.view, "")
    script.do("lost b")
    teller.deaths(script.view, "")
    assert stream.getvalue() == f"elastic-run: node b {how}, and with it rank 1\n"


def deaths_told(*failures, end=None, reason="x"):
    """The lines about `failures`, which come in this order; `end` ends the job, else `reason` begins another world."""
    stream = io.StringIO()
    reporter = Reporter(stream, clock=Ticks())
    reporter.generation(world(1, [(0, 1), (1, 1), (2, 1)], "restart"))
    for each in failures:
        reporter.death(each)
    if end is not None:
        reporter.outcome(Outcome(code=1, reason=end.sentence, failure=end))
    else:
        reporter.generation(world(2, [(0, 2), (1, 2), (2, 2)], "restart", reason))
    reporter.close()
    return [line for line in stream.getvalue().splitlines() if line.startswith("elastic-run: ")]


def test_the_cause_is_told_before_those_that_follow_from_it_though_they_ended_first():
    first, follower = failed(rank=1, pid=41, type="ValueError"), failed(rank=0, pid=40, type="PeerLost")
    told = deaths_told(follower, failed(rank=2, pid=42, type="GroupAborted"), first)
    assert [line.partition(" (")[0] for line in told] == [
        *(f"elastic-run: worker died: rank {rank}" for rank in (1, 0, 2)),
        "elastic-run: generation 2: 3 workers, all started again",
    ]
    told = deaths_told(first, follower)
    assert [line.partition(" (")[0] for line in told[:2]] == [f"elastic-run: worker died: rank {n}" for n in (1, 0)]


def test_who_follows_from_a_cause_that_never_shows_is_told_with_what_comes_next():
    follower, other = failed(rank=0, pid=40, type="PeerLost"), failed(rank=2, pid=42, type="PeerLost")
    reason = f"ranks 0, 2 failed: {failure.cause_in([each.to_json() for each in (follower, other)])}"
    assert [line.partition(" (")[0] for line in deaths_told(follower, other, reason=reason)] == [
        *(f"elastic-run: worker died: rank {rank}" for rank in (0, 2)),
        "elastic-run: generation 2: 3 workers, all started again",
    ]
    assert [line.partition(" (")[0] for line in deaths_told(follower, other, end=follower)] == [
        "elastic-run: job failed: rank 0",
        "elastic-run: worker died: rank 2",
    ]


def test_who_follows_from_a_cause_on_another_node_is_told_after_the_world_whose_reason_names_it():
    follower, first = failed(rank=0, pid=40, type="PeerLost"), failed(rank=3, pid=41, type="ValueError", message="a")
    reason = f"ranks 0, 3 failed: {failure.cause_in([each.to_json() for each in (follower, first)])}"
    assert [line.partition(": ")[2] for line in deaths_told(follower, reason=reason)] == [
        "generation 2: 3 workers, all started again "
        "(ranks 0, 3 failed: rank 3, pid 41 on box, raised ValueError: a; 0 restarts used)",
        "worker died: rank 0 (pid 40) raised PeerLost",
    ]


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
