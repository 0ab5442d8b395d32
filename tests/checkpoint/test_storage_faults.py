"""Full disks, missing permissions, writes that take a part, servers that fail, dally or die: told, nothing is lost."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import resilin
from resilin import checkpoint
from resilin.checkpoint import remote
from resilin.checkpoint.local import LocalStorage
from resilin.checkpoint.open_storage import open_storage
from resilin.checkpoint.remote import FsspecStorage
from resilin.checkpoint.storage import leftover
from resilin.errors import (
    CheckpointError,
    CorruptFile,
    StorageDenied,
    StorageError,
    StorageMissing,
    StorageTimeout,
    UsageError,
)
from resilin.testing.faults import Killed
from resilin.testing.s3_server import S3Server
from resilin.testing.storage_faults import FaultyStorage, StorageFaults, no_space

# -- a folder


def run_alone(code, folder):
    """Run `code` as a program with a storage of that folder."""
    script = (
        "import sys\nfrom resilin.checkpoint.local import LocalStorage\nstorage = LocalStorage(sys.argv[1])\n" + code
    )
    return subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_a_disk_that_fills_up_keeps_the_old_file_and_no_half(tmp_path):
    LocalStorage(tmp_path).write("a", b"old")
    code = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_500, 50_500))
try:
    with storage.writing("a") as file:
        for _ in range(100):
            file.write(bytes(1000))
except OSError as error:
    print(type(error).__name__, error.errno, storage.read("a"), [item.name for item in storage.list()], error)
"""
    done = run_alone(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"StorageError {errno.EFBIG} b'old' ['a'] {tmp_path}/a cannot be written: ")


def test_no_space_is_told_with_the_space_there_is(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)
    storage.write("a", b"old")

    def full(fd, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match=r"/a cannot be written: No space left.* of \d+ bytes free") as caught:
        storage.write("a", b"new")
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    assert isinstance(caught.value, OSError)
    assert storage.read("a") == b"old"
    assert len(storage.list()) == 1


def test_a_flush_that_fails_fails_the_file(tmp_path, monkeypatch):
    def broken(fd):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    storage = LocalStorage(tmp_path)
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StorageError, match="Input/output error"):
        storage.write("a", b"new")
    monkeypatch.undo()
    assert storage.list() == []


def test_writes_that_take_a_part_at_a_time_are_gone_on_with(tmp_path, monkeypatch):
    taken = []
    write = os.write

    def some(fd, data):
        taken.append(len(data))
        return write(fd, data[:7])

    monkeypatch.setattr(os, "write", some)
    LocalStorage(tmp_path).write("a", bytes(range(100)))
    monkeypatch.undo()
    assert LocalStorage(tmp_path).read("a") == bytes(range(100))
    assert len(taken) == 15


def test_reads_that_give_a_part_at_a_time_are_gone_on_with(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)
    storage.write("a", bytes(range(100)))
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:7]], at))
    assert storage.read("a", 10, 90) == bytes(range(10, 90))


@pytest.fixture
def open_folder():
    """A folder that every user reaches, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.slow
def test_a_folder_without_permission_names_itself_and_the_user(open_folder):
    code = """
import os
if os.geteuid() == 0:  # who may write anywhere
    os.setresuid(65534, 65534, 65534)
for ask in (lambda: storage.write("a", b"1"), lambda: storage.create("a", b"1"), lambda: storage.delete("kept")):
    try:
        ask()
    except PermissionError as error:
        print(type(error).__name__, error)
"""
    LocalStorage(open_folder).write("kept", b"1")
    open_folder.chmod(0o555)
    done = run_alone(code, open_folder)
    open_folder.chmod(0o755)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["StorageDenied"] * 3, done.stderr
    assert f"{open_folder}/a cannot be written: Permission denied; this process is user" in lines[0]
    assert f"{open_folder}/kept cannot be deleted: Permission denied" in lines[2]
    assert LocalStorage(open_folder).read("kept") == b"1"


@pytest.mark.slow
def test_a_refused_save_says_nothing_of_the_checkpoint_that_it_was_to_replace(open_folder):
    code = """
import os, tempfile, resilin
from resilin import checkpoint
state = {"a": resilin.ones(2)}
with tempfile.TemporaryDirectory() as folder:
    checkpoint.save(folder, state, step=1)  # imports all that it needs, from where another user may not read
if os.geteuid() == 0:  # who may write anywhere
    os.setresuid(65534, 65534, 65534)
try:
    checkpoint.save(sys.argv[1], state, step=1)
except PermissionError as error:
    print(type(error).__name__)
"""
    checkpoint.save(open_folder, {"a": resilin.zeros(2)}, step=1)
    for folder in (open_folder, open_folder / "step-1"):
        folder.chmod(0o555)
    done = run_alone(code, open_folder)
    for folder in (open_folder, open_folder / "step-1"):
        folder.chmod(0o755)
    assert (done.stdout, done.stderr) == ("StorageDenied\n", "")
    assert checkpoint.load(open_folder)["a"].tolist() == [0, 0]


@pytest.mark.multiproc
def test_a_writer_that_is_killed_leaves_the_old_file_and_a_leftover_that_tells_its_name(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.write("x/a", b"old")
    code = """
import os, signal
with storage.writing("x/a") as file:
    file.write(bytes(10_000))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_alone(code, tmp_path).returncode == -signal.SIGKILL
    assert storage.read("x/a") == b"old"
    assert [leftover(item.name) for item in storage.list("x")] == [None, "a"]
    storage.delete_tree("x")
    assert storage.list() == []


def test_a_file_system_without_links_creates_once_too(tmp_path, monkeypatch):
    def none(source, target):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", none)
    storage = LocalStorage(tmp_path)
    storage.create("a", b"1")
    with pytest.raises(FileExistsError):
        storage.create("a", b"2")
    assert [item.name for item in storage.list()] == ["a"]
    assert storage.read("a") == b"1"


def test_what_is_in_the_way_is_told(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.write("a", b"1")
    with pytest.raises(StorageMissing, match="a/b cannot be written: Not a directory"):
        storage.write("a/b", b"1")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="folder cannot be written: Is a directory"):
        storage.write("folder", b"1")
    assert len(storage.list()) == 2


def test_links_are_deleted_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"1")
    storage = LocalStorage(tmp_path / "root")
    storage.write("a", b"1")
    (tmp_path / "root" / "link").symlink_to(outside)
    storage.delete_tree("link")
    assert [item.name for item in storage.list()] == ["a"]
    assert (outside / "kept").exists()


def test_a_mapped_file_may_be_written_to_without_changing_it(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.write("a", b"12345")
    storage.write("empty", b"")
    mapped = storage.map("a")
    mapped[0] = 0
    assert bytes(mapped) == b"\x002345"
    assert storage.read("a") == b"12345"
    assert len(storage.map("empty")) == 0
    assert open_storage("memory://mapped").map("a") is None


# -- a bucket


@pytest.fixture
def bucket(server):
    return FsspecStorage("s3://models/run", server.options, timeout_s=20)


PART = 5 << 20  # the smallest that S3 takes


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(remote, "PART_BYTES", PART)


def write_parts(storage, name, count, after_two=lambda: None):
    data = bytes(PART)
    with storage.writing(name) as file:
        for number in range(count):
            file.write(data)
            if number == 1:
                after_two()


@pytest.mark.parametrize("status", [500, 503, 0])
def test_a_server_that_fails_a_few_times_is_asked_again(server, bucket, status):
    server.fail(status, times=1, path="/models/run/a")
    bucket.write("a", b"12345")
    server.fail(status, times=1, path="/models/run/a")
    assert bucket.read("a") == b"12345"
    server.fail(status, times=1, path="/models/run/m")
    bucket.create("m", b"unique")
    assert bucket.read("m") == b"unique"
    bucket.delete_tree("")


def test_a_server_that_goes_on_failing_is_told_after_some_tries(server, bucket):
    storage = FsspecStorage("s3://models/run", server.options, timeout_s=5, attempts=2)
    server.fail(500, times=1000)
    with pytest.raises(StorageError, match=r"s3://models/run/a cannot be written: .*planned"):
        storage.write("a", b"1")
    with pytest.raises(StorageError, match=r"s3://models/run/a cannot be read: .*planned.*tried 2 times"):
        storage.read("a", 0, 1)
    assert 4 <= len(server.requests()) <= 8
    server.heal()
    assert not storage.exists("a")


def test_a_lost_answer_to_create_is_no_second_writer(server, bucket, monkeypatch):
    pipe_file = bucket._fs.pipe_file
    asked = []

    def lost(path, data, mode):
        pipe_file(path, data, mode=mode)
        asked.append(path)
        if len(asked) == 1:
            raise ConnectionResetError(errno.ECONNRESET, "the answer is lost")

    monkeypatch.setattr(bucket._fs, "pipe_file", lost)
    bucket.create("mine", b"unique")
    assert bucket.read("mine") == b"unique"
    with pytest.raises(FileExistsError):
        bucket.create("mine", b"another's")
    monkeypatch.undo()
    bucket.delete_tree("")


def test_a_slow_server_times_out(server):
    storage = FsspecStorage("s3://models/run", server.options, timeout_s=0.6, attempts=2)
    server.delay(1.5, times=1000)
    with pytest.raises(StorageTimeout, match=r"s3://models/run/a cannot be read.*no answer within 0.6 s"):
        storage.read("a")
    server.heal()


def test_a_slow_server_is_waited_for_within_the_deadline(server, bucket):
    server.delay(0.5, times=2)
    bucket.write("a", b"1")
    assert bucket.read("a") == b"1"
    bucket.delete("a")


def test_an_upload_in_parts_that_fails_leaves_nothing(server, bucket, small_parts):
    bucket.write("big", b"old")
    server.fail(403, times=1000, method="PUT", path="/models/run/big", skip=1)
    with pytest.raises(StorageDenied, match=r"s3://models/run/big cannot be written"):
        write_parts(bucket, "big", 3)
    assert bucket.read("big") == b"old"
    asked = server.requests()
    assert any(request.startswith("DELETE") for request in asked)  # of the upload, whose parts would be paid for
    assert bucket._fs.list_multipart_uploads("models") == []
    bucket.delete_tree("")


@pytest.mark.slow
def test_a_server_killed_during_an_upload_is_told_and_others_go_on(small_parts):
    with S3Server() as server:
        server.make_bucket("models")
        storage = FsspecStorage("s3://models/run", server.options, timeout_s=2, attempts=2)
        storage.write("a", b"1")
        with pytest.raises(StorageError, match="s3://models/run/big cannot be written"):
            write_parts(storage, "big", 6, after_two=server.kill)
        with pytest.raises(StorageError, match=r"s3://models/run/a cannot be read: Could not connect.*tried 2 times"):
            storage.read("a")


def test_a_server_that_cannot_be_reached_is_told_within_the_deadline():
    options = {"endpoint_url": "http://127.0.0.1:9", "key": "x", "secret": "y"}
    storage = FsspecStorage("s3://models/run", options, timeout_s=1, attempts=2)
    for ask in (lambda: storage.write("a", b"1"), lambda: storage.list(), lambda: storage.size("a")):
        with pytest.raises(StorageError, match="Could not connect to the endpoint URL"):
            ask()


def test_a_missing_bucket_is_told(server):
    storage = FsspecStorage("s3://nowhere/run", server.options)
    with pytest.raises(StorageMissing, match=r"s3://nowhere/run/a cannot be written: .*bucket does not exist"):
        storage.write("a", b"1")
    with pytest.raises(StorageMissing, match="bucket does not exist"):
        storage.create("a", b"1")


def test_refused_credentials_are_told(server, bucket):
    bucket.write("a", b"1")
    server.requests()
    server.fail(403, times=1)
    with pytest.raises(
        StorageDenied, match=r"run/a cannot be read: planned; S3 takes credentials from AWS_ACCESS_KEY_ID"
    ):
        bucket.read("a", 0, 1)
    assert len(server.requests()) == 1  # the next attempt would be refused as well
    server.fail(403, times=1000)
    for ask in (bucket.read, bucket.size, bucket.delete, bucket.delete_tree, bucket.list):
        with pytest.raises(StorageDenied):
            ask("a")
    server.heal()
    assert bucket.read("a") == b"1"
    bucket.delete("a")


def test_missing_credentials_are_told(server, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    storage = FsspecStorage("s3://models/run", {"endpoint_url": server.url}, timeout_s=5, attempts=1)
    with pytest.raises(StorageDenied, match="no credentials were found; S3 takes credentials from AWS_ACCESS_KEY_ID"):
        storage.read("a")


@pytest.mark.parametrize("arguments", [{"timeout_s": 0}, {"attempts": 0}])
def test_a_deadline_and_attempts_are_above_zero(arguments):
    with pytest.raises(UsageError, match="above 0"):
        FsspecStorage("memory://x", **arguments)


# -- planned faults


def save_two(storage):
    storage.write("s/a", b"aaaa")
    with storage.writing("s/b") as file:
        file.write(b"bb")
        file.write(b"bb")
    storage.create("s/manifest.json", b"{}")


def test_a_plan_kills_at_every_operation_and_a_manifest_is_there_only_with_all_files(tmp_path):
    counting = StorageFaults()
    save_two(FaultyStorage(LocalStorage(tmp_path / "whole"), counting))
    total = counting.count("any")
    assert total == 8  # two times open and commit, three pieces, one create
    for nth in range(total):
        folder = LocalStorage(tmp_path / str(nth))
        faults = StorageFaults().kill("any", nth)
        storage = FaultyStorage(folder, faults)
        with pytest.raises(Killed):
            save_two(storage)
        with pytest.raises(Killed):  # the dead do nothing more
            storage.list()
        assert faults.all_fired()
        assert not folder.exists("s/manifest.json")


def test_a_killed_writer_leaves_what_it_had_written_under_another_name(tmp_path):
    faults = StorageFaults().kill("write", nth=1, name="b", keep=1)
    with pytest.raises(Killed):
        save_two(FaultyStorage(LocalStorage(tmp_path), faults))
    items = LocalStorage(tmp_path).list("s")
    assert [(leftover(item.name) or item.name, item.size) for item in items] == [("a", 4), ("b", 3)]
    faults.bury()
    assert [item.name for item in LocalStorage(tmp_path).list("s")] == ["a"]


def test_a_killed_upload_is_over_when_its_writer_is_buried(server):
    """Its file is not left to the collector, which would upload what is there of it, and in any thread."""
    server.make_bucket("buried")
    inner = open_storage("s3://buried/run", server.options)
    faults = StorageFaults().kill("commit", nth=0)
    files, opened = [], inner._fs.open
    inner._fs.open = lambda *given, **named: files.append(opened(*given, **named)) or files[-1]
    try:
        with pytest.raises(Killed):
            save_two(FaultyStorage(inner, faults))
    finally:
        del inner._fs.open
    assert [file.closed for file in files] == [False]
    faults.bury()
    assert [file.closed for file in files] == [True]
    assert inner.list("s") == []


def test_a_planned_failure_leaves_the_storage_usable(tmp_path):
    faults = StorageFaults().fail("write", nth=2, error=no_space("b")).fail("read", error=CorruptFile("x"))
    storage = FaultyStorage(LocalStorage(tmp_path), faults)
    with pytest.raises(StorageError, match="No space left"):
        save_two(storage)
    with pytest.raises(CheckpointError):
        storage.read("s/a")
    assert faults.all_fired()
    assert storage.read("s/a") == b"aaaa"
    assert [item.name for item in storage.list("s")] == ["a"]


def test_a_cut_file_has_its_name_and_a_part(tmp_path):
    storage = FaultyStorage(LocalStorage(tmp_path), StorageFaults().cut(nth=1, keep=3))
    save_two(storage)
    assert (storage.read("s/a"), storage.read("s/b")) == (b"aaaa", b"bbb")


def test_an_unknown_operation_is_refused():
    with pytest.raises(UsageError, match="expected one of open, write"):
        StorageFaults().fail("rename")
