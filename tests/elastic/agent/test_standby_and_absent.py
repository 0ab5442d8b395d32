"""Workers without a place, workers that never come, and what becomes of those that fail outside of the world."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launches import INPLACE, processes_with, until

pytestmark = pytest.mark.multiproc


def command(steps, count, size=1):
    return "--no-python", sys.executable, INPLACE, steps, count, 0.005, size


@pytest.fixture
def around(script):
    """`around(before, after)`: a program that runs these lines before and after those of `inplace_worker.py`."""

    def write(before="", after=""):
        return script(
            f"import os, runpy, signal, sys, time\n{before}\n"
            f"sys.path.insert(0, {str(INPLACE.parent)!r})\n"
            f"runpy.run_path({str(INPLACE)!r}, run_name='__main__')\n{after}\n"
        )

    return write


def python(program, steps, count):
    return "--no-python", sys.executable, program, steps, count


def test_workers_beyond_the_shards_stand_by_and_end_with_the_job(launch, steps):
    (steps / "hold").touch()
    run = launch("--standalone", "--nproc-per-node", 3, *command(steps, 20), LIMIT="1")
    run.until(lambda: "2 workers stand by: the batch has 1 shard" in run.err)
    (steps / "hold").unlink()
    assert run.wait() == 0
    assert run.out.splitlines() == ["world 2 rank 0/1 step 0"], "a world of three never works"
    assert run.err.count("2 workers stand by: the batch has 1 shard") == 1
    assert "died" not in run.err
    assert not processes_with(str(steps))


def test_a_node_that_joins_a_full_world_stands_by_and_takes_over_at_a_death(launch, steps, free_port):
    (steps / "hold").touch()
    place = "--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_port}"
    first = launch(*place, "--nproc-per-node", 2, *command(steps, 30), LIMIT="2")
    first.until(lambda: first.out.count("world 1") == 2)
    second = launch(*place, *command(steps, 30), LIMIT="2")
    second.until(lambda: "1 worker stands by: the batch has 2 shards" in second.err)
    assert "generation 2" not in first.err, "the world that is full goes on undisturbed"
    (steps / "die-0").write_text("1 SIGKILL")
    second.until(lambda: "rank 1/2" in second.out)
    (steps / "hold").unlink()
    assert [first.wait(), second.wait()] == [0, 0]


def test_a_node_that_was_never_needed_ends_well(launch, steps, free_port):
    (steps / "hold").touch()
    place = "--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_port}"
    first = launch(*place, *command(steps, 30), LIMIT="1")
    first.until(lambda: "world 1" in first.out)
    second = launch(*place, *command(steps, 30), LIMIT="1")
    second.until(lambda: "1 worker stands by" in second.err)
    (steps / "hold").unlink()
    assert [first.wait(), second.wait()] == [0, 0]
    assert second.out == ""
    assert len(second.err.splitlines()) == 1


def test_a_rank_that_never_joins_is_named_and_ends_the_job_after_the_join_timeout(launch, steps, around):
    program = around("if os.environ['RANK'] == '1':\n    time.sleep(1000)")
    conf = "--rdzv-conf", "join_timeout=1"
    run = launch("--standalone", "--nproc-per-node", 2, *conf, *python(program, steps, 20))
    assert run.wait() == 4
    waits, gives_up = run.err.splitlines()
    assert waits.startswith("elastic-run: waiting for rank 1 (host ")
    assert gives_up.startswith("elastic-run: gave up after 1 s: rank 1 (host ")
    assert "--rdzv-conf join_timeout=" in gives_up
    assert not processes_with(str(steps))


def test_a_rank_that_ends_well_before_it_joins_is_not_waited_for(launch, steps, around):
    program = around("if os.environ['RANK'] == '1':\n    sys.exit(0)")
    run = launch("--standalone", "--nproc-per-node", 2, *python(program, steps, 20))
    assert run.wait() == 0
    assert "1 worker (was 2), rank 0 goes on (rank 1 ended before joining)" in run.err


def test_an_agent_says_how_many_nodes_it_waits_for_and_where(launch, steps, free_port):
    place = f"127.0.0.1:{free_port}"
    run = launch("--nnodes", 2, "--rdzv-endpoint", place, "--rdzv-conf", "join_timeout=1", *command(steps, 20))
    assert run.wait() == 4
    assert f"waiting for 1 more node at {place} (1 of at least 2 nodes are there)" in run.err


def test_a_failure_after_training_fails_the_job_and_says_that_nothing_was_restarted(launch, steps, around):
    program = around(after="if os.environ['RANK'] == '1':\n    os.kill(os.getpid(), signal.SIGKILL)")
    run = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 3, *python(program, steps, 20))
    assert run.wait() == 1
    (line,) = run.err.splitlines()
    assert line.startswith("elastic-run: job failed: rank 1 (host ")
    assert line.endswith("killed by SIGKILL after training had finished: not restarted")


def test_nodes_whose_leases_ran_out_while_the_store_was_away_go_on_together(launch, steps, free_port):
    serve = [Path(sys.executable).with_name("resilin"), "store", "serve", "--port", str(free_port)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as store:
        try:
            assert "serving" in store.stdout.readline()
            (steps / "hold").touch()
            place = "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-conf", "lease_ttl=1,is_host=0"
            runs = [launch(*place, *command(steps, 30)) for _ in range(2)]
            until(lambda: all("world 1" in run.out for run in runs))
            store.send_signal(signal.SIGSTOP)
            time.sleep(1.6)  # longer than the leases
            store.send_signal(signal.SIGCONT)
            before = int((steps / "committed").read_text())
            until(lambda: int((steps / "committed").read_text()) > before + 100)
            (steps / "hold").unlink()
            assert [run.wait() for run in runs] == [0, 0]
        finally:
            store.kill()


@pytest.mark.parametrize("place", ["before", "after"])
def test_an_exception_outside_of_the_elastic_function_is_named(launch, script, place):
    boom = "raise ValueError('boom')\n"
    program = script(
        "from resilin import elastic\n"
        "@elastic.run\n"
        "def train():\n"
        "    pass\n" + (boom if place == "before" else "") + "train()\n" + boom
    )
    run = launch("--standalone", program)
    assert run.wait() == 1
    last = run.err.splitlines()[-1] if place == "after" else run.err.splitlines()[-2]
    assert "raised ValueError: boom" in last
    assert run.err.count("Traceback") == 1


def test_a_node_whose_program_cannot_start_says_so_with_its_exit_code(launch, steps, script, free_port):
    (steps / "hold").touch()
    place = "--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--max-restarts", 1
    first = launch(*place, *command(steps, 30))
    first.until(lambda: "world 1" in first.out)
    second = launch(*place, *python(script("import sys; sys.exit(3)"), steps, 30))
    second.until(lambda: second.err.count("exited with code 3") == 2)
    (steps / "hold").unlink()
    assert [first.wait(), second.wait()] == [0, 1]
    last = second.err.splitlines()[-3:]
    assert last[0].startswith("elastic-run: all workers of this node failed: rank 1 (host ")
    assert last[2] == "  the job has succeeded without this node"
