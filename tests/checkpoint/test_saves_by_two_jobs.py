"""Two jobs that save to one path at once: each is complete or told why not, and neither damages the other's."""

import threading

import pytest

import resilin
from resilin import checkpoint
from resilin.checkpoint import folder
from resilin.checkpoint.local import LocalStorage
from resilin.errors import CheckpointError, StorageMissing

WAIT_S = 30


def state(value):
    return {"w": resilin.full((50, 50), float(value)), "n": value}


def holds(path, **where):
    tree = checkpoint.load(path, **where)
    assert bool((tree["w"] == tree["n"]).all())
    return tree["n"]


class Stopped(LocalStorage):
    """Stops before a file whose name begins so, until it is let go on."""

    def __init__(self, root, before):
        super().__init__(root)
        self.before, self.reached, self.go_on = before, threading.Event(), threading.Event()

    def writing(self, name):
        if name.rpartition("/")[2].startswith(self.before):
            self.reached.set()
            assert self.go_on.wait(WAIT_S)
        return super().writing(name)


def saved_meanwhile(path, before, meanwhile, value=2, **options):
    """A save that is stopped at a file, and `meanwhile` then; what the save raised, or None."""
    storage = Stopped(path, before)
    errors = []

    def save():
        try:
            checkpoint.save(storage, state(value), **options)
        except CheckpointError as error:
            errors.append(error)

    thread = threading.Thread(target=save)
    thread.start()
    assert storage.reached.wait(WAIT_S)
    try:
        meanwhile()
    finally:
        storage.go_on.set()
        thread.join(WAIT_S)
    return errors[0] if errors else None


@pytest.mark.parametrize("where", [{}, {"step": 5}])
@pytest.mark.parametrize("old", [True, False])
def test_the_one_that_comes_late_is_dropped_and_says_so(tmp_path, where, old):
    if old:
        checkpoint.save(tmp_path, state(1), **where)
    error = saved_meanwhile(tmp_path, "data-", lambda: checkpoint.save(tmp_path, state(3), **where), **where)
    assert type(error) is CheckpointError
    assert "another job writes to the same place" in str(error)
    assert holds(tmp_path, **where) == 3
    assert checkpoint.verify(tmp_path, **where) == []
    path = tmp_path / "step-5" if where else tmp_path
    assert len(list(path.glob("data-*"))) == 1  # nothing of the other is left


def test_two_that_see_one_another_are_both_dropped_and_the_old_one_stays(tmp_path):
    checkpoint.save(tmp_path, state(1))
    inner = []
    error = saved_meanwhile(
        tmp_path,
        "data-",
        lambda: inner.append(saved_meanwhile(tmp_path, "data-", lambda: half_a_file(tmp_path), value=3)),
    )
    assert all("another job" in str(one) for one in (error, *inner))
    assert holds(tmp_path) == 1
    assert checkpoint.verify(tmp_path) == []


def half_a_file(path):
    """What a job leaves behind that is in the middle of a file; more of it each time."""
    with open(path / f"data-00000-000-{'a' * 16}.safetensors.partial-1234", "ab") as file:
        file.write(b"half")


def test_what_another_deleted_is_told_not_made_a_manifest_of(tmp_path):
    checkpoint.save(tmp_path, state(1))
    old = next(tmp_path.glob("data-*"))
    error = saved_meanwhile(
        tmp_path, "manifest", lambda: [file.unlink() for file in tmp_path.glob("data-*") if file != old]
    )
    assert error is None  # the last look was before: a manifest without its files is torn, and told so
    with pytest.raises(CheckpointError, match="is missing"):
        checkpoint.load(tmp_path)


def test_a_folder_that_vanishes_while_it_is_written_is_told(tmp_path):
    class Vanishing(LocalStorage):
        def writing(self, name):
            context = super().writing(name)
            file = context.__enter__()
            LocalStorage(self.root).delete_tree("step-4")
            context.__exit__(None, None, None)
            return file

    with pytest.raises(CheckpointError, match="another job or person has deleted it"):
        checkpoint.save(Vanishing(tmp_path), state(1), step=4)


def test_deleting_old_ones_leaves_alone_what_another_is_writing(tmp_path):
    """keep_last of one job, while the other is in the middle of another step."""
    checkpoint.save(tmp_path, state(1), step=1)
    came, grew, left = (tmp_path / f"step-{step}" for step in (7, 8, 9))
    for half in (grew, left):
        half.mkdir()
        half_a_file(half)

    def meanwhile():
        came.mkdir()
        for half in (came, grew):
            half_a_file(half)

    assert saved_meanwhile(tmp_path, "manifest", meanwhile, step=3, keep_last=1) is None
    assert [half.exists() for half in (came, grew, left)] == [True, True, False]
    assert [one.name for one in checkpoint.list_checkpoints(tmp_path)] == ["step-3", "step-7", "step-8"]
    checkpoint.save(tmp_path, state(4), step=4, keep_last=1)  # by now nobody has gone on with step 8
    assert [one.name for one in checkpoint.list_checkpoints(tmp_path)] == ["step-4"]


class Replaced(LocalStorage):
    """Another job saves the next step, and deletes this one's, before call `at` of what a reader asks for."""

    def __init__(self, root, at):
        super().__init__(root)
        self.left = at

    def asked(self):
        self.left -= 1
        if self.left < 0 <= self.left + 1:
            checkpoint.save(self.root, state(2), step=2, keep_last=1)

    def list(self, folder=""):
        self.asked()
        return super().list(folder)

    def size(self, name):
        self.asked()
        return super().size(name)

    def read(self, name, start=0, stop=None):
        self.asked()
        return super().read(name, start, stop)


def test_who_looks_for_the_newest_while_it_is_replaced_finds_one(tmp_path):
    for at in range(50):
        path = tmp_path / str(at)
        checkpoint.save(path, state(1), step=1)
        storage = Replaced(path, at)
        assert checkpoint.latest(storage) in (str(path / "step-1"), str(path / "step-2"))
        if storage.left >= 0:
            break
        checkpoint.save(path, state(3), step=3, keep_last=1)
        checkpoint.save(path, state(1), step=1, keep_last=1)
        told = read_meanwhile(path, at)
        assert told in (1, 2) or "while it was read: load again" in told, told
        assert holds(path) in (1, 2)
    assert at >= 4


def read_meanwhile(path, at):
    try:
        return holds(Replaced(path, at))
    except StorageMissing as error:
        return str(error)


def test_who_looks_while_a_checkpoint_is_replaced_in_its_place_finds_the_new_one(tmp_path):
    class Exchanged(LocalStorage):
        def read(self, name, start=0, stop=None):
            data = super().read(name, start, stop)
            if holds(tmp_path) == 1:
                checkpoint.save(tmp_path, state(2))
            return data

    checkpoint.save(tmp_path, state(1))
    assert [one.problem for one in checkpoint.list_checkpoints(Exchanged(tmp_path))] == [None]
    assert holds(tmp_path) == 2
    checkpoint.save(tmp_path, state(1))
    assert holds(Exchanged(tmp_path)) == 2


@pytest.mark.parametrize("sizes", [(1, 60), (60, 1)])
def test_a_manifest_that_is_replaced_by_a_longer_or_shorter_one_is_read_again(tmp_path, sizes):
    """Between the question how long it is and the reading."""

    def save(value, count):
        checkpoint.save(tmp_path, {"w": resilin.full((50, 50), float(value)), "n": value, "more": list(range(count))})

    class Exchanged(LocalStorage):
        def size(self, name):
            size = super().size(name)
            if name == "manifest.json" and holds(tmp_path) == 1:
                save(2, sizes[1])
            return size

    for look in (
        lambda storage: folder.read_head(storage, "").serial,
        lambda storage: folder.read_manifest(storage, "").head.serial,
        lambda storage: checkpoint.list_checkpoints(storage)[0].serial,
    ):
        save(1, sizes[0])
        before = checkpoint.list_checkpoints(tmp_path)[0].serial
        assert look(Exchanged(tmp_path)) == before + 1
        assert checkpoint.list_checkpoints(Exchanged(tmp_path))[0].problem is None
    save(1, sizes[0])
    assert holds(Exchanged(tmp_path)) == 2


def test_many_that_save_to_one_path_leave_a_checkpoint_that_is_whole(tmp_path):
    checkpoint.save(tmp_path, state(0))
    told, together = [], threading.Barrier(4)

    def job(number):
        together.wait(WAIT_S)
        for turn in range(5):
            try:
                checkpoint.save(tmp_path, state(10 * number + turn))
                told.append("saved")
            except CheckpointError as error:
                told.append(str(error))

    threads = [threading.Thread(target=job, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(told) == 20
    assert all(text == "saved" or "another job" in text for text in told), told
    holds(tmp_path)
    assert checkpoint.verify(tmp_path) == []
