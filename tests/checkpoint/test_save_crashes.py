"""A save that is ended at any system call, by an exception or by SIGKILL: the old checkpoint or the new one loads."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tripping import Crash, TrippedOs, crash, fails_with

import resilin
from resilin import checkpoint
from resilin.checkpoint import local
from resilin.errors import CheckpointError, StorageDenied, StorageError
from resilin.testing.ranks import run_ranks

HERE = Path(__file__).parent


def state(value):
    return {"big": resilin.full((300, 300), float(value)), "n": value, "small": resilin.full((3,), float(value))}


def holds(path, **where):
    """Which state a checkpoint has; it must be all of one."""
    tree = checkpoint.load(path, **where)
    value = tree["n"]
    for name in ("big", "small"):
        assert bool((tree[name] == value).all())
    return value


def attempt(monkeypatch, at, strike, world_size, save, victim=0):
    """Save with a fault at call `at` of rank `victim`; returns the calls made, or None when it was never reached."""
    tripped = TrippedOs(at, strike)
    monkeypatch.setattr(local, "os", tripped)

    def rank_main(rank):
        if rank == victim:
            tripped.watch()
        save()

    if world_size == 1:
        try:
            rank_main(0)
            errors = {}
        except (Crash, CheckpointError) as error:
            errors = {0: error}
    else:
        errors = run_ranks(world_size, rank_main, timeout_s=10).errors
    monkeypatch.setattr(local, "os", __import__("os"))
    return None if len(tripped.calls) <= at else errors


def each_call(monkeypatch, strike, world_size, prepare, save, check, victim=0):
    """`prepare`, a save struck at call 0, 1, 2, ... and `check`, until a save is not reached by the fault."""
    for at in range(200):
        prepare()
        errors = attempt(monkeypatch, at, strike, world_size, save, victim)
        if errors is None:
            return at
        check(errors)
    raise AssertionError("a save makes too many calls")


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "victim"), [(1, 0), (2, 0), (2, 1)])
def test_a_crash_at_any_call_leaves_the_checkpoint_before_or_the_new_one(tmp_path, monkeypatch, world_size, victim):
    count = iter(range(200))
    seen = set()

    def prepare():
        prepare.path = tmp_path / str(next(count))
        checkpoint.save(prepare.path, state(1), step=1)

    def check(errors):
        assert isinstance(errors[victim], Crash)
        assert len(errors) == world_size  # nobody hangs, nobody believes that it is complete
        found = {one.name: one for one in checkpoint.list_checkpoints(prepare.path)}
        value = holds(prepare.path)
        seen.add(value)
        assert checkpoint.latest(prepare.path) == str(prepare.path / f"step-{value}")
        assert holds(prepare.path, step=1) == 1
        if value == 1 and "step-2" in found:
            assert "step-2 is torn" in found["step-2"].problem
            with pytest.raises(CheckpointError, match="step-2 is torn"):
                checkpoint.load(prepare.path, step=2)
        checkpoint.save(prepare.path, state(3), step=2)  # and the next save of the step is not disturbed by the ruins
        assert holds(prepare.path) == 3

    calls = each_call(
        monkeypatch, crash, world_size, prepare, lambda: checkpoint.save(prepare.path, state(2), step=2), check, victim
    )
    assert calls >= 12
    assert seen == {1, 2} if victim == 0 and world_size == 1 else 1 in seen


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_crash_while_a_checkpoint_is_replaced_leaves_the_one_or_the_other(tmp_path, monkeypatch, world_size):
    count = iter(range(200))
    seen = set()

    def prepare():
        prepare.path = tmp_path / str(next(count))
        checkpoint.save(prepare.path, state(1))

    def check(errors):
        assert len(errors) == world_size
        seen.add(holds(prepare.path))
        assert checkpoint.verify(prepare.path) == []

    each_call(monkeypatch, crash, world_size, prepare, lambda: checkpoint.save(prepare.path, state(2)), check)
    assert 1 in seen
    assert 2 in seen or world_size == 2  # there the other rank may be the one that commits


@pytest.mark.slow
def test_a_crash_while_older_ones_are_deleted_keeps_the_newest(tmp_path, monkeypatch):
    count = iter(range(200))

    def prepare():
        prepare.path = tmp_path / str(next(count))
        for step in (1, 2):
            checkpoint.save(prepare.path, state(step), step=step)

    def check(errors):
        assert holds(prepare.path) in (2, 3)
        checkpoint.save(prepare.path, state(4), step=4, keep_last=1)
        assert [one.name for one in checkpoint.list_checkpoints(prepare.path)] == ["step-4"]

    each_call(
        monkeypatch, crash, 1, prepare, lambda: checkpoint.save(prepare.path, state(3), step=3, keep_last=1), check
    )


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, StorageError), (errno.EACCES, StorageDenied), (errno.EIO, StorageError)]
)
def test_a_full_or_forbidden_disk_is_told_and_the_checkpoint_before_stays(tmp_path, monkeypatch, number, kind):
    count = iter(range(200))

    def prepare():
        prepare.path = tmp_path / str(next(count))
        checkpoint.save(prepare.path, state(1))

    def check(errors):
        assert holds(prepare.path) in (1, 2)  # 2 without an error: complete, but something could not be tidied up
        if errors:
            assert isinstance(errors[0], kind)
            assert errors[0].errno == number
            assert str(prepare.path) in str(errors[0])

    each_call(monkeypatch, fails_with(number), 1, prepare, lambda: checkpoint.save(prepare.path, state(2)), check)


def test_a_disk_that_is_full_for_one_rank_is_told_by_all(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, state(1))
    errors = attempt(monkeypatch, 2, fails_with(errno.ENOSPC), 2, lambda: checkpoint.save(tmp_path, state(2)), victim=1)
    assert isinstance(errors[1], StorageError)
    assert errors[1].errno == errno.ENOSPC
    assert isinstance(errors[0], StorageError)
    assert "rank 1 failed" in str(errors[0])
    assert (errors[0].errno, errors[0].path) == (errors[1].errno, errors[1].path)  # so all can do the same about it
    assert holds(tmp_path) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("call", [checkpoint.save, lambda *args, **named: checkpoint.save_async(*args, **named).wait()])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_save_that_fails_leaves_nothing_of_itself(tmp_path, monkeypatch, number, call, world_size):
    """Whatever rank it fails on, and however far it had come."""
    checkpoint.save(tmp_path, state(1), step=1)
    real, failing = os.write, []

    def write(fd, data):
        name = os.readlink(f"/proc/self/fd/{fd}")
        if "step-2" in name and Path(name).name.startswith(failing[0]):
            raise OSError(number, os.strerror(number))
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    for failing[:] in (["data-00000"], ["manifest"], *([["data-00001"], ["part-00001"]] if world_size > 1 else [])):
        outcome = run_ranks(world_size, lambda rank: call(tmp_path, state(2), step=2), abort=False)
        assert len(outcome.errors) == world_size, failing
        assert sorted(each.name for each in tmp_path.iterdir()) == ["latest", "step-1"], failing
    assert [one.problem for one in checkpoint.list_checkpoints(tmp_path)] == [None]
    monkeypatch.undo()
    run_ranks(world_size, lambda rank: call(tmp_path, state(2), step=2)).results()
    assert holds(tmp_path) == 2


@pytest.mark.parametrize("call", [checkpoint.save, lambda *args, **named: checkpoint.save_async(*args, **named).wait()])
@pytest.mark.parametrize("step", [None, 2])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_save_that_fails_leaves_no_folder_that_it_made(tmp_path, monkeypatch, call, step, world_size):
    """However far it had come; folders that were there before stay, though they are empty."""
    real, failing = os.write, []

    def write(fd, data):
        if Path(os.readlink(f"/proc/self/fd/{fd}")).name.startswith(failing[0]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    for before in ("", "mine", "mine/new", "mine/new/run"):
        (tmp_path / before).mkdir(parents=True, exist_ok=True)
        there = sorted(tmp_path.rglob("*"))
        for failing[:] in (["data-00000"], ["manifest"], *([["data-00001"], ["part-00001"]] if world_size > 1 else [])):
            outcome = run_ranks(
                world_size, lambda rank: call(tmp_path / "mine" / "new" / "run", state(2), step=step), abort=False
            )
            assert len(outcome.errors) == world_size, failing
            assert sorted(tmp_path.rglob("*")) == there, (before, failing)


def test_a_save_that_fails_at_any_call_leaves_a_checkpoint_or_no_folder(tmp_path, monkeypatch):
    count = iter(range(200))
    nothing = []

    def prepare():
        prepare.path = tmp_path / str(next(count))
        prepare.path.mkdir()

    def check(errors):
        if list(prepare.path.iterdir()) == []:
            assert errors
            nothing.append(prepare.path)
        else:  # complete, though its folder could not be flushed, or not all tidied up
            assert holds(prepare.path / "new" / "run") == 1

    calls = each_call(
        monkeypatch, fails_with(errno.ENOSPC), 1, prepare,
        lambda: checkpoint.save(prepare.path / "new" / "run", state(1), step=1), check,
    )  # fmt: skip
    assert calls > len(nothing) >= 12


def test_an_earlier_save_that_failed_unheard_is_cleaned_up_by_the_next(tmp_path, monkeypatch):
    broken = [True]

    class Broken(local.LocalStorage):
        def writing(self, name):
            if broken[0] and "part-00001" in name:
                raise StorageError("no more files", errno=errno.ENOSPC)
            return super().writing(name)

    def work(rank):
        checkpoint.save_async(Broken(tmp_path), state(2), step=2)
        with pytest.raises(CheckpointError, match="no more files"):
            checkpoint.save_async(Broken(tmp_path), state(3), step=3)
        resilin.distributed.barrier()
        broken[0] = False
        checkpoint.save_async(Broken(tmp_path), state(4), step=4).wait()

    run_ranks(2, work).results()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["latest", "step-4"]


def test_a_failed_save_deletes_nothing_of_others(tmp_path, monkeypatch):
    (tmp_path / "step-2").mkdir()
    (tmp_path / "step-2" / "notes.txt").write_text("mine")
    monkeypatch.setattr(local.LocalStorage, "sync", lambda *args: None)
    monkeypatch.setattr(os, "fsync", fails_with_always(errno.EIO))
    with pytest.raises(StorageError):
        checkpoint.save(tmp_path, state(2), step=2)
    assert [each.name for each in (tmp_path / "step-2").iterdir()] == ["notes.txt"]
    assert checkpoint.list_checkpoints(tmp_path) == []  # nothing of a save is there
    with pytest.raises(CheckpointError, match="step-2 is no checkpoint: nothing there was written by a save"):
        checkpoint.load(tmp_path, step=2)


def fails_with_always(number):
    def fail(*args):
        raise OSError(number, os.strerror(number))

    return fail


# -- real processes


def killed_at_each_call(folder, world_size, victim):
    done = subprocess.run(
        [sys.executable, HERE / "killed_saves.py", folder, str(world_size), str(victim)],
        capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "victim"), [(1, 0), (2, 1)])
def test_a_process_that_is_killed_at_any_call_leaves_what_loads(tmp_path, world_size, victim):
    lines = killed_at_each_call(tmp_path, world_size, victim)
    assert len(lines) >= 12
    values = []
    for path, status, others in lines:
        assert status == "-9"
        assert others == ("none" if world_size == 1 else "PeerLost")
        values.append(holds(path))
        assert holds(path, step=1) == 1
        assert checkpoint.latest(path).endswith(f"step-{values[-1]}")
    assert 1 in values
    assert world_size > 1 or values == sorted(values)  # once the new one is there it stays


@pytest.mark.slow
def test_a_limit_of_file_sizes_is_told(tmp_path):
    code = (
        "import resource, sys; from resilin import checkpoint; import resilin; "
        "checkpoint.save(sys.argv[1], {'n': 1, 'big': resilin.ones(10)}); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
        "checkpoint.save(sys.argv[1], {'n': 2, 'big': resilin.ones(100_000)})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    assert "StorageError" in done.stderr
    assert "too large" in done.stderr
    assert checkpoint.load(tmp_path)["n"] == 1
    assert not list(tmp_path.glob("*.partial-*"))


def test_what_was_left_beside_the_checkpoints_goes_with_a_later_save(tmp_path):
    """Of a save that was killed before its first file, and of one that was killed while it named the newest."""
    checkpoint.save(tmp_path, state(1), step=1)
    (tmp_path / "step-7").mkdir()
    (tmp_path / "step-8").mkdir()
    (tmp_path / "step-8" / "notes.txt").write_text("somebody's")
    (tmp_path / "latest.partial-00aa").write_text("step-")
    checkpoint.save(tmp_path, state(2), step=2, keep_last=1)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["latest", "step-2", "step-8"]


def test_an_old_one_that_another_rank_deletes_first_is_no_trouble(tmp_path, caplog):
    """Of ranks that are last at once, each deletes what is one too many."""

    class Second(local.LocalStorage):
        def delete(self, name):
            if name == "step-1/manifest.json":
                self.delete_tree("step-1")
            super().delete(name)

    checkpoint.save(tmp_path, state(1), step=1)
    checkpoint.save(Second(tmp_path), state(2), step=2, keep_last=1)
    assert not caplog.records
    assert [one.name for one in checkpoint.list_checkpoints(tmp_path)] == ["step-2"]
