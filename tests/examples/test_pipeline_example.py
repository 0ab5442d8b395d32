"""The example of pipelines, small: any number of stages and replicas, and any schedule, end with the same weights."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.multiproc
SMALL = ("--steps", "6", "--width", "16", "--context", "12", "--layers", "4", "--heads", "2", "--batch", "16")
WORLDS = {
    "1 stages x 1 replicas": (1, "--stages", "1"),
    "2 stages x 1 replicas": (2, "--stages", "2"),
    "2 stages x 2 replicas": (4, "--stages", "2"),
    "4 stages x 1 replicas": (2, "--stages", "2", "--per-rank", "2", "--schedule", "ZBVZeroBubble"),
}


def test_a_gpt_ends_with_the_same_weights_in_any_number_of_stages_and_replicas(elastic_run: Callable[..., str]) -> None:
    found = set()
    for title, (workers, *chosen) in WORLDS.items():
        output = elastic_run("examples/03-pipeline-gpt/train.py", *SMALL, *chosen, workers=workers)
        said = re.search(rf"^{title}: weights ([0-9a-f]{{8}})$", output, re.MULTILINE)
        assert said, output
        found.add(said[1])
    assert len(found) == 1


def test_a_gpt_in_two_stages_learns(elastic_run: Callable[..., str]) -> None:
    output = elastic_run("examples/03-pipeline-gpt/train.py", "--steps", "40", "--width", "32", "--context", "24")
    losses = [float(number) for number in re.findall(r"^step \d+: loss ([\d.]+)$", output, re.MULTILINE)]
    assert len(losses) == 2
    assert losses[1] < losses[0] < 4.5


def killed_at_steps(root: Path, workers: int, kills: int) -> str:
    """What `elastic.py` prints; every 20 steps another worker is killed, `kills` in all."""
    launcher = str(Path(sys.executable).parent / "elastic-run")
    command = [launcher, "--standalone", "--nproc-per-node", str(workers), "--max-restarts", str(kills + 2)]
    sizes = ["--steps", "60", *SMALL[2:]]
    lines: list[str] = []
    started: list[int] = []
    with subprocess.Popen(
        [*command, "examples/03-pipeline-gpt/elastic.py", *sizes],
        cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as job:  # fmt: skip
        assert job.stdout is not None
        for line in job.stdout:
            lines.append(line)
            if said := re.match(r"process (\d+), rank", line):
                started.append(int(said[1]))
            if re.match(r"step \d+:", line) and kills:
                kills -= 1
                victim = started[0]  # the one that has said its rank longest ago, and that once
                started = [pid for pid in started if pid != victim]
                os.kill(victim, signal.SIGKILL)
    assert job.returncode == 0, "".join(lines)
    assert not kills
    return "".join(lines)


@pytest.mark.timeout(180)
def test_stages_that_are_killed_come_back_and_the_weights_are_those_of_an_undisturbed_run(root: Path) -> None:
    undisturbed = re.findall(r"^weights ([0-9a-f]{8})$", killed_at_steps(root, 2, 0), re.MULTILINE)
    assert len(undisturbed) == 1
    for workers in (2, 4):
        output = killed_at_steps(root, workers, 2)
        assert re.findall(r"^weights ([0-9a-f]{8})$", output, re.MULTILINE) == undisturbed, output
        assert output.count("worker died: ") == 2, output  # in full restarts, too, where no replacement was there yet
