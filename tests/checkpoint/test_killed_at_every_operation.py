"""Savers and loaders killed at every operation, local and S3, in every stage of ZeRO: what is there loads."""

import shutil
import threading
from contextlib import contextmanager

import extent
import pytest
from trained_states import build, digest, train

import resilin
from resilin import checkpoint
from resilin.checkpoint.open_storage import open_storage
from resilin.errors import CheckpointError, DistError
from resilin.testing.faults import Killed
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks
from resilin.testing.storage_faults import FaultyStorage, StorageFaults

CHANGES = ("open", "write", "commit", "delete", "delete_tree", "sync")


class Dead(BaseException):
    """Ends a rank as if its process had died: its connections close."""


class VictimLast(FaultyStorage):
    """The victim lists its files when the other rank has looked for them in vain: it is the one that completes."""

    def __init__(self, inner, faults, looked, is_victim):
        super().__init__(inner, faults)
        self.looked, self.is_victim = looked, is_victim

    @contextmanager
    def writing(self, name):
        if self.is_victim and "part-" in name:
            assert self.looked.wait(PATIENCE_S)
        with super().writing(name) as file:
            yield file

    def list(self, folder=""):
        items = super().list(folder)
        if not self.is_victim and any(item.name.startswith("part-") for item in items):
            self.looked.set()
        return items


def killed(faults, save, world_size, victim):
    """`save(rank, faulty)` with rank `victim` killed where the plan says; whether it came so far.

    faulty: makes the storage that `save` writes to of the one that it would write to.
    """
    looked = threading.Event()

    def work(rank):
        plan = faults if rank == victim else StorageFaults()
        try:
            save(rank, lambda inner: VictimLast(inner, plan, looked, rank == victim))
        except Killed:
            raise Dead from None

    outcome = run_ranks(world_size, work, timeout_s=20)
    if not faults.all_fired():
        assert not outcome.errors, outcome.errors
        return False
    assert isinstance(outcome.errors.pop(victim), Dead)
    assert all(isinstance(error, DistError | CheckpointError) for error in outcome.errors.values()), outcome.errors
    return True


def each_operation(make_root, prepare, save, check, world_size, victim, operations=CHANGES):
    """Kill at operation 0, 1, 2, ... of each kind, each time in a new place; how many there were."""
    count = 0
    for operation in operations:
        for nth in range(100):
            root = make_root(f"{operation}-{nth}")
            prepare(root)
            faults = StorageFaults().kill(operation, nth, keep=3 if operation == "write" else None)
            try:
                if not killed(faults, lambda rank, faulty, root=root: save(rank, root, faulty), world_size, victim):
                    break
                check(root)
            finally:
                faults.bury()
            count += 1
    return count


def save_in_stage(stage, step, rank, root, faulty=lambda storage: storage):
    """Train so many steps, save behind that, and keep one checkpoint; a process that dies dies as a whole."""
    net, optimizer, state = build(stage, (6, 4))
    train(net, optimizer, step)
    handle = checkpoint.save_async(faulty(open_storage(root)), state | {"n": step}, step=step, keep_last=1)
    handle._thread.join(60)
    if isinstance(handle.exception(), Killed):
        raise handle.exception()
    handle.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "victim"), extent.short([(1, 0), (2, 1), (3, 0), (3, 1)], of=[(1, 0), (3, 1)]))
def test_an_async_save_of_divided_state_that_is_killed_anywhere_leaves_the_old_or_the_new(tmp_path, stage, victim):
    expected = {}
    for step in (1, 2):
        run_ranks(2, lambda rank, step=step: save_in_stage(stage, step, rank, tmp_path / "whole")).results()
        expected[step] = digest(checkpoint.load(tmp_path / "whole"))
        if step == 1:
            shutil.copytree(tmp_path / "whole", tmp_path / "first")
    seen = []

    def check(root):
        tree = checkpoint.load(root)
        assert digest(tree) == expected[tree["n"]]
        assert checkpoint.verify(root) == []
        seen.append(tree["n"])

    count = each_operation(
        lambda name: tmp_path / name,
        lambda root: shutil.copytree(tmp_path / "first", root),
        lambda rank, root, faulty: save_in_stage(stage, 2, rank, root, faulty),
        check, world_size=2, victim=victim, operations=("write", "commit", "delete", "delete_tree"),
    )  # fmt: skip
    assert count >= 7
    assert 1 in seen


def state(value):
    return {"w": resilin.full((300, 300), float(value)), "n": value}


def check_state(root, options=None, values=(1, 2)):
    tree = checkpoint.load(root, options=options)
    assert tree["n"] in values
    assert bool((tree["w"] == tree["n"]).all())
    assert checkpoint.verify(root, options=options) == []
    return tree["n"]


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "step"), extent.short([(0, 2), (1, 1)], of=[(1, 1)]))
def test_a_save_into_a_bucket_that_is_killed_anywhere_leaves_the_old_or_the_new(server, victim, step):
    """step 1: the checkpoint is replaced; 2: another is written, and the old one deleted."""
    seen = []

    def save(rank, root, faulty):
        checkpoint.save(faulty(open_storage(root, server.options)), state(2), step=step, keep_last=1)

    count = each_operation(
        lambda name: f"s3://models/killed-{victim}-{step}-{name}",
        lambda root: checkpoint.save(root, state(1), step=1, options=server.options),
        save,
        lambda root: seen.append(check_state(root, server.options)),
        world_size=2, victim=victim, operations=("commit", "delete"),
    )  # fmt: skip
    assert count >= 7
    assert 1 in seen


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_loader_that_is_killed_anywhere_ends_the_others_and_changes_nothing(server, tmp_path, kind):
    root, options = (tmp_path, None) if kind == "folder" else ("s3://models/loaded", server.options)
    checkpoint.save(root, state(1), step=1, options=options)

    def load(rank, root, faulty):
        checkpoint.load(faulty(open_storage(root, options)), state(0))

    for victim in (0, 1):
        count = each_operation(
            lambda name: root, lambda root: None, load, lambda root: check_state(root, options),
            world_size=2, victim=victim, operations=("any",),
        )  # fmt: skip
        assert count >= (3, 1)[victim]  # rank 0 looks for the checkpoint, both read a share
