"""Processes train one model in shared memory, and end each other's with what went wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

import resilin.multiprocessing as mp
from resilin.multiprocessing import spawn as spawn_function
from resilin.testing.patience import PATIENCE_S

PROGRAM = Path(__file__).parent / "processes_program.py"


@pytest.mark.multiproc
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_writes_of_one_process_are_seen_by_others_and_outlive_it(method, tmp_path):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), method],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert [path for path in tmp_path.iterdir() if path.name.startswith("resilin-errors")] == []


def test_a_function_that_cannot_be_sent_starts_nothing_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(AttributeError, match="pickle local object"):
        mp.spawn(lambda number: None, nprocs=2)
    assert list(tmp_path.iterdir()) == []


def test_older_forms_say_what_they_are_now():
    with pytest.warns(UserWarning, match="renamed to ProcessContext"):
        assert mp.SpawnContext([], []).join() is True
    with pytest.warns(FutureWarning, match="start_processes"), pytest.raises(AttributeError, match="local"):
        spawn_function(lambda number: None, start_method="fork")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mp.ProcessContext([], []).pids() == []
