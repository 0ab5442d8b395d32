"""Operations switch numpy's warnings off for themselves and for nobody else."""

from __future__ import annotations

import numpy as np
import pytest

import resilin
from resilin.core.ops import errstate


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
