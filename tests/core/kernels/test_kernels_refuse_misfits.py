"""Kernels called with arrays whose sizes do not fit one another, or with nothing, raise and touch no other memory."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest

from resilin.core.kernels import attention, conv2d, layer_norm, loader
from resilin.errors import UsageError

native = pytest.mark.skipif(loader.native is None, reason="no native kernels")


def _ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(("weight", "bias"), [(4, None), (None, 4), (1, 8), (8, 16)])
def test_layer_norm_refuses_a_weight_or_bias_of_another_size(weight: int | None, bias: int | None) -> None:
    w, b = (None if n is None else _ones(n) for n in (weight, bias))
    with pytest.raises(ValueError, match="reshape"):
        layer_norm.forward(_ones(3, 8), w, b, 1e-5, 8)


def test_layer_norm_refuses_rows_that_do_not_divide_the_input() -> None:
    with pytest.raises(ValueError, match="reshape"):
        layer_norm.forward(_ones(3, 8), None, None, 1e-5, 7)


@pytest.mark.parametrize(("weight", "mean", "rstd"), [(4, 3, 3), (8, 3, 2), (8, 5, 5), (None, 7, 7)])
def test_the_gradient_of_layer_norm_refuses_what_does_not_fit(weight: int | None, mean: int, rstd: int) -> None:
    w = None if weight is None else _ones(weight)
    with pytest.raises(ValueError, match=r"reshape|broadcast"):
        layer_norm.backward(_ones(3, 8), _ones(3, 8), w, _ones(mean), _ones(rstd))


@native
@pytest.mark.parametrize("name", ["gelu_forward", "relu_forward", "softmax_forward", "sum_rows", "layer_norm_forward"])
def test_a_native_kernel_refuses_none_for_an_array(name: str) -> None:
    rest: dict[str, tuple[Any, ...]] = {"gelu_forward": (True,), "layer_norm_forward": (None, None, 1e-5, 8)}
    call = functools.partial(getattr(loader.native, name), None, *rest.get(name, ()))
    if name == "layer_norm_forward":  # takes None for the others
        assert call() is None
        return
    with pytest.raises(TypeError, match="incompatible function arguments"):
        call()


@native
def test_native_convolutions_of_absurd_geometry_are_left_to_the_reference() -> None:
    x, w, g = _ones(1, 1, 4, 4), _ones(1, 1, 2, 2), _ones(1, 1, 3, 3)
    for place, value in itertools.product(range(6), (-1, 1 << 40, 1 << 62)):
        lengths = [1, 1, 0, 0, 1, 1]
        lengths[place] = value
        assert loader.native.conv2d_forward(x, w, None, tuple(lengths), 1) is None
        assert loader.native.conv2d_input_gradient(g, w, 4, 4, tuple(lengths), 1) is None
        assert loader.native.conv2d_weight_gradient(g, x, 2, 2, tuple(lengths), 1, True, True) is None


@native
def test_native_convolutions_refuse_arrays_that_do_not_fit_each_other() -> None:
    x, w, g, plain = _ones(1, 2, 4, 4), _ones(3, 2, 2, 2), _ones(1, 3, 3, 3), (1, 1, 0, 0, 1, 1)
    assert loader.native.conv2d_forward(x, w, None, plain, 1) is not None
    for groups in (-1, 0, 2, 3, 1 << 62):
        assert loader.native.conv2d_forward(x, w, None, plain, groups) is None
        assert loader.native.conv2d_input_gradient(g, w, 4, 4, plain, groups) is None or groups == 3
        assert loader.native.conv2d_weight_gradient(g, x, 2, 2, plain, groups, True, True) is None
    assert loader.native.conv2d_forward(x, w, _ones(2), plain, 1) is None
    assert loader.native.conv2d_forward(x, w[0], None, plain, 1) is None
    assert loader.native.conv2d_input_gradient(g, w, 5, 4, plain, 1) is None
    assert loader.native.conv2d_input_gradient(g, w, -4, 4, plain, 1) is None
    assert loader.native.conv2d_weight_gradient(g, x, 3, 2, plain, 1, True, True) is None
    assert loader.native.conv2d_weight_gradient(g, x, 0, 2, plain, 1, True, True) is None


@native
@pytest.mark.parametrize("wrong", [(-1, 2, 2), (0, 5, 5), (3, 2, 1), (1 << 62, 1 << 62, 1)])
def test_native_averages_over_windows_outside_of_the_image_are_left_to_the_reference(wrong: Any) -> None:
    fine, bad = np.array([[0, 2, 2]]), np.array([wrong])
    for rows, columns in ((fine, bad), (bad, fine), (fine, fine.reshape(3, 1)), (fine, fine.astype(np.float32))):
        assert loader.native.avg_pool2d_forward(_ones(1, 1, 4, 4), rows, columns) is None
        assert loader.native.avg_pool2d_backward(_ones(1, 1, 1, 1), rows, columns, 4, 4) is None
    assert loader.native.avg_pool2d_backward(_ones(1, 1, 2, 2), fine, fine, 4, 4) is None
    assert loader.native.avg_pool2d_backward(_ones(1, 1, 1, 1), fine, fine, -4, 4) is None


@pytest.mark.parametrize(
    "window",
    [
        ((0, 1), (1, 1), (0, 0), (1, 1)),
        ((2, 2), (0, 1), (0, 0), (1, 1)),
        ((2, 2), (1, 1), (-1, 0), (1, 1)),
        ((2, 2), (1, 1), (0, 0), (0, 1)),
        ((2, 2), (1, -1), (0, 0), (1, 1)),
    ],
)
def test_a_convolution_window_of_no_size_is_a_usage_error(window: Any) -> None:
    with pytest.raises(UsageError, match="must be at least"):
        conv2d.Geometry(*window)


def test_causal_attention_takes_nothing_from_hidden_keys_with_and_without_native_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q = np.arange(1, 7, dtype=np.float32).reshape(1, 3, 2)
    v = q.copy()
    v[0, 2] = np.inf
    found = []
    for fast in (True, False):
        if not fast:
            monkeypatch.setattr(attention, "_native_attention", lambda *_: None)
            monkeypatch.setattr(attention, "_native_attention_backward", lambda *_: None)
        with np.errstate(invalid="ignore"):
            _, saved = attention.forward(q, q, v, None, True, 0.5, None)
            found.append(attention.backward(np.ones_like(q), saved)[0][0, :2])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    assert np.isfinite(found[0]).all()
