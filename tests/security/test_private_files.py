"""Files that are one user's alone: what is made whatever the umask, what is refused, and who holds a lock."""

import errno
import fcntl
import os
import stat
import subprocess
import sys

import pytest

from resilin._base import excepthook, flight_folder, private_files
from resilin._base.clock import Deadline
from resilin._base.flight import Recorder
from resilin._base.private_files import NotOurs
from resilin.distributed.stores import FileStore
from resilin.elastic.agent.reports import Reporter
from resilin.elastic.ledger import Ledger
from resilin.errors import DistStoreError, StoreError, StoreRefused, StoreTimeout, UsageError
from resilin.launcher import flag_types, local
from resilin.store.file import FileStore as FolderStore

FLAGS = os.O_RDWR | os.O_CREAT


@pytest.fixture(params=[0o000, 0o027, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def somebody_else(monkeypatch):
    """From now on this process is of a user whom nothing here belongs to, not even what it makes."""
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    monkeypatch.setattr(private_files, "_called_there", lambda folder: 4242)
    if os.getuid() == 0:  # root's files are believed
        monkeypatch.setattr(os, "fstat", _of_nobody(os.fstat))
        monkeypatch.setattr(os, "lstat", _of_nobody(os.lstat))
        monkeypatch.setattr(os, "stat", _of_nobody(os.stat))


def _of_nobody(look):
    def looked(*args, **named):
        found = look(*args, **named)
        return os.stat_result((*found[:4], 65534, *found[5:]))

    return looked


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_what_is_made_is_the_users_alone_whatever_the_umask(tmp_path, umask, monkeypatch):
    folder = tmp_path / "store"
    with FolderStore(str(folder)) as store:
        store.put("a", b"1")
        lease = store.lease(5.0)
        assert {path.name.partition("-")[0]: mode(path) for path in folder.iterdir()} == {
            "lock": 0o600,
            "journal": 0o600,
            "beat": 0o600,
        }
        lease.revoke()
    file = FileStore(tmp_path / "rendezvous", timeout=5.0)
    file.set("secret", "x")
    assert mode(tmp_path / "rendezvous") == mode(tmp_path / "rendezvous.users") == 0o600
    file.close()
    Reporter(event_log=tmp_path / "events").close()
    Ledger(str(tmp_path / "ledger")).close()
    Recorder(tmp_path / "one.flight", "host", 8).close()
    excepthook.write(tmp_path / "error.json", ValueError("x"))
    private_files.write_file(tmp_path / "hang.json", "{}")
    for name in ("events", "ledger", "one.flight", "error.json", "hang.json"):
        assert mode(tmp_path / name) == 0o600, name
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    flight_folder.open_in(None, 8, "job").close()
    assert mode(flight_folder.default()) == mode(local.folder()) == mode(folder) & 0o777 == 0o700


def test_a_file_is_its_owners_though_the_umask_takes_it_from_him(tmp_path):
    before = os.umask(0o777)
    try:
        os.close(private_files.open_file(tmp_path / "a", FLAGS))
        os.close(private_files.open_log(tmp_path / "b"))
        Recorder(tmp_path / "c", "host", 8).close()
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in "abc"] == [0o600] * 3


OPENERS = {
    "a store's lock": lambda path: FolderStore(str(path.parent)),
    "a file store": lambda path: FileStore(path, timeout=0.5),
    "an event log": lambda path: flag_types.output_file("--event-log", str(path)),
    "a ledger": lambda path: Ledger(str(path)),
    "an exception": lambda path: private_files.write_file(path, ""),
}
REFUSALS = (DistStoreError, StoreRefused, UsageError, NotOurs)


@pytest.mark.parametrize("opens", OPENERS.values(), ids=OPENERS)
def test_a_file_of_another_user_is_refused_by_path_owner_and_advice(tmp_path, somebody_else, opens):
    (tmp_path / "lock").touch(0o600)
    with pytest.raises(REFUSALS, match=rf"{tmp_path}.* belongs to user \d+.*, expected 4242.*folder of your own"):
        opens(tmp_path / "lock")


@pytest.mark.parametrize("opens", OPENERS.values(), ids=OPENERS)
@pytest.mark.parametrize("how", ["is another name of", "can be written by others"])
def test_a_file_that_others_may_have_written_is_refused(tmp_path, opens, how):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "mine").chmod(0o600)
    if how == "is another name of":
        os.link(tmp_path / "mine", tmp_path / "lock")
    else:
        (tmp_path / "mine").rename(tmp_path / "lock")
        (tmp_path / "lock").chmod(0o622)
    with pytest.raises(REFUSALS, match=r"one of 2 names of a file|mode 622, expected mode 600"):
        opens(tmp_path / "lock")
    assert (tmp_path / "lock").read_text() == "precious"


@pytest.mark.parametrize("name", ["lock", "journal", "journal.new"])
def test_a_link_in_a_stores_folder_leads_nowhere(tmp_path, name):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "store").mkdir(0o700)
    (tmp_path / "store" / name).symlink_to(tmp_path / "precious")
    if name == "journal.new":  # a name that the store writes under: it is taken away
        FolderStore(str(tmp_path / "store")).close()
    else:
        with pytest.raises(StoreError, match=rf"{name} is a symbolic link of user {os.getuid()}\b.*expected the file"):
            FolderStore(str(tmp_path / "store"))
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["meet", "meet.users", "meet.new"])
def test_a_link_in_place_of_a_file_store_leads_nowhere(tmp_path, name):
    (tmp_path / "precious").write_text("{}")
    (tmp_path / "precious").chmod(0o600)
    (tmp_path / name).symlink_to(tmp_path / "precious")
    if name == "meet.new":
        with FileStore(tmp_path / "meet", timeout=0.5) as store:
            store.set("a", "1")
            assert store.get("a") == b"1"
    else:
        with pytest.raises(DistStoreError, match=f"{name} is a symbolic link"):
            FileStore(tmp_path / "meet", timeout=0.5)
    assert (tmp_path / "precious").read_text() == "{}"


def test_a_link_of_this_users_leads_an_event_log_where_it_says(tmp_path):
    (tmp_path / "events").symlink_to(tmp_path / "there")
    for _ in range(2):
        reporter = Reporter(event_log=tmp_path / "events")
        reporter.event("begin")
        reporter.close()
    assert (tmp_path / "there").read_text().count("begin") == 2
    assert mode(tmp_path / "there") == 0o600
    os.close(private_files.open_log("/dev/null"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):
        private_files.open_log(tmp_path / "pipe")


def test_a_store_of_before_that_others_could_read_is_closed_to_them(tmp_path):
    with FolderStore(str(tmp_path / "store")) as store:
        for path in (tmp_path / "store").iterdir():
            path.chmod(0o644)
        store.put("a", b"1")
        with FolderStore(str(tmp_path / "store")):
            assert {mode(path) for path in (tmp_path / "store").iterdir()} == {0o600}


@pytest.mark.parametrize("bits", [0o777, 0o773])
def test_a_folder_that_others_may_write_holds_no_store_unless_each_keeps_his_names(tmp_path, bits):
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(bits)
    with pytest.raises(StoreRefused, match=rf"others may write to {folder}.*mode {bits:o}.*`chmod 700 {folder}`"):
        FolderStore(str(folder))
    folder.chmod(bits | stat.S_ISVTX)
    FolderStore(str(folder)).close()


@pytest.mark.parametrize("owner", ["another user's", "open", "a link", "a file"])
def test_the_folder_of_flights_and_sockets_is_the_users_alone(tmp_path, monkeypatch, request, owner):
    place = tmp_path / "place"
    if owner == "a link":
        place.symlink_to(tmp_path)
    elif owner == "a file":
        place.touch()
    else:
        place.mkdir(0o700)
        place.chmod(0o777 if owner == "open" else 0o700)
    if owner == "another user's":
        request.getfixturevalue("somebody_else")
    with pytest.raises(NotOurs, match=rf"{place} is (no folder of this user's alone: it (belongs|has mode 777)|a )"):
        private_files.own_folder(place)


def test_files_that_a_server_gives_to_another_user_are_this_users_own(tmp_path, somebody_else, monkeypatch):
    """A server of files that knows all its clients as one user, as those of clouds may."""
    monkeypatch.setattr(private_files, "_called_there", lambda folder: os.lstat(folder).st_uid)
    (tmp_path / "lock").touch(0o600)
    os.close(private_files.open_file(tmp_path / "lock", FLAGS))


LOCKS = """
import fcntl, os, sys
kept = open(sys.argv[1], "rb")
fcntl.flock(kept, fcntl.LOCK_EX)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_who_holds_a_lock_is_named_and_nobody_waits_for_ever(tmp_path, kind):
    path = tmp_path / "store"
    if kind == "folder":
        store, locked = FolderStore(str(path), timeout_s=0.3), path / "lock"
    else:
        store, locked = FileStore(path, timeout=0.3), path
    command = [sys.executable, "-c", LOCKS, str(locked)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holds:
        pid = int(holds.stdout.readline())
        expected = rf"process {pid} \(python.*\) of user {os.getuid()}\b.* held the lock of {locked} for 0.3 s"
        with pytest.raises((StoreTimeout, DistStoreError), match=expected):
            store.get("a") if kind == "folder" else store.set("a", "1")
        holds.communicate("")
    store.close()


def test_a_lock_that_another_user_holds_is_refused_before_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(private_files, "_FOREIGN_S", 0.01)
    monkeypatch.setattr(private_files.Holder, "foreign", True)
    locked = os.open(tmp_path / "lock", FLAGS)
    command = [sys.executable, "-c", LOCKS, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holds:
        pid = int(holds.stdout.readline())
        with pytest.raises(NotOurs, match=rf"process {pid} .* holds the lock of .*have that process ended"):
            private_files.lock(locked, str(tmp_path / "lock"), Deadline(60.0))
        holds.communicate("")
    private_files.lock(locked, str(tmp_path / "lock"), Deadline(0.0))
    fcntl.flock(locked, fcntl.LOCK_UN)
    os.close(locked)
