"""`custom_fwd` and `custom_bwd`: what an autograd.Function sees of autocast."""

from __future__ import annotations

from typing import Any

import pytest

import resilin as rs
from resilin.amp import custom_bwd, custom_fwd
from resilin.autograd import Function


def product_of(cast_inputs: Any, seen: dict[str, Any]) -> Any:
    """A product whose forward and backward note what they see."""

    class Product(Function):
        @staticmethod
        @custom_fwd(device_type="cpu", cast_inputs=cast_inputs)
        def forward(ctx: Any, a: rs.Tensor, b: rs.Tensor, n: Any = None) -> rs.Tensor:
            seen["forward"] = (rs.is_autocast_enabled("cpu"), a.dtype)
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx: Any, grad: rs.Tensor) -> Any:
            a, b = ctx.saved_tensors
            made = grad @ b.t()
            seen["backward"] = (rs.is_autocast_enabled("cpu"), rs.get_autocast_dtype("cpu"), made.dtype)
            return made, a.t() @ grad, None

    return Product


def square() -> rs.Tensor:
    return rs.ones(2, 2, requires_grad=True)


def test_with_cast_inputs_forward_and_backward_run_in_that_dtype_with_autocast_off() -> None:
    seen: dict[str, Any] = {}
    a, b = square(), square()
    with rs.autocast("cpu"):
        made = product_of(rs.float32, seen).apply(a, b.bfloat16())
        assert made.dtype is rs.float32
        assert rs.is_autocast_enabled("cpu")
    made.sum().backward()
    assert seen == {"forward": (False, rs.float32), "backward": (False, rs.bfloat16, rs.float32)}
    assert a.grad.dtype is rs.float32


def test_without_cast_inputs_backward_has_the_autocast_of_forward() -> None:
    seen: dict[str, Any] = {}
    a, b = square(), square()
    with rs.autocast("cpu", dtype=rs.float16):
        made = product_of(None, seen).apply(a, b)
        assert made.dtype is rs.float16
    made.sum().backward()
    assert seen == {"forward": (True, rs.float32), "backward": (True, rs.float16, rs.float16)}
    assert a.grad.dtype is rs.float32
    assert not rs.is_autocast_enabled("cpu")


def test_outside_of_regions_nothing_is_cast() -> None:
    seen: dict[str, Any] = {}
    a, b = square(), square()
    made = product_of(rs.float16, seen).apply(a, b)
    with rs.autocast("cpu"):
        made.sum().backward()
    assert seen == {"forward": (False, rs.float32), "backward": (False, rs.bfloat16, rs.float32)}


def test_cast_inputs_reaches_into_containers_and_leaves_the_rest() -> None:
    seen = []

    class Taken(Function):
        @staticmethod
        @custom_fwd(device_type="cpu", cast_inputs=rs.bfloat16)
        def forward(ctx: Any, *given: Any) -> rs.Tensor:
            seen.extend(given)
            return given[0].clone()

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx: Any, grad: rs.Tensor) -> Any:
            return (grad, *[None] * 4)

    with rs.autocast("cpu"):
        Taken.apply(square(), [rs.ones(1), 2], {"a": rs.ones(1)}, "text", (rs.ones(1).double(), rs.ones(1).long()))
    first, many, named, text, kept = seen
    assert (first.dtype, many[0].dtype, many[1], named["a"].dtype, text) == (
        rs.bfloat16,
        rs.bfloat16,
        2,
        rs.bfloat16,
        "text",
    )
    assert (kept[0].dtype, kept[1].dtype) == (rs.float64, rs.int64)


def test_the_forms_of_cuda_say_what_replaces_them() -> None:
    with pytest.warns(FutureWarning, match="device_type='cuda'"):
        forward = rs.cuda.amp.custom_fwd(lambda ctx, x: x, cast_inputs=rs.float16)
    with pytest.warns(FutureWarning, match="device_type='cuda'"):
        rs.cuda.amp.custom_bwd(lambda ctx, x: x)

    class Context:
        pass

    x = rs.ones(1)
    assert forward(Context(), x) is x
