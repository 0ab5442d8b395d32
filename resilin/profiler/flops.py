"""Estimates the floating-point operations of a call from the shapes of its inputs, as PyTorch's profiler counts them.

Products and convolutions count two for each multiplication and addition, `add` and `mul` one for each element. Biases,
`beta` and `alpha` are left out. An operation that is not here has none.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from resilin._base.trace_ring import TensorInput

Shape = tuple[int, ...]


def estimate(name: str, inputs: list[Any]) -> int:
    """Return the operations of `name` ("aten::mm") with these inputs; 0 where they are not known."""
    formula = FORMULAS.get(name.removesuffix("_"))
    if formula is None:
        return 0
    shapes = [one.shape if isinstance(one, TensorInput) else None for one in inputs]
    try:
        return formula(shapes, inputs)
    except (AttributeError, IndexError, TypeError, ValueError, ZeroDivisionError):
        return 0  # inputs of another form: nothing is known


def _product(first: Shape, second: Shape) -> int:
    """Of a matrix product with broadcasting, vectors at either side among them."""
    rows = first[-2] if len(first) > 1 else 1
    columns = second[-1] if len(second) > 1 else 1
    inner = second[-2] if len(second) > 1 else second[0]
    if first[-1] != inner:
        raise ValueError(f"{first} and {second} have no product")
    return 2 * prod(_broadcast(first[:-2], second[:-2])) * rows * columns * inner


def _broadcast(first: Shape, second: Shape) -> Shape:
    longer, shorter = sorted((first, second), key=len, reverse=True)
    shorter = (1,) * (len(longer) - len(shorter)) + shorter
    return tuple(max(pair) if min(pair) else 0 for pair in zip(longer, shorter, strict=True))


def _of_product(at: int) -> Callable[[list[Any], list[Any]], int]:
    return lambda shapes, inputs: _product(shapes[at], shapes[at + 1])


def _linear(shapes: list[Any], inputs: list[Any]) -> int:
    x, weight = shapes[0], shapes[1]
    return _product(x, (weight[1], weight[0]))


def _elementwise(shapes: list[Any], inputs: list[Any]) -> int:
    given = [shape for shape in shapes[:2] if shape is not None]
    return prod(_broadcast(given[0], given[-1]))


def _values(given: Any, count: int) -> list[int]:
    values = given if isinstance(given, list) else [given]
    if not all(isinstance(value, int) for value in values):
        raise ValueError(f"expected numbers, got {values}")
    return values * count if len(values) == 1 else values


def _convolution(shapes: list[Any], inputs: list[Any]) -> int:
    """x (N, C, *size), weight (K, C / groups, *window), bias, stride, padding, dilation, [transposed, ...] groups."""
    x, weight = shapes[0], shapes[1]
    sides = len(weight) - 2
    batch = x[0] if len(x) == sides + 2 else 1
    places = zip(
        x[-sides:],
        weight[2:],
        _values(inputs[3], sides),
        _values(inputs[4], sides),
        _values(inputs[5], sides),
        strict=True,
    )
    size = prod((n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k, stride, padding, dilation in places)
    return int(2 * batch * size * prod(weight))


def _transposed(shapes: list[Any], inputs: list[Any]) -> int:
    """Each element of x meets the whole window of each output channel of its group."""
    x, weight = shapes[0], shapes[1]
    sides = len(weight) - 2
    batch = x[0] if len(x) == sides + 2 else 1
    return int(2 * batch * prod(x[-sides:]) * prod(weight))


def _attention(shapes: list[Any], inputs: list[Any]) -> int:
    """q (..., T, D), k (..., S, D), v (..., S, E): both products, whatever is masked."""
    q, k, v = shapes[:3]
    return _product(q, (*k[:-2], k[-1], k[-2])) + _product((*q[:-1], k[-2]), v)


def _einsum(shapes: list[Any], inputs: list[Any]) -> int:
    """Two operands, ["ij", "jk"]: each combination of indices is one multiplication and addition."""
    operands, indices = inputs[0], inputs[1]
    first, second = operands  # of one there is no product, of more the order decides
    sizes: dict[str, int] = {}
    for operand, letters in zip((first, second), indices, strict=True):
        for letter, size in zip(letters, operand.shape, strict=True):
            sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
    return 2 * prod(sizes.values())


FORMULAS: dict[str, Callable[[list[Any], list[Any]], int]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::matmul", "aten::mv", "aten::dot"), _of_product(0)),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm", "aten::addmv"), _of_product(1)),
    "aten::linear": _linear,
    "aten::convolution": _convolution,  # of one side and of three, too
    "aten::conv2d_input": _transposed,
    "aten::einsum": _einsum,
    "aten::scaled_dot_product_attention": _attention,
    **dict.fromkeys(("aten::add", "aten::mul"), _elementwise),
}
