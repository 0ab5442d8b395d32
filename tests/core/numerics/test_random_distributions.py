"""Random distributions: moments, seeds, supports, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import resilin

N = 20000
ZEROS = resilin.zeros(N, dtype=resilin.float64)
DRAWS: list[tuple[str, Any, float, float]] = [  # name, draw, mean, variance
    ("poisson", lambda: resilin.poisson(ZEROS + 3.5), 3.5, 3.5),
    ("poisson of a large rate", lambda: resilin.poisson(ZEROS[:2000] + 1200.0), 1200.0, 1200.0),
    ("poisson of a huge rate", lambda: resilin.poisson(ZEROS + 1e12), 1e12, 1e12),
    ("poisson between small and large", lambda: resilin.poisson(ZEROS + 10), 10.0, 10.0),
    ("binomial of many trials", lambda: resilin.binomial(ZEROS + 1e9, ZEROS + 0.75), 7.5e8, 1.875e8),
    ("binomial between few and many", lambda: resilin.binomial(ZEROS + 40, ZEROS + 0.25), 10.0, 7.5),
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


@pytest.mark.parametrize("mean", [6.0, 10.0, 14.0])
def test_counts_are_as_frequent_as_their_probabilities(mean: float) -> None:
    resilin.manual_seed(5)
    some = ZEROS.repeat(5)
    found = {
        "poisson": (resilin.poisson(some + mean), stats.poisson(mean)),
        "binomial": (resilin.binomial(some + 50, some + mean / 50), stats.binom(50, mean / 50)),
        "binomial of likely successes": (
            resilin.binomial(some + 50, some + 0.6 + mean / 50),
            stats.binom(50, 0.6 + mean / 50),
        ),
    }
    for name, (drawn, law) in found.items():
        counts = np.bincount(drawn.numpy().astype(int), minlength=60)
        expected = law.pmf(np.arange(len(counts))) * drawn.numel()
        often = expected > 20
        unlikely = ((counts - expected)[often] ** 2 / expected[often]).sum()
        assert unlikely < stats.chi2(int(often.sum())).ppf(0.9999), name
        assert counts[~often].sum() < 200


def test_certain_and_impossible_trials_are_counted_exactly() -> None:
    trials = resilin.tensor([0.0, 3, 3.5, 1e6, 1e6])
    assert resilin.binomial(trials, resilin.tensor([0.5, 1, 1, 1, 0])).tolist() == [0, 3, 3, 1e6, 0]
    assert resilin.poisson(resilin.zeros(2)).tolist() == [0, 0]


def test_infinite_rates_and_counts_are_refused() -> None:
    endless = resilin.tensor([np.inf])
    with pytest.raises(RuntimeError, match="finite rates"):
        resilin.poisson(endless)
    with pytest.raises(RuntimeError, match="finite counts"):
        resilin.binomial(endless, resilin.tensor([0.5]))


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(0, 300, resilin.uint8), (-1, 5, resilin.uint8), (0, 1 << 20, resilin.float16), (0, 3, resilin.bool)],
)
def test_integers_beyond_a_dtype_are_refused(low: int, high: int, dtype: Any) -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        resilin.randint(low, high, (2,), dtype=dtype)
    with pytest.raises(RuntimeError, match="out of bounds"):
        resilin.empty(2, dtype=dtype).random_(low, high)


def test_samples_are_drawn_of_something_and_of_no_more_than_can_be_counted() -> None:
    with pytest.raises(RuntimeError, match="nothing to sample from"):
        resilin.multinomial(resilin.ones(2, 0), 1)
    with pytest.raises(RuntimeError, match="categories cannot exceed"):
        resilin.multinomial(resilin.ones(1).expand((1 << 24) + 1), 1)
    assert resilin.multinomial(resilin.ones(0, 2), 1).shape == (0, 1)
    assert resilin.multinomial(resilin.ones(0, 2), 1, replacement=True).shape == (0, 1)
