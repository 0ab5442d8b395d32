"""Saves behind training: what was there when they began is saved, one at a time, and no error is lost."""

import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest

import resilin
from resilin import checkpoint
from resilin.checkpoint.local import LocalStorage
from resilin.errors import CheckpointError, DistError, StorageError, UsageError
from resilin.testing.ranks import run_ranks

WAIT_S = 10


class Gated(LocalStorage):
    """Files are written when the gate is open; with `error`, they fail then."""

    def __init__(self, root, error=None):
        super().__init__(root)
        self.gate, self.begun, self.error = threading.Event(), threading.Event(), error

    @contextmanager
    def writing(self, name):
        self.begun.set()
        assert self.gate.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        with super().writing(name) as file:
            yield file


def test_what_changes_after_the_call_is_not_saved(tmp_path):
    storage = Gated(tmp_path)
    tensor, plain = resilin.zeros(1000), [1]
    handle = checkpoint.save_async(storage, {"t": tensor, "l": plain}, step=1)
    assert storage.begun.wait(WAIT_S)
    tensor.add_(1)
    plain.append(2)
    assert not handle.done()
    assert handle.exception() is None
    assert checkpoint.latest(tmp_path) is None
    storage.gate.set()
    assert handle.wait() == str(tmp_path / "step-1")
    assert handle.done()
    assert handle.wait() == handle.path
    loaded = checkpoint.load(tmp_path)
    assert not loaded["t"].any()
    assert loaded["l"] == [1]


def test_a_second_save_waits_for_the_first_and_uses_its_memory(tmp_path):
    storage = Gated(tmp_path)
    first = checkpoint.save_async(storage, {"t": resilin.zeros(1000)}, step=1)
    made = []

    def second():
        made.append(checkpoint.save_async(storage, {"t": resilin.ones(1000)}, step=2))

    opener = threading.Timer(0.1, storage.gate.set)
    opener.start()
    second()  # in this thread: returns only when the first is written
    assert first.done()
    assert storage.gate.is_set()
    made[0].wait()
    opener.join()
    assert not checkpoint.load(tmp_path, step=1)["t"].any()
    assert checkpoint.load(tmp_path, step=2)["t"].all()
    memory = first._work[2]
    assert memory is made[0]._work[2]
    assert memory.nbytes <= 4096


def test_a_timeout_leaves_the_writing_to_go_on(tmp_path):
    storage = Gated(tmp_path)
    handle = checkpoint.save_async(storage, {"t": resilin.zeros(3)})
    for timeout in (0.05, 0):
        with pytest.raises(TimeoutError, match=rf"{tmp_path}.* is not written within {timeout} s; the writing goes on"):
            handle.wait(timeout=timeout)
    for timeout in ("x", float("nan"), -1):
        with pytest.raises(UsageError, match=r"^SaveHandle\.wait: timeout: expected seconds or a timedelta"):
            handle.wait(timeout)
    with pytest.raises(TimeoutError, match=r"is not written within 0.05 s"):
        handle.wait(timedelta(milliseconds=50))
    storage.gate.set()
    handle.wait()
    assert checkpoint.load(tmp_path)["t"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("heard", ["wait", "save", "save_async"])
def test_an_error_is_raised_by_wait_or_by_the_next_save(tmp_path, heard):
    storage = Gated(tmp_path, StorageError("the disk is full", errno=28))
    handle = checkpoint.save_async(storage, {"t": resilin.zeros(3)}, step=1)
    storage.gate.set()
    with pytest.raises(StorageError, match="the disk is full"):
        handle.wait() if heard == "wait" else getattr(checkpoint, heard)(tmp_path, {"t": resilin.zeros(3)}, step=2)
    assert handle.done()
    assert isinstance(handle.exception(), StorageError)
    checkpoint.save(tmp_path, {"t": resilin.zeros(3)}, step=3)  # it was told once
    assert checkpoint.latest(tmp_path) == str(tmp_path / "step-3")


def test_an_error_of_one_rank_is_raised_by_all(tmp_path):
    def work(rank):
        storage = Gated(tmp_path, StorageError("the disk is full") if rank == 1 else None)
        storage.gate.set()
        checkpoint.save_async(storage, {"t": resilin.zeros(400, 400)}, step=1).wait()

    outcome = run_ranks(3, work, abort=False)
    assert sorted(outcome.errors) == [0, 1, 2]
    assert "disk is full" in str(outcome.errors[1])
    for rank in (0, 2):
        assert isinstance(outcome.errors[rank], CheckpointError)
        assert "rank 1 failed" in str(outcome.errors[rank])
    assert checkpoint.latest(tmp_path) is None


def test_ranks_write_behind_collectives_of_the_main_thread(tmp_path):
    def work(rank):
        tensor = resilin.full((400, 500), 3.0)
        handles = []
        for step in range(4):
            handles.append(checkpoint.save_async(tmp_path, {"t": tensor, "step": step}, step=step, keep_last=2))
            for _ in range(20):
                resilin.distributed.all_reduce(resilin.ones(10))
            tensor.add_(1)
        return handles[-1].wait()

    run_ranks(3, work).results()
    assert [one.step for one in checkpoint.list_checkpoints(tmp_path)] == [2, 3]
    loaded = checkpoint.load(tmp_path)
    assert loaded["step"] == 3
    assert bool((loaded["t"] == 6).all())


def test_a_rank_that_dies_while_the_others_write_leaves_it_torn_and_ends_the_wait(tmp_path):
    checkpoint.save(tmp_path, {"t": resilin.ones(3)}, step=1)

    def work(rank):
        storage = Gated(tmp_path, StorageError("killed") if rank == 1 else None)
        storage.gate.set()
        handle = checkpoint.save_async(storage, {"t": resilin.zeros(400, 400)}, step=2)
        if rank == 1:
            raise KeyboardInterrupt
        handle.wait()

    outcome = run_ranks(3, work)
    for rank in (0, 2):
        assert isinstance(outcome.errors[rank], DistError), outcome.errors
    assert checkpoint.latest(tmp_path) == str(tmp_path / "step-1")


def test_it_completes_when_the_group_is_gone(tmp_path):
    """The ranks that are left finish by themselves: no collective is needed to commit."""
    storages = [Gated(tmp_path) for _ in range(2)]
    handles = [None, None]

    def work(rank):
        handles[rank] = checkpoint.save_async(storages[rank], {"t": resilin.arange(100_000).view(100, 1000)}, step=5)

    run_ranks(2, work).results()
    for storage in storages:
        storage.gate.set()
    for handle in handles:
        handle._thread.join(WAIT_S)
    assert checkpoint.latest(tmp_path) == str(tmp_path / "step-5")
    assert checkpoint.load(tmp_path)["t"].view(-1).tolist() == list(range(100_000))


PROGRAM = """
import sys, threading, resilin
from resilin import checkpoint
from resilin.errors import StorageError
from resilin.checkpoint.local import LocalStorage
class Slow(LocalStorage):
    def writing(self, name):
        threading.Event().wait(0.2)
        return super().writing(name)
checkpoint.save_async(Slow(sys.argv[1]), {"t": resilin.ones(10)}, step=1)
%s
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError"])
def test_a_process_that_exits_completes_it(tmp_path, end):
    code = subprocess.run(
        [sys.executable, "-c", PROGRAM % end, tmp_path], timeout=60, stdin=subprocess.DEVNULL, capture_output=True
    ).returncode
    assert code == {"": 0, "sys.exit(3)": 3, "raise ValueError": 1}[end]
    assert checkpoint.load(tmp_path)["t"].all()


def test_an_error_that_nobody_heard_of_is_logged_at_exit(tmp_path):
    program = PROGRAM.replace("return super().writing(name)", "raise StorageError(name)") % ""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path],
        timeout=60,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert "a checkpoint failed" in done.stderr


class Interrupted(LocalStorage):
    """The process is interrupted when the first file is there."""

    @contextmanager
    def writing(self, name):
        with super().writing(name) as file:
            yield file
        raise KeyboardInterrupt


def test_a_save_that_is_interrupted_leaves_nothing_where_no_other_rank_writes(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(Interrupted(tmp_path), {"t": resilin.ones(400, 400)}, step=2)
    assert list(tmp_path.iterdir()) == []
