"""Places where nothing can be written: told which folder is to blame, why, and what to do; nothing is left behind."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import resilin
from resilin import checkpoint
from resilin.checkpoint.local import LocalStorage
from resilin.errors import StorageDenied, StorageError, StorageMissing, UsageError
from resilin.launcher import main

FORMS = [("file", "x.safetensors"), ("hub", "x"), ("checkpoint", "x")]


@pytest.fixture
def run(tmp_path):
    checkpoint.save(tmp_path / "run", {"w": resilin.ones(3)}, step=1)
    return str(tmp_path / "run")


def refused(run, form, target, capsys):
    """What the command says, in one line, of a target that takes nothing."""
    code = main.main(["checkpoint", "convert", "--to", form, "--key", "w", run, str(target)])
    assert code in (2, 3)  # the user's mistake, or the storage's refusal
    out, said = capsys.readouterr()
    assert (out, said.count("\n")) == ("", 1)
    assert "Traceback" not in said
    assert "another job" not in said
    return said


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
@pytest.mark.parametrize(("form", "name"), FORMS)
def test_a_folder_of_the_kernel_is_named_as_one_that_takes_nothing(run, form, name, capsys):
    said = refused(run, form, f"/proc/self/{name}", capsys)
    assert "/proc/self takes no new files or folders, as those that the kernel makes: choose another place" in said


@pytest.mark.parametrize(("form", "name"), FORMS)
@pytest.mark.parametrize("between", ["", "deep/er/"])
def test_a_file_in_the_way_is_named(run, form, name, between, tmp_path, capsys):
    (tmp_path / "data").write_bytes(b"1")
    said = refused(run, form, tmp_path / "data" / between / name, capsys)
    assert f"{tmp_path}/data is a file, where a folder was expected: choose another place, or move it away" in said
    assert (tmp_path / "data").read_bytes() == b"1"


@pytest.mark.parametrize(("form", "name"), FORMS)
@pytest.mark.parametrize("between", ["", "deep/er/"])
def test_a_link_to_nowhere_is_named_with_its_target(run, form, name, between, tmp_path, capsys):
    (tmp_path / "disk").symlink_to(tmp_path / "unplugged")
    said = refused(run, form, tmp_path / "disk" / between / name, capsys)
    what = f"{tmp_path}/disk is a link to {tmp_path}/unplugged, which is not there"
    assert f"{what}: make that folder, or choose another place" in said
    assert sorted(os.listdir(tmp_path)) == ["disk", "run"]


def test_a_checkpoint_at_a_link_to_nowhere_is_refused(run, tmp_path, capsys):
    (tmp_path / "disk").symlink_to("unplugged")
    said = refused(run, "checkpoint", tmp_path / "disk", capsys)
    assert f"{tmp_path}/disk is a link to unplugged, which is not there" in said


@pytest.mark.parametrize(("form", "suffix"), [("file", ".safetensors"), ("hub", ""), ("checkpoint", "")])
def test_a_name_that_is_too_long_is_told_with_what_fits(run, form, suffix, tmp_path, capsys):
    said = refused(run, form, tmp_path / f"{'n' * 300}{suffix}", capsys)
    assert f"'{'n' * 40}...' has {300 + len(suffix)} bytes: expected a name of up to 255" in said
    assert len(said) < 1200


def test_a_name_that_is_too_long_while_it_is_written_only_is_told(tmp_path):
    storage = LocalStorage(tmp_path)
    with pytest.raises(StorageError, match=r"has 240 bytes: expected a name of up to 255, less 21 while it is written"):
        storage.write("n" * 240, b"1")
    storage.write("n" * 234, b"1")
    assert [len(item.name) for item in storage.list()] == [234]


def test_a_path_that_is_too_long_is_told(tmp_path):
    with pytest.raises(StorageError, match=r"a path of \d+ bytes: expected a shorter one"):
        LocalStorage(tmp_path).write("/".join(["n" * 200] * 30), b"1")


def test_a_folder_at_the_place_of_a_file_is_told(run, tmp_path, capsys):
    (tmp_path / "x.safetensors").mkdir()
    said = refused(run, "file", tmp_path / "x.safetensors", capsys)
    assert "x.safetensors is a folder, where a file was expected: choose another name, or move it away" in said
    assert sorted(os.listdir(tmp_path)) == ["run", "x.safetensors"]


def test_a_read_only_file_system_is_told(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        for name in ("a", "deep/er/a"):
            with pytest.raises(
                StorageDenied, match=r"Read-only file system; choose a place on one that can be written"
            ):
                LocalStorage(tmp_path).write(name, b"1")
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_what_is_mounted_at_a_name_is_told(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.write("a", b"1")
    storage.write("b", b"2")
    if subprocess.run(["mount", "--bind", tmp_path / "a", tmp_path / "b"], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        with pytest.raises(StorageError, match=r"b cannot be written: .* busy; something is mounted there"):
            storage.write("b", b"3")
    finally:
        subprocess.run(["umount", tmp_path / "b"], check=True)
    assert [(item.name, storage.read(item.name)) for item in storage.list()] == [("a", b"1"), ("b", b"2")]


def test_a_folder_of_another_user_is_named_with_its_owner_and_mode():
    code = """
import os, sys
from resilin.checkpoint.local import LocalStorage
if os.geteuid() == 0:  # who may write anywhere
    os.setresuid(65534, 65534, 65534)
for name in ("a", "deep/er/a"):
    try:
        LocalStorage(sys.argv[1]).write(name, b"1")
    except PermissionError as error:
        print(error)
"""
    with tempfile.TemporaryDirectory() as folder:  # which every user reaches, unlike pytest's
        Path(folder).chmod(0o555)
        done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=120)
        assert os.listdir(folder) == []
    told = f"{folder} is of user {os.geteuid()} with mode 555: have it opened to this one, or choose another place"
    assert [told in line for line in done.stdout.splitlines()] == [True] * 2, (done.stdout, done.stderr)


def test_a_folder_that_is_deleted_while_a_file_is_written_is_told_as_that(tmp_path):
    storage = LocalStorage(tmp_path / "run")

    def write():
        with storage.writing("a"):
            LocalStorage(tmp_path).delete_tree("run")

    with pytest.raises(StorageMissing, match="another job or person has deleted it"):
        write()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["x\ud800", "x\ud800/run", "x\ud800.safetensors"])
def test_a_name_that_no_file_can_have_is_refused(name, tmp_path):
    calls = [checkpoint.latest, checkpoint.load, checkpoint.load_safetensors, checkpoint.import_torch, LocalStorage]
    calls += [lambda path: checkpoint.save(path, {"w": resilin.ones(2)}, step=1)]
    calls += [lambda path: checkpoint.save_safetensors({"w": resilin.ones(2)}, path)]
    for call in calls:
        with pytest.raises(UsageError, match=r"no file can be called so: .*surrogates not allowed"):
            call(f"{tmp_path}/{name}")
    assert os.listdir(tmp_path) == []
