"""Programs in the styles of public collections run unchanged: their loss falls, and what they assert holds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
AS_TORCH = [sys.executable, "-m", "resilin.as_torch"]
LAUNCHED = [sys.executable, "-m", "resilin.launcher.entry", "--as-torch", "--standalone", "--nproc-per-node", "2"]
# name: the part of the first loss that is left, at most
LEFT = {
    "char_model": 0.7,
    "classifier": 0.6,
    "vae": 0.7,
    "gan": 0.4,
    "reinforce": 0.6,
    "lstm_tagger": 0.7,
    "transformer": 0.5,
    "graph_net": 0.3,
    "hogwild": 0.5,
    "ddp_spawn": 0.95,
    "ddp_launched": 0.8,
}


def test_every_program_here_is_run():
    assert {path.stem for path in PROGRAMS.glob("*.py")} == set(LEFT)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT)
def test_a_program_runs_unchanged_and_its_loss_falls(name, tmp_path):
    if name == "ddp_launched":
        command = [*LAUNCHED, str(PROGRAMS / f"{name}.py"), str(tmp_path / "snapshot.pt")]
    else:
        command = [*AS_TORCH, str(PROGRAMS / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = re.search(r"^loss (\S+) -> (\S+)$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    assert float(found[2]) < LEFT[name] * float(found[1])
