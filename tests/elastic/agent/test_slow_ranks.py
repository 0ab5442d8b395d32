"""Real workers, one slower than the others: `resilin status` and `top` name it, and nobody ends it."""

import json
from pathlib import Path

import pytest
from launches import COMMAND_S, resilin

pytestmark = pytest.mark.multiproc
WORKER = Path(__file__).parent / "slow_worker.py"
HASTY = """
from resilin.elastic.agent import stragglers, watchdog
stragglers.LOOK_S = watchdog.TEMPO_S = 4.0  # of 20
"""


def told(*args):
    done = resilin(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_status_and_top_name_the_slow_rank_with_its_factor_also_without_a_watchdog(launch, tmp_path):
    job = tmp_path.name
    flags = "--standalone", "--nproc-per-node", 3, "--rdzv-id", job, "--hang-timeout", "off"
    run = launch(*flags, WORKER, tmp_path, hasty=HASTY)
    run.until((tmp_path / "begun").exists)

    def with_steps():
        found = json.loads(told("status", job, "--json"))["slow"]
        return found if found and found[0]["step_s"] else None

    (slow,) = run.until(with_steps, every_s=COMMAND_S)
    assert slow["rank"] == 1
    assert slow["factor"] > 1.5
    assert slow["step_s"] > 1.5 * slow["usual_step_s"] > 0
    sentence = f"rank 1 (host {slow['host']}, pid {slow['pid']}) is slow: it takes "
    assert sentence in told("status", job)
    assert sentence in told("top", job, "--once")
    (tmp_path / "enough").touch()
    assert run.wait() == 0
