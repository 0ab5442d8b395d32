"""What resilin logs never ends a worker, nor holds it up: whatever standard error is, and whoever handles records."""

import os
import subprocess
import sys

import pytest

from resilin._base import log, standard_error
from resilin.testing.patience import PATIENCE_S

MANY = 3000  # lines of 100 bytes: more than any pipe holds
WORKER = """
import logging, sys
from resilin._base import log
{prelude}
logger = log.logger("elastic.loop")
for step in range({many}):
    log.event(logger, logging.WARNING, "a link was cut and is there again", step=step, text="x" * 60)
print("trained")
"""


def worker(prelude="", many=MANY, unbuffered="", **streams):
    code = WORKER.format(prelude=prelude, many=many)
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env, **streams)


def ends_well(process):
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, b"trained\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_nobody_reads(unbuffered):
    reads, writes = os.pipe()
    try:
        ends_well(worker(unbuffered=unbuffered, stderr=writes))
    finally:
        os.close(reads)
        os.close(writes)


def test_a_pipe_whose_reader_has_gone():
    reads, writes = os.pipe()
    os.close(reads)
    try:
        ends_well(worker(stderr=writes))
    finally:
        os.close(writes)


def test_a_full_disk():
    with open("/dev/full", "wb") as full:
        ends_well(worker(stderr=full))


@pytest.mark.parametrize(
    "prelude",
    [
        "import os; os.close(2)",
        "sys.stderr.close()",
        "sys.stderr = None",
        "sys.stderr = type('', (), {'flush': lambda self: None})()",
    ],
    ids=["its descriptor is closed", "it is closed", "there is none", "it is no stream"],
)
def test_without_a_standard_error(prelude):
    ends_well(worker(prelude, many=3, stderr=subprocess.DEVNULL))


@pytest.mark.parametrize(
    "prelude",
    ["logging.basicConfig(); sys.stderr.close()", "logging.getLogger().addHandler(logging.Handler())"],
    ids=["its stream is closed", "it raises"],
)
def test_a_handler_of_the_program_that_fails(prelude):
    ends_well(worker(prelude, many=3, stderr=subprocess.DEVNULL))


def test_a_slow_reader_misses_nothing():
    reads, writes = os.pipe()
    process = worker(stderr=writes)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        lines = pipe.read().splitlines()
    ends_well(process)
    assert [int(line.split(b"step=")[1].split()[0]) for line in lines] == list(range(MANY))


def test_the_same_holds_where_records_were_asked_for(capsys):
    class Closed:
        def write(self, text):
            raise ValueError("I/O operation on closed file")

    log.configure("INFO", stream=Closed())
    try:
        log.event(log.logger("launcher"), 20, "nobody hears this")
        standard_error.write("this is heard")
    finally:
        log.logger("x").parent.handlers[:] = [log._last_resort]
        log.logger("x").parent.setLevel("NOTSET")
        log.logger("x").parent.propagate = True
    assert capsys.readouterr().err == "this is heard\n"
