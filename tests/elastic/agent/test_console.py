"""The terminal may pause or go away: the agent never waits for it."""

import contextlib
import io
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
from launches import INPLACE, until

from resilin.elastic.agent.console import Sink
from resilin.elastic.agent.reports import Reporter
from resilin.testing.patience import PATIENCE_S


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:  # the test closed it
            assert fd == reader


def drain(reader):
    parts = []
    while True:
        try:
            part = os.read(reader, 1 << 16)
        except BlockingIOError:
            return b"".join(parts)
        if not part:
            return b"".join(parts)
        parts.append(part)


def test_a_reader_that_pauses_delays_nobody_and_gets_everything_that_fits(pipe):
    reader, writer = pipe
    sink = Sink("stdout", writer)
    line = b"x" * 99 + b"\n"
    for _ in range(2000):  # three times what the pipe holds
        sink.write(line)
    received = bytearray()
    until(lambda: received.extend(drain(reader)) or len(received) == 2000 * 100)
    sink.close()
    assert bytes(received) == line * 2000


def numbered(count):
    return [f"line {number} {'x' * (number % 300)}\n".encode() for number in range(count)]


def test_a_reader_that_pauses_for_long_misses_nothing(pipe):
    reader, writer = pipe
    sink = Sink("stdout", writer, limit_bytes=1000)
    lines = numbered(20_000)  # three megabytes
    for line in lines[:-1]:
        sink.write(line)
    received = bytearray()
    until(lambda: received.extend(drain(reader)) or len(received) == sum(map(len, lines[:-1])))
    sink.write(lines[-1])  # nothing waits any more: by memory again
    until(lambda: received.extend(drain(reader)) or received.endswith(lines[-1]))
    sink.close()
    assert bytes(received) == b"".join(lines)


def test_a_slow_reader_is_waited_for_at_the_end_while_it_reads(pipe):
    reader, writer = pipe
    sink = Sink("stdout", writer, limit_bytes=1000)
    lines, received, over = numbered(5_000), bytearray(), threading.Event()

    def read_slowly():
        while not over.wait(0.02):
            with contextlib.suppress(BlockingIOError):
                received.extend(os.read(reader, 16 << 10))

    for line in lines:
        sink.write(line)
    slowly = threading.Thread(target=read_slowly)
    slowly.start()
    begin = time.monotonic()
    sink.close(timeout_s=0.3)
    assert time.monotonic() - begin > 0.3, "it took longer than a reader that takes nothing would get"
    over.set()
    slowly.join()
    assert bytes(received + drain(reader)) == b"".join(lines)


@pytest.mark.parametrize("spill_bytes", [0, Sink])
def test_what_fits_nowhere_is_dropped_and_counted(pipe, spill_bytes, monkeypatch):
    if spill_bytes is Sink:  # there is room, but no disk
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: io.FileIO("/dev/full", "r+"))
    reader, writer = pipe
    sink = Sink("stdout", writer, limit_bytes=1000, spill_bytes=int(spill_bytes == Sink) << 20)
    filler = b"y" * 99 + b"\n"
    os.set_blocking(writer, False)
    assert os.write(writer, b"y" * (1 << 20)) < 1 << 20, "the pipe is full"
    for _ in range(25):  # ten fit
        sink.write(filler)
    taken = drain(reader)
    sink.close()
    lines = (taken + drain(reader)).decode().splitlines()
    assert lines[-1] == "elastic-run: 15 lines were not shown here: the terminal did not take them in time"
    assert len(lines) == 11


def test_the_first_line_is_written_also_where_no_descriptor_is_left(pipe):
    reader, writer = pipe
    sink = Sink("stderr", writer)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2, before[1]))  # as many as are polled at once
    try:
        sink.write(b"no descriptor is left\n")
        received = bytearray()
        until(lambda: received.extend(drain(reader)) or received)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    sink.close()
    assert bytes(received) == b"no descriptor is left\n"


def test_a_close_gives_up_on_a_reader_that_never_reads(pipe):
    _, writer = pipe
    notes = []
    sink = Sink("stdout", writer, on_trouble=lambda name, why: notes.append((name, why)))
    sink.write(b"z\n" * 100_000)
    sink.close(timeout_s=0.05)
    ((name, why),) = notes
    assert name == "stdout"
    assert re.fullmatch("nobody read it at the end: [1-9][0-9]* bytes were not shown", why)
    assert not [t for t in threading.enumerate() if t.name == "resilin-console-stdout"]


def test_a_lost_terminal_is_noted_once_and_ignored(pipe):
    reader, writer = pipe
    os.close(reader)
    notes = []
    sink = Sink("stderr", writer, on_trouble=lambda name, why: notes.append((name, why)))
    sink.write(b"one\n")
    until(lambda: notes)
    sink.write(b"two\n")
    sink.close()
    assert notes == [("stderr", "Broken pipe")]


def test_a_full_disk_under_the_event_log_ends_the_log_and_nothing_else(capfd):
    reporter = Reporter(sys.stderr, None)
    reporter._events = open("/dev/full", "w")  # noqa: SIM115 - the reporter owns it
    reporter.event("one")
    reporter.event("two")
    reporter.close()
    assert capfd.readouterr().err.count("the event log is not written any more: No space left on device") == 1


@pytest.mark.multiproc
def test_training_goes_on_when_standard_error_is_closed(steps, tmp_path):
    (steps / "die-5").write_text("1 SIGKILL")
    reader, writer = os.pipe()
    os.close(reader)  # before the first line is written
    events = tmp_path / "events"
    command = [sys.executable, "-m", "resilin.launcher.elastic_run", "--standalone", "--nproc-per-node", "3"]
    command += ["--max-restarts", "2", "--event-log", events, INPLACE, steps, "40"]
    with subprocess.Popen(list(map(str, command)), stderr=writer, stdout=subprocess.DEVNULL) as process:
        os.close(writer)
        try:
            assert process.wait(PATIENCE_S) == 0
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
    assert events.read_text().count('"terminal_lost"') == 1
    assert events.read_text().count('"recovered"') == 1


@pytest.mark.multiproc
def test_a_paused_reader_of_teed_output_does_not_stop_the_agent(script, tmp_path):
    program = script(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    os.write(1, b'x' * 300_000 + b'\\n')\n"
        "    time.sleep(1000)\n"
        "log = os.path.dirname(os.environ['TORCHELASTIC_ERROR_FILE']) + '/../0/stdout.log'\n"
        "while not os.path.exists(log) or os.path.getsize(log) < 300_001:\n"
        "    time.sleep(0.01)\n"
        "raise SystemExit(3)\n"
    )
    reader, writer = os.pipe()  # nobody reads
    command = [sys.executable, "-m", "resilin.launcher.elastic_run", "--standalone", "--nproc-per-node", "2"]
    command += ["--tee", "1", "--log-dir", tmp_path / "logs", program]
    try:
        with subprocess.Popen(list(map(str, command)), stdout=writer, stderr=subprocess.PIPE) as process:
            os.close(writer)
            assert process.stderr is not None
            err = b""
            while b"exited with code 3" not in err:
                err += process.stderr.readline()
            taken = os.read(reader, 1 << 20)  # else it would be waited for
            while more := os.read(reader, 1 << 20):
                taken += more
            _, rest = process.communicate(timeout=PATIENCE_S)
    finally:
        os.close(reader)
    assert process.returncode == 1, err + rest
    assert taken.count(b"x") == 300_000
    (log,) = tmp_path.glob("logs/*/attempt_0/0/stdout.log")
    assert log.stat().st_size == 300_001, "a file never misses a part"


@pytest.mark.multiproc
def test_a_launcher_started_without_standard_streams_still_runs_its_workers(script, tmp_path):
    program = script(f"open({str(tmp_path / 'ran')!r}, 'w').write('yes')")
    command = f"exec {sys.executable} -m resilin.launcher.elastic_run {program} <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], timeout=PATIENCE_S, check=False).returncode == 0
    assert (tmp_path / "ran").read_text() == "yes"
