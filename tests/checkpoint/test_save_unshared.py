"""Ranks that do not see each other's files, or see them late: no save says it is complete unless it is."""

import threading

import pytest

import resilin
from resilin import checkpoint
from resilin.checkpoint.local import LocalStorage
from resilin.checkpoint.writing import part_name
from resilin.errors import CheckpointError, UsageError
from resilin.testing.ranks import run_ranks

WORLD = 3
WAIT_S = 30


def state(value=1):
    return {"w": resilin.full((300, 300), float(value)), "n": value}


class Own(LocalStorage):
    """A folder of this rank's own behind a root that all ranks call the same, as disks of several machines are."""

    def __init__(self, root, rank):
        super().__init__(root)
        self._own = LocalStorage(f"{root}-of-{rank}")

    def path(self, name):
        return self._own.path(name)


class Late(LocalStorage):
    """A folder whose listings do not show yet what other ranks have written last: their parts."""

    def __init__(self, root, rank):
        super().__init__(root)
        self._rank = rank

    def list(self, folder=""):
        mine = part_name(self._rank, "").removesuffix(".json")
        return [item for item in super().list(folder) if not item.name.startswith("part-") or mine in item.name]


def saved(storage):
    return checkpoint.save(storage, state(), step=1)


def saved_behind(storage):
    return checkpoint.save_async(storage, state(), step=1).wait()


def saved_before_the_next(storage):
    checkpoint.save_async(storage, state(), step=1)
    return checkpoint.save(storage, state(2), step=2)


@pytest.mark.parametrize("save", [saved, saved_behind, saved_before_the_next])
def test_ranks_whose_folders_are_not_one_are_told_which_and_nothing_stays(tmp_path, save):
    outcome = run_ranks(WORLD, lambda rank: save(Own(tmp_path / "run", rank)))
    assert sorted(outcome.errors) == [0, 1, 2]
    for error in outcome.errors.values():
        assert type(error) is CheckpointError
        assert "does not see what rank 1, 2 wrote" in str(error)
        assert "all ranks must see the same files" in str(error)
    assert not list(tmp_path.rglob("data-*"))


@pytest.mark.parametrize("save", [saved, saved_behind, saved_before_the_next])
def test_parts_that_listings_show_late_are_found_by_their_names(tmp_path, save):
    run_ranks(WORLD, lambda rank: save(Late(tmp_path, rank))).results()
    assert all(one.is_complete for one in checkpoint.list_checkpoints(tmp_path))
    assert checkpoint.load(tmp_path, step=1)["n"] == 1
    assert checkpoint.verify(tmp_path, step=1) == []


class Gated(LocalStorage):
    """Nothing is written until the gate is open."""

    def __init__(self, root):
        super().__init__(root)
        self.gate = threading.Event()

    def writing(self, name):
        assert self.gate.wait(WAIT_S)
        return super().writing(name)


def test_what_another_group_is_writing_stays_when_a_later_save_fails(tmp_path):
    gated = Gated(tmp_path)

    def rank_main(rank):
        first, second = resilin.distributed.new_group([0, 1]), resilin.distributed.new_group([0, 2])
        handle = None
        if rank < 2:
            handle = checkpoint.save_async(gated if rank else tmp_path, state(), step=1, group=first)
        if rank != 1:
            with pytest.raises(UsageError):
                checkpoint.save(tmp_path, object() if rank else state(), step=2, group=second)
        if rank == 0:
            gated.gate.set()
        return handle.wait() if handle else None

    run_ranks(WORLD, rank_main).results()
    assert [(one.step, one.problem) for one in checkpoint.list_checkpoints(tmp_path)] == [(1, None)]
