"""The last one that has the job's state is asked to leave while the others' replacements start: nothing is lost."""

import os
import signal
import time

import pytest
from counting_job import jobs

pytestmark = pytest.mark.multiproc


@pytest.fixture
def job(tmp_path):
    with jobs(tmp_path) as make:
        yield lambda **options: make(tmp_path / "meeting", "--rdzv-backend=file", **options)


def test_a_worker_that_is_asked_to_leave_as_the_other_is_killed_hands_its_state_over(job):
    one = job(workers=2, restarts=20)
    one.node(None, "a")
    one.until(lambda: one.steps("a", 2) > 20 and one.steps("a", 2, 1) > 20)
    (killed, before), (asked, _) = one.worker("a", 2), one.worker("a", 2, 1)
    os.kill(killed, signal.SIGKILL)
    os.kill(asked, signal.SIGTERM)
    one.until(lambda: one.steps("a", 1) > before + 20)
    assert "training begins at step 1" not in one.err("a")
    one.until(lambda: not os.path.exists(f"/proc/{asked}"))  # who has handed over leaves
    (one.folder / "hold").unlink()
    assert one.started["a"].wait(60) == 0, one.err("a")


def test_a_node_that_is_asked_to_leave_as_the_others_worker_is_killed_hands_its_state_over(job):
    one = job(nodes="1:2")
    one.node(None, "a")
    one.node(None, "b")
    one.until(lambda: one.steps("a", 2) > 20 and one.steps("b", 2) > 20)
    killed, before = one.worker("a", 2)
    os.kill(killed, signal.SIGKILL)
    one.started["b"].terminate()
    assert one.started["b"].wait(60) == 143, one.err("b")
    one.until(lambda: one.steps("a", 1) > before + 20)
    assert "no worker is left that holds the state" not in one.err("a"), one.err("a") + one.err("b")
    (one.folder / "hold").unlink()
    assert one.started["a"].wait(60) == 0, one.err("a")


def test_one_to_whom_nobody_comes_in_time_leaves_and_says_what_is_lost(job):
    one = job(workers=2, restarts=20)
    one.flags += ("--shutdown-timeout=3",)
    one.node(None, "a")
    one.until(lambda: one.steps("a", 2) > 20 and one.steps("a", 2, 1) > 20)
    (killed, _), (asked, _) = one.worker("a", 2), one.worker("a", 2, 1)
    (one.folder / "slow").touch()  # who starts now takes a minute to get there
    os.kill(killed, signal.SIGKILL)
    os.kill(asked, signal.SIGTERM)
    begun = time.monotonic()
    one.until(lambda: "nobody could take the state over" in one.err("a"))
    assert 1 < time.monotonic() - begun < 30
    assert " is lost unless a checkpoint has it" in one.err("a")
    one.until(lambda: not os.path.exists(f"/proc/{asked}"))


HANGS_ONCE = """
        if os.environ["LOCAL_RANK"] == "1" and (folder / "hang").exists():
            (folder / "hang").unlink()
            time.sleep(1000)
"""


@pytest.mark.deep
def test_while_a_newcomer_waits_only_the_one_that_hangs_is_ended(job):
    """The other one has the state, and waits in the old world for the one that hangs."""
    one = job(nodes="1:2", workers=2, each=HANGS_ONCE)
    one.node(None, "a")
    one.until(lambda: one.steps("a", 2) > 20)
    pid, before = one.worker("a", 2)
    (one.folder / "hang").touch()
    one.until(lambda: not (one.folder / "hang").exists())
    one.node(None, "b")
    one.until(lambda: one.steps("a", 4) > before and one.steps("b", 4) > before)
    assert one.worker("a", 4)[0] == pid, "the one that has the state is another process"
    assert one.err("a").count("worker died: rank 1 ") == 1
    assert "starts again from" not in one.err("a")
