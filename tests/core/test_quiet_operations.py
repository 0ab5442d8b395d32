"""Operations switch numpy's warnings off for themselves and for nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.ops import errstate
from resilin.nn import functional


def test_numpy_is_as_it_was_after_an_operation_that_overflows() -> None:
    with np.errstate(over="raise", divide="warn"):
        before = np.geterr()
        assert resilin.tensor([1e38]).mul(1e38).item() == np.inf
        assert np.geterr() == before


def test_numpy_is_as_it_was_after_an_operation_that_failed() -> None:
    before = np.geterr()
    with pytest.raises(RuntimeError, match="cannot be broadcast"):
        resilin.ones(2) + resilin.ones(3)
    assert np.geterr() == before


def test_the_form_for_other_versions_of_numpy_does_the_same() -> None:
    stand_in = errstate._ErrState()
    before = np.geterr()
    state = stand_in.set(None)
    assert set(np.geterr().values()) == {"ignore"}
    stand_in.reset(state)
    assert np.geterr() == before


def test_this_version_of_numpy_needs_no_stand_in() -> None:
    assert not isinstance(errstate.VARIABLE, errstate._ErrState)


def test_numbers_beyond_float16_become_infinite_without_a_warning() -> None:
    counts = resilin.histc(resilin.zeros(70000, dtype=resilin.float16), 3, -1, 1)
    assert counts.tolist() == [0, np.inf, 0]
    assert resilin.linspace(0, 1e5, 3, dtype=resilin.float16).tolist() == [0, 49984, np.inf]


HALF, NAN = resilin.float16, float("nan")


@pytest.mark.parametrize(  # warnings are errors in these tests
    "call",
    [
        lambda: resilin.arange(0, 1e5, 1e4, dtype=HALF)[-1:],
        lambda: resilin.zeros(300, dtype=HALF).normal_(0, 1e6).abs().amax(),
        lambda: resilin.zeros(300, dtype=HALF).log_normal_(0, 900).amax(),
        lambda: resilin.zeros(300, dtype=HALF).cauchy_(6e4, 6e4).abs().amax(),
        lambda: resilin.tensor([[6e4, 1], [6e4, NAN]], dtype=HALF).nansum(0)[0],
        lambda: resilin.tensor([[np.inf, -1], [np.inf, NAN]], dtype=resilin.bfloat16).nanmean(0)[0],
    ],
)
def test_what_overflows_beside_an_operation_is_infinite_without_a_warning(call: Callable[[], Any]) -> None:
    assert call().isinf().all()


def test_nan_is_compared_without_a_warning() -> None:
    x = resilin.tensor([NAN, 0.5], dtype=resilin.bfloat16)
    assert functional.gaussian_nll_loss(x, x, x).isnan()
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        functional.binary_cross_entropy(x, x)
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        resilin.bernoulli(x)
    with pytest.raises(RuntimeError, match="not finite"):
        resilin.histc(x)
