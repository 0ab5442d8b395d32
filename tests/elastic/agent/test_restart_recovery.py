"""Programs that know nothing of recovery: every failure restarts all workers."""

import itertools
import json
import os
import re
import signal

import pytest
from launches import processes_with, until

pytestmark = pytest.mark.multiproc
USUAL_GRACE_S = 30.0  # --shutdown-timeout where it is not given

FAILS_BEFORE = """
import os, sys, time
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
os.write(1, f"rank {os.environ['RANK']} attempt {count}\\n".encode())  # one write: lines must not mix
if os.environ["RANK"] == "1" and count < int(sys.argv[1]):
    raise ValueError("boom")
"""

SLEEPS = """
import os, sys, time
print("up", flush=True)
time.sleep(1000)
"""


def test_all_workers_start_again_after_a_failure_and_the_job_succeeds(launch, script):
    run = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 2, script(FAILS_BEFORE), 2)
    assert run.wait() == 0
    lines = run.out.splitlines()  # rank 0 of an earlier attempt may be stopped before it says a word
    assert {"rank 1 attempt 0", "rank 1 attempt 1", "rank 0 attempt 2", "rank 1 attempt 2"} <= set(lines)
    assert len(lines) == len(set(lines)) <= 6
    assert "generation 3: 2 workers, all started again" in run.err


def test_restarts_run_out_and_the_report_names_the_rank_and_its_exception(launch, script, tmp_path):
    logs = tmp_path / "logs"
    run = launch(
        "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "--log-dir", logs, "-r", 2, script(FAILS_BEFORE), 9
    )
    assert run.wait() == 1
    first = next(line for line in run.err.splitlines() if "job failed" in line)
    assert "rank 1" in first
    assert "raised ValueError: boom" in first
    assert run.err.count("Traceback") == 1
    report = json.loads(next(logs.glob("*/failure.json")).read_text())
    assert (report["rank"], report["type"], report["message"]) == (1, "ValueError", "boom")
    assert sorted(p.parent.parent.name for p in logs.glob("*/attempt_*/1/stderr.log")) == ["attempt_0", "attempt_1"]


def test_a_traceback_on_the_terminal_is_not_printed_again(launch, script):
    run = launch("--standalone", "--nproc-per-node", 2, script(FAILS_BEFORE), 9)
    assert run.wait() == 1
    assert run.err.count("ValueError: boom") == 1
    assert run.err.count("rank 1 (host") == 1


def test_the_report_names_the_exception_of_a_program_that_only_imports_resilin(launch, script):
    run = launch("--standalone", "--nproc-per-node", 2, script(f"import resilin\n{FAILS_BEFORE}"), 9)
    assert run.wait() == 1
    (last,) = [line for line in run.err.splitlines() if "job failed" in line]
    assert last.startswith("elastic-run: job failed: rank 1 (host ")
    assert last.endswith("raised ValueError: boom")
    assert run.err.count("Traceback") == 1


CHILD_FAILS = """
import os, subprocess, sys
import resilin
child = "import os, resilin\\nraise KeyError('in a child')"
subprocess.run([sys.executable, "-c", child], check=False)
if os.fork() == 0:
    raise KeyError("in a fork")
os.wait()
sys.exit(5)
"""


def test_an_exception_of_a_workers_child_is_not_taken_for_its_own(launch, script):
    run = launch("--standalone", script(CHILD_FAILS))
    assert run.wait() == 1
    assert run.err.count("KeyError: 'in a") == 2
    (last,) = [line for line in run.err.splitlines() if "job failed" in line]
    assert last.endswith("exited with code 5")


PEERS = """
import os, sys
import numpy as np
from resilin import dist
dist.init_process_group()
rank = dist.get_rank()
if sys.argv[1] == "mismatch":
    dist.all_reduce(np.ones(3 + rank))
elif rank == 1:
    raise ValueError("the cause")
dist.all_reduce(np.ones(3))
"""


@pytest.mark.parametrize(
    ("way", "said"), [("mismatch", "raised CollectiveMismatch: "), ("raise", "ValueError: the cause")]
)
def test_every_node_names_the_exception_of_a_program_that_uses_dist(launch, script, free_port, way, said):
    place = "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}"
    runs = [launch(*place, script(PEERS), way) for _ in range(2)]
    assert [run.wait() for run in runs] == [1, 1]
    for run in runs:
        (last,) = [line for line in run.err.splitlines() if "job failed" in line]
        assert said in last


FOLLOWS = """
import os, sys, time
import resilin
from resilin.errors import PeerLost
if os.environ["RANK"] == "0":
    raise PeerLost("rank 1 left", (1,))
time.sleep(float(sys.argv[1]))
raise ValueError("the cause")
"""


def test_the_cause_is_named_though_the_rank_that_followed_from_it_ended_first(launch, script):
    run = launch("--standalone", "--nproc-per-node", 2, script(FOLLOWS), 0.4)
    assert run.wait() == 1
    (last,) = [line for line in run.err.splitlines() if "job failed" in line]
    assert "rank 1 (host" in last
    assert last.endswith("raised ValueError: the cause")


def test_the_cause_is_the_first_line_before_a_restart_too(launch, script):
    run = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, script(FOLLOWS), 0.4)
    assert run.wait() == 1
    told = [line for line in run.err.splitlines() if "worker died" in line]
    assert [line.partition(" (")[0] for line in told] == [f"elastic-run: worker died: rank {rank}" for rank in (1, 0)]


def test_a_cause_that_does_not_show_is_not_waited_for(launch, script):
    run = launch("--standalone", "--nproc-per-node", 2, script(FOLLOWS), 1000)
    assert run.wait() == 1
    (last,) = [line for line in run.err.splitlines() if "job failed" in line]
    assert "rank 0 (host" in last
    assert "raised PeerLost: rank 1 left" in last


def test_sigterm_reaches_the_workers_and_the_exit_code_says_so(launch, script):
    program = script(
        "import os, signal, sys, time\n"
        "def stop(number, frame):\n"
        "    print('asked to stop', flush=True)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('up', flush=True)\n"
        "time.sleep(999)\n"
    )
    run = launch("--standalone", "--nproc-per-node", 2, program)
    run.until(lambda: run.out.count("up") == 2)
    run.signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    assert run.out.count("asked to stop") == 2


def test_a_worker_that_is_stopped_is_let_run_to_end_itself(launch, script):
    program = script(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('asked to stop'))\n"
        "print('up', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        "time.sleep(999)\n"
    )
    run = launch("--standalone", program)
    run.until(lambda: "up" in run.out)
    run.signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    assert "asked to stop" in run.err


def test_a_worker_that_ignores_sigterm_is_killed_after_the_timeout(launch, script):
    program = script(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(999)\n"
    )
    run = launch("--standalone", "--shutdown-timeout", 0.3, program)
    run.until(lambda: "up" in run.out)
    run.signal(signal.SIGTERM)
    assert run.wait(USUAL_GRACE_S - 2) == 128 + signal.SIGTERM
    assert not processes_with(str(program))


def test_a_second_signal_kills_at_once(launch, script):
    program = script(
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(999)\n"
    )
    run = launch("--standalone", "--shutdown-timeout", 1000, program)
    run.until(lambda: "up" in run.out)
    run.signal(signal.SIGINT)
    run.until(lambda: "SIGINT" in run.err)
    run.signal(signal.SIGINT)
    assert run.wait() == 128 + signal.SIGINT


LEAVES_CHILDREN = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "1000"])                                 # in the worker's process group
subprocess.Popen(["sleep", "1000"], start_new_session=True)         # a daemon that left it
print("up", flush=True)
time.sleep(float(sys.argv[1]))
"""


def test_sigkill_of_the_launcher_leaves_no_process_behind(launch, script, tmp_path):
    run = launch("--standalone", "--nproc-per-node", 2, script(LEAVES_CHILDREN), 1000, MARK=f"mark-{tmp_path}")
    run.until(lambda: run.out.count("up") == 2)
    # launcher, spawner, two workers, four children; the kernel shows an environment a moment after the start
    until(lambda: len(processes_with(f"mark-{tmp_path}")) >= 8)
    run.signal(signal.SIGKILL)
    until(lambda: not processes_with(f"mark-{tmp_path}"))


def test_what_workers_leave_running_ends_with_the_job(launch, script, tmp_path):
    run = launch("--standalone", script(LEAVES_CHILDREN), 0, MARK=f"mark-{tmp_path}")
    assert run.wait() == 0
    assert not processes_with(f"mark-{tmp_path}")


def test_the_death_of_the_spawner_ends_the_workers_and_is_reported(launch, script, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    run = launch("--standalone", script(SLEEPS), MARK=f"mark-{tmp_path}", TMPDIR=str(scratch))
    run.until(lambda: "up" in run.out)
    (spawner,) = [pid for pid in processes_with("resilin-spawner") if pid in processes_with(f"mark-{tmp_path}")]
    os.kill(spawner, signal.SIGKILL)
    assert run.wait() == 6
    assert "spawner" in run.err
    assert not list(scratch.iterdir())
    until(lambda: not processes_with(f"mark-{tmp_path}"))


def test_what_workers_left_running_ends_with_the_job_when_the_spawner_is_killed(launch, script, tmp_path):
    run = launch("--standalone", "--nproc-per-node", 2, script(LEAVES_CHILDREN), 1000, MARK=f"mark-{tmp_path}")
    run.until(lambda: run.out.count("up") == 2)
    (spawner,) = [pid for pid in processes_with("resilin-spawner") if pid in processes_with(f"mark-{tmp_path}")]
    os.kill(spawner, signal.SIGKILL)
    assert run.wait() == 6
    assert not processes_with(f"mark-{tmp_path}"), "the launcher ends after what it inherited"


IGNORES = """
import signal, sys, time
numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
print("ignores", *(n.name for n in numbers if signal.getsignal(n) is signal.SIG_IGN), flush=True)
time.sleep(float(sys.argv[1]))
"""


def test_signals_that_are_ignored_at_the_start_stay_ignored(launch, script):
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        run = launch("--standalone", script(IGNORES), 1000)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    run.until(lambda: "ignores SIGHUP SIGINT\n" in run.out)
    run.signal(signal.SIGHUP)
    run.signal(signal.SIGINT)
    run.signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    assert run.err.splitlines()[0] == "elastic-run: SIGTERM: asking the workers to end"


def test_no_temporary_folder_stays_behind(launch, script, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ok = launch("--standalone", script("pass"), TMPDIR=str(scratch))
    assert ok.wait() == 0
    killed = launch("--standalone", script(SLEEPS), TMPDIR=str(scratch))
    killed.until(lambda: "up" in killed.out)
    assert list(scratch.iterdir())
    killed.signal(signal.SIGKILL)
    until(lambda: not list(scratch.iterdir()))


def test_a_worker_killed_from_outside_is_named_with_its_signal(launch, script):
    program = script("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    run = launch("--standalone", program)
    assert run.wait() == 1
    assert "killed by SIGSEGV" in run.err.splitlines()[-2]


DIES_IN_A_COLLECTIVE = """
import os, signal, sys, threading, time
import resilin
from resilin import dist
from resilin._base import flight

def killed_when_inside():
    while not flight.running(dist_file):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGSEGV)

dist.init_process_group()
dist.all_reduce(resilin.zeros(3))
if dist.get_rank() == 1:
    import pathlib
    folder = pathlib.Path(os.environ["RESILIN_TRACE_DIR"])
    (dist_file,) = folder.glob(f"*_{os.getpid()}*.flight")
    threading.Thread(target=killed_when_inside, daemon=True).start()
    dist.all_reduce(resilin.zeros(4))
else:
    time.sleep(1000)
"""


def test_the_first_line_names_the_collective_in_which_a_killed_worker_was(launch, script):
    run = launch("--standalone", "--nproc-per-node", 2, script(DIES_IN_A_COLLECTIVE))
    assert run.wait() == 1
    (line,) = [line for line in run.err.splitlines() if "job failed" in line]
    assert re.search(
        r"rank 1 \(host \S+, pid \d+\) killed by SIGSEGV in all_reduce #1 float32\[4\] SUM of group '\w+'$", line
    )


def test_a_program_that_fails_at_once_is_started_again_at_growing_intervals(launch, script, tmp_path):
    path = str(tmp_path / "starts")
    program = script(f"import sys, time\nopen({path!r}, 'a').write(f'{{time.monotonic()}}\\n')\nsys.exit(1)\n")
    run = launch("--max-restarts", 3, program)
    assert run.wait() == 1
    starts = [float(line) for line in (tmp_path / "starts").read_text().split()]
    pauses = [after - before for before, after in itertools.pairwise(starts)]
    assert len(pauses) == 3
    assert pauses[1] > 0.25
    assert pauses[2] > 0.5


ENDS_EARLY = """
import os, sys
import numpy as np
from resilin import dist
dist.init_process_group()
for step in range(5):
    if step == 3 and os.environ["RANK"] in sys.argv[1:]:
        sys.exit(0)
    dist.all_reduce(np.ones(3))
"""


@pytest.mark.parametrize("early", ["1", "1 2"])
def test_who_ends_well_while_others_wait_for_it_is_the_cause_and_not_those_that_miss_it(launch, script, early):
    run = launch("--standalone", "--nproc-per-node", 3, "--max-restarts", 1, script(ENDS_EARLY), *early.split())
    assert run.wait() == 1
    (again,) = re.findall(r"generation 2: 3 workers, all started again \((.*)\)$", run.err, re.M)
    assert re.match(r"ranks? (0|0, 2) failed: rank 1, pid \d+ on \S+, exited with code 0 while others waited", again)
    (first,) = re.findall(r"job failed: (.*)", run.err)
    assert re.match(r"rank 1 \(host \S+, pid \d+\) exited with code 0 while others waited for it \(PeerLost of", first)
    assert ("rank 2 had ended, too" in first) is (early == "1 2")
