"""All steps of recurrent layers: native and numpy forms agree on ragged sizes, and at the ends of the line."""

from typing import Any

import numpy as np
import pytest

from resilin.core.kernels import pack, recurrent
from resilin.core.kernels.loader import native
from resilin.core.machine import threads

# (sequences of each step, H, P or 0): few and many steps, none, one sequence, lengths that differ, rows so wide that
# they are laid apart, and enough work for several threads
SHAPES = [
    ((), 3, 0),
    ((0, 0), 3, 0),
    ((1,), 1, 0),
    ((1,) * 9, 31, 0),
    ((5, 5, 4, 2), 33, 0),
    ((21, 21, 20, 17, 9, 9, 4, 1, 1), 7, 0),
    ((3, 3), 257, 0),
    ((4,) * 8, 512, 0),
    ((40, 40, 37, 30, 22, 22, 9, 9, 3, 1), 96, 0),
    ((5, 5, 4, 2), 33, 8),
    ((17, 16, 9, 9, 4, 1, 1, 1), 6, 1),
    ((40, 40, 37, 30, 22, 22, 9, 9, 3, 1), 96, 17),
]
KINDS = [(kind, *shape) for kind in recurrent.GATES for shape in SHAPES if kind == "lstm" or not shape[2]]
NEEDS = (True,) * 7


def drawn(kind: str, sizes: tuple[int, ...], H: int, proj: int, bias: bool = True) -> list[Any]:
    random = np.random.default_rng(0)
    B, F, P, G = max(sizes, default=2), 5, proj or H, recurrent.GATES[kind]

    def array(*shape: int) -> Any:
        return (random.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)

    biases = [array(G * H), array(G * H)] if bias else [None, None]
    cells = array(B, H) if kind == "lstm" else None
    weights = [array(G * H, F), array(G * H, P), *biases, array(P, H) if proj else None]
    return [array(sum(sizes), F), array(B, P), cells, *weights]


def both_ways(inputs: list[Any], kind: str, sizes: tuple[int, ...], reverse: bool, used: Any = None) -> list[Any]:
    """Results and gradients, from gradients of the results that `used` names (all without it)."""
    results, saved = recurrent.forward(inputs, kind, sizes, reverse)
    random = np.random.default_rng(1)
    grads: list[Any] = [random.standard_normal(result.shape).astype(result.dtype) for result in results]
    if used is not None:
        grads = [grad if i in used else None for i, grad in enumerate(grads)]
    needs = (*NEEDS, inputs[7] is not None)
    return [*results, *recurrent.backward(needs, grads, saved, inputs, kind, sizes, reverse)]


def wide(inputs: list[Any]) -> list[Any]:
    return [None if value is None else value.astype(np.float64) for value in inputs]


def narrowed(inputs: list[Any]) -> list[Any]:
    return [None if value is None else value.astype(pack.BFLOAT16) for value in inputs]


def assert_close(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == np.float32
            assert one.flags.c_contiguous
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5 * max(1, np.abs(other).max(initial=0)))


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`both_ways` by the numpy forms."""

    def run(*args: Any) -> list[Any]:
        with monkeypatch.context() as patch:
            patch.setattr(recurrent, "_native_forward", lambda *_: None)
            patch.setattr(recurrent, "_native_backward", lambda *_: None)
            return both_ways(*args)

    return run


@pytest.fixture
def must_be_native(monkeypatch: pytest.MonkeyPatch) -> None:
    if native is None:
        pytest.skip("there are no native kernels here, so nothing to compare the numpy forms with")
    for name in ("_native_forward", "_native_backward"):
        monkeypatch.setattr(recurrent, name, done(getattr(recurrent, name)))


def done(kernel: Any) -> Any:
    def run(*args: Any) -> Any:
        assert kernel(*args)
        return True

    return run


@pytest.mark.usefixtures("must_be_native")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("kind", "sizes", "H", "proj"), KINDS)
def test_native_steps_agree_with_numpys(
    kind: str, sizes: tuple[int, ...], H: int, proj: int, reverse: bool, reference: Any
) -> None:
    for bias in (True, False):
        inputs = drawn(kind, sizes, H, proj, bias)
        expected = reference(wide(inputs), kind, sizes, reverse)
        assert_close(both_ways(inputs, kind, sizes, reverse), expected)


@pytest.mark.usefixtures("must_be_native")
@pytest.mark.parametrize(("kind", "proj"), [("lstm", 0), ("lstm", 3), ("gru", 0), ("tanh", 0), ("relu", 0)])
def test_native_steps_take_one_bias_unused_results_and_weights_of_any_strides(
    kind: str, proj: int, reference: Any
) -> None:
    sizes = (4, 3, 3, 2, 1, 1, 1, 1, 1)
    for missing in (5, 6):
        inputs = drawn(kind, sizes, 6, proj)
        inputs[missing] = None
        inputs[3], inputs[4] = np.asfortranarray(inputs[3]), np.asfortranarray(inputs[4])
        for used in ((), (0,), (1,)):
            expected = reference(wide(inputs), kind, sizes, False, used)
            assert_close(both_ways(inputs, kind, sizes, False, used), expected)


@pytest.mark.parametrize("kind", recurrent.GATES)
@pytest.mark.parametrize("sizes", [(3,) * 10, (3, 2, 1)])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_gradient_does_not_depend_on_which_others_are_needed(
    kind: str, sizes: tuple[int, ...], reverse: bool
) -> None:
    inputs = drawn(kind, sizes, 6, 0)
    results, saved = recurrent.forward(inputs, kind, sizes, reverse)
    grads: list[Any] = [np.cos(result) for result in results]
    every = recurrent.backward((*NEEDS, False), grads, saved, inputs, kind, sizes, reverse)
    for i in (0, 1, 3, 4, 5, 6):
        needs = tuple(j == i for j in range(8))
        only = recurrent.backward(needs, grads, saved, inputs, kind, sizes, reverse)
        np.testing.assert_array_equal(only[i], every[i])


@pytest.mark.parametrize("kind", recurrent.GATES)
def test_numpys_steps_compute_half_precision_in_float32(kind: str) -> None:
    sizes = (3, 2, 2)
    inputs = [None if value is None else value.astype(np.float16) for value in drawn(kind, sizes, 4, 0)]
    expected = both_ways(wide(inputs), kind, sizes, False)
    for one, other in zip(both_ways(inputs, kind, sizes, False), expected, strict=True):
        if one is not None:
            assert one.dtype == np.float16
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("kind", "sizes", "H", "proj"), KINDS)
def test_bfloat16_is_off_by_what_its_roundings_are(kind: str, sizes: tuple[int, ...], H: int, proj: int) -> None:
    inputs = narrowed(drawn(kind, sizes, H, proj))
    for one, other in zip(
        both_ways(inputs, kind, sizes, True), both_ways(wide(inputs), kind, sizes, True), strict=True
    ):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == pack.BFLOAT16
            assert np.linalg.norm(one.astype(np.float64) - other) <= 8e-3 * np.linalg.norm(other)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize(("kind", "sizes", "H", "proj"), KINDS)
def test_the_number_of_threads_does_not_change_a_bit(
    kind: str, sizes: tuple[int, ...], H: int, proj: int, narrow: bool
) -> None:
    before = threads.get_num_threads()
    inputs = drawn(kind, sizes, H, proj)
    inputs = narrowed(inputs) if narrow else inputs
    found = []
    try:
        for n in (1, 2, 3, 5):
            threads.set_num_threads(n)
            found.append(both_ways(inputs, kind, sizes, False))
    finally:
        threads.set_num_threads(before)
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("kind", recurrent.GATES)
def test_a_sequence_has_the_same_bits_in_any_batch(kind: str, narrow: bool) -> None:
    sizes = (20,) * 12
    inputs = drawn(kind, sizes, 24, 0)
    inputs = narrowed(inputs) if narrow else inputs
    (all_y, *_), _ = recurrent.forward(inputs, kind, sizes, False)
    alone = [inputs[0].reshape(12, 20, 5)[:, 7:10].reshape(36, 5), *(v if v is None else v[7:10] for v in inputs[1:3])]
    (y, *_), _ = recurrent.forward([*alone, *inputs[3:]], kind, (3,) * 12, False)
    np.testing.assert_array_equal(y.reshape(12, 3, 24), all_y.reshape(12, 20, 24)[:, 7:10])


@pytest.mark.usefixtures("must_be_native")
def test_a_forward_pass_leaves_its_inputs_and_a_backward_pass_what_was_saved() -> None:
    for kind in recurrent.GATES:
        sizes = (3,) * 9
        inputs = drawn(kind, sizes, 4, 0)
        copies = [None if value is None else value.copy() for value in inputs]
        results, saved = recurrent.forward(inputs, kind, sizes, False)
        grads = [np.ones_like(result) for result in results]
        first = recurrent.backward((*NEEDS, False), list(grads), saved, inputs, kind, sizes, False)
        second = recurrent.backward((*NEEDS, False), list(grads), saved, inputs, kind, sizes, False)
        for one, other in [*zip(inputs, copies, strict=True), *zip(first, second, strict=True)]:
            np.testing.assert_array_equal(one, other)
        assert all((grad == 1).all() for grad in grads)


@pytest.mark.parametrize("form", [recurrent.run_steps, recurrent.reference_run_steps])
def test_an_lstm_at_the_ends_of_the_line(form: Any) -> None:
    values = np.array([-np.inf, -1e30, -100, -1e-30, 0, 1e-6, 100, 1e30, np.inf, np.nan], np.float32)
    H = len(values)
    y, state, cell, first, tanh_c, cells = (np.zeros((1, H), np.float32) for _ in range(6))
    saved = recurrent.Saved(np.tile(values, 4)[None], first, 0, tanh_c, cells)
    form("lstm", [(0, 1)], saved, y, state, cell, np.zeros((4 * H, H), np.float32), None, None)
    i, g = saved.gates[0, :H], saved.gates[0, 2 * H : 3 * H]
    np.testing.assert_allclose(i, [0, 0, 0, 0.5, 0.5, 0.5, 1, 1, 1, np.nan], atol=1e-6)
    np.testing.assert_allclose(g, [-1, -1, -1, -1e-30, 0, 1e-6, 1, 1, 1, np.nan], rtol=1e-6)
    np.testing.assert_array_equal(y, state)
    assert np.isnan(y[0, -1])
    assert np.isfinite(y[0, :-1]).all()


@pytest.mark.parametrize("kind", ["tanh", "relu"])
def test_a_plain_layer_passes_nan_on(kind: str) -> None:
    inputs = drawn(kind, (2, 2), 3, 0)
    inputs[0][0] = np.nan
    (y, _), _ = recurrent.forward(inputs, kind, (2, 2), False)
    assert np.isnan(y[[0, 2]]).all()
    assert np.isfinite(y[[1, 3]]).all()
