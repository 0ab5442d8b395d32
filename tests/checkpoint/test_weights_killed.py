"""Weights whose writer is killed, or finds the disk full, at any operation: what loads is the old model or the new."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import safetensors.numpy

import resilin
from resilin.checkpoint import load_safetensors, save_safetensors, weights
from resilin.checkpoint.local import LocalStorage
from resilin.checkpoint.open_storage import open_parent, open_storage
from resilin.errors import StorageDenied, StorageError
from resilin.launcher import main
from resilin.testing.faults import Killed
from resilin.testing.storage_faults import FaultyStorage, StorageFaults, no_space

CHANGES = ("open", "write", "commit", "delete", "sync")
OLD, NEW = 1.0, 2.0
LIMITS = {"three": 32, "two": 48, "one": 1000}  # bytes per file, for that many files


def model(value, count=5):
    return {f"w{number}": resilin.full((4,), value) for number in range(count)}


def save(path, value, files):
    save_safetensors(model(value), path, max_shard_bytes=LIMITS[files])


def value_of(found):
    """The number that all tensors of a model have: a mixture has none."""
    (value,) = {number for tensor in found.values() for number in tensor.tolist()}
    assert sorted(found) == [f"w{number}" for number in range(5)]
    return value


def as_hubs_read(path):
    """As other readers find a model: one file if there is one, else what the index names."""
    if (path / weights.SINGLE).exists():
        return safetensors.numpy.load_file(path / weights.SINGLE)
    named = json.loads((path / weights.INDEX).read_text())["weight_map"]
    return {key: safetensors.numpy.load_file(path / file)[key] for key, file in named.items()}


@pytest.fixture
def with_faults(monkeypatch):
    """`with_faults(faults, work)`: work() with these faults in every storage that weights are written to."""

    def run(faults, work):
        with monkeypatch.context() as patched:
            patched.setattr(weights, "open_storage", lambda at, _: FaultyStorage(open_storage(at), faults))
            patched.setattr(weights, "open_parent", lambda at, _: faulty(faults, *open_parent(at)))
            work()

    def faulty(faults, storage, name):
        return FaultyStorage(storage, faults), name

    return run


def each_fault(make):
    """(operation, number, faults) for 0, 1, 2, ... of each kind; send(False) goes on to the next kind."""
    for operation in CHANGES:
        for nth in range(100):
            if (yield operation, nth, make(operation, nth)) is False:
                yield
                break


CASES = [("three", "three"), ("three", "two"), ("two", "three"), ("three", "one"), ("one", "two"), ("one", "one")]


@pytest.mark.parametrize(("before", "after"), CASES)
def test_a_save_that_is_killed_at_any_operation_leaves_the_old_model_or_the_new(tmp_path, with_faults, before, after):
    seen = set()
    plans = each_fault(lambda at, nth: StorageFaults().kill(at, nth, keep=3 if at == "write" else None))
    for operation, nth, faults in plans:
        path = tmp_path / f"{operation}-{nth}"
        save(path, OLD, before)
        try:
            with_faults(faults, lambda path=path: save(path, NEW, after))
        except Killed:
            faults.bury()
        else:
            plans.send(False)
        value = value_of(load_safetensors(path))
        assert value == NEW or faults.all_fired()
        assert value_of(as_hubs_read(path)) in (OLD, NEW)
        seen.add(value)
        save(path, OLD, after)
        assert value_of(load_safetensors(path)) == value_of(as_hubs_read(path)) == OLD
        assert len(os.listdir(path)) == {"three": 4, "two": 3, "one": 1}[after]
    assert seen == {OLD, NEW}


@pytest.mark.parametrize(("before", "after"), CASES)
def test_a_save_onto_a_full_disk_leaves_the_old_model_and_nothing_else(tmp_path, with_faults, before, after):
    save(tmp_path, OLD, before)
    files = sorted(os.listdir(tmp_path))
    fired = 0
    plans = each_fault(lambda at, nth: StorageFaults().fail(at, nth, no_space()))
    for operation, _, faults in plans:
        if operation in ("delete", "sync"):  # those are of a model that is complete
            break
        with contextlib.suppress(StorageError):
            with_faults(faults, lambda: save(tmp_path, NEW, after))
        if not faults.all_fired():
            plans.send(False)
            shutil.rmtree(tmp_path)
            save(tmp_path, OLD, before)
            continue
        assert sorted(os.listdir(tmp_path)) == files
        assert value_of(load_safetensors(tmp_path)) == value_of(as_hubs_read(tmp_path)) == OLD
        fired += 1
    assert fired >= 3


@pytest.mark.parametrize(("before", "after"), CASES)
def test_a_save_that_cannot_delete_the_old_files_has_written_the_new_or_kept_the_old(
    tmp_path, with_faults, before, after
):
    for operation in ("delete", "sync"):
        for nth in range(10):
            path = tmp_path / f"{operation}-{nth}"
            save(path, OLD, before)
            faults = StorageFaults().fail(operation, nth)
            try:
                with_faults(faults, lambda path=path: save(path, NEW, after))
            except StorageError:
                assert value_of(load_safetensors(path)) in (OLD, NEW)
                assert value_of(as_hubs_read(path)) in (OLD, NEW)
            else:
                break


def test_an_index_that_has_its_name_keeps_its_files_though_its_folder_could_not_be_flushed(tmp_path, monkeypatch):
    save(tmp_path, OLD, "three")
    write = LocalStorage.write

    def unflushed(storage, name, data):
        write(storage, name, data)
        raise StorageError("the folder cannot be flushed")

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "write", unflushed)
        with pytest.raises(StorageError, match="cannot be flushed"):
            save(tmp_path, NEW, "three")
    assert value_of(load_safetensors(tmp_path)) == NEW


def test_names_are_plain_where_they_are_free(tmp_path):
    plain = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)] + [weights.INDEX]
    for turn in range(4):
        save(tmp_path, OLD, "three")
        names = sorted(os.listdir(tmp_path))
        assert (names == plain) is (turn % 2 == 0)
        assert len(names) == 4


def test_files_of_others_in_the_folder_stay(tmp_path):
    others = ["config.json", "model-notes.safetensors", "pytorch_model.bin"]
    for name in others:
        (tmp_path / name).write_text("mine")
    for files in ("three", "one", "two"):
        save(tmp_path, NEW, files)
    assert [(tmp_path / name).read_text() for name in others] == ["mine"] * 3


def test_a_conversion_onto_a_full_disk_leaves_the_old_model(tmp_path, with_faults, capsys):
    save(tmp_path / "hub", OLD, "three")
    save(tmp_path / "new.safetensors", NEW, "one")
    command = ["checkpoint", "convert", str(tmp_path / "new.safetensors"), str(tmp_path / "hub"), "--to", "hub"]
    command += ["--max-shard-bytes", "32"]
    with_faults(StorageFaults().fail("write", 2, no_space()), lambda: main.main(command))
    assert "No space left on device" in capsys.readouterr().err
    assert value_of(load_safetensors(tmp_path / "hub")) == OLD
    assert main.main(command) == 0
    assert value_of(load_safetensors(tmp_path / "hub")) == NEW


def test_a_model_is_divided_anew_in_its_own_place(tmp_path):
    save(tmp_path, NEW, "three")
    command = ["checkpoint", "convert", str(tmp_path), str(tmp_path), "--to", "hub", "--max-shard-bytes", "48"]
    assert main.main(command) == 0
    assert value_of(load_safetensors(tmp_path)) == value_of(as_hubs_read(tmp_path)) == NEW
    assert len(os.listdir(tmp_path)) == 3


# -- one file


def test_what_killed_saves_of_a_file_left_goes_with_the_next_one(tmp_path, with_faults):
    """Also where the one that is killed was deleting what others had left."""
    path = tmp_path / "m.safetensors"
    others = ["m.safetensors.bak", "other.safetensors.partial-00aa", "m.safetensors.partial"]
    for name in others:
        (tmp_path / name).write_text("mine")
    seen, struck = set(), set()
    plans = each_fault(lambda at, nth: StorageFaults().kill(at, nth, keep=3 if at == "write" else None))
    for operation, nth, faults in plans:
        save(path, OLD, "one")
        assert sorted(os.listdir(tmp_path)) == sorted([*others, path.name])
        for mark in ("00bb", "00cc"):
            (tmp_path / f"{path.name}.partial-{mark}").write_text("of an earlier one")
        try:
            with_faults(faults, lambda: save(path, NEW, "one"))
        except Killed:
            struck.add((operation, nth))
        else:
            plans.send(False)
        seen.add(value_of(load_safetensors(path)))
        faults.bury()
    assert seen == {OLD, NEW}
    assert struck >= {("open", 0), ("write", 0), ("commit", 0), ("delete", 0), ("delete", 1)}
    assert [(tmp_path / name).read_text() for name in others] == ["mine"] * 3


@pytest.mark.parametrize("name", ["m.safetensors", "hub"])
def test_a_save_deletes_nothing_of_one_that_is_still_at_work(tmp_path, name):
    path = tmp_path / name
    folder, file = (tmp_path, name) if name != "hub" else (path, weights.SINGLE)
    with LocalStorage(folder).writing(file) as writing:
        writing.write(b"not all of it")
        for value in (OLD, NEW):
            save(path, value, "one")
            assert len(os.listdir(folder)) == 2
        assert value_of(load_safetensors(path)) == NEW
    assert (folder / file).read_bytes() == b"not all of it"


def test_where_nothing_tells_who_is_alive_what_grows_stays(monkeypatch):
    storage = open_storage("memory://grows")
    for name in ("m.safetensors.partial-00aa", "m.safetensors.partial-00bb"):
        storage.write(name, b"1")
    write = weights._write

    def meanwhile(*args):
        storage.write("m.safetensors.partial-00bb", b"12")
        storage.write("m.safetensors.partial-00cc", b"1")
        write(*args)

    monkeypatch.setattr(weights, "_write", meanwhile)
    save("memory://grows/m.safetensors", NEW, "one")
    assert [item.name[-4:] for item in storage.list()] == ["sors", "00bb", "00cc"]
    storage.delete_tree("")


def test_a_file_is_written_where_the_folder_cannot_be_listed_or_cleaned(tmp_path, monkeypatch, caplog):
    path = tmp_path / "m.safetensors"

    def denied(storage, name):
        raise StorageDenied(f"{name} cannot be listed: Permission denied", name)

    (tmp_path / "m.safetensors.partial-00aa").write_text("left")
    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "delete_leftover", denied)
        save(path, OLD, "one")
    assert "could not delete what was left of a file" in caplog.text
    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "leftovers", denied)
        save(path, NEW, "one")
    assert value_of(load_safetensors(path)) == NEW


@pytest.mark.multiproc
def test_what_a_process_left_that_was_killed_goes_with_the_next_save(tmp_path):
    code = (
        "import os, signal, sys; from resilin.checkpoint.local import LocalStorage\n"
        "with LocalStorage(sys.argv[1]).writing('m.safetensors') as file:\n"
        "    file.write(bytes(10_000)); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], timeout=60, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    save(tmp_path / "m.safetensors", NEW, "one")
    assert os.listdir(tmp_path) == ["m.safetensors"]


@pytest.mark.parametrize(("target", "files"), [("m.safetensors", "one"), ("hub", "one"), ("hub", "three")])
@pytest.mark.parametrize("at", ["open", "write", "commit"])
def test_a_save_onto_a_full_disk_leaves_no_folder_that_it_made(tmp_path, with_faults, target, files, at):
    for before in ("", "old", "old/empty", f"old/empty/{target}" if target == "hub" else "old"):
        (tmp_path / before).mkdir(parents=True, exist_ok=True)
        there = sorted(tmp_path.rglob("*"))
        for nth in range(100):
            faults = StorageFaults().fail(at, nth, no_space())
            try:
                with_faults(faults, lambda: save(tmp_path / "old" / "empty" / target, NEW, files))
            except StorageError:
                assert sorted(tmp_path.rglob("*")) == there
            else:
                break
        assert nth == 4 if files == "three" and at != "write" else nth > 0
        shutil.rmtree(tmp_path / "old")
