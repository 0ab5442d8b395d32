"""Programs that recover in place: survivors keep their process and go on with the step."""

import json
import os
import re
import signal
import sys

import pytest
from launches import INPLACE, processes_with

pytestmark = pytest.mark.multiproc


def command(steps, count, step_s=0.005, size=1):
    """Without a warm spare: these tests need no tensors. The job ends after `count` steps, with `size` workers."""
    return "--no-python", sys.executable, INPLACE, steps, count, step_s, size


def events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_survivors_go_on_and_a_replacement_joins_at_a_commit(launch, steps, tmp_path):
    (steps / "die-20").write_text("1 SIGKILL")
    log = tmp_path / "events"
    run = launch(
        "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "--event-log", log, *command(steps, 60, size=2)
    )
    assert run.wait() == 0
    lines = run.out.splitlines()
    assert sorted(lines[:2]) == ["world 1 rank 0/2 step 0", "world 1 rank 1/2 step 0"]
    assert lines[2] == "world 2 rank 0/1 step 20", "the survivor redoes the step that was not committed"
    assert sorted(line.rpartition(" step")[0] for line in lines[3:]) == ["world 3 rank 0/2", "world 3 rank 1/2"]
    assert len({line.rpartition(" ")[2] for line in lines[3:]}) == 1, "both start generation 3 at the same step"
    told = [line.removeprefix("elastic-run: ") for line in run.err.splitlines()]
    assert told[0].startswith("worker died: rank 1 (pid ")
    assert told[0].endswith("killed by SIGKILL at step 20")
    assert told[1] == "generation 2: 1 worker (was 2), rank 0 goes on"
    assert told[2].startswith("recovered in ")
    assert told[3] == "generation 3: 2 workers, replacement joined as rank 1"
    kinds = [event["event"] for event in events(log)]
    assert kinds == ["generation", "death", "generation", "recovered", "generation", "end"]
    recovered = events(log)[3]
    parts = recovered["agree_ms"] + recovered["rewire_ms"] + recovered["first_step_ms"]
    assert parts == pytest.approx(recovered["total_ms"], abs=0.01)
    assert recovered["total_ms"] > 0


def test_ranks_are_kept_and_the_highest_survivor_fills_the_hole(launch, steps):
    (steps / "die-10").write_text("0 SIGKILL")
    run = launch("--standalone", "--nproc-per-node", 3, *command(steps, 30))
    assert run.wait() == 0
    assert "generation 2: 2 workers (was 3), rank 2 goes on as rank 0, rank 1 goes on" in run.err
    assert "generation 3" not in run.err, "no restarts are left, so nobody is replaced"


def test_an_exception_beyond_the_restarts_ends_the_job_and_is_told_once(launch, steps):
    (steps / "die-10").write_text("1 raise")
    run = launch("--standalone", "--nproc-per-node", 2, *command(steps, 100))
    assert run.wait() == 1
    assert run.err.splitlines()[0].startswith("elastic-run: job failed: rank 1 (host ")
    assert "raised ValueError: told to at step 10" in run.err.splitlines()[0]
    assert not processes_with(str(steps))


def test_sigterm_lets_workers_finish_their_step(launch, steps):
    run = launch("--standalone", "--nproc-per-node", 2, *command(steps, 100_000))
    run.until((steps / "committed").exists)
    run.signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    done = int((steps / "committed").read_text())
    assert {path.name for path in (steps / "marks").glob(f"1-{done - 1}b-*")} == {
        f"1-{done - 1}b-0",
        f"1-{done - 1}b-1",
    }
    assert not list((steps / "marks").glob(f"1-{done}b-*")), "no rank went further than the last committed step"


LEAVES = """
import os, signal
import numpy as np
import resilin as rs
from resilin import elastic

@elastic.run
def train(state):
    while state.step < 100_000:
        if state.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        state.commit()

train(elastic.State(total=rs.tensor([0.0])))
print("past train")
"""


def test_a_job_whose_workers_were_all_asked_to_leave_is_interrupted_not_successful(launch, script):
    run = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 2, script(LEAVES))
    assert run.wait() == 7
    assert run.err.splitlines()[-1] == (
        "elastic-run: interrupted: all workers left (SIGTERM) before training had finished; "
        "the last committed step is 6"
    )
    assert "past train" not in run.out


def test_replacements_use_the_restarts_one_by_one(launch, steps):
    for step, who, generation in ((10, 0, 1), (15, 1, 3), (20, 0, 5)):  # 3 and 5: the one before is replaced
        (steps / f"die-{step}").write_text(f"{who} SIGKILL {generation}")
    run = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 2, *command(steps, 30))
    assert run.wait() == 0
    assert run.err.count("replacement joined") == 2
    last = [line for line in run.err.splitlines() if "generation" in line][-1]  # nothing is left to recover, maybe
    assert last.endswith("1 worker (was 2), rank 1 goes on as rank 0")


@pytest.fixture
def flaky(steps, script):
    """The command of a program whose replacements exit with code 3 before they join."""
    program = script(
        "import os, runpy, sys\n"
        f"if os.path.exists({str(steps / 'committed')!r}):\n"
        "    sys.exit(3)\n"
        f"sys.argv[0] = {str(INPLACE)!r}\n"
        f"sys.path.insert(0, {str(INPLACE.parent)!r})\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    return "--no-python", sys.executable, program, steps, 20


def test_a_replacement_that_cannot_start_does_not_disturb_the_survivors(launch, steps, flaky):
    (steps / "die-10").write_text("1 SIGKILL")
    (steps / "hold").touch()
    run = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 3, *flaky)
    run.until(lambda: run.err.count("exited with code 3 before it joined") == 3)  # as many as restarts are allowed
    (steps / "hold").unlink()
    assert run.wait() == 0
    assert "generation 3" not in run.err


def test_the_report_names_the_member_that_ended_the_job_and_not_a_replacement_that_failed_before(launch, steps, flaky):
    (steps / "die-10").write_text("1 raise")
    (steps / "hold").touch()
    run = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, *flaky)
    run.until(lambda: "exited with code 3 before it joined" in run.err)
    (steps / "die-0").write_text("0 raise 2")
    assert run.wait() == 1
    (last,) = [line for line in run.err.splitlines() if "job failed" in line]
    assert last.startswith("elastic-run: job failed: rank 0 (host ")
    assert "raised ValueError: told to at step " in last
    assert "rank 0 failed and 1 of 1 restarts are used" in run.err


REPLACEMENT_RAISES = """
import os, pathlib, signal, sys, time
killed = pathlib.Path(sys.argv[1])
if killed.exists():
    raise ValueError("cannot start")
import resilin as rs
from resilin import dist, elastic

@elastic.run
def train(state):
    while True:
        if state.step == 5 and dist.get_rank() == 1:
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
        state.commit()

train(elastic.State(total=rs.tensor([0.0])))
"""


def test_what_a_warm_replacement_raises_before_it_joins_is_named(launch, script, tmp_path):
    run = launch(
        "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, script(REPLACEMENT_RAISES), tmp_path / "killed"
    )
    run.until(lambda: "before it joined" in run.err)
    run.signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    (line,) = [line for line in run.err.splitlines() if "before it joined" in line]
    assert line.endswith("raised ValueError: cannot start before it joined")


def test_who_fails_on_the_way_to_another_world_is_named_by_its_rank_in_the_one_it_failed_in(launch, script):
    program = script(
        "import os, time\n"
        "from resilin import elastic\n"
        "from resilin.elastic.worker import session\n"
        "@elastic.run\n"
        "def train(state):\n"
        "    if elastic.world().rank == 0:\n"
        "        os._exit(3)\n"
        "    while session.active()._messages.world.number == elastic.world().generation:\n"
        "        time.sleep(0.01)  # until it is given another rank\n"
        "    raise ValueError('of its own')\n"
        "train(elastic.State(loss=0.0))\n"
    )
    run = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, program)
    assert run.wait() == 1
    told = [line for line in run.err.splitlines() if line.startswith("elastic-run: ")]
    assert "rank 1 goes on as rank 0" in told[1]
    (line,) = [line for line in told if "of its own" in line and "generation" not in line]
    assert re.search(r": rank 1 \(.*pid \d+\) raised ValueError: of its own at step 1, before it became rank 0$", line)


def test_a_worker_that_stops_answering_is_killed_and_replaced(launch, steps):
    (steps / "die-10").write_text("1 SIGSTOP")
    size = "--standalone", "--nproc-per-node", 3, "--max-restarts", 1
    run = launch(*size, *command(steps, 40, size=3), PATIENCE_S="2")
    assert run.wait() == 0
    told = [line.removeprefix("elastic-run: ") for line in run.err.splitlines()]
    assert told[0].startswith("worker died: rank 1 (pid ")
    assert told[0].endswith(
        "did not answer within its group's timeout and was killed (all_reduce: rank 1 did not answer) at step 10"
    )
    assert told[1] == "generation 2: 2 workers (was 3), rank 0 goes on, rank 2 goes on as rank 1"
    assert told[2].startswith("recovered in ")
    assert told[3] == "generation 3: 3 workers, replacement joined as rank 2"


def test_the_agent_of_another_node_kills_its_worker_that_stopped_answering(launch, steps, free_port):
    (steps / "die-10").write_text("1 SIGSTOP")
    place = "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--max-restarts", 1
    runs = [launch(*place, *command(steps, 40, size=2), PATIENCE_S="2") for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    told = [run.err for run in runs]
    how = "did not answer within its group's timeout and was killed (all_reduce: rank 1 did not answer)"
    assert sum("worker died: rank 1 " in text and how in text for text in told) == 1
    assert all("generation 2: " in text and "started again" not in text for text in told)


def test_another_node_says_which_process_of_which_host_failed_and_how(launch, steps, free_port):
    (steps / "die-10").write_text("1 SIGKILL")
    place = "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--max-restarts", 1
    runs = [launch(*place, *command(steps, 40, size=2)) for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    other, own = sorted((run.err for run in runs), key=lambda text: "worker died" in text)
    (died,) = re.findall(r"worker died: rank 1 \(host (\S+), pid (\d+)\) killed by SIGKILL at step 10", own)
    line = next((line for line in other.splitlines() if "generation 2: " in line), other)
    assert f"(rank 1 failed: pid {died[1]} on {died[0]} killed by SIGKILL at step 10" in line


def test_it_is_said_when_nobody_is_left_who_holds_the_state(launch, steps):
    (steps / "die-10").write_text("0 SIGKILL")
    run = launch("--standalone", "--nproc-per-node", 1, "--max-restarts", 1, *command(steps, 20))
    assert run.wait() == 0
    (told,) = [line for line in run.err.splitlines() if "generation 2" in line]
    assert re.fullmatch(
        r"elastic-run: generation 2: 1 worker, all started again \(rank 0 failed: pid \d+ on \S+ killed by SIGKILL "
        r"at step 10; 1 restart used\); no worker is left that holds the state: the program starts again from its "
        "beginning or its own checkpoint",
        told,
    )


LOOP = """
import os, sys, time
from resilin import elastic

@elastic.run(timeout=1)
def train(state):
    os.write(1, f"{elastic.world().rank} {os.getpid()}\\n".encode())
    while True:
        time.sleep(float(sys.argv[1]))
        state.commit()

train(elastic.State(x=0))
"""


def pids(run, count):
    """Of `count` workers that have begun to work, by rank."""
    lines = run.until(lambda: run.out.count("\n") >= count and run.out.splitlines())
    return {int(rank): int(pid) for rank, pid in map(str.split, lines)}


def test_workers_killed_in_a_long_step_after_sigterm_are_no_failure(launch, tmp_path):
    (tmp_path / "loop.py").write_text(LOOP)
    run = launch("--standalone", "--nproc-per-node", 2, "--shutdown-timeout", 0.3, tmp_path / "loop.py", 1000)
    pids(run, 2)
    run.signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    assert "failed" not in run.err
    assert run.err.endswith("ended by SIGTERM\n")


def test_a_second_sigterm_kills_the_workers_and_they_are_no_failure(launch, tmp_path):
    (tmp_path / "loop.py").write_text(LOOP)
    run = launch("--standalone", "--nproc-per-node", 1, tmp_path / "loop.py", 1000)
    pids(run, 1)
    run.signal(signal.SIGTERM)
    run.until(lambda: "asking the workers to end" in run.err)
    run.signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    assert "failed" not in run.err


def test_a_frozen_worker_that_is_the_only_one_left_is_killed_after_its_own_timeout(launch, tmp_path):
    (tmp_path / "loop.py").write_text(LOOP)
    run = launch("--standalone", "--nproc-per-node", 2, tmp_path / "loop.py", 0.01)
    workers = pids(run, 2)
    os.kill(workers[1], signal.SIGSTOP)
    os.kill(workers[0], signal.SIGKILL)
    assert run.wait() == 1
    assert f"pid {workers[1]}) did not answer within its group's timeout and was killed (it did not take up" in run.err
    assert "(it did not take up generation 2 within 1 s)" in run.err


@pytest.mark.parametrize("spare", [False, True], ids=["started cold", "from a spare, before the survivor works again"])
def test_a_step_that_fails_on_whoever_computes_it_ends_the_job_with_that_verdict(launch, steps, spare):
    for generation, name in ((1, "die-4"), (2, "die-04"), (3, "die-004")):
        (steps / name).write_text(f"0 raise {generation}")
    program = (INPLACE, steps, 50) if spare else command(steps, 50)
    run = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 20, *program)
    assert run.wait() == 1
    assert "step 4 has failed 3 times in a row: the fault is of that step" in run.err


REFUSES_STATE = """
import os, signal, sys, time
import numpy as np
from resilin import dist, elastic

class Picky:
    def state_dict(self):
        return {"value": 7}
    def load_state_dict(self, given):
        if elastic.world().generation > 1 and (state.total > 0) == (sys.argv[1] == "survivors"):
            raise ValueError("no place for this")

state = elastic.State(picky=Picky(), total=0)

@elastic.run
def train(state):
    while state.total < 100_000:
        dist.all_reduce(np.ones(3))
        time.sleep(0.005)  # who is started meanwhile needs the processor more
        state.total += 1
        if state.total == 3 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        state.commit()

train(state)
"""


@pytest.mark.parametrize(
    ("who", "where"),
    [
        ("newcomers", r"rank 1 .* in the transfer of step \d+'s state from rank 0 to rank 1"),
        ("survivors", r"rank 0 .* in the return to step \d+'s state"),
    ],
)
def test_who_cannot_enter_a_new_world_ends_the_job_with_that_verdict(launch, script, who, where):
    run = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 9, script(REFUSES_STATE), who)
    assert run.wait() == 1
    first, *rest = run.err[run.err.index("job failed: ") :].splitlines()
    assert "raised ValueError: no place for this" in first
    assert re.match(f"job failed: {where}$", first), first
    assert any("entering a new world" in line and "has failed 3 times in a row" in line for line in rest), run.err
    assert run.err.count("raised ValueError: no place for this") == 3
