"""The op tests that the registry generates: every declared op on every sample, by its facts.

`cases()` lists them for pytest's parametrize; `check_*` run one. The forward is compared with the declared reference,
the gradient and the gradient's gradient with finite differences along random directions in float64 (complex128 where
the op claims it), every fused kernel with its declared form, 16-bit floats with float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from resilin.core.autograd.gradcheck import check_direction, first_derivative
from resilin.core.device import NUMPY_XP
from resilin.core.ops.registry import OPS, Op
from resilin.core.tensor import Tensor, wrap
from resilin.testing import domains


class Maker:
    """Draws sample arrays: `r(3, 4)`, `r(3, low=0.5, high=2)`, `r(3, complex=True)`."""

    def __init__(self, dtype: Any, as_complex: bool = False, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._dtype = np.dtype(dtype)
        self._complex = as_complex

    def __call__(self, *shape: int, low: float = -2.0, high: float = 2.0, complex: bool = False) -> Tensor:
        values = self._random.uniform(low, high, shape)
        if complex or self._complex:
            values = values + 1j * self._random.uniform(-0.5, 0.5, shape)
            return wrap(np.asarray(values, np.complex128))
        return wrap(np.asarray(values, self._dtype))


def samples(op: Op, dtype: Any = np.float64, as_complex: bool = False) -> list[tuple[Any, ...]]:
    """The op's sample arguments."""
    return [] if op.samples is None else op.samples(Maker(dtype, as_complex))


def cases(*, gradients: bool = False, complex_only: bool = False) -> Iterator[tuple[str, int]]:
    """(op name, sample number) of all ops, of those with gradients, or of those that claim complex gradients."""
    for name, op in sorted(OPS.items()):
        if gradients and not (op.differentiable and op.order > 0):
            continue
        if complex_only and not op.complex:
            continue
        for number in range(len(samples(op))):
            yield name, number


def _split(op: Op, sample: tuple[Any, ...]) -> tuple[list[Tensor], Any]:
    """The tensors of a sample that can have gradients, and the op as a function of them."""
    nested = op.n < 0
    slots = list(sample[0]) if nested else list(sample[: op.n])
    rest = sample[1:] if nested else sample[op.n :]
    places = [i for i, value in enumerate(slots) if isinstance(value, Tensor)]

    domain = domains.of(op.name)

    def call(*given: Tensor) -> Any:
        values = list(slots)
        for place, value in zip(places, given, strict=True):
            values[place] = value
        if nested:
            return op.call(values, *rest)
        return domain.leave(op.call(domain.enter(values[0]), *values[1:], *rest))

    return [slots[i] for i in places], call


def to_arrays(value: Any) -> Any:
    """The arrays of a tensor, or of all tensors in a list or tuple; other values as they are."""
    if isinstance(value, Tensor):
        return value._array
    return type(value)(map(to_arrays, value)) if type(value) in (list, tuple) else value


def _tensor(value: Any) -> Tensor:
    return wrap(np.asarray(value))


def entered(op: Op, sample: tuple[Any, ...]) -> tuple[Any, ...]:
    """A sample whose first tensor is one that the op takes."""
    return (domains.of(op.name).enter(sample[0]), *sample[1:])


def compare(op: Op, found: Any, expected: Any, rtol: float, what: str) -> None:
    """AssertionError unless outputs (one or a tuple) have the shapes and, nearly, the values of `expected`."""
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for tensor, array in pairs:
        if tensor._array.shape != np.shape(array):
            raise AssertionError(f"{what}: shape {tensor._array.shape}, expected {np.shape(array)}")
        np.testing.assert_allclose(tensor._array, array, rtol=rtol, atol=rtol, err_msg=what)


# dtype, whether with an imaginary part, tolerance
FORWARD_DTYPES = ((np.float64, False, 1e-10), (np.float32, False, 2e-5), (np.float64, True, 1e-10))


def check_forward(name: str, number: int) -> None:
    """The op through the engine equals its reference (or its declared form) on plain arrays, whatever the dtype.

    In float32, in float64 and, where complex gradients are claimed, in complex128.
    """
    op = OPS[name]
    for dtype, as_complex, rtol in FORWARD_DTYPES[: 3 if op.complex and op.order else 2]:
        sample = entered(op, samples(op, dtype, as_complex)[number])
        arrays = [to_arrays(v) for v in sample]
        expected = op.reference(*arrays) if op.reference else op.generic.forward(NUMPY_XP, *op.bind(tuple(arrays), {}))
        found = op.call(*sample)
        compare(op, found, expected, rtol, f"{op} sample {number}")


def check_reference(name: str, number: int, reference: Any) -> None:
    """The op gives what `reference`, a function of numpy or scipy, gives of the same arrays in float64."""
    op = OPS[name]
    sample = entered(op, samples(op)[number])
    with np.errstate(all="ignore"):
        expected = reference(*(to_arrays(value) for value in sample))
    leave = domains.of(name).leave
    tensors = tuple(map(_tensor, expected)) if isinstance(expected, tuple) else _tensor(expected)
    compare(op, leave(op.call(*sample)), to_arrays(leave(tensors)), 1e-10, f"{op} sample {number}")


def check_gradient(name: str, number: int, order: int, as_complex: bool = False) -> None:
    """First (`order=1`) or second derivatives agree with finite differences along random directions."""
    op = OPS[name]
    if order > op.order:
        return
    tensors, call = _split(op, samples(op, as_complex=as_complex)[number])
    for tensor in tensors:
        tensor.requires_grad_()
    fn: Any = call if order == 1 else first_derivative(call, tensors)
    if order == 2:
        _check_recorded(op, fn, call, tensors)
    if any(out._array.size for out in ([call(*tensors)] if isinstance(call(*tensors), Tensor) else call(*tensors))):
        check_direction(fn, tensors, eps=1e-6, atol=1e-6, rtol=2e-5, seed=number)


def _check_recorded(op: Op, derivative: Any, call: Any, tensors: list[Tensor]) -> None:
    """With `create_graph` the rule runs on tensors: it gives what it gives on arrays, gradient by gradient."""
    plain = first_derivative(call, tensors, create_graph=False)
    for recorded, array in zip(derivative(*tensors), plain(*tensors), strict=True):
        np.testing.assert_allclose(
            recorded._array, array._array, rtol=1e-9, atol=1e-9, err_msg=f"{op}: recorded, not recorded"
        )


def check_layout(name: str, number: int, layout: str) -> None:
    """Arrays that lie in memory as `layout` says give the outputs and gradients of contiguous ones.

    In float64 and in float32, for which there are more kernels.
    """
    op, change = OPS[name], LAYOUTS[layout]
    for dtype, rtol in ((np.float64, 1e-10), (np.float32, 1e-4)):
        plain, changed = (_run_on(op, number, how, dtype) for how in (lambda array: np.array(change(array)), change))
        for found, expected in zip(changed, plain, strict=True):
            what = f"{op} sample {number}, {layout}, {np.dtype(dtype)}"
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol, err_msg=what)


def _spaced(array: Any) -> Any:
    wide = np.full((*array.shape, 2), -7, array.dtype)
    wide[..., 1] = array
    return wide[..., 1]


def _reversed(array: Any) -> Any:
    turn = (slice(None, None, -1),) * array.ndim
    return np.array(array[turn])[turn]


def _misaligned(array: Any) -> Any:
    raw = np.zeros(array.nbytes + 1, np.uint8)
    made = raw[1:].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def _read_only(array: Any) -> Any:
    made = np.array(array)
    made.flags.writeable = False
    return made


def _stretched(array: Any) -> Any:
    """One element along the last dimension, seen as many times as there were some."""
    return np.broadcast_to(array[..., :1], array.shape) if array.ndim else array


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "every second element": _spaced,
    "negative strides": _reversed,
    "Fortran's order": np.asfortranarray,
    "misaligned": _misaligned,
    "read-only": _read_only,
    "stride 0": _stretched,
}
# no numbers, or no gradients, where rows or columns are equal
_SINGULAR = (
    *("cholesky", "cofactors", "det", "eig", "eigh", "eigvals", "eigvalsh", "euclidean_distances", "inv", "lstsq"),
    "row_distances",
    *("lu_packed", "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals"),
)


def layouts(name: str) -> list[str]:
    """Those in which an op's arrays may lie; as_strided is about the memory itself."""
    if name == "as_strided":
        return []
    return [layout for layout in LAYOUTS if layout != "stride 0" or name not in _SINGULAR]


def _run_on(op: Op, number: int, change: Any, dtype: Any) -> list[Any]:
    """Outputs and gradients of a sample whose arrays went through `change`."""
    tensors, call = _split(op, samples(op, dtype)[number])
    graded = op.differentiable and op.order > 0
    given = [wrap(change(t._array)).requires_grad_(graded and t._array.dtype.kind in "fc") for t in tensors]
    found = call(*given)
    outs = list(found) if isinstance(found, tuple) else [found]
    for out in outs:
        if out.requires_grad:
            out.backward(wrap(np.ones(out._array.shape, out._array.dtype)), retain_graph=True)
    return [t._array for t in (*outs, *(t.grad for t in given if t.grad is not None))]


def check_memory(name: str, number: int) -> None:
    """What the op gives is memory of its own, unless it is a view of the input and says so."""
    op = OPS[name]
    tensors, call = _split(op, samples(op)[number])
    found = call(*tensors)
    for out in found if isinstance(found, tuple) else (found,):
        shared = any(np.shares_memory(out._array, tensor._array) for tensor in tensors if tensor._array.size)
        if shared and not (op.view and out._view is not None):
            raise AssertionError(f"{op} sample {number}: the result lies in an input's memory, and is no view")


SIZES = (0, 1, 31, 33, 4097)  # none, less than a vector register, beside its multiples, more than one block


def check_sizes(name: str) -> None:
    """An elementwise op treats every element alike, whatever their number: the first sample's, again and again."""
    op = OPS[name]
    tensors, call = _split(op, samples(op)[0])
    arrays = np.broadcast_arrays(*(t._array for t in tensors))
    expected = call(*tensors)._array.reshape(-1)
    for size in SIZES:
        found = call(*(wrap(np.resize(array, size)) for array in arrays))._array
        np.testing.assert_allclose(found, np.resize(expected, size), rtol=1e-12, err_msg=f"{op} of {size} elements")
    point = call(*(wrap(np.asarray(array.reshape(-1)[0])) for array in arrays))._array
    if point.shape != ():
        raise AssertionError(f"{op} of zero dimensions: shape {point.shape}")
    np.testing.assert_allclose(point, expected[0], rtol=1e-12, err_msg=f"{op} of zero dimensions")


def check_broadcast(name: str) -> None:
    """An elementwise op on two tensors stretches them as numpy does, and sums the gradients back."""
    op = OPS[name]
    a, b = _operands(op)
    for x, y in ((a[:, :1], b[0]), (a[0, 0], b), (a[:, 0], b[:1, :1]), (a[:0, :1], b[0]), (a[:, :1], b[:1])):
        full = [wrap(np.array(array)) for array in np.broadcast_arrays(x, y)]
        small = [wrap(np.array(x)), wrap(np.array(y))]
        for tensor, sample in zip((*full, *small), samples(op)[0][:2] * 2, strict=True):
            tensor.requires_grad_(op.differentiable and isinstance(sample, Tensor))  # arrays: constants to the op
        found, expected = op.call(*small), op.call(*full)
        np.testing.assert_array_equal(found._array, expected._array, err_msg=f"{op}")
        if op.differentiable:
            found.sum().backward()
            expected.sum().backward()
            for one, other in zip(small, full, strict=True):
                if other.grad is not None and one.grad is not None:
                    total = _summed(other.grad._array, one._array.shape)
                    np.testing.assert_allclose(one.grad._array, total, rtol=1e-9, atol=1e-12, err_msg=f"{op}")
                elif other.grad is not one.grad:
                    raise AssertionError(f"{op}: only one of stretched and full operands has a gradient")


def _operands(op: Op) -> tuple[Any, Any]:
    """Two arrays of shape (3, 4) with the values of the first sample."""
    a, b = (np.resize(to_arrays(value), (3, 4)) for value in samples(op)[0][:2])
    return a, b


def _summed(array: Any, shape: tuple[int, ...]) -> Any:
    """`array`, summed over the dimensions that broadcasting stretched from `shape`."""
    array = array.sum(axis=tuple(range(array.ndim - len(shape))))
    stretched = tuple(i for i, n in enumerate(shape) if n == 1)
    return array.sum(axis=stretched, keepdims=True)


def check_refusals(name: str) -> None:
    """An elementwise op names itself and what it got when it is given no tensor, or shapes that do not fit."""
    op = OPS[name]
    tensors, call = _split(op, samples(op)[0])
    _expect(TypeError, [op.name], call, *["no tensor"] * len(tensors))
    if op.n == 2:
        a, b = _operands(op)
        _expect(RuntimeError, [op.name, "(2, 3)", "(4,)"], op.call, wrap(a[:2, :3]), wrap(b[0]))


def _expect(kind: type[Exception], words: list[str], call: Any, *args: Any) -> None:
    try:
        call(*args)
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        if missing:
            raise AssertionError(f"the error says {str(error)!r}, without {missing}") from error
    else:
        raise AssertionError(f"{words[0]}: expected {kind.__name__}, nothing was raised")


def check_override(name: str, number: int, device_type: str = "cpu") -> None:
    """The fused kernel and the declared form give the same output and gradients in float32."""
    op = OPS[name]
    results = []
    kept = op.impls.pop(device_type)
    try:
        results.append(_run(op, number))
    finally:
        op.impls[device_type] = kept
    results.append(_run(op, number))
    for plain, fused in zip(*results, strict=True):
        np.testing.assert_allclose(fused, plain, rtol=1e-4, atol=1e-5, err_msg=f"{op} sample {number}")


def _run(op: Op, number: int) -> list[Any]:
    tensors, call = _split(op, samples(op, np.float32)[number])
    for tensor in tensors:
        tensor.requires_grad_()
    found = call(*tensors)
    outs = found if isinstance(found, tuple) else (found,)
    random = np.random.default_rng(number)
    for out in outs:
        out.backward(wrap(random.standard_normal(out._array.shape).astype(out._array.dtype)), retain_graph=True)
    return [*(out._array for out in outs), *(t.grad._array for t in tensors if t.grad is not None)]


def check_half(name: str, number: int, half: Any) -> None:
    """On inputs of a 16-bit float dtype the op gives what it gives in float32, in the narrow dtype; so do its rules."""
    op = OPS[name]
    narrow, wide = (_run_on_rounded(op, number, half, dtype) for dtype in (half, np.dtype(np.float32)))
    for found, expected in zip(narrow, wide, strict=True):
        target = half if expected.dtype == np.float32 else expected.dtype
        if found.dtype != target:
            raise AssertionError(f"{op} sample {number}: {half} gives {found.dtype}, expected {target}")
        if expected.dtype == np.float32:
            found = found.astype(np.float32)
        # rules and some kernels round in between, more than once
        np.testing.assert_allclose(found, expected, rtol=0.1, atol=0.1, err_msg=f"{op} sample {number}")


def _run_on_rounded(op: Op, number: int, half: Any, dtype: Any) -> list[Any]:
    """Outputs and gradients in `dtype` for a sample whose numbers the narrow dtype `half` can hold."""
    tensors, call = _split(op, samples(op, np.float32)[number])
    graded = op.differentiable and op.order > 0
    given = [wrap(t._array.astype(half).astype(dtype)) if t.is_floating_point() else t for t in tensors]
    for tensor in given:
        tensor.requires_grad_(graded and tensor.is_floating_point())
    found = call(*given)
    outs = list(found) if isinstance(found, tuple) else [found]
    random = np.random.default_rng(number)
    for out in outs:
        if out.requires_grad and out.is_floating_point():
            g = random.uniform(-1, 1, out._array.shape).astype(half)
            out.backward(wrap(g.astype(out._array.dtype)), retain_graph=True)
    return [t._array for t in (*outs, *(t.grad for t in given if t.grad is not None))]
