"""Random distributions: moments, seeds, supports, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin

N = 20000
ZEROS = resilin.zeros(N, dtype=resilin.float64)
DRAWS: list[tuple[str, Any, float, float]] = [  # name, draw, mean, variance
    ("poisson", lambda: resilin.poisson(ZEROS + 3.5), 3.5, 3.5),
    ("poisson of a large rate", lambda: resilin.poisson(ZEROS[:2000] + 1200.0), 1200.0, 1200.0),
    ("binomial", lambda: resilin.binomial(ZEROS + 10, ZEROS + 0.3), 3.0, 2.1),
    ("geometric", lambda: ZEROS.clone().geometric_(0.25), 4.0, 12.0),
    ("log normal", lambda: ZEROS.clone().log_normal_(0.5, 0.5), float(np.exp(0.625)), 0.9913),
    ("arctan of cauchy", lambda: (ZEROS.clone().cauchy_(2.0, 3.0) - 2).div(3).atan(), 0.0, np.pi**2 / 12),
]


@pytest.mark.parametrize(("name", "draw", "mean", "variance"), DRAWS, ids=lambda v: v if isinstance(v, str) else "")
def test_mean_and_variance_are_those_of_the_distribution(name: str, draw: Any, mean: float, variance: float) -> None:
    resilin.manual_seed(3)
    values = draw().numpy()
    assert abs(values.mean() - mean) < 5 * np.sqrt(variance / values.size)
    assert abs(values.var() / variance - 1) < 0.2
    resilin.manual_seed(3)
    np.testing.assert_array_equal(values, draw().numpy())


def test_wrong_parameters_are_refused() -> None:
    x = resilin.ones(2)
    for call in (lambda: resilin.poisson(-x), lambda: resilin.binomial(x, x * 2), lambda: x.geometric_(1.0)):
        with pytest.raises(RuntimeError, match="expect"):
            call()
    for call in (lambda: x.cauchy_(0, 0), lambda: x.log_normal_(0, -1)):
        with pytest.raises(RuntimeError, match="expects"):
            call()
    with pytest.raises(NotImplementedError, match="int64"):
        resilin.poisson(resilin.arange(3))
