"""Every in-place form does what its function does, in the tensor's memory, and counts the write."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.public.in_place_names import FUNCTIONS, METHODS

WHOLE = {"bitwise_left_shift", "bitwise_not", "bitwise_right_shift", "gcd", "lcm"}
FLAT = {"heaviside", "nextafter", "eq", "ne", "lt", "le", "gt", "ge", "less", "less_equal", "greater", "greater_equal"}
FLAT |= {"not_equal", "logical_and", "logical_or", "logical_xor"}


def _operands(name: str) -> list[Any]:
    low, high = (1.1, 1.9) if name in ("acosh", "arccosh") else (0.1, 0.9)
    numbers = np.linspace(low, high, 4)
    kind = np.int64 if name in WHOLE else np.float64
    first = resilin.from_numpy((numbers * (10 if name in WHOLE else 1)).astype(kind))
    second = resilin.from_numpy(np.array([2, 1, 3, 1]).astype(kind))
    two = "other" in inspect.signature(getattr(resilin, name)).parameters or name in (*FLAT, *PAIRS)
    return [first, second] if two else [first]


PAIRS = {"arctan2", "atan2", "hypot", "float_power", "multiply", "remainder", "fmod"}


@pytest.mark.parametrize("name", METHODS)
def test_an_in_place_form_writes_what_the_function_gives_and_raises_the_version(name: str) -> None:
    x, *rest = _operands(name)
    expected = getattr(resilin, name)(x, *rest).to(x.dtype)
    memory, version = x.numpy(), x._version
    assert getattr(x, name + "_")(*rest) is x
    np.testing.assert_array_equal(memory, expected.numpy())
    assert x._version > version


@pytest.mark.parametrize("name", [name for name in METHODS if name not in WHOLE | FLAT])
def test_backward_follows_an_in_place_form(name: str) -> None:
    x, *rest = _operands(name)
    grads = []
    for call in (getattr(resilin, name), getattr(resilin.Tensor, name + "_")):
        leaf = x.clone().requires_grad_()
        (call(leaf * 1, *rest) * resilin.arange(4.0, dtype=x.dtype)).sum().backward()
        grads.append(leaf.grad.numpy())
    np.testing.assert_array_equal(grads[0], grads[1])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_function_of_an_in_place_form_is_the_method(name: str) -> None:
    assert getattr(resilin, name) is getattr(resilin.Tensor, name)
