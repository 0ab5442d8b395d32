"""The native forms of ctc and sigmoid against their numpy references."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from resilin.core.kernels import ctc, loader, sigmoid
from resilin.core.machine import threads

TARGETS = [[1, 2, 2, 1], [], [3], [4, 4, 4], [1, 2, 3, 4, 1, 2]]


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    before = threads.get_num_threads()
    yield
    threads.set_num_threads(before)


def log_softmax(x: Any) -> Any:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def both(log_probs: Any, targets: Any, lengths: Any, blank: int = 0) -> None:
    """Losses, sums that count and gradients of both forms are equal within rounding."""
    losses, alpha = ctc.forward(log_probs, targets, lengths, blank)
    expected, sums = ctc.reference_forward(log_probs, targets, lengths, blank)
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    assert losses.dtype == expected.dtype == log_probs.dtype
    for n, (target, length) in enumerate(zip(targets, lengths, strict=True)):
        states = slice(0, 2 * len(target) + 1)
        np.testing.assert_allclose(alpha[:length, n, states], sums[:length, n, states], rtol=1e-5, atol=1e-4)
    g = np.linspace(-1, 1, len(targets), dtype=log_probs.dtype)
    grad = ctc.backward(g, losses, alpha, log_probs, targets, lengths, blank)
    slow = ctc.reference_backward(g, expected, sums, log_probs, targets, lengths, blank)
    np.testing.assert_allclose(grad, slow, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lengths", [(9, 9, 9, 9, 9), (9, 4, 1, 5, 7), (0, 0, 9, 2, 3)])
@pytest.mark.parametrize("blank", [0, 5])
def test_both_forms_of_ctc_agree(rand: Any, lengths: tuple[int, ...], blank: int) -> None:
    both(log_softmax(rand(9, 5, 6) * 3), TARGETS, lengths, blank)


@pytest.mark.parametrize(("T", "N", "C", "S"), [(0, 2, 3, 0), (1, 1, 2, 1), (33, 31, 5, 7), (300, 3, 40, 60)])
def test_both_forms_of_ctc_agree_on_ragged_sizes(rand: Any, T: int, N: int, C: int, S: int) -> None:
    generator = np.random.default_rng(3)
    targets = [generator.integers(1, C, S - n % 3 if S > 2 else S) for n in range(N)]
    both(log_softmax(rand(T, N, C)), targets, [T - n % 2 if T else 0 for n in range(N)])


def test_both_forms_of_ctc_agree_on_no_samples(rand: Any) -> None:
    both(rand(4, 0, 3), [], [])


def test_both_forms_of_ctc_agree_on_infinite_and_missing_numbers(rand: Any) -> None:
    x = log_softmax(rand(9, 5, 6))
    x[2, 0, 1] = x[3, 1, 0] = x[0, 2, 3] = -np.inf
    x[4, 4, 2] = np.nan
    both(x, TARGETS, (9, 9, 9, 9, 9))


def test_both_forms_of_ctc_agree_on_numbers_that_are_no_logarithms(rand: Any) -> None:
    x = rand(3, 2, 4)
    x[1, 0, 3] = 85.0
    x[1, 1, 3] = 200.0  # its exponential is infinite
    both(x, [[1], [2]], (3, 3))


def test_ctc_of_strided_input_is_that_of_a_copy(rand: Any) -> None:
    x = log_softmax(rand(5, 9, 6)).swapaxes(0, 1)
    both(x, TARGETS, (9, 9, 9, 9, 9))


def test_threads_do_not_change_the_bits_of_ctc(rand: Any) -> None:
    x = log_softmax(rand(200, 16, 50))
    targets = [np.arange(1, 30) for _ in range(16)]
    results = []
    for count in (1, 2, 3):
        threads.set_num_threads(count)
        losses, alpha = ctc.forward(x, targets, [200] * 16, 0)
        results.append((losses, ctc.backward(np.ones(16, np.float32), losses, alpha, x, targets, [200] * 16, 0)))
    for losses, grad in results[1:]:
        np.testing.assert_array_equal(losses, results[0][0])
        np.testing.assert_array_equal(grad, results[0][1])


def test_native_ctc_refuses_what_would_lead_outside_of_its_arrays(rand: Any) -> None:
    assert loader.native is not None, loader.why
    x, labels = rand(4, 2, 3), np.zeros((2, 5), np.int64)
    sizes, lengths = np.array([2, 1]), np.array([4, 4])
    run = loader.kernel("ctc_forward")
    assert run(x, labels, sizes, lengths, 0) is not None
    for wrong in (labels + 3, labels - 1, labels[:1], labels.astype(np.int32)):
        assert run(x, wrong, sizes, lengths, 0) is None
    for wrong in (sizes + 1, -sizes, sizes[:1]):
        assert run(x, labels, wrong, lengths, 0) is None
    for wrong in (lengths + 1, -lengths, lengths[:1]):
        assert run(x, labels, sizes, wrong, 0) is None
    assert run(x.astype(np.float64), labels, sizes, lengths, 0) is None


@pytest.mark.parametrize("n", [0, 1, 31, 33, 4097])
def test_both_forms_of_sigmoid_agree(rand: Any, n: int) -> None:
    x, g = rand(n) * 8, rand(n)
    y = sigmoid.forward(x)
    np.testing.assert_allclose(y, sigmoid.reference_forward(x.astype(np.float64)), rtol=1e-6)
    np.testing.assert_allclose(sigmoid.backward(g, y), sigmoid.reference_backward(g, y), rtol=1e-6)
    wide = np.repeat(x, 2)[::2]
    np.testing.assert_array_equal(sigmoid.forward(wide), y)


@pytest.mark.parametrize("forward", [sigmoid.forward, sigmoid.reference_forward])
def test_sigmoid_at_the_ends_of_the_line(forward: Any) -> None:
    x = np.array([np.inf, 1e30, 100, 0, -100, -1e30, -np.inf, np.nan], np.float32)
    np.testing.assert_allclose(forward(x), [1, 1, 1, 0.5, 0, 0, 0, np.nan], atol=1e-30)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.complex64])
def test_sigmoid_keeps_dtypes_that_have_no_native_form(dtype: Any) -> None:
    x = np.array([-2, 0, 3], dtype)
    y = sigmoid.forward(x)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-x.astype(np.complex128))), rtol=2e-3)
    assert sigmoid.backward(np.ones_like(y), y).dtype == dtype
