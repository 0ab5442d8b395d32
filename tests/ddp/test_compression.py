"""Hooks that gather messages, beside a plain account of each: 8 bits, the largest gradients, signs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hooked import gradients_of, run_hook
from hypothesis import given
from hypothesis import strategies as st

from resilin.ddp.comm_hooks.onebit_hook import OneBitState, onebit_hook
from resilin.ddp.comm_hooks.quantization_hooks import (
    dequantize,
    quantization_perchannel_hook,
    quantization_pertensor_hook,
    quantize,
)
from resilin.ddp.comm_hooks.topk_hook import TopKState, topk_hook
from resilin.errors import UsageError

WORLD, STEPS = 3, 5
SHAPES = ((40, 9), (25,))
EPS = np.finfo(np.float32).eps


def flat(step: int, rank: int) -> np.ndarray:
    """One bucket: the parameter registered last lies first."""
    return np.concatenate([array.reshape(-1) for array in reversed(gradients_of(step, rank, SHAPES))])


def result(runs: list[Any], step: int) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in reversed(runs[0].steps[step])])


def as_pytorch_quantizes(x: np.ndarray) -> np.ndarray:
    """MinMaxObserver's parameters (quint8, affine) and the values that they let through."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = max(np.float32((high - low) / 255), EPS)
    zero = int(np.clip(0 - np.rint(low / scale), 0, 255))
    numbers = np.clip(np.rint(x / scale) + zero, 0, 255)
    return np.asarray(scale * (numbers - zero))


@pytest.mark.parametrize("row", [None, 64, 512])
def test_8_bits_are_those_of_pytorchs_hooks(row: int | None) -> None:
    hook = quantization_pertensor_hook if row is None else partial(quantization_perchannel_hook, bucket_size=row)
    runs = run_hook(WORLD, hook, shapes=SHAPES, steps=2)
    expected = np.zeros_like(flat(1, 0))
    for rank in range(WORLD):
        mine = flat(1, rank)
        padded = np.pad(mine, (0, 0 if row is None else -mine.size % row)).reshape(
            1 if row is None else -1, row or mine.size
        )
        expected += np.concatenate([as_pytorch_quantizes(each) for each in padded])[: mine.size] / WORLD
    np.testing.assert_allclose(result(runs, 1), expected, atol=1e-6)


@given(st.integers(1, 70), st.integers(1, 4), st.floats(-30, 30), st.floats(-12, 6), st.integers(0, 2**16))
def test_a_number_of_8_bits_is_at_most_one_half_of_its_scale_away(
    length: int, rows: int, shift: float, exponent: float, seed: int
) -> None:
    values = (10.0**exponent * (np.random.default_rng(seed).standard_normal((rows, length)) + shift)).astype(np.float32)
    scale, zero, numbers = quantize(values)
    got = dequantize(scale, zero, numbers)
    assert np.all(np.abs(got - values) <= 1.001 * scale[:, None])  # the zero point is rounded, too
    assert np.all(scale <= (np.abs(values).max(axis=1) * 2) / 255 * 1.001 + np.finfo(np.float32).tiny)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("hook", [quantization_pertensor_hook, quantization_perchannel_hook])
def test_a_gradient_that_is_not_finite_does_not_pass_for_a_number(hook: Any, value: float) -> None:
    def spoiled(step: int, rank: int, shapes: Any, dtype: Any) -> list[np.ndarray]:
        gradients = [array.copy() for array in gradients_of(step, rank, shapes, dtype)]
        if rank == 1:
            gradients[0][0, 0] = value
        return gradients

    assert not np.isfinite(run_hook(2, hook, shapes=SHAPES, given=spoiled, steps=1)[0].steps[0][0]).any()


def test_a_run_of_no_length_is_refused() -> None:
    with pytest.raises(UsageError, match="bucket_size must be positive, got 0"):
        run_hook(1, partial(quantization_perchannel_hook, bucket_size=0))


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("ratio", [0.001, 0.05, 1])
def test_the_largest_gradients_are_sent_and_the_others_wait(ratio: float, feedback: bool) -> None:
    make = partial(TopKState, None, ratio, start_topk_iter=1, use_error_feedback=feedback)
    runs = run_hook(WORLD, topk_hook, make, shapes=SHAPES, steps=STEPS)
    waiting = [np.zeros(385, np.float32)] * WORLD
    count = max(1, int(np.ceil(ratio * 385)))
    for step in range(1, STEPS):
        total = np.zeros(385, np.float32)
        for rank in range(WORLD):
            have = flat(step, rank) + waiting[rank]
            largest = np.argsort(-np.abs(have))[:count]
            total[largest] += have[largest]
            have[largest] = 0
            waiting[rank] = have if feedback else waiting[rank]
        np.testing.assert_allclose(result(runs, step), total / WORLD, rtol=1e-5, atol=1e-6)
    assert bool(runs[1].state.error_dict) is feedback


@pytest.mark.parametrize("feedback", [True, False])
def test_signs_stand_for_the_mean_of_the_gradients_that_have_them(feedback: bool) -> None:
    make = partial(OneBitState, None, 1, use_error_feedback=feedback)
    runs = run_hook(WORLD, onebit_hook, make, shapes=SHAPES, steps=STEPS)
    waiting = [np.zeros(385)] * WORLD
    for step in range(1, STEPS):
        total = np.zeros(385)
        for rank in range(WORLD):
            have = flat(step, rank) + waiting[rank]
            stands = np.empty(385)
            for run in (slice(0, 25), slice(25, 385)):
                plus = have[run] >= 0
                stands[run] = np.where(plus, have[run][plus].mean(), have[run][~plus].mean())
            total += stands
            waiting[rank] = have - stands if feedback else waiting[rank]
        np.testing.assert_allclose(result(runs, step), total / WORLD, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("hook", "make"), [(topk_hook, lambda: TopKState(None, 0.3)), (onebit_hook, lambda: OneBitState(None, 0))]
)
def test_what_was_left_out_comes_with_later_steps(hook: Any, make: Any) -> None:
    steps = 40

    def same(step: int, rank: int, shapes: Any, dtype: Any) -> list[np.ndarray]:
        return list(gradients_of(0, rank, shapes, dtype))

    runs = run_hook(2, hook, make, shapes=SHAPES, given=same, steps=steps)
    applied = sum(result(runs, step) for step in range(steps))
    given_in_all = steps * (flat(0, 0) + flat(0, 1)) / 2
    left = np.mean([ran.state.error_dict[0].numpy() for ran in runs], axis=0)
    np.testing.assert_allclose(applied + left, given_in_all, rtol=1e-3, atol=1e-2)
    assert np.linalg.norm(left) < 0.3 * np.linalg.norm(given_in_all)


@pytest.mark.parametrize("ratio", [0, -1, 1.5])
def test_a_share_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(UsageError, match="ratio must be above 0 and at most 1"):
        TopKState(None, ratio)


@pytest.mark.parametrize(
    ("hook", "make"), [(topk_hook, lambda: TopKState(None, 0.3)), (onebit_hook, lambda: OneBitState(None, 0))]
)
def test_an_overflow_is_not_kept_for_later_steps(hook: Any, make: Any) -> None:
    def once(step: int, rank: int, shapes: Any, dtype: Any) -> list[np.ndarray]:
        gradients = [array.copy() for array in gradients_of(step, rank, shapes, dtype)]
        if step == 1 and rank == 1:
            gradients[0][0, 0] = np.nan
        return gradients

    runs = run_hook(2, hook, make, shapes=SHAPES, given=once, steps=3)
    assert [np.isfinite(result(runs, step)).all() for step in range(3)] == [True, False, True]
