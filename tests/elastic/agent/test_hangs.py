"""Workers that stop making progress without dying: the agent names the one the others wait for, and ends it."""

import functools
import json
import re
import signal
import sys
from pathlib import Path

import extent
import pytest
from launches import INPLACE

from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.multiproc
WORKER = Path(__file__).parent / "hanging_worker.py"
WHY = {
    "stop": r"it is stopped \(SIGSTOP\)",
    "lock": r"it is blocked at \S+hanging_worker.py:\d+ in lock",
    "gil": r"it is \w+ at \S+hanging_worker.py:\d+ in \S+",  # the main thread, where it waits for the lock
    "circle": r"it is busy at \S+hanging_worker.py:\d+ in circle",
    "inside": r"it is blocked at \S+hanging_worker.py:\d+ in lock",
    "noise": r"it is busy at \S+hanging_worker.py:\d+ in lock",
    "skip": r"it is blocked at \S+hanging_worker.py:\d+ in skip",
}
WAIT_S = PATIENCE_S
HASTY = """
from resilin.elastic.agent import watchdog
from resilin.elastic.hangs import step_time as pace
pace.FLOOR_S, pace.CIRCLE_S, pace.FIRST_S, watchdog.LOOK_S = 1.0, 3.0, 6.0, 0.3
"""


@pytest.fixture
def hang(launch, tmp_path):
    """`hang(how, *options, plain=False)` runs three workers, of which one hangs, and returns the ended launch."""

    def run(how: str, *options: object, plain: bool = False, hasty: str = ""):
        program = (WORKER, how, tmp_path / "mark", *(("plain",) if plain else ()))
        run = launch("--standalone", "--nproc-per-node", 3, *options, *program, hasty=hasty)
        run.code = run.wait(WAIT_S)
        return run

    return run


@pytest.fixture
def hasty(hang):
    """`hasty(how, *options, plain=False)`: the same under limits that are a fraction of the real ones."""
    return functools.partial(hang, hasty=HASTY)


HANG_ONCE = """
import threading
from pathlib import Path
def hang_once(state):
    if state.step == 20 and elastic.world().rank == 1 and not Path("mark").exists():
        Path("mark").touch()
        mine = threading.Lock()
        mine.acquire()
        mine.acquire()
"""


def deaths(run):
    return [line for line in run.err.splitlines() if "worker died" in line or "job failed" in line]


@pytest.mark.parametrize("how", extent.short([how for how in WHY if how != "noise"], of=["gil", "skip"]))
def test_the_rank_that_the_others_wait_for_is_named_ended_and_replaced(hang, how):
    run = hang(how, "--max-restarts", 1, "--hang-timeout", 4)
    assert run.code == 0, run.err
    (line,) = deaths(run)
    assert re.search(rf"rank 1 \(pid \d+\) did not answer and was killed \({WHY[how]}; ", line), line
    assert "ranks 0, 2 wait in all_reduce #" in line
    assert line.endswith(" at step 21")
    assert run.out.count("trained") == 3


def test_who_hangs_while_the_world_changes_is_ended_when_its_own_limit_is_over(launch, script, tmp_path):
    """Rank 2 dies while rank 1 hangs: the others form two new worlds, neither of which rank 1 takes up."""
    mark = tmp_path / "mark"
    program = script(
        "import os, threading\n"
        "from pathlib import Path\n"
        "import resilin as rs\n"
        "from resilin import elastic\n"
        "from resilin import distributed as dist\n"
        f"mark, second = Path({str(mark)!r}), Path({str(mark) + '2'!r})\n"
        "@elastic.run\n"
        "def train(state):\n"
        "    while state.step < 40:\n"
        "        rank = elastic.world().rank\n"
        "        if state.step == 20 and rank == 1 and not mark.exists():\n"
        "            mark.touch()\n"
        "            lock = threading.Lock()\n"
        "            lock.acquire()\n"
        "            lock.acquire()\n"
        "        if state.step == 20 and rank == 2 and not second.exists():\n"
        "            second.touch()\n"
        "            threading.Timer(0.5, os.kill, (os.getpid(), 9)).start()\n"
        "        dist.all_reduce(rs.ones(4))\n"
        "        state.commit()\n"
        "train(elastic.State(total=rs.tensor([0.0])))\n"
    )
    hasty = HASTY.replace("6.0", "40.0")  # on the way into a world
    run = launch("--standalone", "--nproc-per-node", 3, "--max-restarts", 3, program, hasty=hasty)
    assert run.wait(WAIT_S) == 0, run.err
    killed, hung = deaths(run)
    assert "killed by SIGKILL" in killed
    assert re.search(
        r"rank 1 \(pid \d+\) did not answer and was killed \(it is blocked at \S+program.py:\d+ in train; ", hung
    )
    assert re.search(r"ranks? 0(, 2)? waits? for it in generation \d, which it has not taken up; ", hung), hung
    assert float(re.search(r"no step for ([\d.]+) s", hung)[1]) < 20.0


def test_what_is_usual_is_learned_and_a_stopped_worker_needs_no_flag(hasty):
    run = hasty("stop", "--max-restarts", 1)
    assert run.code == 0, run.err
    (line,) = deaths(run)
    assert "rank 1 " in line
    assert "it is stopped" in line


def test_the_program_of_the_docs_goes_on_when_a_rank_waits_for_a_lock_between_sums_along_the_tree(launch, tmp_path):
    """Its only collective in a step is that of DistributedDataParallel(shards=4); the limit is the real one."""
    docs = (Path(__file__).parents[3] / "docs" / "elastic.md").read_text()
    text = next(
        block for block in re.findall(r"```python runnable\n(.*?)```", docs, re.S) if "DDP(net, shards=4)" in block
    )
    program = tmp_path / "train.py"
    program.write_text(HANG_ONCE + text.replace("optimizer.zero_grad()", "hang_once(state); optimizer.zero_grad()"))
    run = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, program)
    assert run.wait(WAIT_S) == 0, run.err
    (line,) = deaths(run)
    assert re.search(r"rank 1 \(pid \d+\) did not answer and was killed \(it is blocked at \S+ in hang_once; ", line)
    what = r"tree_all_reduce #\d+ float32\[\d+\] SUM of 4 shards"
    assert re.search(rf"; rank 0 waits in {what} of group 'world'; no step for ", line), line
    assert float(re.search(r"no step for ([\d.]+) s", line)[1]) < 8.0
    assert "generation 2: 1 worker (was 2), rank 0 goes on" in run.err


def test_who_computes_is_named_and_goes_on(launch, tmp_path):
    run = launch("--standalone", "--nproc-per-node", 3, WORKER, "circle", tmp_path / "mark")
    (line,) = run.until(lambda: [line for line in run.err.splitlines() if "holds the others up" in line], WAIT_S)
    assert re.search(rf"rank 1 \(host \S+, pid \d+\) holds the others up: {WHY['circle']}; ranks 0, 2 wait in", line)
    assert line.endswith("it is ended after 600 s")
    assert not deaths(run)


@pytest.mark.parametrize("how", extent.short(["circle", "noise"], of=["noise"]))
def test_who_gets_nowhere_is_ended_long_before_one_who_computes_would_be(hasty, how):
    run = hasty(how, "--max-restarts", 1)
    assert run.code == 0, run.err
    told = [line for line in run.err.splitlines() if "rank 1" in line]
    assert re.search(rf"holds the others up: {WHY[how]}; .*it is ended after 600 s$", told[0]), "not known yet"
    (line,) = [line for line in told if "worker died" in line]
    assert re.search(rf"did not answer and was killed \({WHY[how]}; ranks 0, 2 wait in all_reduce #", line)
    assert 3.0 < float(re.search(r"no step for ([\d.]+) s", line)[1]) < 30.0


@pytest.mark.parametrize("plain", extent.short([False, True], of=[False]))
def test_a_worker_that_is_stopped_right_after_its_first_step_is_found(hasty, plain):
    run = hasty("early", "--max-restarts", 1, plain=plain)
    assert run.code == 0, run.err
    named = [line for line in run.err.splitlines() if "did not answer and was killed" in line]
    assert re.search(rf"rank 1 .*was killed \({WHY['stop']}; ranks 0, 2 wait in all_reduce #", named[0]), run.err
    assert run.out.count("trained") == 3


def test_steps_that_a_plain_program_makes_between_two_looks_are_steps(hasty):
    run = hasty("soon", "--max-restarts", 1, plain=True)
    assert run.code == 0, run.err
    named = [line for line in run.err.splitlines() if "did not answer and was killed" in line]
    assert re.search(rf"rank 1 .*was killed \({WHY['lock']}; ranks 0, 2 wait in all_reduce #", named[0]), run.err
    assert run.out.count("trained") == 3


@pytest.mark.deep
def test_who_computes_for_longer_than_that_is_left_alone(hasty):
    run = hasty("work")
    assert run.code == 0, run.err
    assert "worker died" not in run.err
    assert run.out.count("trained") == 3
    assert "holds the others up" in run.err, "it was looked at"


def test_when_all_ranks_hang_outside_of_collectives_that_is_said_and_nobody_is_ended(launch, tmp_path):
    """What is not covered: none waits for another, so none is to blame."""
    run = launch("--standalone", "--nproc-per-node", 2, "--hang-timeout", 2, WORKER, "everybody", tmp_path / "mark")
    where = r"ranks 0, 1 blocked at \S*hanging_worker\.py:\d+ in lock"
    run.until(lambda: re.search(f"no rank waits for another: {where}; nobody is ended", run.err), WAIT_S)
    with pytest.raises(pytest.fail.Exception, match="did not end"):
        run.wait(4.0)
    assert not deaths(run)


def test_the_only_worker_is_ended_wherever_it_hangs(launch, tmp_path):
    size = "--standalone", "--nproc-per-node", 1, "--max-restarts", 1
    run = launch(*size, "--hang-timeout", 2, WORKER, "everybody", tmp_path / "mark")
    assert run.wait(WAIT_S) == 0, run.err
    (line,) = deaths(run)
    assert re.search(
        rf"rank 0 .* did not answer and was killed \({WHY['lock']}; it is the only worker; no step for", line
    )


def test_a_pause_that_was_announced_is_no_hang(hang):
    run = hang("pause", "--hang-timeout", 2)
    assert run.code == 0, run.err
    assert run.err == ""
    assert run.out.count("trained") == 3


def test_off_is_off(launch, tmp_path):
    mark = tmp_path / "mark"
    flags = "--standalone", "--nproc-per-node", 3, "--hang-timeout", "off"
    run = launch(*flags, WORKER, "stop", mark, hasty=HASTY)
    run.until(mark.exists, WAIT_S)
    with pytest.raises(pytest.fail.Exception, match="did not end"):
        run.wait(4.0)
    assert run.err == ""


def test_the_report_has_the_stacks_of_all_ranks_and_json_beside_it(hang, tmp_path):
    logs = tmp_path / "logs"
    run = hang("lock", "--hang-timeout", 4, "--log-dir", logs, plain=True)
    assert run.code == 1, "a plain program, and no restarts"
    _, begin, told = run.err.partition("elastic-run: job failed")  # before it: how the others heard of its end
    first, *rest = f"{begin}{told}".splitlines()
    assert re.match(rf"elastic-run: job failed: rank 1 \(host \S+, pid \d+\) did not answer .*{WHY['lock']}", first)
    told = "\n".join(rest)
    assert re.search(r"line \d+ in lock\n", told), "its own stack"
    assert re.search(r"ranks 0, 2:\n(.*\n)*?.*hanging_worker.py\", line \d+ in step\n", told), "and those of the others"
    (failure,) = logs.glob("*/failure.json")
    body = json.loads(failure.read_text())
    assert first.endswith(body["sentence"])
    assert "in lock" in body["traceback"]
    hang_report = json.loads(Path(body["hang_report"]).read_text())
    assert hang_report["rank"] == body["rank"] == 1
    assert [who["rank"] for who in hang_report["ranks"]] == [0, 1, 2]
    assert all("hanging_worker.py" in who["stacks"] for who in hang_report["ranks"])


def test_the_agent_of_another_node_judges_alike_and_ends_its_worker(launch, tmp_path, free_port):
    options = "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--max-restarts", 1, "--hang-timeout", 4
    runs = [launch(*options, WORKER, "lock", tmp_path / "mark") for _ in range(2)]
    assert [run.wait(WAIT_S) for run in runs] == [0, 0]
    told = [line for run in runs for line in deaths(run)]
    (line,) = [line for line in told if "worker died" in line]
    assert re.search(
        rf"rank 1 \(host \S+, pid \d+\) did not answer and was killed \({WHY['lock']}; rank 0 waits in all_red", line
    )


def test_who_waits_until_a_dead_node_is_known_to_be_lost_is_no_hang(launch, steps, free_port):
    """It holds the state: until the lease of the other node ends it waits for the world without that one."""
    (steps / "hold").touch()
    place = "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-conf", "lease_ttl=600"
    program = "--no-python", sys.executable, INPLACE, steps, 1, 0.01, 2
    first, second = (launch("--nnodes", 2, *place, "--hang-timeout", 1, *program) for _ in range(2))
    for run in (first, second):
        run.until(lambda run=run: "/2 step" in run.out)
    first.until(lambda: (steps / "marks" / "1-3-0").exists())  # three steps are committed
    ranks = [int(re.findall(r"rank (\d)/2", run.out)[0]) for run in (first, second)]
    lost = ranks.index(1)
    (first, second)[lost].signal(signal.SIGKILL)
    left = (first, second)[1 - lost]
    left.until(lambda: re.search("nothing is heard of rank 1, so nobody can be named.*; nobody is ended", left.err))
    assert "worker died" not in left.err


def test_a_command_that_tells_nothing_is_left_alone(launch):
    run = launch("--standalone", "--hang-timeout", 1, "--no-python", sys.executable, "-c", "import time; time.sleep(3)")
    assert run.wait(WAIT_S) == 0
    assert run.err == ""
