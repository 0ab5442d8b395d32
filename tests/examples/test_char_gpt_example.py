"""The second example, tiny."""

from __future__ import annotations

from collections.abc import Callable

import pytest

TRAIN = "examples/02-char-gpt/train.py"
TINY = (
    *("--epochs", "2", "--windows", "128", "--context", "32", "--width", "32", "--layers", "1", "--heads", "2"),
    *("--characters", "40", "--log-every", "1"),
)


@pytest.mark.multiproc
def test_char_gpt_learns_and_writes_a_sample_with_two_workers(elastic_run: Callable[..., str]) -> None:
    output = elastic_run(TRAIN, *TINY)
    losses = [float(line.split("loss ")[1].split()[0]) for line in output.splitlines() if " loss " in line]
    assert len(losses) == 8  # 128 windows in steps of 32, twice
    assert losses[-1] < losses[0] - 0.3
    sample = output[output.index("The ") :]
    assert len(sample) >= 40
