"""Real workers, one slower than the others: `resilin status` and `top` name it, and nobody ends it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launches import until

from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.multiproc
WORKER = Path(__file__).parent / "slow_worker.py"
FOUND_S = 1.2 * PATIENCE_S  # agents look every 20 s, and a look needs some steps


def resilin(*args):
    command = [sys.executable, "-m", "resilin.launcher.main", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_status_and_top_name_the_slow_rank_with_its_factor_also_without_a_watchdog(launch, tmp_path):
    job = tmp_path.name
    run = launch("--standalone", "--nproc-per-node", 3, "--rdzv-id", job, "--hang-timeout", "off", WORKER, tmp_path)
    run.until((tmp_path / "begun").exists, FOUND_S)

    def with_steps():
        found = json.loads(resilin("status", job, "--json"))["slow"]
        return found if found and found[0]["step_s"] else None

    (slow,) = until(with_steps, FOUND_S, lambda: f"\n{run.err}", run.process)
    assert slow["rank"] == 1
    assert slow["factor"] > 1.5
    assert slow["step_s"] > 1.5 * slow["usual_step_s"] > 0
    sentence = f"rank 1 (host {slow['host']}, pid {slow['pid']}) is slow: it takes "
    assert sentence in resilin("status", job)
    assert sentence in resilin("top", job, "--once")
    (tmp_path / "enough").touch()
    assert run.wait() == 0
