"""Promotion, weak scalars, conversion, devices."""

import itertools

import numpy as np
import pytest

import resilin
from resilin.core import device as devices
from resilin.core.backends.numpy import NumpyBackend

FLOATS = [resilin.float16, resilin.bfloat16, resilin.float32, resilin.float64]
INTEGERS = [resilin.uint8, resilin.int8, resilin.int16, resilin.int32, resilin.int64]


def test_promotion_is_commutative_and_reaches_the_higher_kind():
    for a, b in itertools.product([resilin.bool, *INTEGERS, *FLOATS, resilin.complex64], repeat=2):
        found = resilin.promote_types(a, b)
        assert found is resilin.promote_types(b, a)
        assert found.kind == max(a.kind, b.kind)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("int64", "float32", "float32"),
        ("int64", "float16", "float16"),
        ("uint8", "int8", "int16"),
        ("float16", "bfloat16", "float32"),
        ("float64", "complex64", "complex128"),
        ("float32", "complex64", "complex64"),
        ("bool", "uint8", "uint8"),
    ],
)
def test_promotion_follows_the_standard(a, b, expected):
    found = resilin.ones(2, dtype=getattr(resilin, a)) * resilin.ones(2, dtype=getattr(resilin, b))
    assert found.dtype is getattr(resilin, expected)


def test_no_integer_holds_uint64_and_a_signed_one():
    with pytest.raises(RuntimeError, match="no integer dtype holds both"):
        resilin.ones(1, dtype=resilin.uint64) + resilin.ones(1, dtype=resilin.int64)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_python_numbers_never_widen_within_a_kind(dtype):
    x = resilin.ones(2, dtype=dtype)
    assert (x + 1).dtype is (2 * x).dtype is dtype
    assert (x * 1.5).dtype is (dtype if dtype.is_floating_point else resilin.float32)
    assert (x * 1j).dtype is (resilin.complex128 if dtype is resilin.float64 else resilin.complex64)


def test_division_and_functions_of_integers_give_the_default_dtype():
    x = resilin.tensor([1, 2])
    assert (x / 2).dtype is x.exp().dtype is x.sqrt().dtype is resilin.float32
    resilin.set_default_dtype(resilin.float64)
    try:
        assert (x / 2).dtype is resilin.tensor([1.0]).dtype is resilin.zeros(1).dtype is resilin.float64
    finally:
        resilin.set_default_dtype(resilin.float32)


def test_numpy_scalars_count_as_python_numbers():
    assert (resilin.ones(2) * np.float64(2)).dtype is resilin.float32


def test_bfloat16_and_float16_are_summed_without_loss():
    for dtype in (resilin.bfloat16, resilin.float16):
        x = resilin.ones(4096, dtype=dtype)
        assert x.sum().item() == 4096.0
        assert x.mean().item() == 1.0
        assert x.sum().dtype is dtype


def test_conversion_is_differentiable_and_free_when_nothing_changes():
    x = resilin.ones(2, requires_grad=True)
    assert x.float() is x
    assert x.to("cpu", resilin.float32) is x
    x.double().sum().backward()
    assert x.grad.dtype is resilin.float32


def test_finfo_and_iinfo_know_the_limits():
    assert resilin.finfo(resilin.bfloat16).eps == 2**-7
    assert resilin.finfo(resilin.complex64).bits == 32
    assert (resilin.iinfo(resilin.uint8).min, resilin.iinfo(resilin.uint8).max) == (0, 255)
    with pytest.raises(TypeError, match="use iinfo"):
        resilin.finfo(resilin.int8)


def test_tensors_of_different_devices_refuse_to_meet():
    a, b = resilin.ones(2, device="sim:0"), resilin.ones(2, device="sim:1")
    operations = [lambda: a + b, lambda: resilin.cat([a, b]), lambda: a @ b, lambda: resilin.where(a > 0, a, b)]
    for operation in operations:
        with pytest.raises(RuntimeError, match="same device"):
            operation()
    with pytest.raises(RuntimeError, match="same device"):
        resilin.ones(2) * a


def test_moving_between_devices_copies_and_carries_the_gradient():
    x = resilin.ones(3, requires_grad=True)
    y = x.to("sim:2")
    assert str(y.device) == "sim:2"
    (y * y).to("sim:1").sum().backward()
    assert x.grad.device is x.device
    np.testing.assert_allclose(x.grad.numpy(), 2.0)
    assert not np.shares_memory(y.detach().cpu().numpy(), y._array)


def test_a_tensor_elsewhere_has_no_numpy_view():
    with pytest.raises(TypeError, match="cpu"):
        resilin.ones(2, device="sim").numpy()


def test_a_third_party_backend_can_be_registered(monkeypatch):
    class Mine(NumpyBackend):
        type = "mine"

        def count(self):
            return 2

    monkeypatch.setattr(devices, "_BACKENDS", dict(devices._BACKENDS))
    monkeypatch.setattr(devices, "_DEVICES", dict(devices._DEVICES))
    resilin.register_backend(Mine(devices.NUMPY_XP))
    x = resilin.randn(3, device="mine:1", requires_grad=True)
    x.softmax(0).max().backward()
    assert str(x.grad.device) == "mine:1"
    with pytest.raises(RuntimeError, match="does not exist"):
        resilin.device("mine:2")
    with pytest.raises(RuntimeError, match="already has a backend"):
        resilin.register_backend(Mine(devices.NUMPY_XP))


@pytest.mark.skipif(resilin.cuda.is_available(), reason="there is a CUDA device here")
def test_a_gpu_that_is_not_there_is_an_error_that_says_what_is_missing():
    for where in ("cuda", "cuda:1", 0):
        with pytest.raises(RuntimeError, match=r"device type 'cuda' needs (CuPy|a CUDA device)"):
            resilin.ones(1, device=where)


def test_an_unknown_device_is_an_error_that_lists_the_known_ones():
    with pytest.raises(RuntimeError, match=r"'tpu'.*cpu"):
        resilin.ones(1, device="tpu")
    with pytest.raises(RuntimeError, match="invalid device string"):
        resilin.device("sim:x")


def test_cuda_says_honestly_that_it_is_not_there():
    assert not resilin.cuda.is_available()
    assert resilin.cuda.device_count() == 0


def test_complex_numbers_have_no_order_and_integers_no_softmax():
    z = resilin.tensor([1 + 2j])
    for compare in (lambda: z < z, lambda: resilin.maximum(z, z), lambda: z >= 1.0):
        with pytest.raises(RuntimeError, match="no order"):
            compare()
    with pytest.raises(RuntimeError, match="floating point"):
        resilin.tensor([1, 2]).softmax(0)
    assert resilin.where(resilin.tensor([True]), resilin.tensor([1]), 1j).dtype is resilin.complex64
    assert (resilin.tensor([True]) ** 2).dtype is resilin.int64


def test_a_numbered_cpu_is_another_value_but_no_other_place():
    numbered = resilin.device("cpu:0")
    assert numbered != resilin.device("cpu")
    assert (numbered.type, numbered.index, str(numbered)) == ("cpu", 0, "cpu:0")
    assert resilin.device("cpu", 0) is numbered
    assert resilin.device("meta:1") != resilin.device("meta")
    x = resilin.ones(2, device=numbered)
    assert x.device == resilin.device("cpu")
    assert x.to("cpu:3") is x
    assert resilin.ones(2, device="meta:1").to("meta").device == resilin.device("meta")
    assert resilin.nn.Linear(2, 2).to("cpu:0").weight.device == resilin.device("cpu")
    assert resilin.Generator(device="cpu:0").device == resilin.device("cpu")
    array = np.zeros(2)
    assert resilin.as_tensor(array, device="cpu:0").numpy() is not None
    assert np.shares_memory(resilin.as_tensor(array, device="cpu:0").numpy(), array)
    with numbered:
        assert resilin.get_default_device() is numbered
        assert (resilin.ones(1) + x).device == resilin.device("cpu")
