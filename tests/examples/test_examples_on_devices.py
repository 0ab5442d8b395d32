"""`--device` of the examples that train: a pretended device learns, and without a GPU they say what is missing."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

from resilin import cuda

Run = Callable[..., "subprocess.CompletedProcess[str]"]
TINY_GPT = (
    *("--epochs", "2", "--windows", "128", "--context", "32", "--width", "32", "--layers", "1", "--heads", "2"),
    *("--characters", "8", "--log-every", "1"),
)
TRAINING = {"examples/01-digits/train.py": ("--epochs", "1"), "examples/02-char-gpt/train.py": TINY_GPT}


def test_the_digits_are_learned_on_a_pretended_device(run_python: Run) -> None:
    done = run_python("examples/01-digits/train.py", "--epochs", "2", "--device", "sim:0")
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"test accuracy ([\d.]+)%", done.stdout)
    assert accuracy, done.stdout
    assert float(accuracy[1]) > 85


def test_a_gpt_learns_on_a_pretended_device(run_python: Run) -> None:
    done = run_python("examples/02-char-gpt/train.py", *TINY_GPT, "--device", "sim:0")
    assert done.returncode == 0, done.stderr
    losses = [float(number) for number in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.multiproc
def test_a_pipeline_ends_on_a_pretended_device_with_a_checksum(elastic_run: Callable[..., str]) -> None:
    sizes = ("--steps", "2", "--width", "16", "--context", "12", "--layers", "2", "--heads", "2", "--batch", "16")
    output = elastic_run("examples/03-pipeline-gpt/train.py", *sizes, "--stages", "1", "--device", "sim:0", workers=1)
    assert re.search(r"^1 stages x 1 replicas: weights [0-9a-f]{8}$", output, re.MULTILINE), output


@pytest.mark.parametrize("program", TRAINING)
def test_cuda_is_what_the_machine_has_or_an_error_that_says_what_it_lacks(run_python: Run, program: str) -> None:
    done = run_python(program, *TRAINING[program], "--device", "cuda", timeout_s=300)
    if cuda.is_available():
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode
        assert re.search(r"RuntimeError: device type 'cuda' needs (CuPy|a device)", done.stderr), done.stderr
