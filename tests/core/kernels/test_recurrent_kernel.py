"""The steps of recurrent layers: native and numpy forms agree on ragged sizes, and at the ends of the line."""

import numpy as np
import pytest

from resilin.core.kernels import recurrent

SIZES = [(0, 3), (1, 1), (2, 31), (3, 33), (1, 4097), (700, 64)]


def drawn(*shapes):
    random = np.random.default_rng(0)
    return [random.standard_normal(shape).astype(np.float32) * 2 for shape in shapes]


def agree(native, reference, arrays):
    found, expected = [array.copy() for array in arrays], [array.astype(np.float64) for array in arrays]
    pairs = [*zip([native(*found)], [reference(*expected)], strict=True), *zip(found, expected, strict=True)]
    for one, other in pairs:
        if one is not None:
            assert one.dtype == np.float32
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("n", "H"), SIZES)
def test_lstm_steps(n, H):
    agree(recurrent.lstm_step, recurrent.reference_lstm_step, drawn((n, 4 * H), (n, 4 * H), (n, H), (n, H), (n, H)))
    gates, *rest = drawn((n, 4 * H), (n, H), (n, H), (n, H), (n, H), (n, 4 * H))
    agree(recurrent.lstm_step_back, recurrent.reference_lstm_step_back, [np.tanh(gates), *rest])


@pytest.mark.parametrize(("n", "H"), SIZES)
def test_gru_steps(n, H):
    agree(recurrent.gru_step, recurrent.reference_gru_step, drawn((n, 3 * H), (n, 3 * H), (n, H), (n, H)))
    gates, *rest = drawn((n, 3 * H), (n, H), (n, H), (n, H), (n, 3 * H), (n, 3 * H))
    agree(recurrent.gru_step_back, recurrent.reference_gru_step_back, [np.tanh(gates), *rest])


@pytest.mark.parametrize("step", [recurrent.lstm_step, recurrent.reference_lstm_step])
def test_an_lstm_step_at_the_ends_of_the_line(step):
    values = np.array([-np.inf, -1e30, -100, -1e-30, 0, 1e-6, 100, 1e30, np.inf, np.nan], np.float32)
    H = len(values)
    z = np.tile(values, 4)[None]
    cell, before, tanh_c = np.zeros((1, H), np.float32), np.empty((1, H), np.float32), np.empty((1, H), np.float32)
    h = step(z, np.zeros_like(z), before, tanh_c, cell)
    i, g = z[0, :H], z[0, 2 * H : 3 * H]
    np.testing.assert_allclose(i, [0, 0, 0, 0.5, 0.5, 0.5, 1, 1, 1, np.nan], atol=1e-6)
    np.testing.assert_allclose(g, [-1, -1, -1, -1e-30, 0, 1e-6, 1, 1, 1, np.nan], rtol=1e-6)
    assert np.isnan(h[0, -1])
    assert np.isfinite(h[0, :-1]).all()
