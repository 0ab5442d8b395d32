"""What native code looks at before a function in Python is what that function says; and writes that go straight in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.api.conversion.through_host import through_host
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.api.nn.neural import need_numbers, need_tensors
from resilin.core.device import CPU
from resilin.core.kernels import loader
from resilin.core.ops import creation


class Mine(resilin.Tensor):
    """A subclass."""


def test_halves_are_rounded_once_wherever_they_are_given() -> None:
    seen: list[Any] = []

    @rounded_once
    def function(x: Any, *, y: Any = None) -> Any:
        seen.append(x.dtype)
        return x

    half = resilin.ones(2, dtype=resilin.float16)
    for given in (half, half.to(resilin.bfloat16), half.as_subclass(Mine)):
        assert function(given).dtype is given.dtype
    function(resilin.ones(2))
    function(resilin.ones(2).to("sim:1"))
    function(resilin.ones(2), y=half)
    assert seen == [resilin.float32] * 6
    assert function.__name__ == "function"


def test_devices_whose_library_is_numpy_go_the_same_way() -> None:
    assert through_host(lambda x: x * 2)(resilin.ones(1).to("sim:1")).device == resilin.device("sim:1")
    assert through_host(lambda x: x * 2)(resilin.ones(1)).device == CPU


def test_what_is_no_tensor_or_number_is_said() -> None:
    need_tensors("f", input=resilin.ones(1), weight=resilin.nn.Parameter(resilin.ones(1)))
    need_tensors("f", input=resilin.ones(1).as_subclass(Mine))
    need_numbers("f", eps=1, slope=0.5, other=np.float32(1))
    with pytest.raises(TypeError, match=r"f\(\): argument 'weight' must be a Tensor, got int"):
        need_tensors("f", input=resilin.ones(1), weight=1)
    with pytest.raises(RuntimeError, match="sim:1"):
        need_tensors("f", input=resilin.ones(1), weight=resilin.ones(1).to("sim:1"))
    with pytest.raises(TypeError, match="argument 'eps' must be Number, not Tensor"):
        need_numbers("f", eps=resilin.ones(2))


@pytest.mark.parametrize("index", [[0, 2, 1], [2, 2, 0], [1]])
@pytest.mark.parametrize("name", ["scatter_", "scatter_add_", "index_add_"])
def test_writes_at_places_are_those_of_the_functions(name: str, index: list[int]) -> None:
    where, source = resilin.tensor(index), resilin.tensor([10.0, 20.0, 30.0])[: len(index)]
    x = resilin.tensor([1.0, 2.0, 3.0])
    expected = getattr(x, name[:-1])(0, where, source)
    version = x._version
    assert getattr(x, name)(0, where, source) is x
    assert x.tolist() == expected.tolist()
    assert x._version == version + 1


@pytest.mark.parametrize("name", ["scatter_", "scatter_add_", "index_add_"])
def test_writes_at_places_of_what_is_read_come_after_the_reading(name: str) -> None:
    x, where = resilin.tensor([1.0, 2.0, 3.0]), resilin.tensor([1, 2, 0])
    expected = getattr(x.clone(), name[:-1])(0, where, x.clone())
    assert getattr(x, name)(0, where, x).tolist() == expected.tolist()
    x = resilin.tensor([1.0, 2.0, 3.0, 4.0])
    expected = getattr(x.clone()[:3], name[:-1])(0, where, x.clone()[1:])
    assert getattr(x[:3], name)(0, where, x[1:]).tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["scatter_", "scatter_add_", "index_add_"])
def test_a_place_out_of_range_writes_nothing(name: str) -> None:
    x = resilin.zeros(3)
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        getattr(x, name)(0, resilin.tensor([0, 3]), resilin.ones(2))
    assert x.tolist() == [0, 0, 0]


@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf"), 7, 1e5])
@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64, resilin.bfloat16, resilin.float16])
def test_filling_where_a_mask_holds_is_that_of_the_function(dtype: Any, value: float) -> None:
    x = resilin.arange(6.0).reshape(2, 3).to(dtype)
    if dtype is resilin.float16 and value == 1e5:
        with pytest.raises(RuntimeError, match="without overflow"):
            x.masked_fill_(x > 2, value)
        return
    for mask in (x > 2, (x > 2).t().contiguous().t(), x[0] > 0):
        for target in (x.clone(), x.clone().t().contiguous().t()):
            expected = target.masked_fill(mask, value)
            np.testing.assert_array_equal(target.masked_fill_(mask, value).float().numpy(), expected.float().numpy())
    graph = resilin.ones(3, requires_grad=True)
    y = graph * 1
    y.masked_fill_(resilin.tensor([True, False, False]), 5.0).sum().backward()
    assert graph.grad.tolist() == [0, 1, 1]


@pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")
@pytest.mark.parametrize("ends", [(0, 1), (-3.5, 7), (5, -2.25), (1e-3, 1e10), (2, 2)])
@pytest.mark.parametrize("steps", [2, 3, 10, 1001])
def test_lines_have_the_bits_of_the_form_in_python(steps: int, ends: tuple[float, float]) -> None:
    for dtype in (np.float32, np.float64):
        slow = creation._line("linspace", *ends, steps, None).astype(dtype)
        assert loader.native.line(*ends, steps, dtype is np.float64).tobytes() == slow.tobytes()
    assert (
        resilin.linspace(*ends, steps).numpy().tobytes() == creation._line("", *ends, steps, None).astype("f").tobytes()
    )


def test_numpys_names_of_arguments_go_on_beside_others() -> None:
    x = resilin.arange(6.0).reshape(2, 3)
    assert resilin.softmax(x, axis=0).tolist() == resilin.softmax(x, dim=0).tolist()
    assert x.sum(axis=1, keepdims=True).shape == (2, 1)
    with pytest.raises(TypeError, match="got both 'dim' and 'axis'"):
        resilin.softmax(x, dim=0, axis=0)
