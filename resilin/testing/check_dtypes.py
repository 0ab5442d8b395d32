"""The op tests that the registry generates for dtypes: an op computes in a dtype what its reference does, or says no.

Every sample is cast to every dtype of the library. An op that takes it must give the values that its reference gives of
the same numbers, up to the rounding of the dtype; an op that does not must name itself in its error.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.ops.registry import OPS, Op
from resilin.core.tensor import Tensor, wrap
from resilin.testing import check_ops, domains, references

# name -> largest relative and absolute error of one op, which may round some of its steps
TOLERANCES = {
    "bool": 1e-5,
    "uint8": 1e-5,
    "int8": 1e-5,
    "int16": 1e-5,
    "int32": 1e-5,
    "int64": 1e-5,
    "float16": 2e-2,
    "bfloat16": 1e-1,
    "float32": 2e-4,
    "float64": 1e-9,
    "complex64": 2e-4,
    "complex128": 1e-9,
}
_WITHOUT_NEGATIVE_INTEGERS = {"power"}  # numpy refuses what PyTorch rounds to 0
_BOOLEANS_BESIDE_NUMBERS = {"power"}  # refuses two booleans; one beside a number is int64
_FRACTIONS = {("resample", 0)}  # samples whose parameters are fractions, so that integers are refused
_REFUSALS = (TypeError, RuntimeError, NotImplementedError, ValueError)


def _cast(array: Any, dtype: Any) -> Any:
    """Numbers like those of `array` in `dtype`: whole ones (at most 6) for integers, their sign for bool."""
    if dtype.kind == "b":
        return np.asarray(array.real > 0)
    array = np.asarray(array)
    if dtype.kind in "iu":
        whole = np.rint(3 * array.real)
        return np.asarray(np.abs(whole) if dtype.kind == "u" else whole).astype(dtype)
    return array.astype(dtype) if dtype.kind == "c" or array.dtype.kind != "c" else None


def _sample(op: Op, number: int, dtype: Any) -> list[Any] | None:
    """A sample's arrays in `dtype`; None where the sample is complex and the dtype is not."""
    sample = check_ops.entered(op, check_ops.samples(op, as_complex=dtype.kind == "c" == op.takes[-1])[number])

    def cast(value: Any) -> Any:
        if op.name in _WITHOUT_NEGATIVE_INTEGERS and isinstance(value, Tensor) and dtype.kind == "i":
            return np.abs(_cast(value._array, dtype))
        if isinstance(value, list | tuple):
            return type(value)(cast(v) for v in value)
        if isinstance(value, Tensor) and value._array.dtype.kind in "fc":
            return _cast(value._array, dtype)
        return value._array if isinstance(value, Tensor) else value

    tensors = op.n if op.n >= 0 else 1
    found = [cast(value) for value in sample[:tensors]]
    if any(f is None and isinstance(v, Tensor) for f, v in zip(found, sample, strict=False)):
        return None
    return [*found, *sample[tensors:]]


def _wrapped(value: Any, number: int, op: Op) -> Any:
    if isinstance(value, list):
        return [wrap(v) for v in value]
    return wrap(value) if isinstance(value, np.ndarray) and number < abs(op.n) else value


def _wide(value: Any) -> Any:
    """The same numbers in 64 bits."""
    if isinstance(value, list):
        return [_wide(v) for v in value]
    if not isinstance(value, np.ndarray):
        return value
    return value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)


def claims(op: Op, dtype: Any) -> bool:
    """Whether the declaration says that the op is for the dtype."""
    kind = "f" if dtype.kind == "V" else dtype.kind
    return ("i" if kind == "u" else kind) in op.takes


def check_dtype(name: str, number: int, dtype_name: str) -> None:
    """In a dtype that it claims, the op gives what its reference gives; in another it says no, and names itself."""
    op, dtype = OPS[name], dtypes.by_name(dtype_name).np
    arrays = _sample(op, number, dtype)
    if arrays is None or (dtype.kind in "biu" and (name, number) in _FRACTIONS):
        return
    if dtype.kind == "b" and name in _BOOLEANS_BESIDE_NUMBERS and not isinstance(arrays[1], np.ndarray):
        return
    what = f"{op} sample {number} in {dtype_name}"
    given = [_wrapped(value, i, op) for i, value in enumerate(arrays)]
    if not claims(op, dtype):
        _check_refusal(op, given, what)
        return
    try:
        with warnings.catch_warnings(action="ignore", category=np.exceptions.ComplexWarning):  # of astype
            found = op.call(*given)
    except _REFUSALS:
        if op.dtypes == "full" and dtype == np.float16:
            return  # LAPACK and numpy's transforms have none
        raise
    outs = found if isinstance(found, tuple) else (found,)
    whole = all(out._array.dtype.kind in "iub" for out in outs)
    tensors = abs(op.n)
    given = arrays if whole else [*map(_wide, arrays[:tensors]), *arrays[tensors:]]
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore", category=np.exceptions.ComplexWarning):
        expected = references.find(name)(*given)
    leave = domains.of(name).leave
    made = tuple(wrap(np.asarray(e)) for e in expected) if isinstance(expected, tuple) else wrap(np.asarray(expected))
    plain = tuple(wrap(_wide(out._array)) for out in outs)
    left = leave(plain if isinstance(found, tuple) else plain[0])
    check_ops.compare(op, left, check_ops.to_arrays(leave(made)), TOLERANCES[dtype_name], what)


def _check_refusal(op: Op, given: list[Any], what: str) -> None:
    try:
        op.call(*given)
    except _REFUSALS as error:
        if op.name not in str(error):
            raise AssertionError(f"{what}: the error does not name the op: {error!r}") from error
    else:
        raise AssertionError(f"{what}: the op does not claim the dtype, and nothing was raised")
