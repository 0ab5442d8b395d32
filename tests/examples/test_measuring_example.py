"""The example of Timer prints its table."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest


@pytest.mark.slow
def test_softmax_is_measured_in_each_way(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_python("examples/measure_softmax.py", "--seconds", "0.001")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"\[-+ softmax of rows -+\]", lines[0])
    assert [word.strip() for word in lines[1].split("|")] == ["", "64 x 64", "512 x 512", "1024 x 4096"]
    rows = [line.partition("|")[0].strip() for line in lines[2:8]]
    assert [row.rstrip("- ") for row in rows] == [
        "1 threads:",
        "written out",
        "softmax",
        "2 threads:",
        "written out",
        "softmax",
    ]
    assert len(re.findall(r"\d", "".join(lines[3:5]))) >= 6
