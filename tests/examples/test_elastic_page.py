"""The programs of docs/elastic.md, run as the page says: the lines that change, and one loop for both strategies."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from resilin.elastic import ledger

PAGE = Path(__file__).resolve().parents[2] / "docs" / "elastic.md"
BEFORE, AFTER, SHARDS = re.findall(r"^```python(?: runnable)?\n(.*?)^```$", PAGE.read_text(), re.M | re.S)[:3]


def bare(program: str) -> list[str]:
    """The lines of `program`, without imports, comments and indentation."""
    lines = [line.partition("  #")[0].strip() for line in program.splitlines()]
    return [line for line in lines if line and not line.startswith(("import ", "from "))]


def test_the_program_changes_four_lines() -> None:
    changed = [line for line in difflib.ndiff(bare(BEFORE), bare(AFTER)) if line.startswith("+ ")]
    assert len(changed) == 4, changed
    marked = [line for line in AFTER.splitlines() if line.endswith(("# new", "# changed"))]
    assert [line.partition("  #")[0].strip() for line in marked] == [line.removeprefix("+ ") for line in changed]


def test_the_first_program_trains_on_two_workers(elastic_run: Callable[..., str], tmp_path: Path) -> None:
    script = tmp_path / "before.py"
    script.write_text(BEFORE)
    shares = [float(share) for share in re.findall(r"([\d.]+)% right", elastic_run(str(script)))]
    assert len(shares) == 2
    assert min(shares) > 95


KILL = """
        if (step.step, elastic.world().generation, elastic.world().rank) == (70, 1, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
"""


@pytest.mark.multiproc
def test_the_changed_program_goes_on_when_a_worker_is_killed_and_counts_each_sample_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, book = tmp_path / "after.py", tmp_path / "ledger"
    program = AFTER.replace("\n        optimizer.step()\n", KILL)
    assert program != AFTER
    script.write_text(f"import os\nimport signal\n{program}")
    monkeypatch.setenv("RESILIN_LEDGER", str(book))
    launcher = Path(sys.executable).with_name("elastic-run")
    done = subprocess.run(
        [launcher, "--standalone", "--nproc-per-node=2", "--max-restarts=1", script],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "killed by SIGKILL at step 71" in done.stderr
    verdict = ledger.verify(ledger.read(str(book)))
    assert verdict.ok, str(verdict)
    assert dict(verdict.epochs) == dict.fromkeys(range(2), 4096)
    assert min(float(share) for share in re.findall(r"([\d.]+)% right", done.stdout)) > 95


def test_one_loop_gives_the_same_bits_with_and_without_divided_state(
    elastic_run: Callable[..., str], run_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Of DistributedDataParallel in one process, and of parameters that are divided among three."""
    script = tmp_path / "shards.py"
    script.write_text(SHARDS)
    alone = run_python(str(script)).stdout.splitlines()
    assert len(alone) == 4
    assert elastic_run(str(script), "divided", workers=3).splitlines() == alone
