"""Functions that make tensors have a short way in native code, which does what the way in Python does."""

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.ops import creation

DTYPES = [resilin.bool, resilin.uint8, resilin.int8, resilin.int16, resilin.int32, resilin.int64, resilin.uint64]
DTYPES += [resilin.float16, resilin.bfloat16, resilin.float32, resilin.float64, resilin.complex64]
HUGE = 2**70
NUMBERS = [0, 1, -1, 0.1, 2.5, -0.0, True, 300, 70000, 1e39, 2049.0, 2**63, HUGE, float("inf"), float("nan"), 1 + 2j]


def in_python(name: str, *args: Any, **options: Any) -> Any:
    """What the function behind a short way makes of a call."""
    function = getattr(creation, name)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function(*args, **options)


def outcome(call: Any) -> tuple[Any, ...]:
    try:
        made = call()
    except (RuntimeError, TypeError, OverflowError, RuntimeWarning):
        return ("an error",)  # which public functions say more of
    return made.dtype, tuple(made.shape), made.is_contiguous(), made.requires_grad, made._array.tobytes()


@pytest.mark.parametrize("dtype", [None, *DTYPES], ids=str)
@pytest.mark.parametrize("number", NUMBERS, ids=repr)
@pytest.mark.parametrize("size", [(3,), (), (2, 0), (300, 50)], ids=str)
def test_full_is_that_of_python(dtype: Any, number: Any, size: tuple[int, ...]) -> None:
    short = outcome(lambda: resilin.full(size, number, dtype=dtype))
    assert short == outcome(lambda: in_python("full", size, number, dtype=dtype))


@pytest.mark.parametrize("name", ["zeros", "ones"])
@pytest.mark.parametrize("dtype", [None, *DTYPES], ids=str)
@pytest.mark.parametrize("sizes", [(3,), (2, 3), ((2, 3),), ([4],), ((),), (0, 2), (-1,), (2.0,), (True,), ()], ids=str)
def test_zeros_and_ones_are_those_of_python(name: str, dtype: Any, sizes: tuple[Any, ...]) -> None:
    short = outcome(lambda: getattr(resilin, name)(*sizes, dtype=dtype))
    assert short == outcome(lambda: in_python(name, *sizes, dtype=dtype))


@pytest.mark.parametrize("bounds", [(0,), (5,), (20_000,), (-1,), (2.5,), (1, 4), (True,)], ids=str)
def test_a_range_is_that_of_python(bounds: tuple[Any, ...]) -> None:
    assert outcome(lambda: resilin.arange(*bounds)) == outcome(lambda: in_python("arange", *bounds))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", NUMBERS, ids=repr)
@pytest.mark.parametrize("shape", [(3,), (0,), (9000,)], ids=str)
def test_a_fill_is_what_full_makes(dtype: Any, number: Any, shape: tuple[int, ...]) -> None:
    if dtype is resilin.bool and number in (2**63, HUGE):
        number = True  # such numbers fill as they are, and `full` refuses them
    try:
        wanted = in_python("full", shape, number, dtype=dtype)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            resilin.zeros(shape, dtype=dtype).fill_(number)
        return
    filled = resilin.zeros(shape, dtype=dtype).fill_(number)
    assert filled._array.tobytes() == wanted._array.tobytes()
    assert filled._version == 1


def test_the_default_dtype_is_that_of_the_moment() -> None:
    resilin.set_default_dtype(resilin.float64)
    try:
        made = [resilin.zeros(2), resilin.ones(2), resilin.full((2,), 2.0), resilin.empty(2)]
    finally:
        resilin.set_default_dtype(resilin.float32)
    assert [t.dtype for t in made] == [resilin.float64] * 4
    assert resilin.zeros(2).dtype is resilin.float32


def test_the_default_device_is_that_of_the_moment() -> None:
    with resilin.device("meta"):
        inside = [resilin.zeros(2), resilin.full((2,), 1.0), resilin.arange(3)]
        placed = resilin.ones(2, device="cpu")
    assert [t.device.type for t in inside] == ["meta"] * 3
    assert placed.device.type == resilin.zeros(2).device.type == "cpu"


def test_options_are_heard() -> None:
    assert resilin.zeros(2, requires_grad=True).requires_grad
    assert resilin.ones(2, 3, 4, 5, memory_format=resilin.channels_last).stride() == (60, 1, 15, 3)
    with pytest.raises(TypeError):
        resilin.zeros(2, unknown=1)
    with resilin.inference_mode():
        assert resilin.zeros(2).is_inference()


def test_memory_that_nobody_wrote_is_filled_where_that_is_wanted() -> None:
    resilin.use_deterministic_algorithms(True)
    try:
        assert np.isnan(resilin.empty(3).numpy()).all()
    finally:
        resilin.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["zeros_like", "ones_like"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wanted", [None, resilin.float32, resilin.int64], ids=str)
def test_tensors_like_another_are_those_of_python(name: str, dtype: Any, wanted: Any) -> None:
    other = resilin.zeros(3, 4, dtype=dtype).t()
    short = outcome(lambda: getattr(resilin, name)(other, dtype=wanted))
    assert short == outcome(lambda: in_python(name, other, dtype=wanted))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_full_like_is_that_of_python(dtype: Any, number: Any) -> None:
    other = resilin.zeros(3, 4, dtype=dtype).t()
    assert outcome(lambda: resilin.full_like(other, number)) == outcome(lambda: in_python("full_like", other, number))


def test_a_tensor_like_another_is_on_its_device_and_in_no_graph() -> None:
    leaf = resilin.nn.Parameter(resilin.ones(2))
    with resilin.device("meta"):
        made = [resilin.zeros_like(leaf), resilin.full_like(leaf * 2, 3.0), resilin.ones_like(leaf, device="meta")]
    assert [t.device.type for t in made] == ["cpu", "cpu", "meta"]
    assert [type(t) for t in made] == [resilin.Tensor] * 3
    assert not any(t.requires_grad for t in made)


def test_a_tensor_like_one_inside_vmap_has_its_hidden_dimension() -> None:
    def sample(x: resilin.Tensor) -> resilin.Tensor:
        return resilin.ones_like(x).copy_(x) + resilin.full_like(x, 2.0)

    x = resilin.randn(3, 4)
    assert resilin.equal(resilin.func.vmap(sample)(x), x + 2)
