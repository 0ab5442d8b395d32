"""The digits example, but each step waits while a file is there: so that things can happen during the training."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "01-digits"))

import train

from resilin import elastic

_PACE_S = 0.2
_LAST_S, _LAST_STEPS = 2.0, 40  # towards the end: a busy machine must not run out of steps
_steps = elastic.steps


def _paced(sampler, *, epochs, **options):
    brake = os.environ["TEST_BRAKE"]
    slow_from = epochs * len(sampler) - _LAST_STEPS
    for step in _steps(sampler, epochs=epochs, **options):
        if os.path.exists(brake):
            time.sleep(_LAST_S if step.step >= slow_from else _PACE_S)
        yield step


if __name__ == "__main__":
    elastic.steps = _paced
    train.main()
