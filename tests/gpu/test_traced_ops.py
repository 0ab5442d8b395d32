"""Elementwise ops and their gradients are one launch each on a device, however their arrays lie in memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from device_work import WORK

import resilin as torch
from resilin.core.kernels.cuda import elementwise, tracing
from resilin.nn import functional as F

OPS: dict[str, Any] = {
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "mish": F.mish,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
}


def launches(cuda: Any) -> int:
    """What was launched since the last call, on the stand-in; as many as it should be on a device."""
    found = WORK.totals()["launches"] if hasattr(cuda.cupy, "API") else 1
    WORK.clear()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_an_op_and_its_gradient_are_one_launch_each(cuda, name, dtype):
    values = torch.linspace(-4, 4, 33).to(dtype)
    x, host = values.to("cuda").requires_grad_(), values.clone().requires_grad_()
    g = torch.ones(33, dtype=dtype, device="cuda")
    WORK.clear()
    y = OPS[name](x)
    assert launches(cuda) == 1
    y.backward(g)
    assert launches(cuda) == 1
    expected = OPS[name](host)
    expected.backward(g.cpu())
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    for found, wanted in ((y, expected), (x.grad, host.grad)):
        assert found.dtype == dtype
        pair = [part.detach().cpu().double().numpy() for part in (found, wanted)]
        np.testing.assert_allclose(*pair, rtol=tolerance, atol=tolerance)


def laid() -> dict[str, Any]:
    """Arrays of shapes that fit (4, 3, 5), laid out in many ways."""
    base = np.arange(1.0, 61, dtype=np.float32)
    return {
        "contiguous": base.reshape(4, 3, 5),
        "transposed": base.reshape(5, 3, 4).T,
        "with gaps": np.arange(120.0, dtype=np.float32).reshape(4, 3, 10)[:, :, ::2],
        "reversed": base.reshape(4, 3, 5)[::-1, :, ::-1],
        "a row": base[:5],
        "a column": base[:12].reshape(4, 3, 1),
        "one element": base[:1],
        "no dimension": base[7:8].reshape(()),
        "stretched": np.broadcast_to(base[:3, None], (3, 5)),
    }


@pytest.mark.parametrize("pair", list(itertools.product(laid(), repeat=2)), ids=" and ".join)
def test_arrays_meet_as_numpys_do(cuda, pair):
    arrays = [laid()[name] for name in pair]
    on_device = []
    for name, array in zip(pair, arrays, strict=True):
        whole = {"with gaps": (120, (4, 3, 10)), "reversed": (61, (4, 3, 5))}
        if name == "transposed":
            on_device.append(cuda.xp.asarray(np.ascontiguousarray(array.T)).T)
        elif name == "with gaps":
            on_device.append(cuda.xp.asarray(np.arange(120.0, dtype=np.float32).reshape(whole[name][1]))[:, :, ::2])
        elif name == "reversed":
            on_device.append(cuda.xp.asarray(np.ascontiguousarray(array[::-1, :, ::-1]))[::-1, :, ::-1])
        elif name == "stretched":
            on_device.append(cuda.xp.broadcast_to(cuda.xp.asarray(np.ascontiguousarray(array[:, :1])), (3, 5)))
        else:
            on_device.append(cuda.xp.asarray(array))
    (found,) = elementwise.apply(cuda.xp, "fitting", (), lambda a, b: a * b + a, on_device)
    np.testing.assert_array_equal(found.get(), arrays[0] * arrays[1] + arrays[0])


def test_the_order_of_axes_is_kept_where_arrays_lie_alike(cuda):
    x = cuda.xp.asarray(np.random.default_rng(0).standard_normal((2, 4, 5, 3)).astype(np.float32))
    x = x.transpose(0, 3, 1, 2)  # channels last
    (y,) = elementwise.apply(cuda.xp, "kept", (), lambda a: a * a + 1, [x])
    assert y.strides == x.strides
    np.testing.assert_array_equal(y.get(), x.get() * x.get() + 1)


def test_numbers_are_passed_on_and_compile_nothing_new(cuda):
    x = cuda.xp.asarray(np.arange(4, dtype=np.float32))
    names = set()
    for number in (2.0, 0.25, 3):
        (y,) = elementwise.apply(cuda.xp, "numbers", (), lambda a, b: a * b + b, [x, number])
        np.testing.assert_array_equal(y.get(), np.arange(4, dtype=np.float32) * np.float32(number) + number)
        names |= {
            program.kernel("e", 0)
            for key, made in elementwise._programs.items()
            if key[0] == "numbers"
            for program in made
        }
    assert len(names) == 1


def test_what_is_no_float_and_what_has_no_elements_is_left_to_the_library(cuda):
    xp = cuda.xp
    for array in (xp.arange(3), xp.zeros(3, np.complex64), xp.zeros((0, 3), np.float32)):
        assert elementwise.apply(xp, "left", (), lambda a: a * a + a, [array]) is None
    assert elementwise.apply(xp, "left", (), lambda a: a.sum(), [xp.zeros(3)]) is None


def test_a_formula_with_ever_new_parameters_is_not_compiled_for_each(cuda, monkeypatch):
    monkeypatch.setattr(elementwise, "VARIANTS", 2)
    x = cuda.xp.ones(3, np.float32)
    found = [elementwise.apply(cuda.xp, "new", (k,), lambda a, k=k: a * k + a, [x]) for k in range(4)]
    assert [one is None for one in found] == [False, False, True, True]


def test_several_results_and_inputs_that_are_results_are_told_apart(cuda):
    x, y = (cuda.xp.asarray(np.arange(3, dtype=np.float32) + k) for k in range(2))
    WORK.clear()
    found = elementwise.apply(cuda.xp, "several", (), lambda a, b: (a + b, None, b, a - b), [x, y])
    assert launches(cuda) == 1
    assert found[2] is y
    assert found[1] is None
    assert [found[0].get().tolist(), found[3].get().tolist()] == [[1, 3, 5], [-1, -1, -1]]


def test_a_function_that_is_the_librarys_own_is_not_traced_within_itself():
    trace = tracing.Trace()
    x = tracing.Symbol(trace, np.dtype(np.float32), "x0")
    with pytest.raises(tracing.NotTraced, match="logaddexp has no counterpart"):
        tracing.NAMESPACE.logaddexp(x, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_gradient_of_a_magnitude_is_a_positive_zero_at_zeros_and_at_what_is_no_number(cuda, dtype):
    x = torch.tensor([-0.0, 0.0, -2.0, 3.0, float("nan")], dtype=dtype, device="cuda").requires_grad_()
    x.abs().sum().backward()
    found = x.grad.cpu().float().numpy()
    np.testing.assert_array_equal(found, [0, 0, -1, 1, 0])
    np.testing.assert_array_equal(np.signbit(found), [False, False, True, False, False])
    assert torch.sign(torch.tensor([-3, 0, 4], device="cuda")).tolist() == [-1, 0, 1]
    xp = cuda.xp
    np.testing.assert_array_equal(xp.sign(xp.asarray(np.array([np.nan, -0.0, -3, 2]))).get(), [0, 0, -1, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_number_that_is_too_large_for_the_dtype_is_infinite_without_a_warning(cuda, dtype):
    x, weight = (torch.tensor([1.0, -1.0], dtype=dtype, device="cuda") for _ in range(2))
    assert (x * 1e300).tolist() == [float("inf"), -float("inf")]
    assert F.hardtanh(torch.lerp(x, weight, 1e300), -1e300, 1e300).isfinite().tolist() == [False, False]
