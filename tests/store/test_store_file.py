"""The file store between processes: clocks, crashes, and files that grow or break."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading

import pytest

from resilin import store
from resilin.errors import Compacted, StoreError, StoreTimeout
from resilin.store import file as file_module
from resilin.store.file import FileStore
from resilin.testing.clock import FakeClock
from resilin.testing.patience import PATIENCE_S
from resilin.testing.recorder import Recorder


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "store")


@pytest.fixture
def child(folder):
    """child(code) starts a Python process with `store` open on the folder; ended after the test."""
    started = []

    def start(code: str) -> subprocess.Popen[str]:
        text = f"from resilin.store import *\nstore = connect('file://{folder}')\n{code}\n"
        process = subprocess.Popen(
            [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_processes_share_one_order_of_writes(folder, child):
    count = (
        "for _ in range(30):\n"
        "    done = False\n"
        "    while not done:\n"
        "        kv = store.get('n')\n"
        "        value, revision = (0, 0) if kv is None else (int(kv.value), kv.mod_revision)\n"
        "        done, _ = store.compare_and_put('n', revision, b'%d' % (value + 1))\n"
        "store.close()"
    )
    for process in [child(count) for _ in range(3)]:
        process.communicate(timeout=60)
        assert process.returncode == 0
    with FileStore(folder) as one:
        assert one.get("n").value == b"90"
        assert one.get("n").version == 90


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
def test_the_lease_of_a_process_that_was_killed_or_frozen_ends(folder, child, harm):
    process = child("store.put('node', b'', store.lease(0.5))\nprint('up', flush=True)\ninput()")
    assert process.stdout.readline() == "up\n"
    seen = Recorder()
    with FileStore(folder) as one:
        one.watch("node", seen.on_events)
        process.send_signal(harm)
        assert seen.wait(1)[0].kind == "delete"
    if harm == signal.SIGSTOP:
        process.send_signal(signal.SIGCONT)


def test_the_owner_of_a_lease_that_others_ended_is_told(folder):
    clock, lost = FakeClock(), threading.Event()
    with FileStore(folder, clock=clock) as frozen, FileStore(folder) as other:  # the fake clock never beats
        lease = frozen.lease(0.3, lost.set)
        frozen.put("node", b"", lease)
        seen = Recorder()
        other.watch("node", seen.on_events, start_revision=2)
        assert seen.wait(2)[1].kind == "delete"
        frozen.get("node")
        assert lost.wait(PATIENCE_S)
        assert not lease.alive


def test_an_observer_counts_on_its_own_clock_only(folder):
    observer = FakeClock(monotonic=5.0, wall=0.0)  # another host: just booted, wall clock fifty years behind
    with FileStore(folder) as owner, FileStore(folder, clock=observer) as other:
        owner.put("node", b"", owner.lease(3600.0))
        owner.close()  # as if it died
        for _ in range(5):
            assert other.get("node") is not None
            observer.advance(899.0)
            other.look()
        observer.advance(910.0)
        other.look()
        assert other.get("node") is None


def test_a_record_that_a_dying_writer_cut_short_is_dropped(folder):
    with FileStore(folder) as one, FileStore(folder) as other:
        one.put("a", b"1")
        path = os.path.join(folder, "journal")
        with open(path, "ab") as journal:
            journal.write(b"\0\0\0\x40\x12\x34\x56\x78{half")
        assert other.get("a").value == b"1"
        other.put("b", b"2")
        assert [kv.key for kv in one.range("")[0]] == ["a", "b"]
    with FileStore(folder) as again:
        assert [kv.key for kv in again.range("")[0]] == ["a", "b"]


def test_a_damaged_journal_is_one_clear_error(folder):
    with FileStore(folder) as one:
        for number in range(5):
            one.put("a", b"%d" % number)
    path = os.path.join(folder, "journal")
    with open(path, "rb") as journal:
        data = bytearray(journal.read())
    data[len(data) // 2] ^= 0xFF
    with open(path, "wb") as journal:
        journal.write(data)
    with pytest.raises(StoreError, match="damaged at byte"):
        FileStore(folder)


def test_a_journal_that_grew_is_replaced_and_everybody_follows(folder, monkeypatch):
    monkeypatch.setattr(file_module, "ROTATE_BYTES", 4000)
    seen = Recorder()
    with FileStore(folder) as writer, FileStore(folder) as reader:
        lease = writer.lease(60.0)
        writer.put("leased", b"", lease)
        reader.watch("k", seen.on_events, on_error=seen.on_error)
        for number in range(200):
            writer.put("k", b"%d" % number)
        assert [event.kv.value for event in seen.wait(200)] == [b"%d" % number for number in range(200)]
        assert reader.get("leased").lease == lease.id
        lease.revoke()
        assert reader.get("leased") is None
    with FileStore(folder) as late:
        assert late.get("k").value == b"199"
        late.watch("k", seen.on_events, start_revision=3)
        assert len(seen.wait(400)) == 400


def test_a_reader_that_slept_through_the_history_is_told_to_list_again(folder, monkeypatch):
    monkeypatch.setattr(file_module, "ROTATE_BYTES", 2000)
    seen = Recorder()
    with FileStore(folder) as writer, FileStore(folder, clock=FakeClock()) as sleeper:
        writer.put("k", b"0")
        sleeper.watch("k", seen.on_events, on_error=seen.on_error)
        for number in range(100):
            writer.compact(writer.put("k", b"%d" % number))
        sleeper.get("k")
        assert isinstance(seen.wait_error(), Compacted)
        assert sleeper.get("k").value == b"99"


def test_a_lock_that_is_never_released_is_a_timeout(folder):
    with FileStore(folder, timeout_s=0.2) as one, open(os.path.join(folder, "lock"), "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreTimeout, match=r"held the lock of .*/lock for 0\.2 s"):
            one.put("a", b"")
        fcntl.flock(other, fcntl.LOCK_UN)
        one.put("a", b"")


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot use folder"):
        store.connect(f"file://{tmp_path}/file/store")


def test_closing_leaves_no_thread_and_no_descriptor(folder):
    before, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    with FileStore(folder) as one:
        one.watch("", lambda events: None)
        one.put("a", b"", one.lease(5.0))
        assert len(threading.enumerate()) > len(before)
    assert set(threading.enumerate()) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_folder_that_is_away_is_told_once_and_again_when_it_is_back(folder, monkeypatch):
    told, looks, away = [], threading.Semaphore(0), threading.Event()

    def look():
        looks.release()
        if away.is_set():
            raise FileNotFoundError("it is away")

    monkeypatch.setattr(file_module, "TROUBLE_S", 0.0)
    monkeypatch.setattr(file_module.log, "event", lambda *args, **fields: told.append(args[2]))
    with FileStore(folder) as one:
        monkeypatch.setattr(one, "look", look)
        away.set()
        with one.watch("", lambda events: None):
            for _ in range(20):  # looks while it is away
                assert looks.acquire(timeout=PATIENCE_S)
            away.clear()
            while len(told) < 2:
                assert looks.acquire(timeout=PATIENCE_S)
    assert told == ["the shared folder cannot be read", "the shared folder can be read again"]
