"""PowerSGD beside a plain account of PyTorch's hook; its arithmetic; its statistics and its state."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
import pytest
from hooked import SHAPES, Given, assert_same_bits, gradients_of, means, run_hook
from hypothesis import given
from hypothesis import strategies as st

from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp.comm_hooks import low_rank
from resilin.ddp.comm_hooks.powerSGD_hook import PowerSGDState, batched_powerSGD_hook, powerSGD_hook
from resilin.errors import UsageError
from resilin.testing.ranks import run_ranks

WORLD, START, STEPS = 3, 2, 7
BIG = SHAPES[0]


class Reference:
    """One matrix through PyTorch's steps: residuals of each rank are what it brought less what all got."""

    def __init__(self, q: np.ndarray, feedback: bool, warm: bool) -> None:
        self.q, self.feedback, self.warm = q.astype(np.float64), feedback, warm
        self.errors = [np.zeros((1, 1))] * WORLD

    def step(self, matrices: list[np.ndarray], fresh_q: np.ndarray) -> np.ndarray:
        brought = [matrix + error for matrix, error in zip(matrices, self.errors, strict=True)]
        q = np.linalg.qr(self.q if self.warm else fresh_q)[0]
        p = np.linalg.qr(sum(each @ q for each in brought))[0]
        self.q = sum(each.T @ p for each in brought) / WORLD
        got: np.ndarray = p @ self.q.T
        if self.feedback:
            self.errors = [each - got for each in brought]
        return got


def start_q(state: PowerSGDState, step: int, columns: int) -> np.ndarray:
    """The random Q of the only compressed matrix of bucket 0."""
    rank = state.matrix_approximation_rank
    return np.random.default_rng([state.random_seed, step, 0]).standard_normal(columns * rank).reshape(columns, rank)


@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("warm", [True, False])
def test_gradients_are_those_of_pytorchs_hook(rank: int, feedback: bool, warm: bool) -> None:
    make = partial(
        PowerSGDState, None, rank, START, use_error_feedback=feedback, warm_start=warm, random_seed=5,
        min_compression_rate=1.5,
    )  # fmt: skip
    runs = run_hook(WORLD, powerSGD_hook, make, steps=STEPS, shapes=(BIG, (9,)))
    assert_same_bits(runs)
    reference = Reference(start_q(make(), START, BIG[1]), feedback, warm)
    for step, got in enumerate(runs[0].steps):
        expected = list(means(WORLD, step, (BIG, (9,))))
        if step >= START:
            every = [gradients_of(step, r, (BIG, (9,)))[0].astype(np.float64) for r in range(WORLD)]
            expected[0] = reference.step(every, start_q(make(), step, BIG[1]))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_the_batched_hook_takes_the_bucket_as_one_square_matrix() -> None:
    make = partial(PowerSGDState, None, 2, START)
    shapes = ((6, 7), (8,))  # 50 elements: a square of 8
    runs = run_hook(WORLD, batched_powerSGD_hook, make, steps=STEPS, shapes=shapes)
    assert_same_bits(runs)
    reference = Reference(start_q(make(), START, 8), True, True)
    for step in range(START, STEPS):
        every = []
        for rank in range(WORLD):
            matrix, vector = gradients_of(step, rank, shapes)
            every.append(
                np.concatenate([vector, matrix.reshape(-1), np.zeros(14)]).reshape(8, 8)
            )  # buckets: last first
        expected = reference.step(every, start_q(make(), step, 8)).reshape(-1)
        matrix, vector = runs[0].steps[step]
        np.testing.assert_allclose(np.concatenate([vector, matrix.reshape(-1)]), expected[:50], rtol=1e-3, atol=1e-4)


def test_a_gradient_of_low_rank_is_averaged_exactly() -> None:
    def thin(step: int, rank: int, shapes: Any, dtype: Any) -> list[np.ndarray]:
        left = np.random.default_rng(step).standard_normal((20, 2))
        return [(left @ np.random.default_rng([step, rank]).standard_normal((2, 30))).astype(dtype)]

    make = partial(PowerSGDState, None, 2, START)
    runs = run_hook(2, powerSGD_hook, make, shapes=(BIG,), given=thin, steps=4)
    expected = (thin(3, 0, None, np.float64)[0] + thin(3, 1, None, np.float64)[0]) / 2
    np.testing.assert_allclose(runs[0].steps[3][0], expected, rtol=1e-3, atol=1e-4)


def test_what_a_step_leaves_out_comes_with_later_ones() -> None:
    """The same gradient again and again: the sum of what was applied follows the sum of what was given."""

    def same(step: int, rank: int, shapes: Any, dtype: Any) -> list[np.ndarray]:
        return list(gradients_of(0, rank, (BIG,)))

    def distance(feedback: bool, steps: int) -> float:
        make = partial(PowerSGDState, None, 2, START, use_error_feedback=feedback)
        runs = run_hook(2, powerSGD_hook, make, shapes=(BIG,), given=same, steps=START + steps)
        applied = np.sum([step[0] for step in runs[0].steps[START:]], axis=0)
        return float(np.linalg.norm(applied - steps * means(2, 0, (BIG,))[0]))

    assert distance(True, 60) < 0.3 * distance(False, 60)


def test_batching_matrices_of_one_shape_changes_nothing_but_the_random_start() -> None:
    shapes = ((20, 30), (30, 20), (20, 30), (5,))

    def run(batched: bool) -> list[np.ndarray]:
        make = partial(
            PowerSGDState, None, 2, START, batch_tensors_with_same_shape=batched, min_compression_rate=1,
        )  # fmt: skip
        runs = run_hook(2, powerSGD_hook, make, shapes=shapes, steps=40, given=lambda step, *rest: low(*rest))
        assert_same_bits(runs)
        return runs[0].steps[-1]

    def low(rank: int, shapes: Any, dtype: Any) -> list[np.ndarray]:
        return [
            gradients_of(0, 0, (shape[:1],))[0][:, None] * gradients_of(1, rank, (shape[1:],))[0][None]
            if len(shape) == 2
            else gradients_of(2, rank, (shape,))[0]
            for shape in shapes
        ]

    for a, b in zip(run(True), run(False), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@given(
    st.integers(1, 3), st.integers(1, 40), st.integers(1, 6), st.sampled_from([0.0, 1e-8]), st.integers(0, 2**16),
)  # fmt: skip
def test_columns_become_orthonormal_and_span_the_same(
    count: int, rows: int, rank: int, epsilon: float, seed: int
) -> None:
    rank = min(rank, rows)
    before = np.random.default_rng(seed).standard_normal((count, rows, rank))
    after = before.copy()
    low_rank.orthogonalize(after, epsilon)
    for old, new in zip(before, after, strict=True):
        shortest = np.abs(np.diag(np.linalg.qr(old).R)).min()  # what is divided by its length plus epsilon
        close = 1e-5 + 2 * epsilon / shortest
        np.testing.assert_allclose(new.T @ new, np.eye(rank), atol=close)
        np.testing.assert_allclose(new @ (new.T @ old), old, atol=close)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_columns_of_zeros_become_some_direction(rank: int) -> None:
    matrices = np.zeros((2, 5, rank))
    low_rank.orthogonalize(matrices)
    np.testing.assert_allclose(matrices[0].T @ matrices[0], np.eye(rank), atol=1e-12)


def test_a_parameter_whose_gradients_were_zero_is_compressed_again_once_they_are_not() -> None:
    def late(step: int, rank: int, shapes: Any, dtype: Any) -> list[np.ndarray]:
        ones = np.ones((20, 1)) * np.arange(1, 31)
        return [(ones * (step > 4)).astype(dtype)]

    runs = run_hook(2, powerSGD_hook, partial(PowerSGDState, None, 1, START), shapes=(BIG,), given=late, steps=7)
    assert not runs[0].steps[4][0].any()
    np.testing.assert_allclose(runs[0].steps[6][0], np.ones((20, 1)) * np.arange(1, 31), rtol=1e-4)


@pytest.mark.parametrize("hook", [powerSGD_hook, batched_powerSGD_hook])
@pytest.mark.parametrize("rank", [1, 3])
def test_an_overflow_shows_in_its_step_and_in_no_later_one(hook: Any, rank: int) -> None:
    def once(step: int, number: int, shapes: Any, dtype: Any) -> list[np.ndarray]:
        gradients = [array.copy() for array in gradients_of(step, number, shapes, dtype)]
        if step == 3 and number == 1:
            gradients[0][0, 0] = np.inf
        return gradients

    runs = run_hook(2, hook, partial(PowerSGDState, None, rank, START), given=once, steps=6)
    assert not np.isfinite(runs[0].steps[3][0]).all()
    assert all(np.isfinite(array).all() for step in (2, 4, 5) for array in runs[0].steps[step])


def test_statistics_count_elements_as_pytorch_does(caplog: pytest.LogCaptureFixture) -> None:
    make = partial(PowerSGDState, None, 1, START, compression_stats_logging_frequency=3)
    with caplog.at_level(logging.INFO, logger="resilin.ddp.powersgd"):
        (ran,) = run_hook(1, powerSGD_hook, make, steps=START + 5)
    before, after = 5 * sum(int(np.prod(shape)) for shape in SHAPES), 5 * (50 + 27 + 30 + 14 + 1)
    assert ran.state.compression_stats() == (before / after, before, after)
    assert len(caplog.records) == 2  # at the first compressed step and three later
    assert make().compression_stats() == (0, 0, 0)


def test_a_saved_state_goes_on_with_the_same_bits() -> None:
    make = partial(PowerSGDState, None, 2, START)

    def work(rank: int, interrupted: bool) -> list[np.ndarray]:
        state = make()
        for first, last in ((0, 4), (4, 7)):
            model = DDP(Given())
            model.register_comm_hook(state, powerSGD_hook)
            for step in range(first, last):
                model.zero_grad()
                model(gradients_of(step, rank)).backward()
            if interrupted:
                saved, state = state.state_dict(local=True), make()
                state.load_state_dict(saved)
        return [param.grad.numpy().copy() for param in model.parameters()]

    whole, cut = run_ranks(2, work, False).results(), run_ranks(2, work, True).results()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(whole[1], cut[1], strict=True))


def test_states_of_another_model_or_rank_are_refused() -> None:
    (ran,) = run_hook(1, powerSGD_hook, partial(PowerSGDState, None, 1, START))

    def work(rank: int, saved: Any, shapes: Any, approximation: int) -> None:
        state = PowerSGDState(None, approximation, START)
        state.load_state_dict(saved)
        model = DDP(Given(shapes))
        model.register_comm_hook(state, powerSGD_hook)
        model(gradients_of(0, rank, shapes)).backward()

    with pytest.raises(UsageError, match="needs a residual of 200 numbers, there is one of 825"):
        run_ranks(1, work, ran.state.state_dict(local=True), ((10, 20),), 1).results()
    with pytest.raises(UsageError, match=r"needs Q of 90 elements, the state has 45"):
        run_ranks(1, work, ran.state.state_dict(), SHAPES, 2).results()
    with pytest.raises(UsageError, match=r"expected the entries \['iter', 'numel', 'qs'\], got \['iter'\]"):
        PowerSGDState(None).load_state_dict({"iter": 3})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"start_powerSGD_iter": 1}, "start_powerSGD_iter must be above 1"),
        ({"matrix_approximation_rank": 0}, "matrix_approximation_rank must be an integer of at least 1, got 0"),
        ({"matrix_approximation_rank": 1.5}, r"must be an integer of at least 1, got 1\.5"),
        ({"min_compression_rate": -1}, "min_compression_rate must be a finite number of at least 0, got -1"),
        ({"orthogonalization_epsilon": -1e-8}, "orthogonalization_epsilon must be .* of at least 0, got -1e-08"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        PowerSGDState(None, **options)


def test_gradients_that_are_not_real_are_refused() -> None:
    def work(rank: int) -> None:
        model = DDP(Given(((4, 5),), np.complex64))
        model.register_comm_hook(PowerSGDState(None), powerSGD_hook)
        out = model([np.ones((4, 5), np.complex64)])
        (out * out.conj()).real.backward()

    with pytest.raises(UsageError, match=r"(?s) holds complex64 gradients.*powerSGD_hook, bucket 0"):
        run_ranks(1, work).results()


def test_a_tensor_of_the_state_is_a_copy() -> None:
    (ran,) = run_hook(1, powerSGD_hook, partial(PowerSGDState, None, 1, START))
    saved = ran.state.state_dict(local=True)
    residual = saved["residuals"][0][1]
    assert isinstance(residual, Tensor)
    residual._array[...] = 0
    assert ran.state.error_dict[0].numpy().any()
